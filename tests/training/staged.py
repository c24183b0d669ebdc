"""Models cut into stages with the tables of a job, and a pipeline of replicas in one thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from zoo_cases import CASES, small_model

from heterps.arrays import FloatArray
from heterps.checkpoint import Snapshot, TableRows
from heterps.config import Data, Job, Optimizers, Schema
from heterps.data.batch import Batch, Slots
from heterps.data.keys import slots_from_ids
from heterps.lookups import slice_slots
from heterps.model import whole
from heterps.model.stages import StageModule, split
from heterps.model.trace import Trace, trace
from heterps.nn import SparseEmbedding
from heterps.ps.client.local import LocalClient, in_process
from heterps.training.model.device import Device
from heterps.training.model.objectives import Objectives
from heterps.training.model.replica import Replica
from heterps.training.model.replicas import StagePart
from heterps.training.protocol.stage_tables import StageTables, stage_tables

SLOTS = ("s", "t")


BINARY = Schema()


@dataclass
class Staged:
    """A model in stages that begin after the `boundaries`."""

    model: nn.Module
    boundaries: Sequence[int]
    optimizers: Optimizers = field(default_factory=Optimizers)
    columns: Schema = BINARY
    trace: Trace = field(init=False)
    stages: list[StageModule] = field(init=False)
    tables: StageTables = field(init=False)

    def __post_init__(self) -> None:
        job = Job(data=Data(train="unread.parquet"), optimizers=self.optimizers)
        self.trace = trace(self.model)
        self.stages = split(self.trace, self.boundaries)
        self.tables = stage_tables(job, self.model, self.trace, [0, *self.boundaries])

    def client(self) -> LocalClient:
        return in_process(self.tables.tables)

    def replicas(self, client: LocalClient, device: Device | None = None) -> list[Replica]:
        """One of each stage."""
        return [self.part(number, device).replica(client) for number in range(len(self.stages))]

    def part(self, number: int = 0, device: Device | None = None) -> StagePart:
        return StagePart(self.model, self.trace, self.stages, self.tables, number, Objectives(self.columns), device)

    def inputs(self, batch: Batch, first: int = 0, last: int | None = None) -> dict[str, object]:
        """What stage 0 takes of samples first..last-1."""
        last = len(batch) if last is None else last
        values = torch.from_numpy(batch.dense[first:last]), slice_slots(batch.slots, first, last)
        return dict(zip(self.trace.inputs, values, strict=True))


@dataclass
class Pushed:
    """What replicas would push, summed: dense gradients by parameter, row gradients by table and key."""

    loss: float
    logits: FloatArray
    dense: dict[str, FloatArray]
    rows: dict[str, dict[int, FloatArray]]


def run_pipeline(staged: Staged, replicas: list[Replica], batch: Batch, bounds: Sequence[int]) -> Pushed:
    """All micro-batches forward, then all backward, as a round of BSP."""
    keys = [(lane, 0) for lane in range(len(bounds) - 1)]
    losses, logits, ends = [], [], []
    for key, first, last in zip(keys, bounds, bounds[1:], strict=False):
        values = staged.inputs(batch, first, last)
        for replica in replicas[:-1]:
            values = replica.forward(key, values)
        label = torch.from_numpy(batch.label[first:last])
        loss, scores, gradients = replicas[-1].loss(key, values, label, len(batch))
        losses.append(loss)
        logits.append(scores)
        ends.append(gradients)
    for key, gradients in zip(keys, ends, strict=True):
        for replica in reversed(replicas[:-1]):
            gradients = replica.backward(key, gradients)
    return collect(staged, replicas, sum(losses), np.concatenate(logits))


def collect(staged: Staged, replicas: Sequence[Replica], loss: float = 0.0, logits: FloatArray = np.zeros(0)) -> Pushed:
    shapes = {name: parameter.shape for name, parameter in staged.model.named_parameters()}
    dense: dict[str, FloatArray] = {}
    rows: dict[str, dict[int, FloatArray]] = {}
    for replica in replicas:
        by_table, taken = replica.take_gradients()
        for table, grads in by_table.items():
            at = 0
            for name in staged.tables.parameters[table]:
                part = grads[at : at + shapes[name].numel()]
                dense[name] = dense.get(name, 0) + part
                at += len(part)
            assert at == len(grads)
        add_rows(rows, taken)
    return Pushed(loss, logits, dense, rows)


def add_rows(rows: dict[str, dict[int, FloatArray]], taken) -> None:
    for table, lookup, grads in taken:
        sums = rows.setdefault(table, {})
        for place, grad in zip(lookup.inverse, grads, strict=True):
            key = int(lookup.unique[place])
            sums[key] = sums.get(key, 0) + grad


def zoo_model(name: str) -> tuple[nn.Module, Schema]:
    """A small model of the zoo, always with the same weights, and its columns."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return small_model(name), CASES[name][0]


