"""ColdStore against a dict, and at its edges: keys that collide, a full disk, pages given back, nothing left behind."""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from reference_table import MASK_64

from heterps.errors import StorageError
from heterps.ps.table import cold
from heterps.ps.table.cold import ColdStore

WORDS = 5


def unmix64(x: int) -> int:
    """The key whose hash is `x`."""
    x ^= (x >> 31) ^ (x >> 62)
    x = x * pow(0x94D049BB133111EB, -1, 2**64) & MASK_64
    x ^= (x >> 27) ^ (x >> 54)
    x = x * pow(0xBF58476D1CE4E5B9, -1, 2**64) & MASK_64
    return x ^ (x >> 30) ^ (x >> 60)


LAST = 0xFFFFFFFF << 32  # the tag whose home is the last entry: probing goes on at the first
COLLIDING = [unmix64(LAST + i) for i in range(12)] + [unmix64(i) for i in range(6)] + [unmix64(7 << 32)]
keys_drawn = st.lists(st.sampled_from([*COLLIDING, *range(40)]), unique=True, max_size=30)


def rows_for(keys: np.ndarray, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**32, (len(keys), WORDS), np.uint32)


@pytest.fixture
def store(tmp_path: Path):
    store = ColdStore(WORDS, tmp_path)
    yield store
    store.close()


class ColdStoreIsADict(RuleBasedStateMachine):
    """Any sequence of put and take leaves in the store what it leaves in a dict."""

    @initialize()
    def start(self) -> None:
        self.store = ColdStore(WORDS, tempfile.gettempdir())
        self.rows: dict[int, np.ndarray] = {}

    @rule(keys=keys_drawn, seed=st.integers(0, 99))
    def put(self, keys: list[int], seed: int) -> None:
        array = np.array(keys, np.uint64)
        rows = rows_for(array, seed)
        self.store.put(array, rows)
        self.rows |= dict(zip(keys, rows, strict=True))

    @rule(keys=keys_drawn)
    def take(self, keys: list[int]) -> None:
        known = [key for key in keys if key in self.rows]
        taken = self.store.take(np.array(known, np.uint64))
        for key, row in zip(known, taken, strict=True):
            np.testing.assert_array_equal(row, self.rows.pop(key))

    @rule(keys=keys_drawn)
    def read(self, keys: list[int]) -> None:
        slots = self.store.find(np.array(keys, np.uint64))
        out = np.full((len(keys), WORDS), 7, np.uint32)
        self.store.read(slots, out)
        assert [slot >= 0 for slot in slots] == [key in self.rows for key in keys]
        for key, row in zip(keys, out, strict=True):
            np.testing.assert_array_equal(row, self.rows.get(key, np.full(WORDS, 7)))

    @rule(size=st.integers(1, 20))
    def list_all(self, size: int) -> None:
        found = {key: row for keys, rows in self.store.parts(size) for key, row in zip(keys, rows, strict=True)}
        assert found.keys() == self.rows.keys()
        assert all((found[key] == row).all() for key, row in self.rows.items())

    @invariant()
    def counts(self) -> None:
        if hasattr(self, "store"):
            assert len(self.store) == len(self.rows)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()


TestColdStoreIsADict = ColdStoreIsADict.TestCase
TestColdStoreIsADict.settings = settings(max_examples=40, stateful_step_count=30)


def test_keys_with_one_hash_prefix_are_told_apart():
    assert len(set(COLLIDING)) == len(COLLIDING)


def test_a_store_grows_slab_by_slab_and_keeps_every_row(store: ColdStore):
    keys = np.random.default_rng(0).integers(0, 2**64, 120_000, np.uint64)
    rows = rows_for(keys, 1)
    sizes = set()
    for part in np.array_split(np.arange(len(keys)), 30):
        store.put(keys[part], rows[part])
        sizes.add(store.disk_bytes)
    assert len(sizes) > 2
    assert len(keys) * 32 <= store.disk_bytes < len(keys) * 32 * 1.5
    np.testing.assert_array_equal(store.take(keys[::-1]), rows[::-1])
    assert len(store) == 0


@settings(max_examples=30)
@given(num=st.integers(500, 50_000), step=st.integers(100, 9000))
def test_the_index_takes_no_more_than_it_said(num: int, step: int):
    store = ColdStore(1, tempfile.gettempdir())
    for begin in range(0, num, step):
        keys = np.arange(begin, min(begin + step, num)).astype(np.uint64)
        said = store.index_bytes(len(store) + len(keys))
        store.put(keys, np.zeros((len(keys), 1), np.uint32))
        assert 10 * len(store) <= store.num_bytes <= said
        assert store.num_bytes <= max(12.5 * len(store) + 8, cold.LEAST_INDEX * 8)
    store.close()


