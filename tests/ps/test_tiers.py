"""TieredTable: the results of a SparseTable to the bit, in the memory that it was given."""

from __future__ import annotations

import errno
import os
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from reference_table import ReferenceTable

from heterps.config import AfterSightings, Eviction, LinearRate, Tiers
from heterps.errors import ConfigError, StorageError
from heterps.ps import SGD, Adagrad, Adam, SparseTable
from heterps.ps.client.local import LocalClient
from heterps.ps.keys.dedup import make_lookup
from heterps.ps.protocol.specs import TableSpec
from heterps.ps.table import budget, cold, tiers
from heterps.ps.table.index import ALL_MOVED
from heterps.ps.table.rows import Rows
from heterps.ps.table.tiers import TieredTable

OPTIMIZERS = [SGD(lr=0.1), Adagrad(lr=0.1, initial_accumulator=0.25), Adam(lr=0.01)]
DIM = 3
INDEX_BYTES = 8 * 1024  # of the smallest index in memory


def make_tiered(memory_bytes: int, folder: str | Path, dim: int = DIM, optimizer=Adagrad(lr=0.05)) -> TieredTable:
    return TieredTable(SparseTable(dim, optimizer, seed=5), Tiers(memory_bytes=memory_bytes, folder=str(folder)))


@pytest.fixture
def tiered(tmp_path: Path):
    """Makes tables, and closes them."""
    made = []

    def make(memory_bytes: int, dim: int = DIM, optimizer=Adagrad(lr=0.05)) -> TieredTable:
        made.append(make_tiered(memory_bytes, tmp_path, dim, optimizer))
        return made[-1]

    yield make
    for table in made:
        table.close()


def by_key(rows: Rows) -> Rows:
    return rows.select(np.argsort(rows.keys))


def assert_equal_rows(ours: Rows, theirs: Rows) -> None:
    for name, mine, other in zip(Rows._fields, by_key(ours), by_key(theirs), strict=True):
        assert mine.dtype == other.dtype
        np.testing.assert_array_equal(mine, other, err_msg=name)


# --- against the reference -------------------------------------------------------------------------------------------

batches = st.lists(st.integers(0, 60), max_size=50)


class TiersChangeNothing(RuleBasedStateMachine):
    """Any sequence of operations on a table that holds about ten rows in memory equals that on one that holds all."""

    @initialize(optimizer=st.sampled_from(OPTIMIZERS), room=st.integers(8, 30))
    def start(self, optimizer, room: int) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(budget, "LEAST_ROWS", 4)
        self.memory_bytes = INDEX_BYTES + cold.LEAST_INDEX * 8 * 2 + room * 60
        self.optimizer = optimizer
        self.table = make_tiered(self.memory_bytes, tempfile.gettempdir(), optimizer=optimizer)
        self.reference = ReferenceTable(DIM, optimizer, seed=5)
        self.random = np.random.default_rng(0)

    @rule(keys=batches, create=st.booleans())
    def pull(self, keys: list[int], create: bool) -> None:
        array = np.array(keys, np.int64)
        before = self.table.counts
        np.testing.assert_array_equal(self.table.pull(array, create=create), self.reference.pull(array, create=create))
        assert create or self.table.counts == before

    @rule(keys=batches, unique=st.booleans())
    def push(self, keys: list[int], unique: bool) -> None:
        array = np.unique(np.array(keys, np.int64)) if unique else np.array(keys, np.int64)
        grads = self.random.normal(size=(len(array), DIM)).astype(np.float32)
        for table in (self.table, self.reference):
            (table.push_unique if unique else table.push)(array, grads)

    @rule(num=st.integers(1, 20))
    def step(self, num: int) -> None:
        before = self.table.counts
        moved = self.table.step(num)
        assert 0 <= moved <= num
        assert self.table.counts.disk_rows == before.disk_rows + moved

    @rule(keys=batches)
    def take_and_put_back(self, keys: list[int]) -> None:
        rows = self.table.take(np.array(keys, np.int64))
        assert_equal_rows(rows, self.reference.take(np.array(keys, np.int64)))
        for table in (self.table, self.reference):
            assert not table.known(np.array(keys, np.int64)).any()
            table.put(rows)

    @rule()
    def reload(self) -> None:
        rows, num_pushes = self.table.export_rows(), self.table.num_pushes
        self.table.close()
        self.table = make_tiered(self.memory_bytes, tempfile.gettempdir(), optimizer=self.optimizer)
        self.table.import_rows(rows, num_pushes)

    @rule()
    def compare(self) -> None:
        assert_equal_rows(self.table.export_rows(), self.reference.export_rows())
        np.testing.assert_array_equal(self.table.known(np.arange(70)), self.reference.known(np.arange(70)))

    @invariant()
    def counts_and_memory(self) -> None:
        if hasattr(self, "table"):
            assert (len(self.table), self.table.num_pushes) == (len(self.reference), self.reference.num_pushes)
            assert self.table.num_bytes <= self.memory_bytes
            counts = self.table.counts
            assert counts.memory_rows + counts.disk_rows == len(self.table)

    def teardown(self) -> None:
        if hasattr(self, "table"):
            self.compare()
            self.table.close()
            self.patch.undo()


