"""Any order of what can be done to a table leaves it equal, to the bit, to a dict and NumPy."""

from __future__ import annotations

from tempfile import TemporaryDirectory

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from heterps.checkpoint import Snapshot, TableRows, load, save
from heterps.config import FTRL, Adam, CosineRate, Eviction, Normal, RowAdagrad
from heterps.ps import SparseTable
from heterps.ps.table.reference import ReferenceTable
from heterps.ps.table.sparse import Rows

DIM = 3
key_batches = st.lists(st.integers(0, 40) | st.integers(2**64 - 5, 2**64 - 1), max_size=70)
POLICIES = [
    Eviction(),
    Eviction(max_age=6),
    Eviction(min_uses=1.2, half_life=5),
    Eviction(max_bytes=1500),
    Eviction(max_bytes=1500, max_age=9, order="lru"),
]


class TableMachine(RuleBasedStateMachine):
    """Rows that eviction chose are taken from its log: which they are is tested elsewhere, that nothing else changes
    is tested here."""

    @initialize(optimizer=st.sampled_from([Adam(), RowAdagrad(), FTRL(l1=0.01)]), eviction=st.sampled_from(POLICIES))
    def start(self, optimizer, eviction):
        self.options = {"seed": 9, "init": Normal(std=0.1), "schedule": CosineRate(warmup=20, until=400)}
        self.make = lambda: SparseTable(DIM, optimizer, eviction=eviction, **self.options)
        self.table, self.reference = self.make(), ReferenceTable(DIM, optimizer, **self.options)
        self.reference._fading = self.table._fading
        self.rng = np.random.default_rng(0)
        self.samples = self.num_evicted = 0
        self.fresh = 1000

    def follow_evictions(self):
        total = sum(self.table.counters().evicted.values())
        new, self.num_evicted = total - self.num_evicted, total
        gone = self.table.evictions()["key"][len(self.table.evictions()) - new :]
        assert self.reference.known(gone).all(), "a row went that was not there"
        self.reference.take(gone)

    @rule(keys=key_batches, create=st.booleans())
    def pull(self, keys, create):
        keys = np.array(keys, np.uint64)
        np.testing.assert_array_equal(self.table.pull(keys, create=create), self.reference.pull(keys, create=create))

    @rule(keys=key_batches)
    def push(self, keys):
        keys = np.array(keys, np.uint64)
        grads = self.rng.normal(size=(len(keys), DIM)).astype(np.float32)
        self.table.push(keys, grads, samples=self.samples)
        self.reference.push(keys, grads, samples=self.samples)
        self.samples += len(keys)
        self.follow_evictions()

    @rule(keys=key_batches, back=st.booleans())
    def take(self, keys, back):
        keys = np.array(keys, np.uint64)
        taken, expected = self.table.take(keys), self.reference.take(keys)
        for mine, other in zip(taken, expected, strict=True):
            np.testing.assert_array_equal(mine, other)
        if back:
            self.table.put(taken)
            self.reference.put(taken)

    @rule(step=st.integers(0, 50))
    def evict(self, step):
        before = len(self.table)
        assert self.table.evict(step) == before - len(self.table)
        self.follow_evictions()

    @rule(num=st.integers(1, 700))
    def grow(self, num):
        keys = np.arange(self.fresh, self.fresh + num)
        self.fresh += num
        np.testing.assert_array_equal(self.table.pull(keys), self.reference.pull(keys))

    @rule()
    def save_and_load(self):
        rows, num_pushes = self.table.export_rows(), self.table.num_pushes
        cut = Snapshot(0, 0, tables={"t": TableRows(*rows[:3], {}, *rows[3:])})
        with TemporaryDirectory() as folder:
            saved = load(save(folder, cut)).tables["t"]
        self.table, self.num_evicted = self.make(), 0
        self.table.import_rows(Rows(saved.keys, saved.values, saved.state, saved.uses, saved.clock), num_pushes)

    @invariant()
    def the_tables_are_equal(self):
        if not hasattr(self, "table"):
            return
        assert len(self.table) == len(self.reference)
        ours, theirs = self.table.export_rows(), self.reference.export_rows()
        ours, theirs = ours.select(np.argsort(ours.keys)), theirs.select(np.argsort(theirs.keys))
        for mine, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(mine, other)


TestTableMachine = TableMachine.TestCase
TestTableMachine.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
