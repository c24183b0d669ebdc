"""Run and time a copy of one layer without touching the model, its tables or its gradients.

Rows of embeddings come from a client that has them in memory, so that a step costs only the worker's own work: finding
distinct keys, gathering rows for the batch, pooling, backward, and summing the gradients of each key. The servers' work
is timed separately.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from heterps.config import Optimizers
from heterps.data.batch import Slots
from heterps.devices import Precision, computing_in
from heterps.model.stages import StageModule, StageRun, Values
from heterps.nn import embeddings
from heterps.profiling.servers import ReadyRows, dense_work, moving_work, sparse_work


@dataclass(frozen=True)
class LayerTraffic:
    """Bytes that a layer moves for one batch."""

    input: int  # its own inputs
    output: int  # its own outputs
    border: int  # all values that are live at its first border, forward
    border_back: int  # the gradients of these values
    sync: int  # rows or weights from the servers, and their gradients to the servers
    dense: int  # weights that are not rows of tables
    rows: int  # keys and rows that are pulled, and keys and gradients that are pushed
    spread: int  # table rows gathered for the batch, and their gradients: they move between host and device
    weights: int  # parameters, and the distinct rows of the batch


class Sandbox:
    """A copy of a layer, in training mode, on `device`.

    shared  ids of parameters that belong to layers before this one: the servers hold them once, and have them already
    """

    def __init__(
        self,
        stage: StageModule,
        device: torch.device,
        optimizers: Optimizers,
        precision: Precision = "fp32",
        shared: Collection[int] = (),
    ) -> None:
        module = copy.deepcopy(stage.module).to(device).train()
        of_others = [id(p) in shared for p in stage.module.parameters()]
        self._own = [p for p, is_shared in zip(module.parameters(), of_others, strict=True) if not is_shared]
        self.device, self._precision = device, precision
        self._stage = replace(stage, module=module)
        self._optimizers = optimizers
        self._trained = [p for p in module.parameters() if p.requires_grad]
        self._embeddings = [embedding for _, embedding in embeddings(module)]
        specs = [embedding.table_specs(name, optimizers.sparse) for name, embedding in embeddings(module)]
        self._client = ReadyRows([spec for of_one in specs for spec in of_one])
        for embedding, of_one in zip(self._embeddings, specs, strict=True):
            embedding.bind(self._client, [spec.name for spec in of_one])

    @property
    def has_tables(self) -> bool:
        return bool(self._embeddings)

    def forward(self, values: Values) -> dict[str, Any]:
        """Run the layer forward and return the inputs of the next layers."""
        return self._run(self._inputs(values)).outputs

    def step(self, values: Values) -> Callable[[], None]:
        """Return a function that runs forward and backward on `values`; it can be called repeatedly."""
        inputs = self._inputs(values)
        made = {name: v for name, v in self.forward(values).items() if name not in inputs}
        gradients = tree_map(lambda v: torch.ones_like(v) if _takes_gradient(v) else None, made)

        def work() -> None:
            self._client.requests.clear()
            self._run(tree_map(_without_lookups, inputs)).backward(gradients)
            for embedding in self._embeddings:
                embedding.push()
            for parameter in self._trained:
                parameter.grad = None

        return work

    def traffic(self, values: Values) -> LayerTraffic:
        inputs = self._inputs(values)
        used = {n.name for n in self._stage.module.graph.nodes if any(user.op != "output" for user in n.users)}
        self._client.requests.clear()
        made = {name: v for name, v in self.forward(values).items() if name not in inputs}
        requests = self._client.requests
        return LayerTraffic(
            input=num_bytes({name: v for name, v in inputs.items() if name in used}),
            output=num_bytes(made),
            border=num_bytes(inputs),
            border_back=num_bytes([v for v in tree_leaves(inputs) if _takes_gradient(v)]),
            sync=sum(request.sync_bytes for request in requests) + 2 * num_bytes(self._own_trained),
            dense=num_bytes(self._own),
            rows=sum(request.sync_bytes for request in requests),
            spread=sum(request.spread_bytes for request in requests),
            weights=sum(request.row_bytes for request in requests) + num_bytes(self._own),
        )

    def activations(self, values: Values) -> dict[str, int]:
        """Return the bytes that forward keeps for backward, by the name of the value; under "" those without a name."""
        kept: dict[int, int] = {}  # bytes of storages, by address

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        inputs = self._inputs(values)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            run = self._run(inputs)
        for parameter in self._stage.module.parameters():
            kept.pop(parameter.untyped_storage().data_ptr(), None)
        named = {}
        for name, value in {**inputs, **run.outputs}.items():
            of_value = [leaf.untyped_storage().data_ptr() for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
            named[name] = sum(kept.pop(address, 0) for address in of_value)
        return {**named, "": sum(kept.values())}

    def server_work(
        self, values: Values, table_bytes: int
    ) -> tuple[list[Callable[[], None]], list[Callable[[], None]]]:
        """Return functions that do one server's work for a step on `values`: those for rows, and two for weights.

        Each hands out parameters and applies their gradients; the second for weights only takes the gradients in. All
        tables together take about `table_bytes`.
        """
        self._client.requests.clear()
        self.forward(values)
        requests = list(self._client.requests)
        rows = [sparse_work(request, table_bytes // len(requests)) for request in requests]
        num_values = sum(p.numel() for p in self._own_trained)
        return rows, [dense_work(num_values, self._optimizers.dense), moving_work(num_values)] if num_values else []

    @property
    def _own_trained(self) -> list[Tensor]:
        return [parameter for parameter in self._own if parameter.requires_grad]

    def _run(self, inputs: Values) -> StageRun:
        with computing_in(self._precision, self.device):
            return StageRun(self._stage, inputs)

    def _inputs(self, values: Values) -> dict[str, Any]:
        def place(value: Any) -> Any:
            return value.to(self.device) if isinstance(value, Tensor) else value

        return {name: tree_map(place, values[name]) for name in self._stage.inputs}


def num_bytes(tree: Any) -> int:
    """Total bytes of all tensors and slots in a tree of values; other values count as 0."""
    return sum(_leaf_bytes(leaf) for leaf in tree_leaves(tree))


def _leaf_bytes(leaf: Any) -> int:
    if isinstance(leaf, Slots):
        return leaf.keys.nbytes + (0 if leaf.offsets is None else leaf.offsets.nbytes)
    return leaf.numel() * leaf.element_size() if isinstance(leaf, Tensor) else 0


def _takes_gradient(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _without_lookups(value: Any) -> Any:
    """Copy Slots without their cached lookups, so that each step finds the distinct keys of its batch again."""
    return Slots(value.names, value.keys, value.offsets) if isinstance(value, Slots) else value
