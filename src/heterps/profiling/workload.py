"""Count the work of torch code as the kernels of a device would see it: FLOPs, bytes moved, kernels launched.

torch calls back for every operator that runs, forward and backward, with the tensors that it reads and writes. FLOPs of
matrix products, convolutions and attention come from torch's own formulas; any other operator counts as one FLOP for
each element that it writes. Views move nothing.

A recurrent layer is counted step by step: on a CPU oneDNN runs all steps of an LSTM as one operator, whose work nobody
sees, so it is switched off here. A device that fuses the small operators of a step is faster than the count says.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry


@dataclass(frozen=True)
class Kernel:
    """One operator: its FLOPs, and the bytes that it reads and writes."""

    name: str
    flops: float
    num_bytes: int


def count(work: Callable[[], object]) -> list[Kernel]:
    """Run `work` once and list its kernels."""
    counter = _Counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about a setting of GPUs that the switch also reads
        with torch.backends.mkldnn.flags(enabled=False), counter:
            work()
    return counter.kernels


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kernels: list[Kernel] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not func.is_view and func._schema.name not in FREE:
            written = _tensors(result)
            read = _tensors((args, kwargs))
            formula = flop_registry.get(func.overloadpacket)
            flops = formula(*args, **kwargs, out_val=result) if formula else sum(t.numel() for t in written)
            num_bytes = sum(_bytes(t) for t in read + written)
            self.kernels.append(Kernel(func._schema.name, float(flops), num_bytes))
        return result


# Allocation and detaching: no kernel runs.
FREE = frozenset({"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::detach"})


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _bytes(tensor: Tensor) -> int:
    """Bytes that a kernel moves for a tensor: an expanded tensor is smaller than its shape says."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())
