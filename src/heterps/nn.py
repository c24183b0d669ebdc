"""Modules for models whose embedding rows live on parameter-server tables.

    slots --lookup--> unique keys --pull--> rows --spread--> values [n, dim] (a leaf of autograd) --pool--> output
                                                                |
    table <--one optimizer step a key-- sum by key <--push------+ values.grad, after backward

The values are a leaf: autograd ends there, and what it leaves in `values.grad` is what the servers need. So any module,
loss and loop of plain PyTorch works around a SparseEmbedding; after `backward`, `push_gradients(model)` takes the place
of the optimizer's step for the tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from xxhash import xxh3_64_intdigest

from heterps.config import (
    Adagrad,
    Admission,
    ConstantRate,
    Eviction,
    Initializer,
    Optimizer,
    Optimizers,
    Schedule,
    Tables,
    Tiers,
)
from heterps.data.batch import FloatArray, KeyArray, OffsetArray, Slots
from heterps.data.keys import slots_from_ids
from heterps.ps.client.local import LocalClient, RowClient
from heterps.ps.keys.dedup import Lookup, make_lookup
from heterps.ps.protocol.specs import DenseSpec, TableSpec
from heterps.ps.protocol.specs import Tables as ModelTables

__all__ = ["Slots", "SparseEmbedding", "bind_tables", "embeddings", "model_tables", "push_gradients"]

DENSE = "dense"
"""The dense table of a model: all its trainable parameters, one after another."""

Pooling = Literal["sum", "mean", "none"]


class _TableKeys(NamedTuple):
    """What one table has to do with a batch. It must not hold the Slots that keep it: a cycle would outlive them."""

    keys: KeyArray
    offsets: OffsetArray | None
    lookup: Lookup


class _Use(NamedTuple):
    """One use of a table in a forward pass, whose gradient `backward` has left in `values.grad`."""

    table: str
    part: _TableKeys
    values: Tensor


class RowGradients(NamedTuple):
    """Gradients [n, dim] of all keys of a lookup, for one push to a table."""

    table: str
    lookup: Lookup
    grads: FloatArray


class SparseEmbedding(nn.Module):
    """Rows for the keys of some slots. They are on a table and not in the module: `state_dict` knows nothing of them.

    slots       the slots it reads; a batch may have others
    dim         values of a row
    pooling     how the rows of a bag become one: "sum" and "mean" (an empty bag gives zeros), or "none"
    tables      "one" table for all slots, or one table "per_slot"
    optimizer   of its tables; none: what the job says, Adagrad(lr=0.05) outside a job
    init_scale  rows start uniform in [-init_scale, init_scale), a pure function of (seed, table, key)
    init        another start than that: Normal(std=...), Constant(value=...), Zero(), ... of heterps.config
    schedule    of its learning rate; none: what the job says, and a constant rate outside a job
    admission   which keys get a row; none: what the job says, and every key outside a job
    eviction    which rows go; none: what the job says, and no row outside a job

    The output is [batch, len(slots), dim]; with pooling "none" and bags of several keys it is [number of keys, dim],
    in the order of `Slots.keys`. In `eval` mode unknown keys read their initial values and are not created.
    """

    _like: Tensor

    def __init__(
        self,
        slots: Sequence[str],
        dim: int,
        *,
        pooling: Pooling = "sum",
        tables: Literal["one", "per_slot"] = "one",
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
            raise ValueError(f"slots must be a list of at least one slot name, got {slots!r}")
        if len(set(slots)) < len(slots):
            raise ValueError(f"slots must differ, got {list(slots)}")
        if dim < 1:
            raise ValueError(f"dim must be at least 1, got {dim}")
        if pooling not in ("sum", "mean", "none"):
            raise ValueError(f"pooling must be sum, mean or none, got {pooling!r}")
        if tables not in ("one", "per_slot"):
            raise ValueError(f"tables must be one or per_slot, got {tables!r}")
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
        self._groups = [self.slots] if tables == "one" else [(slot,) for slot in self.slots]
        self._tables: list[str] = []
        self._client: RowClient | None = None
        self._uses: dict[int, _Use] = {}  # by id of the values
        self.register_buffer("_like", torch.empty(0), persistent=False)  # follows `module.to(device, dtype)`

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
        """The tables that this module, called `name` in its model, needs.

        `optimizer`, `schedule` and `tables` are for what the module does not say itself.
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
        """Of its tables, where it is called `name` in its model."""
        return [name] if len(self._groups) == 1 else [f"{name}.{group[0]}" for group in self._groups]

    def bind(self, client: RowClient, tables: Sequence[str]) -> None:
        """From now on rows come from these `tables` of `client`, a table a group of slots."""
        self._client, self._tables, self._uses = client, list(tables), {}

    @property
    def table_names(self) -> tuple[str, ...]:
        """The tables that the module is bound to."""
        return tuple(self._tables)

    @property
    def client(self) -> RowClient:
        """Where the rows are. A module that was bound to nothing makes tables of its own in this process."""
        if self._client is None:
            specs = self.table_specs("embedding", Adagrad(lr=0.05))
            self.bind(LocalClient(specs, {}), [spec.name for spec in specs])
            assert self._client is not None
        return self._client

    def __getstate__(self) -> dict[str, Any]:
        """A copy of the module starts without tables, as a new module does: rows are not part of it."""
        return {**self.__dict__, "_client": None, "_tables": [], "_uses": {}}

    # --- forward and push --------------------------------------------------------------------------------------------

    def prepare(self, slots: Slots) -> None:
        """Work out ahead of use, in any thread, which rows `forward` will ask for."""
        for group in self._groups:
            self._part(slots, group)

    def lookups(self, slots: Slots, num_shards: int | None = None) -> list[tuple[str, Lookup]]:
        """What `forward` will ask for: each table with its lookup, for so many shards, or as many as there are now."""
        parts = [self._part(slots, group, num_shards) for group in self._groups]
        return [(table, part.lookup) for table, part in zip(self._tables, parts, strict=True)]

    def forward(self, slots: Slots | Tensor) -> Tensor:
        """Rows of a batch: of its Slots, or of raw integer ids [batch, len(slots)] ([batch] for a single slot)."""
        if isinstance(slots, Tensor):
            ids = slots.unsqueeze(1) if slots.ndim == 1 else slots
            slots = slots_from_ids(ids.cpu().numpy(), self.slots)
        if self.pooling == "none" and slots.offsets is not None and len(self._groups) > 1:
            raise ValueError(
                "pooling 'none' over bags of several keys has no common shape for several tables: "
                "use tables='one', or a SparseEmbedding for each slot"
            )
        client = self.client
        parts = [self._part(slots, group) for group in self._groups]
        futures = [
            client.pull(table, part.lookup, create=self.training)
            for table, part in zip(self._tables, parts, strict=True)
        ]
        outputs = []
        for table, part, future in zip(self._tables, parts, futures, strict=True):
            rows = torch.from_numpy(future.result())
            values = functional.embedding(torch.from_numpy(part.lookup.inverse), rows).to(self._like)
            if self.training and torch.is_grad_enabled():
                values.requires_grad_()
                values.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    partial(self._on_gradient, table, part)
                )
            outputs.append(self._pool(values, part.offsets))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)

    def push(self) -> list[Future[None]]:
        """Send the gradients of every `backward` since the last push; one optimizer step a key and table."""
        return [self.client.push(*gradients) for gradients in self.take_gradients()]

    def take_gradients(self) -> list[RowGradients]:
        """What `push` would send. It is the caller's now: the module has forgotten it."""
        uses, self._uses = list(self._uses.values()), {}
        taken = []
        for table in dict.fromkeys(use.table for use in uses):
            parts = [use.part for use in uses if use.table == table]
            grads = [_gradient(use.values) for use in uses if use.table == table]
            if len(parts) == 1:
                taken.append(RowGradients(table, parts[0].lookup, grads[0]))
            else:
                lookup = make_lookup(np.concatenate([part.keys for part in parts]), self.client.num_shards)
                taken.append(RowGradients(table, lookup, np.concatenate(grads)))
        return taken

    def _on_gradient(self, table: str, part: _TableKeys, values: Tensor) -> None:
        """`backward` reached the values. A pass that it never reaches leaves nothing behind in the module."""
        self._uses[id(values)] = _Use(table, part, values)

    def _part(self, slots: Slots, group: tuple[str, ...], num_shards: int | None = None) -> _TableKeys:
        if num_shards is None:
            num_shards = 1 if self._client is None else self._client.num_shards
        owner = (group, num_shards)
        if owner not in slots.prepared:
            picked = slots.select(group)
            slots.prepared[owner] = _TableKeys(picked.keys, picked.offsets, make_lookup(picked.keys, num_shards))
        part: _TableKeys = slots.prepared[owner]
        return part

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


