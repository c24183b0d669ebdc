"""Server processes with mirrors that are killed or stopped while a run goes on: nothing is lost, nobody goes back."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
from command import processes_of
from ends import assert_same_tables, command, is_training, uses_of_rows, wait_until
from test_replaced_workers import BATCH, EPOCHS, NUM_ROWS, SLOW_S, Watcher, changed, job
from test_restarted_runs import Killer

from heterps.checkpoint import load_latest
from heterps.config import Job
from heterps.errors import ConfigError
from heterps.launch import train
from heterps.processes import Child

__all__ = ["job"]  # a fixture
pytestmark = pytest.mark.usefixtures("no_leaks", "in_its_folder")
FIRST = 8
"""Batches before the first loss: mirrors have all by then, since steps are slow until there is one."""


class Losses(Watcher):
    """Slow until there is a loss, and until every server has a mirror again."""

    def stepped(self, *args: object) -> None:
        if not self.warnings:
            time.sleep(SLOW_S / 2)
        super().stepped(*args)
        if self.warnings and not any("has a mirror again" in change for change in self.changes):
            time.sleep(SLOW_S)


def mirrored(job: Job, **fields: object) -> Job:
    return changed(job, servers={"replicas": 1, "count": 2, "deadline_s": 6.0}, **fields)


@pytest.mark.parametrize(
    ("sync", "victim"),
    [
        ("bsp", "server-0"),
        ("bsp", "server-1.1"),
        ("ssp:2", "server-1"),
        *(pytest.param(sync, "server-0", marks=pytest.mark.slow) for sync in ("asp", "dssp")),
    ],
)
def test_a_server_or_mirror_that_is_killed_loses_nothing(
    tmp_path: Path, job: Job, children: dict[str, list[Child]], sync: str, victim: str
) -> None:
    losses = Losses(lambda: os.kill(children[victim][-1].pid, signal.SIGKILL), FIRST * BATCH)
    done = train(mirrored(job, sync=sync), "run", observer=losses).summary
    (warning,) = losses.warnings
    assert warning.startswith(f"{victim} (process ")
    assert "SIGKILL" in warning
    number = victim[7]
    if victim.endswith(".1"):
        assert warning.endswith(f"It mirrored server-{number}, which goes on alone until it has another mirror")
    else:
        assert warning.endswith(f"Its mirror server-{number}.1 takes over")
        assert f"server-{number}.1 has taken the place of server-{number} after" in losses.changes[0]
    assert "has a mirror again after" in losses.changes[-1]
    assert losses.starts == [0], "nobody began again"
    assert (done["status"], done["samples"]) == ("completed", EPOCHS * NUM_ROWS)
    assert (done["restarts"], done["recoveries"], done["repeated_samples"]) == (0, 1, 0)
    events = [json.loads(line) for line in Path("run/events.jsonl").read_text().splitlines()]
    assert (events[0]["event"], events[0]["text"]) == ("warned", warning)
    assert uses_of_rows(NUM_ROWS, tmp_path / "run") == [EPOCHS] * NUM_ROWS
    if sync == "bsp":
        clean = train(changed(job, sync=sync, workers={"channel": "memory"}, servers={"count": 2}), "clean").summary
        assert_same_tables(load_latest("run/checkpoints"), load_latest("clean/checkpoints"))
        assert (done["log_loss"], done["auc"]) == (clean["log_loss"], clean["auc"])


@pytest.mark.parametrize("victim", ["server-0", "server-0.1"])
def test_one_that_stops_and_comes_back_after_it_was_replaced_changes_nothing(
    tmp_path: Path, job: Job, children: dict[str, list[Child]], monkeypatch: pytest.MonkeyPatch, victim: str
) -> None:
    """A stop of half a second is no loss. A longer one is; the process is left alive here, and goes on."""

    def stop(name: str) -> None:
        os.kill(children[name][-1].pid, signal.SIGSTOP)

    def brief() -> None:
        stop(victim)
        time.sleep(0.5)
        os.kill(children[victim][-1].pid, signal.SIGCONT)

    def for_good() -> None:
        stop(victim)
        monkeypatch.setattr(children[victim][-1], "close", lambda: None)

    class Stops(Losses):
        def changed(self, what: str) -> None:
            super().changed(what)
            os.kill(children[victim][-1].pid, signal.SIGCONT)

    hits = iter([brief, for_good])
    stops = Stops(lambda: next(hits)(), 4 * BATCH, FIRST * BATCH)
    try:
        done = train(mirrored(job), "run", observer=stops).summary
        assert children[victim][-1].is_running, "it lives, and was not listened to"
    finally:
        Child.close(children[victim][-1])
    assert stops.warnings[0].startswith(f"{victim} has not answered for 3 s. It")
    assert (done["samples"], done["restarts"], done["recoveries"]) == (EPOCHS * NUM_ROWS, 0, 1)
    train(changed(job, workers={"channel": "memory"}, servers={"count": 2}), "clean")
    assert_same_tables(load_latest("run/checkpoints"), load_latest("clean/checkpoints"))


def test_a_server_that_is_lost_with_its_mirror_ends_the_run_or_restarts_it(
    tmp_path: Path, job: Job, children: dict[str, list[Child]]
) -> None:
    def kill() -> None:
        for name in ("server-0", "server-0.1"):
            os.kill(children[name][-1].pid, signal.SIGKILL)

    losses = Killer(kill, FIRST * BATCH)
    job = mirrored(job, workers={"restarts": 1}, checkpoint={"every_samples": 3 * BATCH})
    job = changed(job, servers=job.servers.model_dump() | {"deadline_s": 60.0})  # nothing here is found by silence
    done = train(job, "run", observer=losses).summary
    assert any("The job goes on from its last checkpoint, at 96 samples" in warning for warning in losses.warnings)
    assert losses.starts == [0, 96]
    assert (done["samples"], done["restarts"]) == (EPOCHS * NUM_ROWS, 1)
    assert uses_of_rows(NUM_ROWS, tmp_path / "run") == [EPOCHS] * NUM_ROWS


def test_through_the_command_line_killed_servers_are_told_in_a_line_and_counted(tmp_path: Path, job: Job) -> None:
    epochs = 120
    data = job.data.model_dump(mode="json") | {"epochs": epochs}
    (tmp_path / "long.yaml").write_text(mirrored(job, data=data).model_dump_json(exclude_none=True))
    run = tmp_path / "run"
    with command(tmp_path / "long.yaml", run) as process:
        wait_until(lambda: is_training(run, process) and num_lines(run) > 40, "the run trains, and mirrors have all")
        server_0, _, _, mirror_of_1 = processes_of(process.pid, "server_process")
        os.kill(server_0, signal.SIGKILL)
        os.kill(mirror_of_1, signal.SIGKILL)
        code = process.wait(100)
    words = " ".join((tmp_path / "run.txt").read_text().split())
    assert code == 0, words
    assert re.search(r"SIGKILL\); it was last heard of \d\.\d s before\. Its mirror server-0\.1 takes over", words)
    assert re.search(
        r"SIGKILL\); it was last heard of \d\.\d s before\. It mirrored server-1, which goes on alone", words
    )
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["samples"], summary["recoveries"], summary["restarts"]) == (epochs * NUM_ROWS, 2, 0)
    assert 0 < summary["log_loss"] < 1, "of the test set"
    assert "takes over" in (run / "report.html").read_text()
    assert uses_of_rows(NUM_ROWS, run) == [epochs] * NUM_ROWS


def num_lines(run: Path) -> int:
    return (run / "metrics.jsonl").read_text().count("\n")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"launcher": "inline"}, "the inline launcher starts no mirrors of servers"),
        ({"workers": {"channel": "memory"}}, "with workers.channel memory servers are threads"),
    ],
)
def test_mirrors_are_refused_where_nobody_starts_them(job: Job, fields: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        train(mirrored(job, **fields), "run")
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("servers", "words"),
    [
        ({"addresses": ["ipc:///tmp/a"]}, "mirrors are for servers that the run starts"),
        ({"channel": "memory"}, "servers as threads .* all end with this process"),
        ({"replicas": 2}, "Input should be 0 or 1"),
    ],
)
def test_mirrors_are_for_servers_that_the_run_starts_as_processes(
    job: Job, servers: dict[str, object], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        changed(job, servers={"replicas": 1, **servers})
