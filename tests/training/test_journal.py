"""The journal of a coordinator: what is read from it is what was decided, whatever line it ends at."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps.config import Job
from heterps.data.leases import Leases
from heterps.data.reader import open_reader
from heterps.training.coordinator.journal import (
    FILE,
    BatchDone,
    Journal,
    JournalContents,
    ServerPlace,
    read_journal,
    write_journal,
)
from heterps.training.coordinator.positions import checkpoint_progress, first_leases
from heterps.training.protocol.layout import Layout, StageLayout
from heterps.training.protocol.messages import ALL_LANES, Go
from heterps.training.run.progress import RunProgress

PLACE = ServerPlace("/tmp/heterps-nowhere", {"servers": []})
BATCH = 16


def layout(num_lanes: int = 2, *, in_rounds: bool = False) -> Layout:
    workers = tuple(f"worker-1.{k}" for k in range(num_lanes))
    return Layout((StageLayout(0, 0, "cpu", workers),), num_lanes, in_rounds=in_rounds)


@pytest.fixture
def job(tiny_job: Path) -> Job:
    from heterps.config import load_job

    loaded = load_job(tiny_job)
    return loaded.model_copy(update={"data": loaded.data.model_copy(update={"epochs": 4}), "launcher": "local"})


class Coordinator:
    """What a coordinator does with its journal."""

    def __init__(self, job: Job, folder: Path, of: Layout, warnings: list[str] | None = None) -> None:
        self.job, self.of, self.reader = job, of, open_reader(job)
        self.progress = RunProgress(job, self.reader.num_rows)
        self.leases: Leases = first_leases(job, self.reader)
        self.clock = 0
        warn = (lambda _: None) if warnings is None else warnings.append
        self.journal = Journal(folder, 1, "digest", PLACE, warn)

    def begin(self) -> None:
        told = checkpoint_progress(self.job, self.leases, self.reader, self.progress.state(), 0.5)
        self.journal.begin(self.of, self.clock, self.progress, told)

    def go(self, lane: int, iteration: int) -> Go:
        lease = self.leases.take(self.holder(lane))
        assert lease is not None
        go = Go(lane, iteration, self.progress.samples, *lease)
        self.journal.note(go)
        return go

    def done(self, go: Go, *, is_skipped: bool = False) -> None:
        self.leases.done(self.holder(go.lane), go.epoch, go.batch)
        if is_skipped:
            self.progress.skip(BATCH, 1.0)
        else:
            self.progress.add(BATCH, (), 1.0, 0.5)
        self.clock += 1
        self.journal.note(BatchDone(go.lane, go.iteration, BATCH, 0.5, 1.0, is_skipped=is_skipped))

    def holder(self, lane: int) -> str:
        return "round" if lane == ALL_LANES else self.of.worker_of(lane, 0)


def found_in(folder: Path) -> JournalContents:
    found = read_journal(folder)
    assert found is not None
    return found


def test_what_was_done_is_acknowledged_and_what_was_under_way_is_held(job: Job, tmp_path: Path) -> None:
    one = Coordinator(job, tmp_path, layout())
    one.begin()
    first, second = one.go(0, 1), one.go(1, 1)
    one.done(first)
    third = one.go(0, 2)
    progress = RunProgress(job, one.reader.num_rows)
    taken = found_in(tmp_path).restore(job, one.reader, progress)
    assert (taken.clock, taken.usd, progress.samples) == (1, 0.5, BATCH)
    assert taken.decisions.iterations == {0: 2, 1: 1}
    assert taken.decisions.under_way == {1: second, 0: third}
    assert taken.leases.state() == one.leases.state()
    assert taken.leases.held == one.leases.held


def test_a_line_that_was_cut_off_was_not_carried_out(job: Job, tmp_path: Path) -> None:
    one = Coordinator(job, tmp_path, layout())
    one.begin()
    first = one.go(0, 1)
    one.done(first)
    whole = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(whole[:-5])
    taken = found_in(tmp_path).restore(job, one.reader, RunProgress(job, one.reader.num_rows))
    assert (taken.clock, taken.decisions.under_way) == (0, {0: first})


def test_a_head_that_knows_already_what_the_next_line_says_counts_it_once(job: Job, tmp_path: Path) -> None:
    one = Coordinator(job, tmp_path, layout())
    one.begin()
    first = one.go(0, 1)
    one.leases.done(one.holder(0), first.epoch, first.batch)
    one.progress.add(BATCH, (), 1.0, 0.5)
    one.clock = 1
    one.begin()
    for _ in range(2):  # without the line, and with it
        progress = RunProgress(job, one.reader.num_rows)
        taken = found_in(tmp_path).restore(job, one.reader, progress)
        assert (taken.clock, progress.samples, taken.decisions.under_way) == (1, BATCH, {})
        one.journal.note(BatchDone(0, 1, BATCH, 0.5, 1.0))


def test_a_batch_that_the_epoch_does_not_have_was_not_begun(job: Job, tmp_path: Path) -> None:
    one = Coordinator(job, tmp_path, layout(in_rounds=True))
    one.begin()
    assert one.leases.num_batches is not None
    one.journal.note(Go(ALL_LANES, 7, 0, 0, one.leases.num_batches))
    decided = found_in(tmp_path).restore(job, one.reader, RunProgress(job, one.reader.num_rows)).decisions
    assert (decided.iterations, decided.under_way) == ({ALL_LANES: 6}, {})


def test_the_next_life_is_another_also_if_it_decides_nothing(job: Job, tmp_path: Path) -> None:
    one = Coordinator(job, tmp_path, layout())
    one.begin()
    one.done(one.go(0, 1))
    for life in (2, 3):
        write_journal(tmp_path, found_in(tmp_path).next_life())
        assert found_in(tmp_path).head.life == life
    progress = RunProgress(job, one.reader.num_rows)
    assert found_in(tmp_path).restore(job, one.reader, progress).clock == 1
    assert progress.recoveries == 2


@pytest.mark.parametrize("text", [b"", b"nonsense\n", b'{"type":"go","lane":0,"iteration":1,"samples":0}\n'])
def test_what_is_no_journal_is_not_taken_for_one(tmp_path: Path, text: bytes) -> None:
    assert read_journal(tmp_path) is None
    (tmp_path / FILE).write_bytes(text)
    assert read_journal(tmp_path) is None


@settings(max_examples=200)
@given(data=st.data())
def test_a_journal_that_was_changed_is_not_taken_for_what_was_decided(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Another number in it would repeat a batch, or leave one out, and nobody would notice."""
    one = Coordinator(small_job(tmp_path_factory), folder := tmp_path_factory.mktemp("journal"), layout())
    one.begin()
    first, second = one.go(0, 1), one.go(1, 1)
    one.done(first)
    one.done(second)
    path, whole = folder / FILE, found_in(folder)
    content = bytearray(path.read_bytes())
    one.journal.close()
    at = data.draw(st.integers(0, len(content) - 1))
    match data.draw(st.sampled_from(["flip", "zeros", "cut"])):
        case "flip":
            content[at] ^= 1 << data.draw(st.integers(0, 7))
        case "zeros":
            content[at : at + 100] = bytes(len(content[at : at + 100]))
        case "cut":
            del content[at:]
    path.write_bytes(content)
    found = read_journal(folder)
    assert found is None or (found.head, found.records) == (whole.head, whole.records[: len(found.records)])


