"""ReferenceTable: what a SparseTable must do, in NumPy and a dict. Slow and plain; the kernels equal it to the bit.

Every operation is one of float32, in the order of `optimizers.update`; sums go over a key's gradients as they come.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from heterps.config import SGD, Adagrad, Adam, Optimizer
from heterps.ps.dedup import as_keys
from heterps.ps.table.sparse import Rows
from heterps.ps.table.usage import faded, make_fading

FloatArray = NDArray[np.float32]
GOLDEN, MASK_64 = 0x9E3779B97F4A7C15, 2**64 - 1


def mix64(x: int) -> int:
    """The finaliser of splitmix64."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK_64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK_64
    return x ^ (x >> 31)


def initial_values(key: int, dim: int, seed: int, scale: float) -> FloatArray:
    """Uniform in [-scale, scale): 24 bits of the hash of (seed, key, column)."""
    hashed = mix64(key ^ mix64(seed ^ GOLDEN))
    bits = [mix64((hashed + (column + 1) * GOLDEN) & MASK_64) >> 40 for column in range(dim)]
    return (np.array(bits, np.float32) * np.float32(2.0**-23) - np.float32(1)) * np.float32(scale)


@dataclass
class _Row:
    values: FloatArray
    first: FloatArray  # Adagrad's sum of squares, Adam's mean of gradients
    second: FloatArray  # Adam's mean of squared gradients
    uses: np.float32
    clock: np.uint32


class ReferenceTable:
    """The interface of SparseTable, for tests."""

    def __init__(
        self, dim: int, optimizer: Optimizer = Adagrad(lr=0.05), seed: int = 0, init_scale: float = 0.01
    ) -> None:
        self.dim = dim
        self.optimizer = optimizer
        self.seed = seed
        self.init_scale = init_scale
        self.num_pushes = 0
        self._fading = make_fading()
        self._rows: dict[int, _Row] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def pull(self, keys: ArrayLike, out: FloatArray | None = None, *, create: bool = True) -> FloatArray:
        keys = as_keys(keys)
        out = np.empty((len(keys), self.dim), np.float32) if out is None else out
        for i, key in enumerate(keys.tolist()):
            row = self._rows.get(key) or self._new_row(key)
            if create:
                self._rows[key] = row
            out[i] = row.values
        return out

    def push(self, keys: ArrayLike, grads: ArrayLike) -> None:
        summed: dict[int, FloatArray] = {}
        for key, grad in zip(as_keys(keys).tolist(), np.asarray(grads, np.float32), strict=True):
            summed[key] = summed[key] + grad if key in summed else grad
        self.push_unique(np.array(list(summed), np.uint64), np.array(list(summed.values())).reshape(-1, self.dim))

    def push_unique(self, keys: ArrayLike, grads: ArrayLike) -> None:
        self.num_pushes += 1
        for key, grad in zip(as_keys(keys).tolist(), np.asarray(grads, np.float32), strict=True):
            row = self._rows.setdefault(key, self._new_row(key))
            before = faded(np.array([row.uses]), np.array([row.clock]), self.num_pushes, self._fading)[0]
            row.uses, row.clock = before + np.float32(1), np.uint32(self.num_pushes)
            self._step(row, grad)

    def known(self, keys: ArrayLike) -> NDArray[np.bool_]:
        return np.array([key in self._rows for key in as_keys(keys).tolist()], np.bool_)

    def take(self, keys: ArrayLike) -> Rows:
        present = [key for key in dict.fromkeys(as_keys(keys).tolist()) if key in self._rows]
        return self._as_rows({key: self._rows.pop(key) for key in present})

    def put(self, rows: Rows) -> None:
        if self.known(rows.keys).any():
            raise ValueError("rows to put have keys that are in the table")
        cut = self._new_row(0).first.size
        for key, values, state, uses, clock in zip(rows.keys.tolist(), *rows[1:], strict=True):
            self._rows[key] = _Row(values.copy(), state[:cut].copy(), state[cut:].copy(), uses, clock)

    def export_rows(self) -> Rows:
        return self._as_rows(self._rows)

    def import_rows(self, rows: Rows, num_pushes: int) -> None:
        if self._rows:
            raise ValueError("rows are loaded into an empty table")
        self.put(rows)
        self.num_pushes = num_pushes

    def _as_rows(self, rows: dict[int, _Row]) -> Rows:
        keys = np.array(list(rows), np.uint64)
        values = np.array([row.values for row in rows.values()], np.float32).reshape(-1, self.dim)
        state = np.array([np.concatenate([row.first, row.second]) for row in rows.values()], np.float32)
        state = state.reshape(len(keys), self._new_row(0).first.size + self._new_row(0).second.size)
        uses = np.array([row.uses for row in rows.values()], np.float32)
        return Rows(keys, values, state, uses, np.array([row.clock for row in rows.values()], np.uint32))

    def _new_row(self, key: int) -> _Row:
        values = initial_values(key, self.dim, self.seed, self.init_scale)
        header = np.float32(1), np.uint32(self.num_pushes)
        none, zeros = np.empty(0, np.float32), np.zeros(self.dim, np.float32)
        match self.optimizer:
            case SGD():
                return _Row(values, none, none, *header)
            case Adagrad(initial_accumulator=start):
                return _Row(values, np.full(self.dim, start, np.float32), none, *header)
            case Adam():
                return _Row(values, zeros, zeros.copy(), *header)

    def _step(self, row: _Row, grad: FloatArray) -> None:
        match self.optimizer:
            case SGD(lr=lr):
                row.values -= np.float32(lr) * grad
            case Adagrad(lr=lr, eps=eps):
                row.first += grad * grad
                row.values -= np.float32(lr) * grad / (np.sqrt(row.first) + np.float32(eps))
            case Adam(lr=lr, beta1=beta1, beta2=beta2, eps=eps):
                row.first += np.float32(1 - beta1) * (grad - row.first)
                row.second += np.float32(1 - beta2) * (grad * grad - row.second)
                rate = lr * math.sqrt(1 - beta2**self.num_pushes) / (1 - beta1**self.num_pushes)
                row.values -= np.float32(rate) * row.first / (np.sqrt(row.second) + np.float32(eps))
