"""Training goes on while a checkpoint is written, and the checkpoint is still that of one moment, to the bit."""

from __future__ import annotations

import json
import threading
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from command import heterps_here
from tiny import JOB, write_tiny

from heterps import background
from heterps.checkpoint import Snapshot, load
from heterps.checkpoint.row_folder import RowFolder
from heterps.errors import StorageError
from heterps.ps.table import frozen
from heterps.training.worker.stage_work import StageWork

SAVING = "checkpoint: {every_samples: 96, keep: 20, full_every: FULL}\n"
ON_THREADS = "launcher: local\nworkers: {channel: memory}\nservers: {count: 2, channel: memory}\n"
KINDS = {
    "in this process": "",
    "on servers": ON_THREADS,
    "on servers, with eviction": ON_THREADS + "tables: {eviction: {max_age: 3}}\n",
    "with tiers": "tiers: {memory_bytes: 30000}\n",
}


class SlowDisk:
    """Writing rows takes until training has made some more steps, where it can."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, fails: int | None = None) -> None:
        self.num_steps = self.num_overlapped = self.num_written = 0
        self._fails, self._stepped = fails, threading.Condition()
        write, run = RowFolder.write, StageWork.run

        def slow(files, path, parts, num_rows, widths):
            self.num_written += 1
            if self.num_written == self._fails:
                raise StorageError("the disk is full")
            return write(files, path, self._slowly(parts), num_rows, widths)

        def step(work, turn):
            with self._stepped:
                self.num_steps += 1
                self._stepped.notify_all()
            return run(work, turn)

        monkeypatch.setattr(RowFolder, "write", slow)
        monkeypatch.setattr(StageWork, "run", step)
        monkeypatch.setattr(frozen, "PART_ROWS", 8)

    def _has_made(self, num_steps: int) -> bool:
        return self.num_steps >= num_steps

    def _slowly(self, parts):
        for number, part in enumerate(parts):
            yield part
            if number == 0 and threading.current_thread() is not threading.main_thread():
                with self._stepped:
                    wanted = self.num_steps + 2
                    self.num_overlapped += self._stepped.wait_for(partial(self._has_made, wanted), 0.5)


@pytest.fixture
def job(tmp_path: Path):
    def write(name: str, more: str, full_every: int = 1) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        write_tiny(folder / "train.parquet", 640, s=(np.arange(640) // 3).tolist())
        write_tiny(folder / "test.parquet", 50)
        (folder / "job.yaml").write_text(JOB + SAVING.replace("FULL", str(full_every)) + more)
        return folder

    return write


def train(folder: Path, *words: str) -> str:
    done = heterps_here("train", "job.yaml", "--run", "run", *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def at_once(work, name):
    """Instead of `background.start`: nothing else happens meanwhile."""
    done: Future[object] = Future()
    try:
        done.set_result(work())
    except BaseException as error:
        done.set_exception(error)
    return done


def content(snapshot: Snapshot):
    tables = {}
    for name, table in snapshot.tables.items():
        rows = table.whole()
        arrays = rows.values, rows.state, rows.uses, rows.clock
        by_key = {int(key): tuple(a[i].tobytes() for a in arrays) for i, key in enumerate(rows.keys)}
        meta = {
            key: value for key, value in table.meta.items() if key != "num_rows"
        }  # only where there are changes only
        tables[name] = by_key, meta, {key: a.tobytes() for key, a in table.metadata.items()}
    dense = {name: array.tobytes() for name, array in snapshot.dense.items()}
    progress = {name: value for name, value in snapshot.progress.items() if name in ("leases", "order", "position")}
    return snapshot.clock, snapshot.samples, dense, tables, progress


@pytest.mark.parametrize(("kind", "full_every"), [*((kind, 1) for kind in KINDS), ("on servers, with eviction", 3)])
def test_a_checkpoint_has_one_moment_whatever_is_trained_while_it_is_written(
    job, monkeypatch: pytest.MonkeyPatch, kind: str, full_every: int
) -> None:
    still, moving = job("still", KINDS[kind], full_every), job("moving", KINDS[kind], full_every)
    with monkeypatch.context() as patch:
        patch.setattr(background, "start", at_once)
        train(still)
    disk = SlowDisk(monkeypatch)
    train(moving)
    assert disk.num_overlapped > 0 or kind == "with tiers", "training went on while rows were written"
    names = [sorted(path.name for path in (folder / "run" / "checkpoints").iterdir()) for folder in (still, moving)]
    assert names[0] == names[1]
    assert len(names[0]) == 7
    for name in names[0]:
        expected, found = (content(load(folder / "run" / "checkpoints" / name)) for folder in (still, moving))
        assert found == expected, name


def test_a_run_resumed_from_a_checkpoint_that_was_written_meanwhile_equals_one_never_stopped(
    job, monkeypatch: pytest.MonkeyPatch
) -> None:
    SlowDisk(monkeypatch)
    folder = job("run", KINDS["on servers, with eviction"], 2)
    train(folder)
    saved = sorted((folder / "run" / "checkpoints").iterdir())
    expected = content(load(saved[-1]))
    train(folder, "--resume", "--from", saved[2].name)
    assert content(load(saved[-1])) == expected, "those of a past that was given up are gone"


@pytest.mark.parametrize("kind", ["in this process", "on servers"])
def test_a_disk_that_is_full_while_training_goes_on_is_a_warning_and_the_next_checkpoint_is_whole(
    job, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    SlowDisk(monkeypatch, fails=3)
    folder = job("run", KINDS[kind], 3)
    printed = " ".join(train(folder).split())
    assert "samples failed, training goes on." in printed
    assert "the disk is full" in printed
    names = [int(path.name) for path in sorted((folder / "run" / "checkpoints").iterdir())]
    assert len(names) == 6, "all but the one that failed"
    assert json.loads((folder / "run" / "summary.json").read_text())["status"] == "completed"
    for path in (folder / "run" / "checkpoints").iterdir():
        load(path)
