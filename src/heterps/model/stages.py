"""Split a traced model into stages: runs of layers that compute alone, with every live value crossing the borders.

    layer      0            1          2          3
          x --[a]--> p --> [b]--> q --[c]--> r --[d = r + p]--> y
                       \\________________________/
                     border 1   border 2    border 3
    live:            p          p, q        p, r

A stage takes the values that are live at its first border and returns those that are live at its last. A value that
skips a stage travels through it, so that a stage communicates with its neighbours only. Gradients come back the same
way: [1] a run detaches its inputs, [2] backward starts from the gradients of the outputs, and [3] leaves the gradients
of the inputs, which are those of the neighbour's outputs. Parameters collect their gradients in place. One layer is a
stage too: profiler and pipeline run the same code.

Outputs equal the model's bit for bit. So do gradients, except that the gradients of a value with three or more users,
or with several views that cross a border, may be summed in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves, tree_map

from heterps.model.kinds import writes_in_place
from heterps.model.trace import Trace

Values = Mapping[str, Any]  # name of a node to its value: tensors mostly, but also Slots and sizes


@dataclass(frozen=True)
class StageModule:
    """Layers `first` to `last` (inclusive) as a module, which shares the parameters of the model."""

    first: int
    last: int
    module: fx.GraphModule
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    in_place: bool  # some node overwrites its input, so inputs are copied first

    def __call__(self, values: Values) -> dict[str, Any]:
        """Run forward and return the outputs, still attached to the autograd graph of the inputs."""
        # Calling the module itself would print a traceback of torch.fx before an error of the model's own code.
        results = self.module.forward(*(values[name] for name in self.inputs))
        return dict(zip(self.outputs, results, strict=True))


class StageRun:
    """One forward of a stage on detached inputs, and then its backward."""

    def __init__(self, stage: StageModule, values: Values) -> None:
        self.stage = stage
        self.inputs = {name: _cut(values[name]) for name in stage.inputs}  # [1]
        self.outputs = stage(_copy(self.inputs) if stage.in_place else self.inputs)

    def backward(self, gradients: Values) -> dict[str, Any]:
        """Run backward from the gradients of the outputs; return those of the inputs by name, where there are any."""
        ends = [end for name, g in gradients.items() for end in _ends(self.outputs[name], g)]
        if ends:
            values, given = zip(*ends, strict=True)
            _Given.apply(given, *values).backward()  # type: ignore[no-untyped-call]  # [2]
        found = {name: map_leaves(_gradient, value) for name, value in self.inputs.items()}
        return {name: tree for name, tree in found.items() if any(g is not None for g in leaves(tree))}  # [3]


class _Given(torch.autograd.Function):
    """A number whose gradients by some values are given.

    `torch.autograd.backward` with gradients would import sympy at its first call, which takes more than a second."""

    @staticmethod
    def forward(ctx: Any, gradients: Sequence[Tensor], *values: Tensor) -> Tensor:
        ctx.gradients = gradients
        return values[0].new_zeros((), dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.gradients


def split(trace: Trace, boundaries: Sequence[int]) -> list[StageModule]:
    """Split the model into len(boundaries) + 1 stages. A boundary is the index of the first layer of a stage."""
    count = len(trace.layers)
    starts = [0, *boundaries]
    if any(b <= a for a, b in zip(starts, [*boundaries, count], strict=True)):
        raise ValueError(
            f"boundaries must rise, each from 1 to {count - 1} (there are {count} layers); got {list(boundaries)}"
        )
    ends = [start - 1 for start in starts[1:]] + [count - 1]
    return [_stage(trace, first, last) for first, last in zip(starts, ends, strict=True)]


def _stage(trace: Trace, first: int, last: int) -> StageModule:
    graph = trace.module.graph
    layer_of = {name: layer.index for layer in trace.layers for name in layer.nodes}
    inside = [node for node in graph.nodes if first <= layer_of.get(node.name, -1) <= last]
    inputs = _live(graph, layer_of, first)
    outputs = _live(graph, layer_of, last + 1)
    part = fx.Graph(owning_module=trace.module)
    copies: dict[fx.Node, fx.Node] = {node: part.placeholder(node.name) for node in inputs}
    for node in inside:
        copies[node] = part.node_copy(node, lambda n: copies[n])
    part.output(tuple(copies[node] for node in outputs))
    module = fx.GraphModule(trace.module, part, class_name=f"Layers{first}To{last}")
    module.train(trace.module.training)
    called = [trace.module.get_submodule(str(n.target)) if n.op == "call_module" else None for n in inside]
    in_place = any(writes_in_place(n, m) for n, m in zip(inside, called, strict=True))
    return StageModule(first, last, module, tuple(n.name for n in inputs), tuple(n.name for n in outputs), in_place)


def _live(graph: fx.Graph, layer_of: Mapping[str, int], border: int) -> list[fx.Node]:
    """Return the nodes computed before layer `border` and used by it or later, in the order of the graph."""
    end = max(layer_of.values()) + 1

    def needed(user: fx.Node) -> bool:
        return user.op == "output" or layer_of.get(user.name, end) >= border

    return [n for n in graph.nodes if layer_of.get(n.name, -1) < border and any(needed(u) for u in n.users)]


# A value is mostly one tensor, but `torch.cat(x.chunk(2))` sends a tuple of them across a border: hence the trees.


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Apply a function to all leaves, as torch's tree_map does, but keep torch.Size, which tree_map makes a tuple."""
    if not isinstance(tree, tuple | list | dict):  # mostly one tensor, for which tree_map takes longer than many layers
        return function(tree)
    return tree_map(function, tree, is_leaf=lambda node: isinstance(node, torch.Size))


def leaves(tree: Any) -> list[Any]:
    """All leaves, as torch's tree_leaves gives them."""
    return tree_leaves(tree) if isinstance(tree, tuple | list | dict) else [tree]


def _cut(value: Any) -> Any:
    """Detach the tensors of a value; they are leaves that collect gradients if the originals require them."""
    return map_leaves(lambda v: v.detach().requires_grad_(v.requires_grad) if isinstance(v, Tensor) else v, value)


def _copy(value: Any) -> Any:
    return map_leaves(lambda v: v.clone() if isinstance(v, Tensor) else v, value)


def _gradient(value: Any) -> Tensor | None:
    return value.grad if isinstance(value, Tensor) else None


def _ends(value: Any, gradient: Any) -> list[tuple[Tensor, Tensor]]:
    """Return the (tensor, gradient) pairs from which backward starts: tensors that require a gradient and have one."""
    pairs = zip(leaves(value), leaves(gradient), strict=True)
    return [(v, g) for v, g in pairs if isinstance(v, Tensor) and v.requires_grad and g is not None]
