"""Servers without mirrors that hang: noticed by their silence, and named; the run goes on from its last checkpoint."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from ends import assert_same_tables, uses_of_rows
from test_replaced_workers import BATCH, EPOCHS, NUM_ROWS, changed, job
from test_restarted_runs import Killer

from heterps.checkpoint import load_latest
from heterps.config import Job, Servers
from heterps.errors import PeerLost
from heterps.launch import train
from heterps.processes import Child

__all__ = ["job"]  # a fixture
pytestmark = pytest.mark.usefixtures("no_leaks", "in_its_folder")
SILENCE_S, NOTICED_S = 3.0, 7.0
"""The second is the first with the second for which others are heard, and what a busy machine may add."""


class Stops(Killer):
    """Stops a process once, and notes for how long nobody noticed."""

    def __init__(self, children: dict[str, list[Child]], name: str, at: int) -> None:
        super().__init__(lambda: self._stop(children[name][-1].pid), at)
        self.noticed_s = 0.0

    def _stop(self, pid: int) -> None:
        self.noticed_s = -time.monotonic()
        os.kill(pid, signal.SIGSTOP)

    def warned(self, message: str) -> None:
        super().warned(message)
        self.noticed_s += time.monotonic()


def test_a_server_that_hangs_is_named_in_time_and_the_run_goes_on_from_its_last_checkpoint(
    tmp_path: Path, job: Job, children: dict[str, list[Child]]
) -> None:
    stops = Stops(children, "server-1", 8 * BATCH)
    servers = {"count": 2, "silence_s": SILENCE_S}
    hung = changed(
        job, servers=servers, checkpoint={"every_samples": 3 * BATCH}, workers={"channel": "ipc", "restarts": 1}
    )
    done = train(hung, "run", observer=stops).summary
    (warning,) = stops.warnings
    assert warning == (
        "server-1 has not answered for 3 s. The job goes on from its last checkpoint, at 96 samples: restart 1 of 1"
    )
    assert SILENCE_S - 0.5 < stops.noticed_s < NOTICED_S
    assert stops.starts == [0, 96]
    assert (done["status"], done["samples"], done["restarts"]) == ("completed", EPOCHS * NUM_ROWS, 1)
    assert uses_of_rows(NUM_ROWS, tmp_path / "run") == [EPOCHS] * NUM_ROWS
    train(changed(job, workers={"channel": "memory"}, servers={"count": 2}), "clean")
    assert_same_tables(load_latest("run/checkpoints"), load_latest("clean/checkpoints"))


@pytest.mark.parametrize("launcher", ["inline", "local"])
def test_without_restarts_the_run_ends_with_the_name_of_a_server_that_hangs(
    job: Job, children: dict[str, list[Child]], launcher: str
) -> None:
    stops = Stops(children, "server-0", 8 * BATCH)
    began = time.monotonic()
    with pytest.raises(PeerLost, match="server-0 has not answered for 3 s"):
        train(
            changed(job, launcher=launcher, servers={"count": 1, "silence_s": SILENCE_S}, workers={"channel": "ipc"}),
            "run",
            observer=stops,
        )
    assert time.monotonic() - began < Servers().longest_silence_s
    assert not children["server-0"][-1].is_running


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"silence_s": 60.0}, "silence_s: .* before others give up after deadline_s, 60 s"),
        ({"silence_s": 1.0, "channel": "memory"}, "silence_s is for servers that the run starts as processes"),
    ],
)
def test_a_silence_that_nobody_can_notice_is_refused(job: Job, fields: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        changed(job, servers=fields)
