"""Runs by a plan that end badly, on threads: the error names the culprit, and nothing is left behind.

What only processes can do (die, be stopped, lose their parent) is in test_ends_of_processes.py.
"""

from __future__ import annotations

import os
import re
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from ends import NUM_ROWS, read_job, write_job
from tiny import write_tiny

from heterps.checkpoint import load_latest
from heterps.cli import main
from heterps.errors import ConfigError, DataError, ModelError, NotFinite, StorageError
from heterps.launch import train
from heterps.training.run.observer import Observer

pytestmark = pytest.mark.usefixtures("no_leaks", "in_its_folder")


class Signals(Observer):
    """Sends this process signals when something happens the first time."""

    def __init__(self, when: str, *numbers: signal.Signals) -> None:
        self.when, self.numbers, self.warnings = when, list(numbers), []

    def happened(self, what: str) -> None:
        if what == self.when:
            while self.numbers:
                os.kill(os.getpid(), self.numbers.pop(0))

    def waiting(self, what: str) -> None:
        self.happened(f"waiting: {what}")

    def stepped(self, samples: int, seconds: float, loss: float, interval: object) -> None:
        self.happened(f"stepped {samples}")

    def saved(self, path: str, seconds: float) -> None:
        self.happened("saved")

    def evaluating(self, samples: int) -> None:
        self.happened("evaluating")

    def warned(self, message: str) -> None:
        self.warnings.append(message)


# --- signals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "when", "at_most"),
    [
        (signal.SIGINT, "waiting: starting 2 workers", 0),
        (signal.SIGINT, "stepped 64", 96),
        (signal.SIGTERM, "stepped 64", 96),
        # Training goes on while the checkpoint at 96 is written, until the one at 192 is due: that waits for it.
        (signal.SIGTERM, "saved", 192 + 16),
        (signal.SIGINT, "evaluating", NUM_ROWS),
    ],
)
def test_a_signal_saves_and_resuming_ends_as_if_it_had_never_come(
    tmp_path: Path, number: signal.Signals, when: str, at_most: int
) -> None:
    job = read_job(tmp_path, checkpoint={"every_samples": 96})
    whole = train(job, tmp_path / "whole").summary
    stopped = train(job, tmp_path / "run", observer=Signals(when, number)).summary
    assert stopped["status"] == f"stopped by {number.name}"
    assert stopped["metrics_of"] == "train"
    assert stopped["samples"] <= at_most
    assert load_latest(tmp_path / "run" / "checkpoints").samples == stopped["samples"]
    resumed = train(job, tmp_path / "run", resume=True).summary
    assert (resumed["status"], resumed["samples"]) == ("completed", NUM_ROWS)
    assert resumed["auc"] == pytest.approx(whole["auc"], rel=1e-6)


@pytest.mark.parametrize("when", ["waiting: starting 2 workers", "stepped 64", "saved", "evaluating"])
def test_a_second_interrupt_ends_it_at_once_and_a_third_changes_nothing(tmp_path: Path, when: str) -> None:
    job = read_job(tmp_path, checkpoint={"every_samples": 96})
    with pytest.raises(KeyboardInterrupt):
        train(job, tmp_path / "run", observer=Signals(when, signal.SIGINT, signal.SIGINT, signal.SIGINT))
    assert not (tmp_path / "run" / "summary.json").exists()
    assert train(job, tmp_path / "run", resume=True).summary["samples"] == NUM_ROWS


# --- user code -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", ["bsp", "asp"])
@pytest.mark.parametrize(
    ("how", "kind", "words"),
    [
        (
            "raises",
            ModelError,
            r"Net failed in stage 2 on micro-batch \(3, 0\): ValueError: the third batch is too much",
        ),
        ("nan", NotFinite, r"the loss of micro-batch \(3, 0\) in stage 2 is nan"),
        ("exits", ModelError, r"code of the model called sys.exit\(0\)"),
    ],
)
def test_an_error_in_a_layer_names_worker_and_stage(
    tmp_path: Path, how: str, kind: type[Exception], words: str, sync: str
) -> None:
    with pytest.raises(kind, match=rf"^worker-2\.0: .*{words}") as raised:
        train(read_job(tmp_path, how, sync=sync), tmp_path / "run")
    assert type(raised.value) is kind
    log = (tmp_path / "run" / "logs" / "worker-2.0.log").read_text()
    assert "Traceback" in log
    if how == "raises":
        assert f"{tmp_path}/run/logs/worker-2.0.log shows the line" in str(raised.value)
        assert 'raise ValueError("the third batch is too much")' in log


def test_a_factory_that_fails_in_workers_only_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"^worker-[12]\.0: .* the factory raised RuntimeError: no licence here"):
        train(read_job(tmp_path, "raises_in_worker"), tmp_path / "run")


