"""Any order of what can be done to a table, with tiers or without, leaves it equal, to the bit, to a dict and NumPy."""

from __future__ import annotations

from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from table_model import ModelTable

from heterps.checkpoint import Snapshot, TableRows, TableStream, load, save
from heterps.config import (
    FTRL,
    Adam,
    AfterSightings,
    Always,
    CosineRate,
    Eviction,
    Normal,
    RowAdagrad,
    Tiers,
    WithProbability,
)
from heterps.ps import SparseTable
from heterps.ps.table import budget
from heterps.ps.table.eviction import LOG_LENGTH
from heterps.ps.table.metadata import stack, unstack
from heterps.ps.table.rows import Rows
from heterps.ps.table.tiers import TieredTable

DIM = 3
SKETCH_BYTES = 1024
MEMORY_BYTES = 16_000 + 12 * 64
key_batches = st.lists(st.integers(0, 40) | st.integers(2**64 - 5, 2**64 - 1), max_size=70)
OPTIMIZERS = [Adam(), RowAdagrad(), FTRL(l1=0.01)]
ADMISSIONS = [Always(), WithProbability(p=0.4), AfterSightings(num=2, sketch_bytes=SKETCH_BYTES)]
EVICTIONS = [
    Eviction(),
    Eviction(max_age=6),
    Eviction(min_uses=1.2, half_life=5),
    Eviction(max_bytes=12 * 1024 + 1500),
    Eviction(max_bytes=12 * 1024 + 1500, max_age=9, order="lru"),
]


class TableMachine(RuleBasedStateMachine):
    """A SparseTable against the model; what eviction takes, and what a gate refuses, is the model's too."""

    tiers: Tiers | None = None
    frozen = ()

    @initialize(
        optimizer=st.sampled_from(OPTIMIZERS),
        admission=st.sampled_from(ADMISSIONS),
        eviction=st.sampled_from(EVICTIONS),
    )
    def start(self, optimizer, admission, eviction):
        options = {"seed": 9, "init": Normal(std=0.1), "schedule": CosineRate(warmup=20, until=400)}
        options |= {"admission": admission, "eviction": eviction}
        self.make = lambda: self.with_tiers(SparseTable(DIM, optimizer, **options))
        self.table, self.model = self.make(), ModelTable(DIM, optimizer, **options)
        self.rng = np.random.default_rng(0)
        self.samples = 0
        self.fresh = 1000
        self.frozen = []

    def with_tiers(self, table):
        return table

    @rule(keys=key_batches, create=st.booleans())
    def pull(self, keys, create):
        keys = np.array(keys, np.uint64)
        np.testing.assert_array_equal(self.table.pull(keys, create=create), self.model.pull(keys, create=create))

    @rule(keys=key_batches, unique=st.booleans())
    def push(self, keys, unique):
        keys = np.array(list(dict.fromkeys(keys)) if unique else keys, np.uint64)
        grads = self.rng.normal(size=(len(keys), DIM)).astype(np.float32)
        for table in (self.table, self.model):
            (table.push_unique if unique else table.push)(keys, grads, samples=self.samples)
        self.samples += len(keys)

    @rule(keys=key_batches, back=st.booleans())
    def take(self, keys, back):
        keys = np.array(keys, np.uint64)
        taken, expected = self.table.take(keys), self.model.take(keys)
        assert_equal_rows(taken, expected)
        assert not self.table.known(keys).any()
        if back:
            self.table.put(taken)
            self.model.put(taken)

    @rule(step=st.integers(0, 50))
    def evict(self, step):
        assert self.table.evict(step) == self.model.evict(step)

    @rule(num=st.integers(1, 700))
    def grow(self, num):
        keys = np.arange(self.fresh, self.fresh + num)
        self.fresh += num
        np.testing.assert_array_equal(self.table.pull(keys), self.model.pull(keys))

    @precondition(lambda self: self.tiers is not None)
    @rule(num=st.integers(1, 60))
    def demote(self, num):
        before = self.table.counts.disk_rows
        assert self.table.step(num) == self.table.counts.disk_rows - before <= num

    @rule()
    def save_and_load(self):
        """Through the real store; the table that goes on is another."""
        frozen, num_pushes, old = self.table.freeze(), self.table.num_pushes, self.table
        kept = stack([old.export_metadata()])

        def read():
            return (TableRows(*rows[:3], {}, *rows[3:]) for rows in frozen.parts())

        stream = TableStream(len(old), self.widths, read, {"num_pushes": num_pushes}, kept)
        with TemporaryDirectory() as folder:
            saved = load(save(folder, Snapshot(0, 0, tables={"t": stream}))).tables["t"]
            rows = Rows(*(getattr(saved.whole(), field) for field in Rows._fields))
        self.close()
        self.table = self.make()
        self.table.import_rows(rows, saved.meta["num_pushes"], unstack(saved.metadata, 1)[0])
        self.model.gone_before = len(self.model.gone)

    @precondition(lambda self: self.tiers is None)
    @rule()
    def freeze(self):
        """Others go on; what was frozen is read later, or never."""
        self.frozen.append([self.table.freeze(), self.model.export_rows(), []])

    @precondition(lambda self: self.frozen)
    @rule(number=st.integers(0, 3), parts=st.integers(1, 3))
    def read_frozen(self, number, parts):
        rows, expected, read = self.frozen[number % len(self.frozen)]
        read.append(rows.parts()) if not read else None
        for _ in range(parts):
            if (part := next(read[0], None)) is None:
                assert_equal_rows(Rows.join([*read[1:], expected.select(slice(0))]), expected)
                self.frozen.pop(number % len(self.frozen))
                return
            read.append(part)

    @property
    def widths(self):
        rows = self.model.export_rows()
        return DIM, rows.state.shape[1]

    @invariant()
    def the_tables_are_equal(self):
        if not hasattr(self, "table"):
            return
        assert (len(self.table), self.table.num_pushes) == (len(self.model), self.model.num_pushes)
        assert_equal_rows(self.table.export_rows(), self.model.export_rows())

    @invariant()
    def what_came_and_went_is_equal(self):
        if not hasattr(self, "table"):
            return
        model, counters = self.model, self.table.counters()
        assert counters.refused == model.num_refused
        reasons = [reason for _, reason in model.gone]
        assert counters.evicted == {reason: reasons.count(reason) for reason in ("age", "uses", "bytes")}
        lately = model.gone[getattr(model, "gone_before", 0) :][-LOG_LENGTH:]
        assert self.table.evictions()[["key", "reason"]].tolist() == lately
        metadata = self.table.export_metadata()
        assert (metadata.hand, metadata.sightings) == (model.hand, model.sightings)
        if len(metadata.sketch):
            np.testing.assert_array_equal(metadata.sketch, model.sketch(SKETCH_BYTES))

    @invariant()
    def sizes_are_of_all_rows(self):
        if hasattr(self, "table"):
            sizes = self.table.sizes()
            assert sizes.memory_rows + sizes.disk_rows == len(self.table)
            assert sizes.memory_bytes == self.table.num_bytes
            if self.tiers is None:
                assert (sizes.disk_rows, sizes.disk_bytes) == (0, 0)

    def close(self):
        pass


