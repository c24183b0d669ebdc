"""Frozen rows are those of one moment, however the table changes while they are read."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from heterps.config import Adagrad, Eviction
from heterps.ps import SparseTable
from heterps.ps.table import frozen
from heterps.ps.table.frozen import FrozenRows
from heterps.ps.table.rows import Rows

DIM = 4


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen, "PART_ROWS", 64)


def push(table: SparseTable, keys: np.ndarray, size: float = 1.0) -> None:
    table.push(keys, np.full((len(keys), DIM), size, np.float32))


def by_key(rows: Rows) -> dict[int, tuple[bytes, ...]]:
    return {int(key): tuple(field[at].tobytes() for field in rows) for at, key in enumerate(rows.keys)}


def read(rows: FrozenRows) -> dict[int, tuple[bytes, ...]]:
    parts = [by_key(part) for part in rows.parts()]
    assert sum(map(len, parts)) == len(rows), "each row comes once"
    return {key: row for part in parts for key, row in part.items()}


def test_rows_that_change_before_they_are_read_come_as_they_were() -> None:
    table = SparseTable(DIM, Adagrad(lr=0.1))
    push(table, np.arange(500))
    before = by_key(table.export_rows())
    rows = table.freeze()
    push(table, np.arange(0, 700, 3))
    assert read(rows) == before
    assert by_key(table.export_rows()) != before
    assert len(table) == 500 + len(range(501, 700, 3)), "new rows are the table's alone"


def test_rows_that_go_and_rows_that_take_their_places_come_as_they_were() -> None:
    table = SparseTable(DIM, Adagrad(lr=0.1))
    push(table, np.arange(300))
    before = by_key(table.export_rows())
    rows = table.freeze()
    parts = rows.parts()
    first = by_key(next(parts))
    table.take(np.arange(0, 300, 2))
    push(table, np.arange(1000, 1200))  # in places that were free
    table.take(np.arange(250, 300))
    assert first | {key: row for part in parts for key, row in by_key(part).items()} == before


def test_two_readers_have_moments_of_their_own() -> None:
    table = SparseTable(DIM, Adagrad(lr=0.1), eviction=Eviction(max_age=3))
    moments = []
    for step in range(6):
        push(table, np.arange(100 * step, 100 * step + 150))
        moments.append((table.freeze(), by_key(table.export_rows())))
    for rows, expected in reversed(moments):
        assert read(rows) == expected


def test_only_what_changed_since_a_version_is_frozen() -> None:
    table = SparseTable(DIM, Adagrad(lr=0.1))
    push(table, np.arange(300))
    push(table, np.arange(200))
    table.changes["checkpoints"].begin(1, table.num_pushes + 1)
    push(table, np.arange(20))
    expected = {key: row for key, row in by_key(table.export_rows()).items() if key < 20}
    rows = table.freeze("checkpoints")
    push(table, np.arange(300))
    assert read(rows) == expected


def test_nothing_is_copied_for_a_reader_that_is_done_or_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    table = SparseTable(DIM, Adagrad(lr=0.1))
    push(table, np.arange(300))
    read(table.freeze())
    forgotten = table.freeze()
    del forgotten
    broken = table.freeze()
    parts = broken.parts()
    next(parts)
    parts.close()
    monkeypatch.setattr(FrozenRows, "preserve", lambda *_: pytest.fail("a row was copied for nobody"))
    push(table, np.arange(300))


def test_a_push_waits_for_a_reader_that_is_slow_rather_than_take_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen, "MAX_COPIED_BYTES", 1000)
    monkeypatch.setattr(frozen, "LONGEST_WAIT_S", 60.0)
    table = SparseTable(DIM, Adagrad(lr=0.1))
    push(table, np.arange(500))
    before = by_key(table.export_rows())
    rows = table.freeze()
    parts = rows.parts()
    found = by_key(next(parts))
    push(table, np.arange(100, 200))  # 100 copies are more than 1,000 bytes
    pushing = threading.Thread(target=push, args=(table, np.arange(200, 300)))
    pushing.start()
    time.sleep(0.05)
    assert pushing.is_alive(), "the next push waits until copies were taken"
    assert table.num_pushes == 2
    found |= by_key(next(parts))
    pushing.join(30)
    assert not pushing.is_alive()
    for part in parts:
        found |= by_key(part)
    assert found == before


def test_pushes_on_another_thread_while_rows_are_read() -> None:
    table = SparseTable(DIM, Adagrad(lr=0.1), eviction=Eviction(max_age=40))
    push(table, np.arange(20_000))
    random = np.random.default_rng(0)
    batches = [random.integers(0, 30_000, 300) for _ in range(300)]
    before, over = by_key(table.export_rows()), threading.Event()

    def train() -> None:
        for keys in batches:
            push(table, keys, 0.1)
        over.set()

    rows = table.freeze()
    training = threading.Thread(target=train)
    training.start()
    assert read(rows) == before
    training.join(60)
    assert over.is_set()