def test_words_that_are_kept_in_memory_are_those_on_disk_however_often_the_index_grew(tmp_path: Path):
    store = ColdStore(WORDS, tmp_path, kept_words=2)
    keys = np.arange(2000).astype(np.uint64)
    rows, sizes = rows_for(keys, 4), set()
    for part in np.array_split(np.arange(len(keys)), 40):
        store.put(keys[part], rows[part])
        sizes.add(store.num_bytes)
    assert len(sizes) > 3
    store.take(keys[:500])
    store.put(keys[:500], rows_for(keys, 5)[:500])
    rows[:500] = rows_for(keys, 5)[:500]
    np.testing.assert_array_equal(store.kept(store.find(keys)), rows[:, :2])
    store.close()


def test_free_slots_are_used_before_the_file_grows(store: ColdStore):
    keys = np.arange(30_000).astype(np.uint64)
    store.put(keys, rows_for(keys, 0))
    before = store.disk_bytes
    for turn in range(1, 8):
        store.take(keys + np.uint64((turn - 1) * len(keys)))
        store.put(keys + np.uint64(turn * len(keys)), rows_for(keys, turn))
    assert store.disk_bytes == before


# --- disk and memory -------------------------------------------------------------------------------------------------


def test_a_full_disk_is_an_error_and_the_store_is_as_it_was(store: ColdStore, monkeypatch: pytest.MonkeyPatch):
    keys = np.arange(100).astype(np.uint64)
    rows = rows_for(keys, 0)
    store.put(keys, rows)
    real = os.posix_fallocate
    asked = []

    def refuse(descriptor: int, start: int, length: int) -> None:
        asked.append(length)
        real(descriptor, start, length // 2)  # a real disk grants a part before it is full
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(cold.os, "posix_fallocate", refuse)
    many = np.arange(100_000, 200_000).astype(np.uint64)
    before = store.disk_bytes, store.num_bytes
    with pytest.raises(
        StorageError, match=r"no room on disk for cold rows: No space left.*tiers\.folder.*memory_bytes"
    ):
        store.put(many, rows_for(many, 1))
    assert (store.disk_bytes, store.num_bytes) == before
    assert os.fstat(store._file.fileno()).st_size == store.disk_bytes, "what was granted is given back"
    monkeypatch.setattr(cold.os, "posix_fallocate", real)
    store.put(many, rows_for(many, 1))
    np.testing.assert_array_equal(store.take(keys), rows)
    assert asked


def test_room_is_taken_without_fallocate_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(cold.os, "posix_fallocate")
    store = ColdStore(WORDS, tmp_path)
    keys = np.arange(50_000).astype(np.uint64)
    store.put(keys, rows_for(keys, 3))
    assert os.fstat(store._file.fileno()).st_blocks * 512 >= store.disk_bytes
    np.testing.assert_array_equal(store.take(keys), rows_for(keys, 3))
    store.close()


def test_pages_are_left_to_the_system_and_rows_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    advice = []

    class Map(mmap.mmap):
        def madvise(self, *arguments: int) -> None:
            advice.append(arguments[0])
            super().madvise(*arguments)

    monkeypatch.setattr(cold.mmap, "mmap", Map)
    store = ColdStore(WORDS, tmp_path, mapped_bytes=1 << 20)
    keys = np.arange(200_000).astype(np.uint64)
    rows = rows_for(keys, 0)
    for part in np.array_split(np.arange(len(keys)), 20):
        store.put(keys[part], rows[part])
    assert mmap.MADV_DONTNEED in advice
    np.testing.assert_array_equal(store.take(keys), rows)


def test_nothing_of_a_store_can_be_found_in_its_folder(tmp_path: Path):
    folder = tmp_path / "made" / "here"
    (tmp_path / "made").mkdir()
    store = ColdStore(WORDS, folder)
    store.put(np.arange(10).astype(np.uint64), np.zeros((10, WORDS), np.uint32))
    assert list(folder.iterdir()) == [], "a process that is killed leaves nothing, and no process finds another's rows"
    store.close()
    store.close()
    assert (len(store), store.disk_bytes) == (0, 0)


def test_a_store_that_nobody_closed_gives_back_its_room(tmp_path: Path):
    store = ColdStore(WORDS, tmp_path)
    file = store._file
    del store
    assert file.closed


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"file: cold rows cannot be written: .*tiers\.folder"):
        ColdStore(WORDS, tmp_path / "file")


def test_wrong_calls_are_refused_and_change_nothing(store: ColdStore, monkeypatch: pytest.MonkeyPatch):
    one = np.array([1], np.uint64)
    store.put(one, np.ones((1, WORDS), np.uint32))
    with pytest.raises(ValueError, match=r"2 keys need rows \[2, 5\], got \[1, 5\]"):
        store.put(np.array([1, 2], np.uint64), np.zeros((1, WORDS), np.uint32))
    with pytest.raises(KeyError, match="1 of 2 keys have no row on disk; the first is 2"):
        store.take(np.array([1, 2], np.uint64))
    monkeypatch.setattr(cold, "MAX_ROWS", 3)
    with pytest.raises(MemoryError, match="at most 3 rows on disk; use more shards"):
        store.put(np.arange(4).astype(np.uint64), np.zeros((4, WORDS), np.uint32))
    np.testing.assert_array_equal(store.take(one), np.ones((1, WORDS)))
    with pytest.raises(ValueError, match="num_words must be at least 1, got 0"):
        ColdStore(0, store.folder)