TestTiersChangeNothing = TiersChangeNothing.TestCase
TestTiersChangeNothing.settings = settings(max_examples=40, stateful_step_count=25)


def zipf(rng: np.random.Generator, num: int, num_keys: int) -> np.ndarray:
    return (rng.zipf(1.1, num) - 1) % num_keys


def test_a_table_ten_times_its_memory_trains_as_one_in_memory_and_stays_under_its_budget(tiered):
    dim, num_keys = 64, 60_000
    plain = SparseTable(dim, seed=5)
    table_bytes = num_keys * (16 + 8 * dim)
    budget = table_bytes // 10
    table = tiered(budget, dim)
    rng = np.random.default_rng(0)
    for turn in range(40):
        keys = np.concatenate([zipf(rng, 3000, num_keys), np.arange(turn * 1500, (turn + 1) * 1500)])
        np.testing.assert_array_equal(table.pull(keys), plain.pull(keys))
        grads = rng.normal(size=(len(keys), dim)).astype(np.float32)
        table.push(keys, grads)
        plain.push(keys, grads)
        table.step()
        assert table.num_bytes <= budget
    counts = table.counts
    assert len(plain) == num_keys
    assert counts.disk_rows > 0.85 * num_keys
    assert counts.memory_bytes == table.num_bytes > budget // 2, "a budget is there to be used"
    assert counts.disk_bytes >= counts.disk_rows * 8 * dim
    assert counts.num_promotions > 0
    assert counts.num_demotions == counts.num_promotions + counts.disk_rows
    assert_equal_rows(table.export_rows(), plain.export_rows())


def rss_bytes(kind: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(kind))
    return int(line.split()[1]) * 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell")
def test_memory_of_the_process_stays_near_the_budget(tiered, monkeypatch: pytest.MonkeyPatch):
    dim, num_keys, budget = 120, 200_000, 16 << 20
    monkeypatch.setattr(tiers, "MAPPED_BYTES", 4 << 20)
    tiered(1 << 20).pull(np.arange(10_000))  # kernels compile into memory too
    before = rss_bytes("VmRSS:")
    table = tiered(budget, dim)
    for begin in range(0, num_keys, 4000):
        table.pull(np.arange(begin, begin + 4000))
    grown = rss_bytes("VmRSS:") - before
    assert len(table) * (8 * dim + 16) > 10 * budget
    assert grown < 4 * budget, f"{grown:,} bytes for a budget of {budget:,}"


# --- what moves ------------------------------------------------------------------------------------------------------


def test_rows_in_use_stay_in_memory_and_a_scan_passes_through(tiered):
    table = tiered(600_000)
    hot = np.arange(500)
    for turn in range(60):
        keys = np.concatenate([hot, np.arange(1000 + turn * 400, 1400 + turn * 400)])
        table.push(keys, np.ones((len(keys), DIM), np.float32))
        table.step()
    assert table.counts.disk_rows > 15_000
    before = table.counts
    table.pull(hot)
    assert table.counts.num_hits - before.num_hits == 500
    assert table.counts.num_promotions == before.num_promotions


