"""Traces of workers: their own clocks become seconds of training, whatever these clocks start from and however long
messages take."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from heterps.report.worker_times import WorkersOverTime, read_workers
from heterps.training.coordinator.traces import MOST_INPUTS, Traces
from heterps.training.protocol.messages import Pushed, Spans, Usage


def pushed(spans: Spans | None, sent_s: float, worker: str = "worker-1.0") -> Pushed:
    return Pushed(worker, 0, 1, 8, Usage(), spans=spans, sent_s=sent_s)


def written(run: Path, *pushes: tuple[Pushed, float], scale: float = 1.0) -> WorkersOverTime:
    with ExitStack() as opened:
        traces = Traces(run, opened, pytest.fail, scale)
        for message, seconds in pushes:
            traces.pushed(message, seconds)
    found = read_workers(run)
    assert found is not None
    return found


def test_the_quickest_message_says_how_far_two_clocks_are_apart(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    found = written(
        tmp_path,
        (pushed(Spans(1000.0, "wc", (200_000, 800_000)), 1001.0), 1.0),  # it came at once
        (pushed(Spans(1001.0, "cm", (900_000, 100_000)), 1002.0), 2.7),  # it took 0.7 s longer
        (pushed(Spans(5.0, "c", (500_000,)), 5.5, "worker-1.1"), 2.8),
    )
    first, second = found.workers
    assert [(round(s.start, 3), round(s.end, 3), s.kind) for s in first.segments] == [
        (0.0, 0.2, "wait"), (0.2, 1.0, "compute"), (1.0, 1.9, "compute"), (1.9, 2.0, "communicate"),
    ]  # fmt: skip
    assert [(round(s.start, 3), round(s.end, 3)) for s in second.segments] == [(2.3, 2.8)]
    assert found.window == pytest.approx((0.0, 2.8))


def test_what_a_worker_did_while_training_stood_still_is_cut_off(tmp_path: Path) -> None:
    found = written(
        tmp_path,
        (pushed(Spans(0.0, "c", (1_000_000,)), 1.0), 1.0),
        (pushed(Spans(1.0, "wc", (5_000_000, 1_000_000)), 7.0), 2.5),  # validated for 4.5 of these 6 s
    )
    (worker,) = found.workers
    assert [(round(s.start, 3), round(s.end, 3), s.kind) for s in worker.segments] == [
        (0.0, 1.0, "compute"), (1.0, 1.5, "wait"), (1.5, 2.5, "compute"),
    ]  # fmt: skip


def test_emulated_seconds_are_told_where_units_are_emulated(tmp_path: Path) -> None:
    found = written(tmp_path, (pushed(Spans(10.0, "c", (4_000_000,)), 14.0), 1.0), scale=4.0)
    assert found.workers[0].segments[0] == pytest.approx((0.0, 1.0, "compute"))


def test_each_start_of_a_run_has_a_file_and_the_last_is_read(tmp_path: Path) -> None:
    written(tmp_path, (pushed(Spans(0.0, "c", (1_000_000,)), 1.0), 1.0))
    found = written(tmp_path, (pushed(Spans(0.0, "w", (1_000_000,)), 1.0), 1.0))
    assert sorted(path.name for path in (tmp_path / "traces").iterdir()) == ["workers.1.jsonl", "workers.jsonl"]
    assert found.workers[0].seconds("wait") == 1.0


def test_a_trace_of_workers_ends_before_it_fills_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_INPUTS < 1_000_000
    monkeypatch.setattr("heterps.training.coordinator.traces.MOST_INPUTS", 3)
    pushes = [(pushed(Spans(float(i), "c", (1_000_000,)), i + 1.0), i + 1.0) for i in range(9)]
    assert len(written(tmp_path, *pushes).workers[0].segments) == 3


def test_a_push_without_spans_writes_nothing(tmp_path: Path) -> None:
    with ExitStack() as opened:
        Traces(tmp_path, opened, pytest.fail).pushed(pushed(None, 1.0), 1.0)
    assert not (tmp_path / "traces").exists()