def test_the_command_shows_an_error_without_a_traceback_and_leaves_with_its_code(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["train", str(write_job(tmp_path, "raises")), "--run", "run"])
    assert left.value.code == ModelError.exit_code
    shown = capfd.readouterr()
    assert "error: worker-2.0: Net failed in stage 2" in shown.err
    assert "Traceback" not in shown.err + shown.out


def test_what_user_code_prints_disturbs_nothing(tmp_path: Path) -> None:
    assert train(read_job(tmp_path, chatter=200_000), tmp_path / "run").summary["status"] == "completed"
    assert not (tmp_path / "run" / "logs").exists(), "threads print where this process does"


# --- data ------------------------------------------------------------------------------------------------------------


def _bad_label(path: Path) -> str:
    write_tiny(path, NUM_ROWS, label=[row % 2 if row != 333 else 7 for row in range(NUM_ROWS)])
    return r"train\.parquet.*row 333.*label"


def _broken_row_group(path: Path) -> str:
    write_tiny(path, NUM_ROWS)
    column = pq.ParquetFile(path).metadata.row_group(5).column(0)
    first = min(filter(None, (column.dictionary_page_offset, column.data_page_offset)))
    content = bytearray(path.read_bytes())
    content[first : first + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    path.write_bytes(content)
    return r"train\.parquet.*row group 5"


@pytest.mark.parametrize("spoil", [_bad_label, _broken_row_group])
def test_bad_data_in_the_middle_is_an_error_that_says_where(tmp_path: Path, spoil: Callable[[Path], str]) -> None:
    job = read_job(tmp_path)
    where = spoil(tmp_path / "train.parquet")
    with pytest.raises(DataError) as raised:
        train(job, tmp_path / "run")
    assert str(raised.value).startswith("worker-1.0: "), "stage 1 reads"
    assert re.search(where, str(raised.value)), raised.value


# --- starts that fail ------------------------------------------------------------------------------------------------


def test_a_device_that_is_missing_ends_the_run_before_it_starts_or_in_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_job(tmp_path)
    path.write_text(path.read_text().replace("big: {device: cpu", "big: {device: cuda"))
    with pytest.raises(ConfigError, match="the plan runs on big, and this machine has no such device"):
        train(path, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr("heterps.launch.by_plan.lacks_devices", lambda *_: [])
    with pytest.raises(ConfigError, match=r"^worker-2\.0: torch has no device 'cuda' on this machine"):
        train(path, tmp_path / "run")


def test_a_server_that_cannot_be_made_is_an_error_of_its_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_disk(*_: object, **__: object) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr("heterps.launch.run_servers.Server", no_disk)
    with pytest.raises(StorageError, match="the disk is full"):
        train(read_job(tmp_path), tmp_path / "run")


def test_a_folder_for_sockets_that_cannot_be_made_is_a_storage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
        with pytest.raises(StorageError, match=r"no folder for the sockets .*missing.* Set TMPDIR"):
            train(read_job(tmp_path), tmp_path / "run")


def test_a_folder_for_sockets_with_too_long_a_path_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 90)
    long.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(long))
        with pytest.raises(ConfigError, match=r"at most 107 bytes\. Set TMPDIR to a shorter folder, such as /tmp"):
            train(read_job(tmp_path, channel="ipc"), tmp_path / "run")
    assert not list(long.iterdir())


# --- deadlines and disks ---------------------------------------------------------------------------------------------


class FullDisk(Observer):
    """The disk is full until the first warning."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.warnings: list[str] = []
        from heterps.training.run import folder as run_folder

        save = run_folder.begin_save

        def refuse(*args: object, **options: object) -> Callable[[], Path]:
            if not self.warnings:
                raise StorageError("no space left on device")
            return save(*args, **options)

        monkeypatch.setattr(run_folder, "begin_save", refuse)

    def warned(self, message: str) -> None:
        self.warnings.append(message)


def test_a_disk_that_is_full_at_a_checkpoint_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    observer = FullDisk(monkeypatch)
    job = read_job(tmp_path, checkpoint={"every_samples": 96})
    summary = train(job, tmp_path / "run", observer=observer).summary
    assert (summary["status"], summary["samples"]) == ("completed", NUM_ROWS)
    assert len(observer.warnings) == 1
    assert re.fullmatch(
        r"the checkpoint at \d+ samples failed, training goes on\. no space left on device", observer.warnings[0]
    )
    assert load_latest(tmp_path / "run" / "checkpoints").samples == NUM_ROWS


def test_a_disk_that_is_full_at_the_end_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FullDisk(monkeypatch)
    with pytest.raises(StorageError, match="no space left on device"):
        train(read_job(tmp_path), tmp_path / "run")
