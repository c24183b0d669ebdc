"""Optimizer steps on flat float32 words, for rows of sparse tables and ranges of dense ones alike.

    kind      state words per value     step, with t the number of pushes so far and c1, c2 = 1 - beta1^t, 1 - beta2^t
    sgd       0                         w -= lr g
    adagrad   1: s                      s += g g;  w -= lr g / (sqrt(s) + eps)
    adam      2: m, v                   m += (1-beta1) (g - m);  v += (1-beta2) (g g - v)
                                        sparse: w -= lr sqrt(c2)/c1 m / (sqrt(v) + eps)            (torch's SparseAdam)
                                        dense:  w -= lr sqrt(c2)/c1 m / (sqrt(v) + eps sqrt(c2))   (torch's Adam)

A row holds its values, then all s (or all m, then all v): the inner loops run over neighbours.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from heterps.config import SGD, Adagrad, Adam, Optimizer

_SGD, _ADAGRAD, _ADAM = 0, 1, 2
_KIND = {"sgd": _SGD, "adagrad": _ADAGRAD, "adam": _ADAM}
_STATE_WORDS = {"sgd": 0, "adagrad": 1, "adam": 2}

Words = NDArray[np.float32]


def kind_of(optimizer: Optimizer) -> int:
    """The number that selects the optimizer's step in the kernels."""
    return _KIND[optimizer.kind]


def state_words(optimizer: Optimizer, dim: int) -> int:
    """How many words of state `dim` values need."""
    return _STATE_WORDS[optimizer.kind] * dim


def initial_state(optimizer: Optimizer) -> float:
    """What every word of a new row's state holds."""
    return optimizer.initial_accumulator if isinstance(optimizer, Adagrad) else 0.0


def coefficients(optimizer: Optimizer, step: int, *, sparse: bool) -> Words:
    """The numbers that push number `step` (the first is 1) uses, in the order in which `update` reads them."""
    match optimizer:
        case SGD(lr=lr):
            numbers = [lr]
        case Adagrad(lr=lr, eps=eps):
            numbers = [lr, eps]
        case Adam(lr=lr, beta1=beta1, beta2=beta2, eps=eps):
            root = math.sqrt(1 - beta2**step)
            numbers = [lr * root / (1 - beta1**step), eps if sparse else eps * root, 1 - beta1, 1 - beta2]
    return np.array(numbers, np.float32)


@njit(nogil=True, cache=True, inline="always")
def update(kind: int, values: Words, state: Words, state2: Words, grads: Words, c: Words) -> None:
    """One step on `values` with `grads`; `state` is s or m, `state2` is v, both as long as the values where used.

    They are slices, and the coefficients are read before the loops, so that the compiler sees loops it can vectorise:
    no index can be negative, and no store can change a coefficient.
    """
    a = c[0]
    if kind == _SGD:
        for j in range(len(values)):
            values[j] -= a * grads[j]
    elif kind == _ADAGRAD:
        eps = c[1]
        for j in range(len(values)):
            g = grads[j]
            s = state[j] + g * g
            state[j] = s
            values[j] -= a * g / (np.sqrt(s) + eps)
    else:
        eps, part1, part2 = c[1], c[2], c[3]
        for j in range(len(values)):
            g = grads[j]
            m = state[j] + part1 * (g - state[j])
            v = state2[j] + part2 * (g * g - state2[j])
            state[j] = m
            state2[j] = v
            values[j] -= a * m / (np.sqrt(v) + eps)
