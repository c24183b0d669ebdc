"""Trace a torch module into layers, the units that are profiled and placed.

torch.fx runs `forward` once with stand-ins for the inputs and records a graph of nodes in topological order. Every
compute node starts a layer; the shape nodes around it (views, indices, sizes: no work of their own) belong to it:

    dense ------------------------------+
    slots --> [embedding] --> flatten --+--> [cat] --> [deep.linear1] --> [deep.relu1] --> squeeze --> logits
               layer 0        layer 0         layer 1       layer 2          layer 3        layer 3

[1] A shape node joins the last layer among its inputs, so that a computation is never split from its view.
[2] A node without a layer among its inputs (a weight read as an attribute, a view of a model input) joins the first
    layer that uses it, or the last layer if only the output does.

Index order is therefore a topological order: running the layers one after another runs the model.
"""

from __future__ import annotations

import inspect
import linecache
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from heterps.errors import ModelError
from heterps.model.kinds import is_whole, kind_of
from heterps.model.parts import parts_of
from heterps.nn import SparseEmbedding

ONE_AT_A_TIME = threading.Lock()
"""Lock for tracing: torch.fx patches module calls in the whole process while it traces."""

WHOLE = "whole"
"""The name of the only layer of a model that is not traced."""


@dataclass(frozen=True)
class Layer:
    """One step of the model in topological order."""

    index: int
    name: str
    kind: str
    nodes: tuple[str, ...]  # names of its nodes in the traced graph, in order
    modules: tuple[str, ...]  # qualified names of the modules it calls
    parameters: tuple[str, ...]  # qualified names; a weight that two layers share is in both