def test_nothing_moves_while_all_rows_fit(tiered):
    table = tiered(1 << 20)
    assert table.counts.hit_rate is None
    for _ in range(3):
        table.push(np.arange(5000), np.ones((5000, DIM), np.float32))
        assert table.step() == 0
    counts = table.counts
    assert (counts.disk_rows, counts.disk_bytes, counts.num_demotions) == (0, 0, 0)
    assert counts.hit_rate == 1


@pytest.mark.parametrize("num_keys", [900, 5000, 22_000, 30_000])
def test_the_memory_of_a_table_without_tiers_is_enough_for_all_its_rows(tiered, num_keys: int):
    plain = SparseTable(16)
    for begin in range(0, num_keys, 100):
        plain.pull(np.arange(begin, min(begin + 100, num_keys)))
    plain.store._move(ALL_MOVED)
    table = tiered(plain.num_bytes, 16)
    for begin in range(0, num_keys, 100):
        table.pull(np.arange(begin, min(begin + 100, num_keys)))
    assert (table.counts.memory_rows, table.counts.disk_rows) == (num_keys, 0)


@pytest.mark.parametrize("budget", range(45_000, 65_000, 1000))
def test_the_budget_holds_while_the_index_in_memory_grows(tiered, budget: int):
    """Its old half is there for a while beside the new one, and counts."""
    table = tiered(budget)
    sizes = set()
    for begin in range(0, 1200, 20):
        table.pull(np.arange(begin, begin + 20))
        assert table.num_bytes <= budget
        sizes.add(table._hot.store.index_size)
    assert len(table) == 1200
    assert min(sizes) == 1024