def cut(slots: Slots, first: int, last: int) -> Slots:
    """Samples first..last-1 of `slots`. What was prepared is cut as well: its unique keys stay those of the whole."""
    piece = Slots(slots.names, *_cut_bags(slots.keys, slots.offsets, len(slots.names), first, last)[:2])
    for owner, part in slots.prepared.items():
        keys, offsets, where = _cut_bags(part.keys, part.offsets, len(owner[0]), first, last)
        piece.prepared[owner] = _TableKeys(keys, offsets, part.lookup._replace(inverse=part.lookup.inverse[where]))
    return piece


def _cut_bags(
    keys: KeyArray, offsets: OffsetArray | None, num_slots: int, first: int, last: int
) -> tuple[KeyArray, OffsetArray | None, slice]:
    """Keys and offsets of samples first..last-1, and where those keys were."""
    if offsets is None:
        where = slice(first * num_slots, last * num_slots)
        return keys[where], None, where
    bags = offsets[first * num_slots : last * num_slots + 1]
    where = slice(int(bags[0]), int(bags[-1]))
    return keys[where], bags - bags[0], where


def _gradient(values: Tensor) -> FloatArray:
    assert values.grad is not None
    return values.grad.detach().to("cpu", torch.float32).contiguous().numpy()


def embeddings(model: nn.Module) -> Iterator[tuple[str, SparseEmbedding]]:
    """Every SparseEmbedding of a model with its name; a model that is one has the name "embedding"."""
    for name, module in model.named_modules():
        if isinstance(module, SparseEmbedding):
            yield name or "embedding", module


