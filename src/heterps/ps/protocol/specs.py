"""Specs: what the tables of a job are, as modules ask for them, clients name them and servers make them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import TypeAdapter
from xxhash import xxh3_64_hexdigest

from heterps.config import Admission, Always, ConstantRate, Eviction, Initializer, Optimizer, Schedule, Tiers
from heterps.ps.table.sparse import SparseTable
from heterps.ps.table.tiers import TieredTable

DENSE = "dense"
"""Name of a model's dense table, which holds its trainable parameters one after another."""


@dataclass(frozen=True)
class TableSpec:
    """A sparse table, as a module asks for it and a server makes it."""

    name: str
    dim: int
    optimizer: Optimizer
    seed: int
    init_scale: float
    init: Initializer | None = None  # none: uniform in [-init_scale, init_scale)
    schedule: Schedule = field(default_factory=ConstantRate)
    admission: Admission = field(default_factory=Always)
    eviction: Eviction = field(default_factory=Eviction)
    tiers: Tiers | None = None  # of all shards in this process together
    is_frozen: bool = False  # it is pulled, and nothing is pushed to it

    def make_shard(self, num_shards: int = 1) -> SparseTable | TieredTable:
        """Return one of the table's `num_shards` shards in this process, empty: all are made alike."""
        table = SparseTable(
            self.dim,
            self.optimizer,
            self.seed,
            self.init_scale,
            init=self.init,
            schedule=self.schedule,
            admission=self.admission,
            eviction=self.eviction,
        )
        return table if self.tiers is None else TieredTable(table, self.tiers.share(1, num_shards))


@dataclass(frozen=True)
class DenseSpec:
    """A dense table, as a worker asks for it and servers make their ranges of it."""

    name: str
    size: int
    optimizer: Optimizer
    schedule: Schedule = field(default_factory=ConstantRate)
    is_frozen: bool = False  # it is pulled, and nothing is pushed to it


@dataclass(frozen=True)
class TableSpecs:
    """Everything that the servers of a job hold. Workers and servers must agree on it: see `digest`."""

    sparse: tuple[TableSpec, ...]
    dense: tuple[DenseSpec, ...] = ()

    def __post_init__(self) -> None:
        names = [spec.name for spec in self.sparse] + [spec.name for spec in self.dense]
        if len(set(names)) < len(names):
            raise ValueError(f"every table needs a name of its own, got {sorted(names)}")

    @property
    def frozen(self) -> frozenset[str]:
        """The names of tables that are not trained."""
        dense = {spec.name for spec in self.dense if spec.is_frozen}
        return frozenset(dense | {spec.name for spec in self.sparse if spec.is_frozen})

    @property
    def digest(self) -> str:
        """A digest, equal for tables that give equal results, whatever their order and wherever their rows are."""
        specs = (*(replace(spec, tiers=None) for spec in self.sparse), *self.dense)
        return xxh3_64_hexdigest("\n".join(sorted(map(repr, specs))).encode())

    def share_memory(self, num: int) -> TableSpecs:
        """Return the tables of one of `num` servers of a process, which share its memory for tables with tiers."""
        specs = [replace(s, tiers=None if s.tiers is None else s.tiers.share(1, num)) for s in self.sparse]
        return replace(self, sparse=tuple(specs))

    def to_plain(self) -> Any:
        """Return what `plain_tables` makes these specs of again, as values that JSON has."""
        return _PLAIN.dump_python(self, mode="json")


_PLAIN: TypeAdapter[TableSpecs] = TypeAdapter(TableSpecs)


def plain_tables(plain: Any) -> TableSpecs:
    """Return the specs that `to_plain` gave, perhaps in another process."""
    return _PLAIN.validate_python(plain)
