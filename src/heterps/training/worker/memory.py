"""The memory of an emulated unit: what its layers hold is counted, and more than the unit has is refused.

values     parameters, each with a gradient of its size
under way  what forward keeps of each micro-batch until its backward, as autograd tells
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from heterps.errors import ConfigError
from heterps.training.worker.turns import Key

_NOTHING: AbstractContextManager[None] = nullcontext()


class UnitMemory:
    """Counts the bytes that `worker` holds; `limit_bytes` None: nothing is counted."""

    def __init__(self, worker: str, limit_bytes: float | None) -> None:
        self._worker, self._limit_bytes = worker, limit_bytes
        self._values: dict[int, int] = {}  # bytes by their place in memory: replicas may share values
        self._under_way: dict[Key, int] = {}

    def hold_values(self, values: Iterable[Tensor]) -> None:
        """Count parameters and their gradients. Raises ConfigError where they are too large."""
        if self._limit_bytes is not None:
            self._values |= {_place(value): 2 * value.nbytes for value in values}
            self._check()

    def forward(self, key: Key) -> AbstractContextManager[None]:
        """Count what is kept for the backward of this micro-batch. Raises ConfigError where it is too large."""
        return _NOTHING if self._limit_bytes is None else self._counted(key)

    def backward(self, key: Key) -> AbstractContextManager[None]:
        """Run a backward, after which the memory that was kept for this micro-batch is free."""
        self._under_way.pop(key, None)
        return _NOTHING

    @contextmanager
    def fused(self, key: Key) -> Iterator[None]:
        """Run forward and backward at once."""
        try:
            with self.forward(key):
                yield
        finally:
            self._under_way.pop(key, None)

    @contextmanager
    def _counted(self, key: Key) -> Iterator[None]:
        kept: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            if (place := _place(tensor)) not in self._values and place not in kept:
                kept[place] = tensor.untyped_storage().nbytes()
                self._under_way[key] = sum(kept.values())
                self._check()
            return tensor

        with saved_tensors_hooks(pack, lambda tensor: tensor):
            yield

    def _check(self) -> None:
        values, under_way = sum(self._values.values()), sum(self._under_way.values())
        if self._limit_bytes is not None and values + under_way > self._limit_bytes:
            raise ConfigError(
                f"{self._worker} is out of memory: parameters with their gradients take {values:,} bytes and "
                f"{len(self._under_way)} micro-batches under way {under_way:,}, and memory_gb of the cluster gives a "
                f"unit {self._limit_bytes:,.0f}. Plan more stages or workers, or make batches smaller."
            )


def _place(tensor: Tensor) -> int:
    """The address of the memory that a tensor is a view of."""
    return tensor.untyped_storage().data_ptr()