def test_a_disk_that_refuses_ends_the_journal_and_not_the_job(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    one = Coordinator(job, tmp_path, layout(), warnings)
    one.begin()

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", refuse)
    one.go(0, 1)
    monkeypatch.undo()
    one.go(1, 1)
    one.begin()
    assert not (tmp_path / FILE).exists()
    (warning,) = warnings
    assert "No space left on device" in warning
    assert "the run goes back to its last checkpoint" in warning


@settings(max_examples=60)
@given(data=st.data(), in_rounds=st.booleans())
def test_at_any_line_of_any_journal_the_next_coordinator_knows_what_is_done(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, in_rounds: bool
) -> None:
    """Every batch that is done is acknowledged, every other that was begun is held, and nothing else is."""
    job = small_job(tmp_path_factory)
    folder = tmp_path_factory.mktemp("journal")
    one = Coordinator(job, folder, layout(3, in_rounds=in_rounds))
    one.begin()
    lanes = [ALL_LANES] if in_rounds else [0, 1, 2]
    iterations, under_way, num_done = dict.fromkeys(lanes, 0), {}, 0
    for _ in range(data.draw(st.integers(0, 25))):
        lane = data.draw(st.sampled_from(lanes))
        if lane in under_way:
            one.done(under_way.pop(lane))
            num_done += 1
        else:
            iterations[lane] += 1
            under_way[lane] = one.go(lane, iterations[lane])
        if data.draw(st.integers(0, 4)) == 0:
            one.begin()
    progress = RunProgress(job, one.reader.num_rows)
    taken = found_in(folder).restore(job, one.reader, progress)
    assert (taken.clock, progress.samples) == (num_done, num_done * BATCH)
    assert taken.decisions.under_way == under_way
    assert {lane: n for lane, n in iterations.items() if n} == taken.decisions.iterations
    assert taken.leases.state() == one.leases.state()
    assert taken.leases.held == one.leases.held
    one.journal.close()


def small_job(factory: pytest.TempPathFactory) -> Job:
    from tiny import write_tiny

    folder = factory.getbasetemp() / "of-journals"
    if not folder.exists():
        folder.mkdir()
        write_tiny(folder / "train.parquet", 200)
    data = {
        "train": str(folder / "train.parquet"), "batch_size": BATCH, "epochs": 9,
        "columns": {"dense": ["a", "b"], "slots": ["s", "t"]},
    }  # fmt: skip
    return Job.model_validate({"name": "tiny", "model": {"factory": "ctr_dnn"}, "data": data, "launcher": "local"})


@pytest.mark.parametrize("in_rounds", [True, False])
def test_a_skipped_batch_is_done_and_the_next_round_has_its_number(job: Job, tmp_path: Path, in_rounds: bool) -> None:
    lane = ALL_LANES if in_rounds else 0
    coordinator = Coordinator(job, tmp_path, layout(in_rounds=in_rounds))
    coordinator.begin()
    coordinator.done(coordinator.go(lane, 1))
    coordinator.done(coordinator.go(lane, 2), is_skipped=True)
    reader, progress = open_reader(job), RunProgress(job)
    taken = found_in(tmp_path).restore(job, reader, progress)
    assert (progress.samples, progress.skips.batches, progress.skips.samples) == (2 * BATCH, 1, BATCH)
    assert taken.clock == 2
    assert taken.decisions.iterations == {lane: 1 if in_rounds else 2}
    assert not taken.decisions.under_way
    assert taken.leases.take("worker-1.0") == (0, 2)
