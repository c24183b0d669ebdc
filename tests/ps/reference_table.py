"""ReferenceTable: what a SparseTable must do, in NumPy and a dict. Slow and plain; the kernels equal it to the bit.

Every operation is one of float32, in the order of `optimizers.update`; sums go over a key's gradients as they come.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from heterps.config import (
    FTRL,
    SGD,
    Adagrad,
    Adam,
    AdamW,
    Constant,
    ConstantRate,
    Initializer,
    Momentum,
    Normal,
    Optimizer,
    RowAdagrad,
    Schedule,
    Uniform,
    Zero,
)
from heterps.ps.keys.dedup import as_keys
from heterps.ps.table.initializers import NUM_QUANTILES, quantiles
from heterps.ps.table.rows import Rows
from heterps.ps.table.schedules import rate_at
from heterps.ps.table.usage import faded, make_fading

FloatArray = NDArray[np.float32]
GOLDEN, MASK_64 = 0x9E3779B97F4A7C15, 2**64 - 1


def mix64(x: int) -> int:
    """The finaliser of splitmix64."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK_64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK_64
    return x ^ (x >> 31)


def initial_values(key: int, dim: int, seed: int, init: Initializer) -> FloatArray:
    """By 24 bits of the hash of (seed, key, column): a fraction, or a sign, a quantile and how far to the next."""
    hashed = mix64(key ^ mix64(seed ^ GOLDEN))
    bits = [mix64((hashed + (column + 1) * GOLDEN) & MASK_64) >> 40 for column in range(dim)]
    match init:
        case Uniform(scale=scale):
            return (np.array(bits, np.float32) * np.float32(2.0**-23) - np.float32(1)) * np.float32(scale)
        case Normal(std=std):
            place = np.array([b >> 11 & (NUM_QUANTILES - 1) for b in bits])
            part = np.array([b & 2047 for b in bits], np.float32) * np.float32(2.0**-11)
            low, high = quantiles()[place], quantiles()[place + 1]
            sign = np.where(np.array([b >> 23 for b in bits]) > 0, np.float32(-1), np.float32(1))
            return np.asarray(sign * (low + part * (high - low)) * np.float32(std), np.float32)
        case Constant(value=value):
            return np.full(dim, value, np.float32)
        case Zero():
            return np.zeros(dim, np.float32)


@dataclass
class _Row:
    values: FloatArray
    first: FloatArray  # Adagrad's sum of squares, momentum's direction, Adam's mean of gradients, FTRL's z
    second: FloatArray  # Adam's mean of squared gradients, FTRL's n
    uses: np.float32
    clock: np.uint32


class ReferenceTable:
    """The interface of SparseTable, for tests."""

    def __init__(
        self,
        dim: int,
        optimizer: Optimizer = Adagrad(lr=0.05),
        seed: int = 0,
        init_scale: float = 0.01,
        *,
        init: Initializer | None = None,
        schedule: Schedule = ConstantRate(),
    ) -> None:
        self.dim = dim
        self.optimizer = optimizer
        self.seed = seed
        self.init = init or Uniform(scale=init_scale)
        self.schedule = schedule
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

    def push(self, keys: ArrayLike, grads: ArrayLike, *, samples: int | None = None) -> None:
        summed: dict[int, FloatArray] = {}
        for key, grad in zip(as_keys(keys).tolist(), np.asarray(grads, np.float32), strict=True):
            summed[key] = summed[key] + grad if key in summed else grad
        unique, sums = np.array(list(summed), np.uint64), np.array(list(summed.values())).reshape(-1, self.dim)
        self.push_unique(unique, sums, samples=samples)

    def push_unique(self, keys: ArrayLike, grads: ArrayLike, *, samples: int | None = None) -> None:
        factor = rate_at(self.schedule, samples, self.num_pushes)
        self.num_pushes += 1
        for key, grad in zip(as_keys(keys).tolist(), np.asarray(grads, np.float32), strict=True):
            row = self._rows.setdefault(key, self._new_row(key))
            before = faded(np.array([row.uses]), np.array([row.clock]), self.num_pushes, self._fading)[0]
            row.uses, row.clock = before + np.float32(1), np.uint32(self.num_pushes)
            self._step(row, grad, self.optimizer.lr * factor)

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
        values = initial_values(key, self.dim, self.seed, self.init)
        header = np.float32(1), np.uint32(self.num_pushes)
        none, zeros = np.empty(0, np.float32), np.zeros(self.dim, np.float32)
        match self.optimizer:
            case SGD():
                return _Row(values, none, none, *header)
            case Momentum():
                return _Row(values, zeros, none, *header)
            case Adagrad(initial_accumulator=start):
                return _Row(values, np.full(self.dim, start, np.float32), none, *header)
            case RowAdagrad(initial_accumulator=start):
                return _Row(values, np.full(1, start, np.float32), none, *header)
            case Adam() | FTRL():
                return _Row(values, zeros, zeros.copy(), *header)
            case AdamW():
                raise ValueError("adamw is not among the optimizers of this reference")

    def _step(self, row: _Row, grad: FloatArray, lr: float) -> None:
        match self.optimizer:
            case SGD():
                row.values -= np.float32(lr) * grad
            case Momentum(momentum=momentum):
                row.first = np.float32(momentum) * row.first + grad
                row.values -= np.float32(lr) * row.first
            case Adagrad(eps=eps):
                row.first += grad * grad
                row.values -= np.float32(lr) * grad / (np.sqrt(row.first) + np.float32(eps))
            case RowAdagrad(eps=eps):
                total = np.float32(0)
                for square in grad * grad:  # in this order: NumPy's sum goes by pairs
                    total += square
                row.first += total / np.float32(self.dim)
                row.values -= np.float32(lr) * grad / (np.sqrt(row.first) + np.float32(eps))
            case Adam(beta1=beta1, beta2=beta2, eps=eps):
                row.first += np.float32(1 - beta1) * (grad - row.first)
                row.second += np.float32(1 - beta2) * (grad * grad - row.second)
                rate = lr * math.sqrt(1 - beta2**self.num_pushes) / (1 - beta1**self.num_pushes)
                row.values -= np.float32(rate) * row.first / (np.sqrt(row.second) + np.float32(eps))
            case FTRL(beta=beta, l1=l1, l2=l2):
                n = row.second + grad * grad
                row.first += grad - (np.sqrt(n) - np.sqrt(row.second)) / np.float32(lr) * row.values
                row.second = n
                shrunk = np.maximum(np.abs(row.first) - np.float32(l1), np.float32(0))
                divisor = (np.float32(beta) + np.sqrt(n)) / np.float32(lr) + np.float32(l2)
                row.values = -np.copysign(shrunk, row.first) / divisor
            case AdamW():
                raise ValueError("adamw is not among the optimizers of this reference")
