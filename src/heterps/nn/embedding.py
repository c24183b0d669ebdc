"""SparseEmbedding: an embedding whose rows live on parameter-server tables.

    slots --lookup--> unique keys --pull--> rows --gather--> values [n, dim] (a leaf of autograd) --pool--> output
                                                                |
    table <--one optimizer step per key-- sum by key <--push----+ values.grad, after backward

The values are a leaf of autograd: `values.grad` holds exactly the gradients that the servers need. So a SparseEmbedding
works with any module, loss and training loop of plain PyTorch; after `backward`, `push_gradients(model)` replaces the
optimizer's step for the tables.

Copies and `state_dict`s have no rows: state.py sees to it that none is lost unseen.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from xxhash import xxh3_64_intdigest

from heterps.arrays import FloatArray, OffsetArray
from heterps.config import (
    Adagrad,
    Admission,
    ConstantRate,
    Eviction,
    Initializer,
    Optimizer,
    Schedule,
    Tables,
    check_optimizer,
)
from heterps.data.batch import Slots
from heterps.data.keys import slots_from_ids
from heterps.errors import ModelError
from heterps.lookups import (
    PreparedSlots,
    RowGradients,
    RowUse,
    TableKeys,
    Window,
    cut_bags,
    joined_gradients,
    prepared,
)
from heterps.nn.state import ModuleWithRows
from heterps.ps.client.interface import RowClient
from heterps.ps.client.local import LocalClient
from heterps.ps.keys.dedup import make_lookup
from heterps.ps.protocol.specs import TableSpec

Pooling = Literal["sum", "mean", "none"]
ALONE: Optimizer = Adagrad(lr=0.05)
"""Optimizer of the tables of a module that has none of its own and is not bound."""


class SparseEmbedding(ModuleWithRows):
    """An embedding of the keys of some slots. Its rows are on tables, not in the module or its `state_dict`.

    slots       names of the slots to read; a batch may have others
    dim         number of values per row
    pooling     how the rows of a bag are combined: "sum" or "mean" (an empty bag gives zeros), or "none"
    tables      "one" table for all slots, or one table "per_slot"
    table       name of its table; modules with the same name share one table. None: the module's own name in the model
    optimizer   optimizer of its tables; None: the job's, or Adagrad(lr=0.05) outside a job
    init_scale  initial values are uniform in [-init_scale, init_scale), a pure function of (seed, table, key)
    init        other initial values: Normal(std=...), Constant(value=...), Zero(), ... of heterps.config
    schedule    schedule of the learning rate; None: the job's, or a constant rate outside a job
    admission   which keys get a row; None: the job's setting, or every key outside a job
    eviction    which rows are deleted; None: the job's setting, or none outside a job

    The output is [batch, len(slots), dim]; with pooling "none" and bags of several keys it is [number of keys, dim],
    in the order of `Slots.keys`. In `eval` mode unknown keys read their initial values and are not created.
    """

    _like: Tensor
    _window: Window | None = None  # the part of each bag that is read; None: all of it

    def __init__(
        self,
        slots: Sequence[str],
        dim: int,
        *,
        pooling: Pooling = "sum",
        tables: Literal["one", "per_slot"] = "one",
        table: str | None = None,
        optimizer: Optimizer | None = None,
        init_scale: float = 0.01,
        init: Initializer | None = None,
        schedule: Schedule | None = None,
        admission: Admission | None = None,
        eviction: Eviction | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if not slots or isinstance(slots, str):
            raise ModelError(f"slots must be a list of at least one slot name, got {slots!r}")
        if len(set(slots)) < len(slots):
            raise ModelError(f"slots must differ, got {list(slots)}")
        if not isinstance(dim, (int, np.integer)) or dim < 1:
            raise ModelError(f"dim must be a whole number, at least 1, got {dim!r}")
        if pooling not in ("sum", "mean", "none"):
            raise ModelError(f"pooling must be sum, mean or none, got {pooling!r}")
        if tables not in ("one", "per_slot"):
            raise ModelError(f"tables must be one or per_slot, got {tables!r}")
        if table is not None and tables != "one":
            raise ModelError(f"table={table!r} names one table; leave out tables={tables!r}")
        if optimizer is not None:
            check_optimizer(optimizer)
        self.slots = tuple(slots)
        self.dim = dim
        self.pooling: Pooling = pooling
        self.optimizer = optimizer
        self.init_scale = init_scale
        self.init = init
        self.schedule = schedule
        self.admission = admission
        self.eviction = eviction
        self.seed = seed
        self.table = table
        self._groups = [self.slots] if tables == "one" else [(slot,) for slot in self.slots]
        self._tables: list[str] = []
        self._client: RowClient | None = None
        self._frozen: frozenset[str] = frozenset()
        self._is_alone = False  # it made its tables itself
        self._uses: dict[int, RowUse] = {}  # by id of the values
        self.register_buffer("_like", torch.empty(0), persistent=False)  # follows `module.to(device, dtype)`

    @property
    def window(self) -> Window | None:
        """The part of each bag that is looked up; None: all of it."""
        return self._window

    def extra_repr(self) -> str:
        return f"{len(self.slots)} slots, dim={self.dim}, pooling={self.pooling}, tables={len(self._groups)}"

    # --- tables ------------------------------------------------------------------------------------------------------

    def table_specs(
        self,
        name: str,
        optimizer: Optimizer,
        seed: int = 0,
        *,
        schedule: Schedule = ConstantRate(),
        tables: Tables = Tables(),
    ) -> list[TableSpec]:
        """The specs of the tables that this module needs; `name` is its name in the model.

        `optimizer`, `schedule` and `tables` apply where the module has no settings of its own.
        """
        names = self.names_in(name)
        chosen = self.optimizer or optimizer
        seeds = [xxh3_64_intdigest(table.encode(), seed=(self.seed + seed) % 2**64) for table in names]
        return [
            TableSpec(
                table,
                self.dim,
                chosen,
                table_seed,
                self.init_scale,
                self.init or tables.init,
                self.schedule or schedule,
                self.admission or tables.admission,
                self.eviction or tables.eviction,
            )
            for table, table_seed in zip(names, seeds, strict=True)
        ]

    def names_in(self, name: str) -> list[str]:
        """The names of its tables; `name` is its name in the model."""
        if self.table is not None:
            return [self.table]
        return [name] if len(self._groups) == 1 else [f"{name}.{group[0]}" for group in self._groups]

    def slots_of(self, name: str) -> list[tuple[str, tuple[str, ...]]]:
        """Its tables, each with the slots that have rows in it; `name` is its name in the model."""
        return list(zip(self.names_in(name), self._groups, strict=True))

    def bind(self, client: RowClient, tables: Sequence[str], frozen: Collection[str] = ()) -> None:
        """Take rows from these `tables` of `client` from now on, one or one per slot. `frozen` tables learn nothing."""
        self._client, self._tables, self._uses = client, list(tables), {}
        self._frozen = frozenset(frozen)
        self._is_alone = False

    @property
    def client(self) -> RowClient:
        """The client that has the rows. A module that was not bound creates its own tables in this process."""
        if self._client is None:
            specs = self.table_specs("embedding", ALONE)
            self.bind(LocalClient(specs, {}), [spec.name for spec in specs])
            assert self._client is not None
            self._is_alone = True
        return self._client

    @property
    def client_to_push(self) -> RowClient:
        """The client; ModelError where the module made its tables itself, although others may share them."""
        client = self.client
        if self._is_alone and self.table is not None:
            raise ModelError(
                f"{type(self).__name__} {', '.join(self.slots)} cannot learn alone, since other modules may share its "
                f"table {self.table}. Bind them together: `heterps.Trainer(model)` does it, or `bind_tables`."
            )
        return client

    @property
    def held(self) -> tuple[RowClient | None, list[str]]:
        """The client that has the rows and the names of its tables there; no client before the first use."""
        return self._client, list(self._tables)

    # --- forward and push --------------------------------------------------------------------------------------------

    def prepare(self, slots: PreparedSlots) -> None:
        """Compute ahead of use, in any thread, which rows `forward` will pull."""
        for group in self._groups:
            self._part(slots, group)

    def parts(self, slots: PreparedSlots) -> list[tuple[str, TableKeys]]:
        """The tables that `forward` will pull from, with their keys."""
        return [(table, self._part(slots, group)) for table, group in zip(self._tables, self._groups, strict=True)]

    def forward(self, slots: Slots | Tensor) -> Tensor:
        """Return the rows of a batch, given Slots or raw integer ids [batch, len(slots)] ([batch] for one slot)."""
        if isinstance(slots, Tensor):
            ids = slots.unsqueeze(1) if slots.ndim == 1 else slots
            slots = slots_from_ids(ids.cpu().numpy(), self.slots)
        elif not isinstance(slots, Slots):
            raise ModelError(
                f"{type(self).__name__} {', '.join(self.slots)} takes Slots, or a tensor of integer ids, but was given "
                f"{type(slots).__name__}. Make Slots of strings or lists with heterps.bags({{{self.slots[0]!r}: ...}})."
            )
        if self.pooling == "none" and slots.offsets is not None and len(self._groups) > 1:
            raise ModelError(
                "pooling 'none' over bags of several keys has no common shape for several tables: "
                "use tables='one', or a SparseEmbedding for each slot"
            )
        outputs = [self._pool(values, part.offsets) for values, part in self._pulled(slots)]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)

    def _pulled(self, slots: Slots) -> list[tuple[Tensor, TableKeys]]:
        """The values [n, dim] of all keys of each table, as leaves of autograd whose gradients will be pushed."""
        assert self.client is not None  # a module that was not bound has its tables now
        parts = self.parts(prepared(slots))
        futures = [self._rows(table, part) for table, part in parts]
        pulled = []
        for (table, part), future in zip(parts, futures, strict=True):
            rows = torch.from_numpy(future.result())
            values = functional.embedding(torch.from_numpy(part.lookup.inverse), rows).to(self._like)
            if self.training and torch.is_grad_enabled() and table not in self._frozen:
                values.requires_grad_()
                values.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    partial(self._on_gradient, table, part)
                )
            pulled.append((values, part))
        return pulled

    def _rows(self, table: str, part: TableKeys) -> Future[FloatArray]:
        if self.training and table in part.ahead:
            return part.ahead[table]()
        return self.client.pull(table, part.lookup, create=self.training)

    def push(self) -> list[Future[None]]:
        """Send the gradients of every `backward` since the last push; each key of a table gets one optimizer step."""
        return [self.client_to_push.push(*gradients) for gradients in self.take_gradients()]

    def take_gradients(self) -> list[RowGradients]:
        """Remove and return the gradients that `push` would send."""
        return joined_gradients(self.take_uses(), self.client.num_shards)

    @property
    def uses(self) -> list[RowUse]:
        """The uses of tables that `backward` has reached since they were last taken."""
        return list(self._uses.values())

    def take_uses(self) -> list[RowUse]:
        """Remove and return the uses of tables that `backward` has reached since the last call."""
        uses, self._uses = list(self._uses.values()), {}
        return uses

    def _on_gradient(self, table: str, part: TableKeys, values: Tensor) -> None:
        """Record that `backward` reached the values. A forward pass without a backward leaves nothing in the module."""
        use = self._uses[id(values)] = RowUse(table, part, values)
        if part.whole is not None and (grads := part.whole.grads.get(table)) is not None:
            grads[part.start : part.start + len(part.keys)] = use.gradient

    def _part(self, slots: PreparedSlots, group: tuple[str, ...]) -> TableKeys:
        num_shards = 1 if self._client is None else self._client.num_shards
        owner = (group, num_shards, self._window)
        if owner not in slots.lookups:
            picked = slots.select(group)
            if self._window is not None:
                picked = cut_bags(picked, self._window)
            slots.lookups[owner] = TableKeys(picked.keys, picked.offsets, make_lookup(picked.keys, num_shards), group)
        return slots.lookups[owner]

    def _pool(self, values: Tensor, offsets: OffsetArray | None) -> Tensor:
        num_slots = len(self.slots) // len(self._groups)
        if offsets is None:
            return values.view(-1, num_slots, self.dim)
        if self.pooling == "none":
            return values
        lengths = torch.from_numpy(np.diff(offsets)).to(values.device)
        bags = torch.repeat_interleave(torch.arange(len(lengths), device=values.device), lengths)
        pooled = values.new_zeros(len(lengths), self.dim).index_add(0, bags, values)
        if self.pooling == "mean":
            pooled = pooled / lengths.clamp(min=1).unsqueeze(1)
        return pooled.view(-1, num_slots, self.dim)


def embeddings(model: nn.Module) -> Iterator[tuple[str, SparseEmbedding]]:
    """Iterate over the SparseEmbeddings of a model with their names; a model that is one is named "embedding"."""
    for name, module in model.named_modules():
        if isinstance(module, SparseEmbedding):
            yield name or "embedding", module
