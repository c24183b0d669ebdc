"""What the outputs of a traced model end in: a model that returns probabilities should return what is before them."""

from __future__ import annotations

from collections.abc import Mapping

from torch import fx, nn

from heterps.model.kinds import function_name, kind_of
from heterps.model.trace import Trace

ENDS: Mapping[type[nn.Module], str] = {nn.Sigmoid: "sigmoid", nn.Softmax: "softmax"}


def ends_of(trace: Trace) -> dict[str, str]:
    """The sigmoid or softmax that each output is made by, by its name in a dict of outputs; "" for a single output.

    Outputs that end in something else are left out, and all outputs of a model that could not be traced.
    """
    output = next(node for node in reversed(trace.module.graph.nodes) if node.op == "output").args[0]
    by_name = output if isinstance(output, Mapping) else {"": output}
    ends = {str(name): _end(trace.module, node) for name, node in by_name.items() if isinstance(node, fx.Node)}
    return {name: end for name, end in ends.items() if end is not None}


def _end(module: fx.GraphModule, node: fx.Node) -> str | None:
    while True:
        called = module.get_submodule(str(node.target)) if node.op == "call_module" else None
        if kind_of(node, called) is not None or not node.all_input_nodes:
            name = ENDS.get(type(called)) if called is not None else function_name(node)
            return name if name in ENDS.values() else None
        node = node.all_input_nodes[0]  # a change of shape
