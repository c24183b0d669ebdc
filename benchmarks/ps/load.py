"""What every contender is asked for: the same batches of ids, their distinct keys and their gradients."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from heterps.config import Adagrad
from heterps.ps.keys.dedup import Lookup, make_lookup, sum_rows
from heterps.ps.protocol.specs import TableSpec, TableSpecs

DIM, BATCH = 16, 26_624
SPEC = TableSpec("rows", DIM, Adagrad(lr=0.05), seed=0, init_scale=0.01)
TABLES = TableSpecs((SPEC,))
WIDTHS = {"fp32": 4, "fp16": 2, "bf16": 2}

Wait = Callable[[], object]
"""Returns when the answer is there."""


@dataclass(frozen=True)
class Case:
    """One line of the tables. `kind` is a channel of heterps, or a contender."""

    kind: str
    servers: int = 1
    clients: int = 1
    values: str = "fp32"
    in_flight: int = 1


class Contender(Protocol):
    def pull(self, number: int) -> Wait:
        """Begin to pull the rows of batch `number`."""

    def push(self, number: int) -> Wait:
        """Begin to push the gradients of batch `number`."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class Load:
    """Batches with their lookups, which a reader prepares ahead: they are not timed."""

    num_keys: int
    lookups: list[Lookup]
    grads: np.ndarray  # [BATCH, DIM], of every batch

    @property
    def rows(self) -> float:
        """Distinct keys of a batch, on average."""
        return float(np.mean([len(lookup.unique) for lookup in self.lookups]))

    def summed(self, number: int) -> np.ndarray:
        """The gradients of the distinct keys of a batch."""
        lookup = self.lookups[number]
        out = np.empty((len(lookup.unique), DIM), np.float32)
        sum_rows(self.grads, lookup.sources, lookup.starts, 0, len(lookup.unique), out)
        return out


def make_load(num_batches: int, num_keys: int, num_shards: int) -> Load:
    """Ids of `num_keys` keys with Zipf popularity (exponent 1.05), popular ones anywhere."""
    rng = np.random.default_rng(0)
    chances = np.cumsum(np.arange(1, num_keys + 1) ** -1.05)
    ranks = np.searchsorted(chances, rng.random(num_batches * BATCH) * chances[-1])
    ids = rng.permutation(num_keys)[ranks].reshape(num_batches, BATCH)
    lookups = [make_lookup(batch, num_shards) for batch in ids]
    return Load(num_keys, lookups, rng.normal(size=(BATCH, DIM)).astype(np.float32))


def measure(
    begin: Callable[[int], Wait], numbers: Sequence[int], in_flight: int
) -> tuple[float, list[float]]:  # fmt: skip
    """Seconds for all batches with so many under way, and seconds from the beginning of each to its answer."""
    under_way: deque[tuple[float, Wait]] = deque()
    latencies: list[float] = []

    def finish() -> None:
        began, wait = under_way.popleft()
        wait()
        latencies.append(time.perf_counter() - began)

    started = time.perf_counter()
    for number in numbers:
        if len(under_way) == in_flight:
            finish()
        began = time.perf_counter()
        under_way.append((began, begin(number)))
    while under_way:
        finish()
    return time.perf_counter() - started, latencies
