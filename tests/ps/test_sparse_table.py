"""SparseTable against ReferenceTable, to the bit, and at the edges: odd keys, collisions, growth, refusals."""

from __future__ import annotations

import mmap
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_table import ReferenceTable, initial_values, mix64

from heterps import hashing
from heterps.config import Uniform
from heterps.ps import FTRL, SGD, Adagrad, Adam, Momentum, RowAdagrad, SparseTable
from heterps.ps.table import memory, store

OPTIMIZERS = [
    SGD(lr=0.1),
    Momentum(lr=0.1),
    Adagrad(lr=0.1, initial_accumulator=0.25),
    RowAdagrad(lr=0.1, initial_accumulator=0.25),
    Adam(lr=0.01),
    FTRL(l1=0.1, l2=0.01),
]
TOP = 2**64 - 1
optimizers = pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: optimizer.kind)


def unmix64(x: int) -> int:
    """The inverse of mix64: undo the shifts, multiply by the inverses modulo 2**64."""
    x ^= (x >> 31) ^ (x >> 62)
    x = x * pow(0x94D049BB133111EB, -1, 2**64) % 2**64
    x ^= (x >> 27) ^ (x >> 54)
    x = x * pow(0xBF58476D1CE4E5B9, -1, 2**64) % 2**64
    return x ^ (x >> 30) ^ (x >> 60)


def colliding_keys(tag: int, num_keys: int) -> np.ndarray:
    """Distinct keys whose hashes share their upper 32 bits, and so their home in every index."""
    return np.array([unmix64((tag << 32) | low) for low in range(num_keys)], np.uint64)