class TieredMachine(TableMachine):
    """The same, for a table that has room for a few dozen rows in memory, as long as it has no more than a thousand."""

    tiers = Tiers(memory_bytes=MEMORY_BYTES, folder="unset")

    def __init__(self):
        super().__init__()
        self.folder, self.patch = TemporaryDirectory(), pytest.MonkeyPatch()
        self.patch.setattr(budget, "LEAST_ROWS", 4)

    def with_tiers(self, table):
        memory_bytes = MEMORY_BYTES + 12_000 * (table.eviction != Eviction())
        return TieredTable(table, Tiers(memory_bytes=memory_bytes, folder=self.folder.name))

    @rule(num=st.integers(1, 60))
    def grow(self, num):  # the index of rows on disk takes memory, so not by many
        if self.fresh < 1600:
            keys = np.arange(self.fresh, self.fresh + num)
            self.fresh += num
            np.testing.assert_array_equal(self.table.pull(keys), self.model.pull(keys))

    @invariant()
    def memory_is_within_the_budget(self):
        if hasattr(self, "table"):
            assert self.table.num_bytes <= MEMORY_BYTES + 12_000

    def close(self):
        self.table.close()

    def teardown(self):
        if hasattr(self, "table"):
            self.close()
        self.folder.cleanup()
        self.patch.undo()


def assert_equal_rows(ours: Rows, theirs: Rows) -> None:
    ours, theirs = ours.select(np.argsort(ours.keys)), theirs.select(np.argsort(theirs.keys))
    for name, mine, other in zip(Rows._fields, ours, theirs, strict=True):
        np.testing.assert_array_equal(mine, other, err_msg=name)


TestTableMachine = TableMachine.TestCase
TestTableMachine.settings = settings(max_examples=40, stateful_step_count=25)
TestTieredMachine = TieredMachine.TestCase
TestTieredMachine.settings = settings(max_examples=40, stateful_step_count=25)
