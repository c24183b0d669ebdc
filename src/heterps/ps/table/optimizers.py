"""Optimizer steps on flat float32 words, for rows of sparse tables and ranges of dense ones alike.

    kind         state words      step, with t the number of pushes so far and c1, c2 = 1 - beta1^t, 1 - beta2^t
    sgd          0                w -= lr g
    momentum     1 a value: b     b = momentum b + g;  w -= lr b
    adagrad      1 a value: s     s += g g;  w -= lr g / (sqrt(s) + eps)
    row_adagrad  1 a row: s       s += mean(g g);  w -= lr g / (sqrt(s) + eps)
    adam         2 a value: m, v  m += (1-beta1) (g - m);  v += (1-beta2) (g g - v)
                                  sparse: w -= lr sqrt(c2)/c1 m / (sqrt(v) + eps)            (torch's SparseAdam)
                                  dense:  w -= lr sqrt(c2)/c1 m / (sqrt(v) + eps sqrt(c2))   (torch's Adam)
    adamw        as adam          w -= lr weight_decay w, then as adam
    ftrl         2 a value: z, n  as in McMahan et al., "Ad click prediction: a view from the trenches" (2013)

`lr` is that of the optimizer times the factor of the schedule.

A row holds its values, then all s (or all m, then all v): the inner loops run over neighbours.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from heterps.config import FTRL, SGD, Adagrad, Adam, AdamW, Momentum, Optimizer, RowAdagrad

_SGD, _MOMENTUM, _ADAGRAD, _ROW_ADAGRAD, _ADAM, _FTRL = range(6)
_KIND = {
    "sgd": _SGD,
    "momentum": _MOMENTUM,
    "adagrad": _ADAGRAD,
    "row_adagrad": _ROW_ADAGRAD,
    "adam": _ADAM,
    "adamw": _ADAM,
    "ftrl": _FTRL,
}
_STATE_WORDS = {"sgd": 0, "momentum": 1, "adagrad": 1, "adam": 2, "adamw": 2, "ftrl": 2}

Words = NDArray[np.float32]


def kind_of(optimizer: Optimizer) -> int:
    """The number that selects the optimizer's step in the kernels."""
    return _KIND[optimizer.kind]


def state_words(optimizer: Optimizer, dim: int) -> int:
    """How many words of state `dim` values need."""
    return 1 if isinstance(optimizer, RowAdagrad) else _STATE_WORDS[optimizer.kind] * dim


def initial_state(optimizer: Optimizer) -> float:
    """What every word of a new row's state holds."""
    return optimizer.initial_accumulator if isinstance(optimizer, Adagrad | RowAdagrad) else 0.0


def coefficients(optimizer: Optimizer, step: int, factor: float, *, sparse: bool) -> Words:
    """The numbers that push number `step` (the first is 1) uses, in the order in which `update` reads them.

    The learning rate is `factor` times the optimizer's own.
    """
    lr = optimizer.lr * factor
    match optimizer:
        case SGD():
            numbers = [lr]
        case Momentum(momentum=momentum):
            numbers = [lr, momentum]
        case Adagrad(eps=eps) | RowAdagrad(eps=eps):
            numbers = [lr, eps]
        case Adam(beta1=beta1, beta2=beta2, eps=eps) | AdamW(beta1=beta1, beta2=beta2, eps=eps):
            kept = 1 - lr * optimizer.weight_decay if isinstance(optimizer, AdamW) else 1.0
            root = math.sqrt(1 - beta2**step)
            numbers = [lr * root / (1 - beta1**step), eps if sparse else eps * root, 1 - beta1, 1 - beta2, kept]
        case FTRL(beta=beta, l1=l1, l2=l2):
            numbers = [lr, beta, l1, l2]
    return np.array(numbers, np.float32)


@njit(nogil=True, cache=True, inline="always")
def update(kind: int, values: Words, state: Words, state2: Words, grads: Words, c: Words) -> None:
    """One step on `values` with `grads`; `state` is s, b, m or z, `state2` is v or n, as long as the values where used.

    They are slices, and the coefficients are read before the loops, so that the compiler sees loops it can vectorise:
    no index can be negative, and no store can change a coefficient.
    """
    a = c[0]
    if kind == _SGD:
        for j in range(len(values)):
            values[j] -= a * grads[j]
    elif kind == _MOMENTUM:
        momentum = c[1]
        for j in range(len(values)):
            b = momentum * state[j] + grads[j]
            state[j] = b
            values[j] -= a * b
    elif kind == _ADAGRAD:
        eps = c[1]
        for j in range(len(values)):
            g = grads[j]
            s = state[j] + g * g
            state[j] = s
            values[j] -= a * g / (np.sqrt(s) + eps)
    elif kind == _ROW_ADAGRAD:
        total = np.float32(0.0)
        for j in range(len(values)):
            total += grads[j] * grads[j]
        s = state[0] + total / np.float32(len(values))
        state[0] = s
        root = np.sqrt(s) + c[1]
        for j in range(len(values)):
            values[j] -= a * grads[j] / root
    elif kind == _ADAM:
        eps, part1, part2, kept = c[1], c[2], c[3], c[4]
        for j in range(len(values)):
            g = grads[j]
            m = state[j] + part1 * (g - state[j])
            v = state2[j] + part2 * (g * g - state2[j])
            state[j] = m
            state2[j] = v
            values[j] = kept * values[j] - a * m / (np.sqrt(v) + eps)
    else:
        beta, l1, l2 = c[1], c[2], c[3]
        for j in range(len(values)):
            g = grads[j]
            n = state2[j] + g * g
            z = state[j] + (g - (np.sqrt(n) - np.sqrt(state2[j])) / a * values[j])
            state[j] = z
            state2[j] = n
            shrunk = max(abs(z) - l1, np.float32(0.0))
            values[j] = -np.copysign(shrunk, z) / ((beta + np.sqrt(n)) / a + l2)