def splits(model: nn.Module, most: int = 4) -> st.SearchStrategy[list[int]]:
    """Boundaries of up to `most` stages."""
    last = len(trace(model).layers) - 1
    return st.sets(st.integers(1, last), max_size=min(most - 1, last)).map(sorted)


def arrays_of(snapshot: Snapshot) -> dict[str, np.ndarray]:
    """Everything that was trained, with the rows in the order of their keys."""
    arrays = {name: array for name, array in snapshot.dense.items() if not name.startswith("random")}
    for name, table in ((name, table.whole()) for name, table in snapshot.tables.items()):
        assert isinstance(table, TableRows)
        order = np.argsort(table.keys)
        arrays |= {
            f"{name}.{part}": getattr(table, part)[order] for part in ("keys", "values", "state", "uses", "clock")
        }
        arrays[f"{name}.pushes"] = np.array(table.meta["num_pushes"])
    return arrays


def assert_same_arrays(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert array.shape == other[name].shape, f"{name} has another shape"
        assert array.tobytes() == other[name].tobytes(), f"{name} differs"


# --- models with something special -----------------------------------------------------------------------------------


def a_batch(size: int = 12, seed: int = 0) -> Batch:
    """Of two dense columns and SLOTS."""
    random = np.random.default_rng(seed)
    ids = random.integers(0, 8, (size, 2))
    dense = random.standard_normal((size, 2), np.float32)
    return Batch(dense, slots_from_ids(ids, SLOTS), (ids[:, 0] % 2).astype(np.float32))


class Block(nn.Module):
    """An embedding and a layer that tracing does not look into."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = SparseEmbedding(SLOTS, 3)
        self.mix = nn.Linear(6, 4)

    def forward(self, slots: Slots) -> Tensor:
        return self.mix(self.rows(slots).flatten(1))


class Tied(nn.Module):
    """first and last share a weight, `shared` is called at both ends, block has an embedding inside, spare is unused.

    Layers: 0 first, 1 act, 2 shared, 3 middle, 4 block, 5 cat, 6 shared#2, 7 cat, 8 joint, 9 last, 10 mul, 11 sum.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.act = nn.Tanh()
        self.shared = SparseEmbedding(SLOTS, 2)
        self.middle = nn.Linear(4, 3)
        self.block = whole(Block())
        self.joint = nn.Linear(2 + 3 + 4 + 4, 2)
        self.last = nn.Linear(2, 2)
        self.last.weight = self.first.weight
        self.spare = nn.Parameter(torch.ones(3))
        self.fixed = nn.Parameter(torch.ones(2), requires_grad=False)

    def forward(self, dense: Tensor, slots: Slots) -> Tensor:
        x = self.act(self.first(dense))
        m = self.middle(self.shared(slots).flatten(1))
        b = torch.cat([x, m, self.block(slots)], dim=1)
        joined = self.joint(torch.cat([b, self.shared(slots).flatten(1)], dim=1))
        return (self.last(joined) * self.fixed).sum(1)


def tied() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return Tied()
