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
def update(kind: int, words: Words, at: int, state: int, gap: int, n: int, grads: Words, grad: int, c: Words) -> None:
    """One step on `words[at:at+n]` with the gradient `grads[grad:grad+n]`.

    The state begins at `words[state]`; where there are two words a value, the second begins `gap` words later.
    """
    if kind == _SGD:
        for j in range(n):
            words[at + j] -= c[0] * grads[grad + j]
    elif kind == _ADAGRAD:
        for j in range(n):
            g = grads[grad + j]
            s = words[state + j] + g * g
            words[state + j] = s
            words[at + j] -= c[0] * g / (np.sqrt(s) + c[1])
    else:
        for j in range(n):
            g = grads[grad + j]
            m = words[state + j] + c[2] * (g - words[state + j])
            v = words[state + gap + j] + c[3] * (g * g - words[state + gap + j])
            words[state + j] = m
            words[state + gap + j] = v
            words[at + j] -= c[0] * m / (np.sqrt(v) + c[1])