def test_steps_are_bounded_and_make_room_ahead_of_need(tiered):
    table = tiered(200_000)
    for begin in range(0, 6000, 50):
        table.pull(np.arange(begin, begin + 50))
    in_memory = table.counts.memory_rows
    assert table.step(10) == 10
    assert table.counts.memory_rows == in_memory - 10
    while table.step(100):
        pass
    room = in_memory - table.counts.memory_rows
    assert room > in_memory // 40
    before = table.counts.num_demotions
    table.pull(np.arange(10_000, 10_000 + room // 2))
    assert table.counts.num_demotions == before, "a batch that finds room does not wait for rows to go down"


CHANGES = {
    "pull": lambda table: table.pull([5]),
    "push": lambda table: table.push([5], np.ones((1, DIM), np.float32)),
    "step": lambda table: table.step(10),
    "take": lambda table: table.take([5]),
    "put": lambda table: table.put(SparseTable(DIM).export_rows()),
    "evict": lambda table: table.evict(10),
    "close": lambda table: table.close(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_rows_that_were_asked_for_before_a_change_are_an_error_and_not_half_of_each(tiered, name: str):
    table = tiered(200_000)
    for begin in range(0, 6000, 50):
        table.pull(np.arange(begin, begin + 50))
    assert table.counts.disk_rows > 1000
    read = table.row_parts()
    for _ in range(2):
        assert sum(len(part.keys) for part in read()) == 6000
    table.pull(np.arange(100), create=False)
    table.known(np.arange(100))
    assert len(next(read()).keys) > 0, "reading changes nothing"
    begun = read()
    next(begun)
    CHANGES[name](table)
    for parts in (begun, read()):
        with pytest.raises(RuntimeError, match="has changed since its rows were asked for"):
            next(parts)


def test_equal_calls_move_equal_rows(tiered):
    def train() -> tuple[tiers.TierCounts, Rows]:
        table = tiered(200_000)
        rng = np.random.default_rng(3)
        for _ in range(20):
            keys = zipf(rng, 1000, 20_000)
            table.push(keys, rng.normal(size=(1000, DIM)))
            table.step()
        counts, rows = table.counts, table.export_rows()
        return counts, rows

    (first, rows), (second, others) = train(), train()
    assert first == second
    for one, other in zip(rows, others, strict=True):
        np.testing.assert_array_equal(one, other)


def test_imported_rows_that_were_used_most_are_in_memory(tiered):
    plain = SparseTable(DIM, seed=5)
    plain.push(np.arange(20_000), np.ones((20_000, DIM), np.float32))
    for _ in range(5):
        plain.push(np.arange(700, 1200), np.ones((500, DIM), np.float32))
    table = tiered(400_000)
    table.import_rows(plain.export_rows(), plain.num_pushes)
    assert table.counts.disk_rows > 10_000
    table.pull(np.arange(700, 1200))
    assert (table.counts.num_hits, table.counts.num_promotions) == (500, 0)
    assert_equal_rows(table.export_rows(), plain.export_rows())


# --- refusals --------------------------------------------------------------------------------------------------------


def test_a_full_disk_fails_the_call_and_leaves_the_table_as_it_was(tiered, monkeypatch: pytest.MonkeyPatch):
    table, plain = tiered(500_000), SparseTable(DIM, Adagrad(lr=0.05), seed=5)
    known = np.arange(500)
    for each in (table, plain):
        each.push(known, np.ones((500, DIM), np.float32))

    def refuse(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(cold.os, "posix_fallocate", refuse)
        many = np.arange(30_000)
        for call in (lambda: table.pull(many), lambda: table.push(many, np.ones((30_000, DIM), np.float32))):
            with pytest.raises(StorageError, match="no room on disk for cold rows"):
                call()
        assert_equal_rows(table.export_rows(), plain.export_rows())
        assert (len(table), table.num_pushes) == (500, 1)
        np.testing.assert_array_equal(table.pull(known), plain.pull(known))
    for each in (table, plain):
        each.push(np.arange(25_000), np.ones((25_000, DIM), np.float32))
    assert table.counts.disk_rows > 10_000
    assert_equal_rows(table.export_rows(), plain.export_rows())


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch):
    """Whatever takes room on disk is refused from now on; the calls that asked for it."""
    asked = []

    def refuse(descriptor: int, start: int, length: int) -> None:
        asked.append(length)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fill() -> list[int]:
        monkeypatch.setattr(cold.os, "posix_fallocate", refuse)
        monkeypatch.setattr(cold.os, "pwrite", refuse)
        return asked

    return fill


def test_rows_go_down_and_up_on_a_disk_that_has_become_full(tiered, full_disk, monkeypatch: pytest.MonkeyPatch):
    """The room of every row was taken when the row was made: of what there is, nothing asks for more."""
    monkeypatch.setattr(cold, "LEAST_SLAB_BYTES", 1)  # or there might be room by chance that nobody took
    table, plain = tiered(400_000), SparseTable(DIM, Adagrad(lr=0.05), seed=5)
    rng = np.random.default_rng(0)
    for each in (table, plain):
        each.pull(np.arange(20_000))
    asked = full_disk()
    before = table.counts
    assert before.disk_rows > 10_000
    for _ in range(30):
        keys = rng.integers(0, 20_000, 700)
        grads = rng.normal(size=(700, DIM)).astype(np.float32)
        for each in (table, plain):
            each.push(keys, grads)
        table.step()
    assert asked == []
    assert table.counts.num_demotions > before.num_demotions + 5000, "rows went down meanwhile"
    assert_equal_rows(table.export_rows(), plain.export_rows())


def test_a_full_disk_while_rows_go_down_is_an_error_and_every_row_stays_in_memory(tiered, full_disk):
    table, plain = tiered(1 << 20), SparseTable(DIM, Adagrad(lr=0.05), seed=5)
    for each in (table, plain):
        each.push(np.arange(3000), np.ones((3000, DIM), np.float32))
    asked = full_disk()
    with pytest.raises(StorageError, match=r"no room on disk for cold rows: No space left.*Free some room"):
        table._demote(np.arange(1000, dtype=np.uint64))
    assert len(asked) == 1
    counts = table.counts
    assert (counts.memory_rows, counts.disk_rows, counts.num_demotions) == (3000, 0, 0)
    assert_equal_rows(table.export_rows(), plain.export_rows())


@pytest.mark.parametrize("way", ["put", "import_rows", "push_unique"])
def test_a_full_disk_refuses_rows_that_come_from_elsewhere_whole(tiered, full_disk, way: str):
    table, other = tiered(300_000), SparseTable(DIM, Adagrad(lr=0.05), seed=5)
    if way != "import_rows":
        table.push(np.arange(500), np.ones((500, DIM), np.float32))
    other.pull(np.arange(1000, 21_000))
    before = table.export_rows(), table.num_pushes, table.counts
    asked = full_disk()
    rows, grads = other.export_rows(), np.ones((20_000, DIM), np.float32)
    arguments = {"put": (rows,), "import_rows": (rows, 7), "push_unique": (rows.keys, grads)}[way]
    with pytest.raises(StorageError, match="no room on disk for cold rows"):
        getattr(table, way)(*arguments)
    assert asked
    assert (table.num_pushes, table.counts) == before[1:]
    assert_equal_rows(table.export_rows(), before[0])


def test_a_budget_that_the_index_of_rows_on_disk_fills_is_an_error_and_the_table_stays(tiered):
    table = tiered(60_000)
    table.pull(np.arange(1000))
    with pytest.raises(ConfigError, match=r"60,000 bytes; with 101,000 rows it needs at least 1,2\d\d,\d\d\d.*Raise"):
        table.pull(np.arange(100_000, 200_000))
    assert len(table) == 1000
    table.pull(np.arange(2000))


def test_a_budget_for_too_few_rows_is_refused_at_once(tiered):
    with pytest.raises(ConfigError, match=r"1,000 bytes.*needs at least"):
        tiered(1000)


@pytest.mark.parametrize("order", ["lfu", "lru"])
@pytest.mark.parametrize("limits", [{"max_age": 18}, {"min_uses": 0.5, "half_life": 8}, {"max_bytes": 480_000}])
def test_eviction_takes_the_same_rows_with_tiers_as_without(tmp_path: Path, limits: dict, order: str):
    policy = Eviction(**limits, order=order)
    plain = SparseTable(DIM, eviction=policy)
    table = TieredTable(SparseTable(DIM, eviction=policy), Tiers(memory_bytes=300_000, folder=str(tmp_path)))
    rng = np.random.default_rng(1)
    for turn in range(40):
        keys = np.concatenate([rng.integers(0, 500, 200), rng.integers(turn * 300, turn * 300 + 900, 700)])
        grads = rng.normal(size=(900, DIM)).astype(np.float32)
        np.testing.assert_array_equal(table.pull(keys), plain.pull(keys))
        for each in (table, plain):
            each.push(keys, grads)
            if turn % 3 == 0:
                each.evict(100)
        table.step(200)
        assert table.num_bytes <= 300_000
    assert table.counts.disk_rows > 300
    assert sum(table.counters().evicted.values()) > 1000
    assert table.counters() == plain.counters()
    np.testing.assert_array_equal(table.evictions(), plain.evictions())
    assert_equal_rows(table.export_rows(), plain.export_rows())
    table.close()


def test_the_coldest_of_both_tiers_are_found_and_nothing_moves(tiered):
    table = tiered(160_000)
    table.push(np.arange(4000), np.ones((4000, DIM), np.float32))
    for _ in range(3):
        table.push(np.arange(3900), np.ones((3900, DIM), np.float32))
    before = table.counts
    assert before.disk_rows > 1000
    assert set(table.coldest(100, table.num_pushes).tolist()) <= set(range(4000))
    assert set(table.coldest(600, table.num_pushes).tolist()) >= set(range(3900, 4000))
    assert len(table.coldest(10_000, 4)) == 4000
    assert table.counts == before


def test_admission_and_schedules_are_those_of_the_table_in_memory(tmp_path: Path):
    kinds = {"admission": AfterSightings(num=2), "schedule": LinearRate(until=20_000, floor=0.1)}
    plain = SparseTable(DIM, Adam(), **kinds)
    table = TieredTable(SparseTable(DIM, Adam(), **kinds), Tiers(memory_bytes=200_000, folder=str(tmp_path)))
    rng = np.random.default_rng(1)
    for turn in range(30):
        keys = rng.integers(0, 8000, 1000)
        grads = rng.normal(size=(1000, DIM)).astype(np.float32)
        np.testing.assert_array_equal(table.pull(keys), plain.pull(keys))
        for each in (table, plain):
            each.push(keys, grads, samples=1000 * turn)
        table.step()
    assert 0 < len(table) == len(plain) < 8000
    assert table.counts.disk_rows > 1000
    assert_equal_rows(table.export_rows(), plain.export_rows())
    table.close()


def test_arguments_are_refused_as_a_sparse_table_does(tiered):
    table = tiered(1 << 20)
    with pytest.raises(TypeError, match="keys must be int64 or uint64"):
        table.pull(np.zeros(2))
    for push in (table.push, table.push_unique):
        with pytest.raises(ValueError, match=r"need gradients \[3, 3\], got \(2, 3\)"):
            push([1, 2, 3], np.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"out must be float32 \[3, 3\]"):
        table.pull([1, 2, 3], np.zeros((2, 3), np.float32))
    other = SparseTable(DIM)
    other.pull(np.arange(50_000))
    rows = other.export_rows()
    with pytest.raises(ValueError, match="50,001 rows hold only 50,000 distinct keys"):
        table.import_rows(rows.select(np.append(np.arange(50_000), 7)), 3)
    with pytest.raises(ValueError, match=r"50,000 rows of dim 3 .* need values \[50000, 3\] .* got \[9, 3\]"):
        table.import_rows(rows._replace(values=rows.values[:9]), 3)
    narrow = SparseTable(DIM - 1)
    narrow.pull(np.arange(50_000))
    with pytest.raises(ValueError, match="of dim 3 with adagrad need values"):
        table.import_rows(narrow.export_rows(), 3)
    assert (len(table), table.num_pushes) == (0, 0)
    table.pull([4])
    with pytest.raises(ValueError, match="empty table; this one has 1 rows"):
        table.import_rows(rows, 3)
    with pytest.raises(ValueError, match="keys that are in the table"):
        table.put(rows)
    table.close()
    table.close()


def test_threads_that_share_a_table_lose_no_step(tiered):
    table = tiered(250_000, 1, SGD(lr=1.0))
    shared = np.arange(500)
    start = table.pull(shared)

    def work(number: int) -> None:
        for i in range(20):
            own = 1000 + 100 * (20 * number + i) + np.arange(100)
            table.push(np.append(shared, own), -np.ones((600, 1)))
            table.step()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(table), table.num_pushes) == (500 + 8000, 80)
    assert table.counts.disk_rows > 2000
    np.testing.assert_allclose(table.pull(shared), start + 80, atol=1e-4)


# --- behind a client -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_shards", [1, 3])
def test_a_client_with_tiers_is_a_client_without(num_shards: int, tmp_path: Path):
    budget = Tiers(memory_bytes=600_000, folder=str(tmp_path))
    plain = LocalClient([TableSpec("rows", DIM, Adam(), 3, 0.1)], {}, num_shards)
    client = LocalClient([TableSpec("rows", DIM, Adam(), 3, 0.1, tiers=budget)], {}, num_shards)
    rng = np.random.default_rng(0)
    for _ in range(25):
        lookup = make_lookup(zipf(rng, 1500, 20_000), num_shards)
        grads = rng.normal(size=(1500, DIM)).astype(np.float32)
        ours, theirs = (each.pull("rows", lookup).result() for each in (client, plain))
        np.testing.assert_array_equal(ours, theirs)
        for each in (client, plain):
            each.push("rows", lookup, grads).result()
        assert client.num_bytes("rows") <= budget.memory_bytes
    counts = client.tier_counts("rows")
    assert counts is not None
    assert counts.memory_rows + counts.disk_rows == client.num_rows("rows") == plain.num_rows("rows")
    assert min(counts.disk_rows, counts.num_promotions) > 0
    assert plain.tier_counts("rows") is None
    assert_equal_rows(client.export_rows("rows")[0], plain.export_rows("rows")[0])
    client.close()
    client.close()
    plain.close()


def test_a_budget_is_shared_whole():
    budget = Tiers(memory_bytes=1000)
    assert [budget.share(part, 4).memory_bytes for part in (1, 3)] == [250, 750]
    assert budget.share(1, 10**6).memory_bytes == 1