def random_grads(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def assert_equal_tables(table: SparseTable, reference: ReferenceTable) -> None:
    assert len(table) == len(reference)
    assert table.num_pushes == reference.num_pushes
    ours, theirs = table.export_rows(), reference.export_rows()
    by_key, by_key_in_theirs = np.argsort(ours.keys), np.argsort(theirs.keys)  # colliding keys of a block come last
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.dtype == other.dtype
        np.testing.assert_array_equal(mine[by_key], other[by_key_in_theirs])


# --- against the reference -------------------------------------------------------------------------------------------

some_keys = st.one_of(
    st.integers(0, 20),
    st.sampled_from([TOP, TOP - 1, 2**63, 2**63 - 1]),
    st.sampled_from([int(key) for tag in (0, 1, 2**32 - 1) for key in colliding_keys(tag, 5)]),
)
batches = st.lists(some_keys, max_size=150)
operations = st.lists(
    st.tuples(st.sampled_from(["pull", "peek", "push", "push_unique", "take", "put", "export", "reload"]), batches),
    max_size=12,
)


@optimizers
@pytest.mark.parametrize("dim", [1, 3, 16, 17])
@settings(max_examples=15)
@given(operations, st.integers(0, TOP))
def test_any_interleaving_equals_the_reference_to_the_bit(optimizer, dim, operations, seed):
    table, reference = SparseTable(dim, optimizer, seed), ReferenceTable(dim, optimizer, seed)
    rng = np.random.default_rng(0)
    for operation, chosen in operations:
        keys = np.array(chosen, np.uint64)
        if operation == "push_unique":
            keys = np.unique(keys)
        grads = random_grads(rng, len(keys), dim)
        if operation in ("pull", "peek"):
            create = operation == "pull"
            np.testing.assert_array_equal(table.pull(keys, create=create), reference.pull(keys, create=create))
        elif operation in ("push", "push_unique"):
            getattr(table, operation)(keys.view(np.int64), grads)
            getattr(reference, operation)(keys, grads)
        elif operation in ("take", "put"):
            taken, expected = table.take(keys), reference.take(keys)
            for mine, other in zip(taken, expected, strict=True):
                np.testing.assert_array_equal(mine, other)
            assert not table.known(keys).any()
            if operation == "put":
                table.put(taken)
                reference.put(taken)
                np.testing.assert_array_equal(table.known(keys), reference.known(keys))
        elif operation == "export":
            assert_equal_tables(table, reference)
        else:
            rows, pushes = table.export_rows(), table.num_pushes
            table, reference = SparseTable(dim, optimizer, seed), ReferenceTable(dim, optimizer, seed)
            table.import_rows(rows, pushes)
            reference.import_rows(rows, pushes)
    assert_equal_tables(table, reference)


@given(st.integers(0, TOP))
def test_unmix64_inverts_mix64_and_the_kernels_mix_alike(x):
    assert unmix64(mix64(x)) == x
    assert int(hashing.mix64(np.uint64(x))) == mix64(x)


# --- keys ------------------------------------------------------------------------------------------------------------


def test_every_64_bit_value_is_a_key_and_int64_keeps_its_bits():
    table = SparseTable(4)
    signed = np.array([0, -1, -(2**63), 2**63 - 1], np.int64)
    rows = table.pull(signed)
    assert len(table) == 4
    assert len(np.unique(rows, axis=0)) == 4
    np.testing.assert_array_equal(table.pull(np.array([0, TOP, 2**63, 2**63 - 1], np.uint64)), rows)
    assert len(table) == 4


def test_empty_batches_change_nothing_but_the_count_of_pushes():
    table = SparseTable(4)
    assert table.pull([]).shape == (0, 4)
    table.push(np.empty(0, np.int64), np.empty((0, 4)))
    assert (len(table), table.num_pushes) == (0, 1)
    assert [array.shape for array in table.export_rows()] == [(0,), (0, 4), (0, 4), (0,), (0,)]


@optimizers
def test_colliding_tags_in_one_block_and_repeated_in_it(optimizer):
    a = colliding_keys(0xDEADBEEF, 40)
    table, reference = SparseTable(3, optimizer), ReferenceTable(3, optimizer)
    rng = np.random.default_rng(1)
    for keys in (a[:1], np.tile(a[:7], 9), a[::-1], np.repeat(a, 3)):
        np.testing.assert_array_equal(table.pull(keys), reference.pull(keys))
        grads = random_grads(rng, len(keys), 3)
        table.push(keys, grads)
        reference.push(keys, grads)
    assert_equal_tables(table, reference)
    absent = colliding_keys(0xDEADBEEF, 50)[40:]
    np.testing.assert_array_equal(table.pull(absent, create=False), reference.pull(absent, create=False))
    assert len(table) == 40


def test_colliding_tags_survive_growth_of_the_index():
    keys = np.concatenate([colliding_keys(tag, 300) for tag in (0, 2**32 - 1)])  # the last wraps round the index
    table = SparseTable(2)
    rows = table.pull(keys)
    table.pull(np.arange(50_000))
    np.testing.assert_array_equal(table.pull(keys, create=False), rows)
    assert len(table) == len(np.union1d(keys, np.arange(50_000, dtype=np.uint64)))


# --- initial values --------------------------------------------------------------------------------------------------


def test_initial_values_do_not_depend_on_the_order_of_creation():
    keys = np.random.default_rng(0).permutation(5000)
    first, second = SparseTable(5, seed=3), SparseTable(5, seed=3)
    rows = first.pull(keys)
    second.push(keys[::-1], np.zeros((5000, 5)))
    np.testing.assert_array_equal(second.pull(keys), rows)


def test_initial_values_are_uniform_and_differ_by_seed_key_and_column():
    keys = np.arange(4000)
    rows = SparseTable(8, init_scale=0.5).pull(keys)
    assert rows.min() >= -0.5
    assert rows.max() < 0.5
    assert abs(rows.mean()) < 0.01
    assert abs(rows.std() - 0.5 / 3**0.5) < 0.01
    assert np.abs(np.corrcoef(rows.T) - np.eye(8)).max() < 0.06
    other = SparseTable(8, init_scale=0.5, seed=1).pull(keys)
    assert not np.intersect1d(rows[:, :3].copy().view("V12"), other[:, :3].copy().view("V12")).size


def test_initial_values_stay_what_they_were():
    """A worker of another version must make the same rows."""
    expected = [-0.620510458946228, 0.9796957969665527, -0.15403354167938232]
    np.testing.assert_array_equal(initial_values(42, 3, seed=7, init=Uniform(scale=1.0)), np.float32(expected))


# --- growth and memory -----------------------------------------------------------------------------------------------


def test_a_table_grows_from_empty_and_keeps_every_row():
    rng = np.random.default_rng(0)
    keys = np.unique(rng.integers(0, TOP, 120_000, np.uint64))
    table = SparseTable(3, SGD(lr=1.0))
    before = table.pull(keys, create=False)
    assert len(table) == 0
    grads = random_grads(rng, len(keys), 3)
    for part in np.array_split(np.arange(len(keys)), 17):
        table.push(keys[part], grads[part])
    assert len(table) == len(keys)
    np.testing.assert_array_equal(table.pull(keys), before - grads)
    rows = table.export_rows()
    np.testing.assert_array_equal(np.sort(rows.keys), keys)
    assert table.num_bytes < len(keys) * (16 + 3 * 4 + 4 + 8 / 0.35)


@pytest.fixture
def scarce_memory(monkeypatch):
    """A system that grants no range over `granted[0]` bytes; `granted[1:]` are the ranges it gave."""
    granted = [0]
    real = mmap.mmap

    def refuse(fileno, length, **flags):
        if length > granted[0]:
            raise OSError(12, "Cannot allocate memory")
        granted.append(length)
        return real(fileno, length, **flags)

    monkeypatch.setattr(memory.mmap, "mmap", refuse)
    return granted


def test_rows_move_to_a_larger_range_where_the_system_grants_little(scarce_memory):
    keys = np.arange(20_000)
    scarce_memory[0] = 1 << 20
    table = SparseTable(16)
    rows = table.pull(keys[:100])
    scarce_memory[0] = 1 << 22
    table.pull(keys)
    for_index, for_rows, *moved = scarce_memory[1:]
    assert for_index == for_rows == 1 << 20
    assert moved == [1 << 22], "the rows were to move once"
    np.testing.assert_array_equal(table.pull(keys[:100], create=False), rows)
    assert len(table) == len(keys)


def test_reserve_takes_exactly_what_is_needed_before_it_gives_up(scarce_memory):
    scarce_memory[0] = 5_000_000
    assert len(memory.reserve(4_500_000)) == 4_500_000
    with pytest.raises(MemoryError, match=r"5,000,001 bytes.*ulimit -v"):
        memory.reserve(5_000_001)


@pytest.mark.skipif(sys.platform != "linux", reason="forks, and reads what Linux says of its memory")
def test_a_process_with_many_tables_can_be_forked():
    code = """
import os
from heterps.ps import SparseTable
tables = [SparseTable(16) for _ in range(8)]
child = os.fork()
if child == 0:
    os._exit(0)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_a_refused_growth_leaves_the_table_whole(scarce_memory):
    scarce_memory[0] = 1 << 20
    table = SparseTable(16)
    with pytest.raises(MemoryError):
        table.pull(np.arange(20_000))
    kept = len(table)
    late = np.arange(10**9, 10**9 + 10)
    rows = table.pull(late)
    scarce_memory[0] = 1 << 30
    table.pull(np.arange(20_000))
    np.testing.assert_array_equal(table.pull(late), rows)
    assert kept > 0
    assert len(table) == 20_010


def test_a_kernel_without_huge_pages_will_do(monkeypatch):
    class Plain(mmap.mmap):
        def madvise(self, *_):
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr(memory.mmap, "mmap", Plain)
    assert SparseTable(2).pull([1, 2]).shape == (2, 2)


def test_a_shard_says_when_it_is_full(monkeypatch):
    monkeypatch.setattr(store, "MAX_ROWS", 3000)
    with pytest.raises(MemoryError, match="at most 3,000 rows; use more shards"):
        SparseTable(1).pull(np.arange(4000))


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [np.zeros(2, np.int32), np.zeros(2), ["a", "b"], [None]])
def test_keys_of_another_type_are_refused(keys):
    with pytest.raises(TypeError, match="keys must be int64 or uint64, got"):
        SparseTable(2).pull(keys)


def test_wrong_shapes_are_refused_with_both_numbers():
    table = SparseTable(2)
    with pytest.raises(ValueError, match=r"one dimension, got shape \(1, 2\)"):
        table.pull([[1, 2]])
    for push in (table.push, table.push_unique):
        with pytest.raises(ValueError, match=r"need gradients \[3, 2\], got \(2, 2\)"):
            push([1, 2, 3], np.zeros((2, 2)))
    with pytest.raises(ValueError, match=r"out must be float32 \[3, 2\], got float32 \[2, 2\]"):
        table.pull([1, 2, 3], np.zeros((2, 2), np.float32))
    with pytest.raises(ValueError, match="got float64"):
        table.pull([1], np.zeros((1, 2)))
    assert (len(table), table.num_pushes) == (0, 0)


def test_impossible_tables_are_refused():
    with pytest.raises(ValueError, match="dim must be at least 1, got 0"):
        SparseTable(0)
    with pytest.raises(ValueError, match="seed must be"):
        SparseTable(1, seed=-1)


def test_import_refuses_rows_that_do_not_fit_and_stays_empty():
    rows = ReferenceTable(2)
    rows.pull([1, 2, 3])
    good = rows.export_rows()
    table = SparseTable(2)
    with pytest.raises(
        ValueError, match=r"with adagrad need values \[3, 2\] and state \[3, 2\], got \[3, 2\] and \[3, 4\]"
    ):
        table.import_rows(good._replace(state=np.zeros((3, 4), np.float32)), 1)
    with pytest.raises(ValueError, match=r"got \[1, 2\]"):
        table.import_rows(good._replace(values=good.values[:1]), 1)
    with pytest.raises(ValueError, match="3 rows hold only 2 distinct keys"):
        table.import_rows(good._replace(keys=good.keys[[0, 1, 0]]), 1)
    with pytest.raises(ValueError, match="3 rows need as many uses and clocks, got 2 and 3"):
        table.import_rows(good._replace(uses=good.uses[:2]), 1)
    assert (len(table), table.num_pushes) == (0, 0)
    table.import_rows(good, 1)
    with pytest.raises(ValueError, match="empty table; this one has 3 rows"):
        table.import_rows(good, 1)


# --- threads ---------------------------------------------------------------------------------------------------------


def test_threads_that_share_a_table_lose_no_step_and_no_row():
    table = SparseTable(1, SGD(lr=1.0), init_scale=0.0)
    shared, exported = np.arange(500), []

    def work(number: int) -> None:
        for i in range(100):
            table.push(np.append(shared, 1000 + 100 * number + i), -np.ones((501, 1)))
            if i % 25 == 0:
                exported.append(table.export_rows())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(table), table.num_pushes) == (900, 400)
    np.testing.assert_array_equal(table.pull(shared), np.full((500, 1), 400, np.float32))
    for rows in exported:
        assert len(np.unique(rows.values[:500])) == 1, "an export fell into the middle of a push"