@dataclass(frozen=True)
class Trace:
    """A model as a graph of layers. `module` shares its parameters and buffers with the traced model."""

    module: fx.GraphModule
    layers: tuple[Layer, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the model's inputs, in order."""
        return tuple(node.name for node in self.module.graph.nodes if node.op == "placeholder")

    def output(self, values: Mapping[str, Any]) -> Any:
        """Return the model's output, given the values that are live after its last layer."""
        end = next(node for node in reversed(self.module.graph.nodes) if node.op == "output")
        return fx.node.map_arg(end.args[0], lambda node: values[node.name])


def trace(model: nn.Module) -> Trace:
    """Trace `model` into layers; it is called with its required arguments, optional ones keep their defaults.

    Modules of torch.nn, SparseEmbedding and modules marked `whole` become one layer each; others are traced inside, and
    so are transformer encoders (parts.py).
    Raises ModelError, which names the line of the model's code that torch.fx cannot trace.
    """
    tracer = _Tracer()
    try:
        with ONE_AT_A_TIME:
            graph = tracer.trace(model, concrete_args=_defaults(model))
    except Exception as error:  # whatever the model's own code raises on a stand-in
        raise ModelError(_why_not(model, error)) from error
    _drop_defaults(graph)
    graph.eliminate_dead_code(is_impure_node=lambda node: node.op in ("placeholder", "output"))
    module = fx.GraphModule(tracer.root, graph, class_name=type(model).__name__)
    module.train(model.training)
    layers = _group(module)
    if not layers:
        raise ModelError(
            f"{type(model).__name__} has no layer: its forward computes nothing from its inputs. "
            "Return the logits that it computes."
        )
    return Trace(module, layers)


def trace_or_whole(model: nn.Module) -> Trace:
    """Trace `model` into layers; one that torch.fx cannot trace is a single layer, `whole`."""
    try:
        return trace(model)
    except ModelError:
        return one_layer(model)


def one_layer(model: nn.Module) -> Trace:
    """A model, called as model(dense, slots), as a single layer whose forward is its own code."""
    graph = fx.Graph()
    inputs = tuple(graph.placeholder(name) for name in ("dense", "slots"))
    graph.output(graph.call_module(WHOLE, inputs))
    module = fx.GraphModule({WHOLE: model}, graph, class_name=type(model).__name__)
    module.train(model.training)
    parts = tuple(name for name, _ in model.named_modules() if name)
    parameters = tuple(name for name, _ in model.named_parameters(remove_duplicate=False))
    return Trace(module, (Layer(0, WHOLE, WHOLE, (WHOLE,), parts, parameters),))


class _Tracer(fx.Tracer):
    """Records its own thread only; torch.fx would also record, and break, modules that other threads run."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if threading.get_ident() != self._thread:
            return forward(*args, **kwargs)
        return super().call_module(m, parts_of(m) or forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        if threading.get_ident() != self._thread:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if isinstance(m, SparseEmbedding) or is_whole(m):
            return True
        return parts_of(m) is None and super().is_leaf_module(m, module_qualified_name)


def _defaults(model: nn.Module) -> dict[str, object]:
    """Return the default arguments of forward. They are fixed, since code like `if mask is None` needs a real None."""
    parameters = inspect.signature(model.forward).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def _drop_defaults(graph: fx.Graph) -> None:
    """Remove the input that torch.fx keeps for each fixed argument, and its check of the argument's value."""
    fixed = [node for node in graph.nodes if node.op == "placeholder" and node.args]
    for node in fixed:
        for user in list(node.users):
            for check in [*user.users, user]:
                graph.erase_node(check)
        graph.erase_node(node)


def _group(module: fx.GraphModule) -> tuple[Layer, ...]:
    nodes = [node for node in module.graph.nodes if node.op not in ("placeholder", "output")]
    kinds: list[str] = []
    starts: list[fx.Node] = []
    layer_of: dict[fx.Node, int] = {}
    for node in nodes:
        kind = kind_of(node, _called(module, node))
        if kind is not None:
            layer_of[node] = len(starts)
            starts.append(node)
            kinds.append(kind)
        elif feeds := [layer_of[source] for source in node.all_input_nodes if source in layer_of]:
            layer_of[node] = max(feeds)  # [1]
    if not starts:
        return ()
    for node in reversed(nodes):
        if node not in layer_of:
            layer_of[node] = min(layer_of.get(user, len(starts) - 1) for user in node.users)  # [2]
    members: list[list[fx.Node]] = [[] for _ in starts]
    for node in nodes:
        members[layer_of[node]].append(node)
    names = _names(starts)
    return tuple(_layer(module, i, names[i], kinds[i], members[i]) for i in range(len(starts)))


def _layer(module: fx.GraphModule, index: int, name: str, kind: str, nodes: list[fx.Node]) -> Layer:
    modules = tuple(dict.fromkeys(str(node.target) for node in nodes if node.op == "call_module"))
    own = {str(node.target) for node in nodes if node.op == "get_attr"}
    of_modules = {f"{m}.{p}" for m in modules for p, _ in module.get_submodule(m).named_parameters()}
    parameters = tuple(p for p, _ in module.named_parameters(remove_duplicate=False) if p in own | of_modules)
    return Layer(index, name, kind, tuple(node.name for node in nodes), modules, parameters)


def _names(starts: list[fx.Node]) -> list[str]:
    """Name the layers by module path or function name; the second use of a module `fc` is `fc#2`."""
    seen: Counter[str] = Counter()
    names = []
    for node in starts:
        name = str(node.target) if node.op == "call_module" else node.name
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return names


def _called(module: fx.GraphModule, node: fx.Node) -> nn.Module | None:
    return module.get_submodule(str(node.target)) if node.op == "call_module" else None


# --- errors ----------------------------------------------------------------------------------------------------------

TORCH = Path(torch.__file__).parent
RECIPES = {
    "control flow": "A branch that depends on data cannot be placed: write it with torch.where",
    "cannot be iterated": "Loop over a fixed range instead of over a tensor",
    "'len' is not supported": "Use x.shape[0] in place of len(x)",
}


def _why_not(model: nn.Module, error: Exception) -> str:
    """Explain an error of torch.fx: `file:line: in forward: `code`: reason. What to do.`"""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if TORCH not in Path(f.filename).parents and f.filename != __file__]
    reason = str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__
    where = f"{type(model).__name__}"
    if own:
        code = (linecache.getline(own[-1].filename, own[-1].lineno or 0) or own[-1].line or "").strip()
        where = f"{own[-1].filename}:{own[-1].lineno}: in {own[-1].name}: `{code}`"
    recipe = next((r for key, r in RECIPES.items() if key in reason), "Write it with torch functions of the inputs")
    return (
        f"{where}: torch.fx cannot trace this line of {type(model).__name__}: {reason}. {recipe}, or keep the module "
        "that holds it in one layer with heterps.model.whole(module)."
    )