def model_tables(
    model: nn.Module,
    optimizers: Optimizers = Optimizers(),
    *,
    tables: Tables = Tables(),
    tiers: Tiers | None = None,
    seed: int = 0,
) -> ModelTables:
    """Every table that a model needs, wherever it is: those of its embeddings, and DENSE with its other parameters.

    The same arguments give the same tables in every process of a job: its servers make what its workers ask for.
    """
    sparse = [
        spec
        for name, module in embeddings(model)
        for spec in module.table_specs(name, optimizers.sparse, seed, schedule=optimizers.schedule, tables=tables)
    ]
    if tiers is not None:
        whole = sum(spec.dim for spec in sparse)
        sparse = [replace(spec, tiers=tiers.share(spec.dim, whole)) for spec in sparse]
    size = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return ModelTables(tuple(sparse), (DenseSpec(DENSE, size, optimizers.dense, optimizers.schedule),))


def bind_tables(model: nn.Module, client: RowClient) -> None:
    """From now on the embeddings of `model` have their rows from `client`, which has the tables of `model_tables`."""
    for name, module in embeddings(model):
        module.bind(client, module.names_in(name))


def push_gradients(model: nn.Module) -> None:
    """Apply the gradients that `backward` left for every SparseEmbedding of `model`. Returns when they are applied."""
    futures = [future for _, module in embeddings(model) for future in module.push()]
    for future in futures:
        future.result()
