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

`lr` is that of the optimizer times the factor of the schedule. With a weight decay, g is the gradient plus
weight_decay w first (L2), except in adamw, where w shrinks apart from the gradient, and in ftrl, which has its own l2.

A row holds its values, then all s (or all m, then all v): the inner loops run over neighbours.

To add an optimizer, write its settings in `config/optimizer_kinds.py`, and here a number with a line in `_STEPS`, a
case in `coefficients` and a branch in `update`. After any change of `update` run `make clean-kernels`: the kernels that
call it, in `kernels.py`, were compiled with it, and do not notice.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from heterps.arrays import FloatArray
from heterps.config import FTRL, SGD, Adagrad, Adam, AdamW, Momentum, Optimizer, RowAdagrad
from heterps.errors import ConfigError

_SGD, _MOMENTUM, _ADAGRAD, _ROW_ADAGRAD, _ADAM, _FTRL = range(6)
_STEPS = {
    "sgd": (_SGD, 0),
    "momentum": (_MOMENTUM, 1),
    "adagrad": (_ADAGRAD, 1),
    "row_adagrad": (_ROW_ADAGRAD, 0),  # one a row
    "adam": (_ADAM, 2),
    "adamw": (_ADAM, 2),
    "ftrl": (_FTRL, 2),
}
"""By the optimizer's name in jobs: its step in `update`, and how many words of state each value has."""


def kind_of(optimizer: Optimizer) -> int:
    """Return the number that selects the optimizer's step in the kernels."""
    return _STEPS[optimizer.kind][0]


def state_words(optimizer: Optimizer, dim: int) -> int:
    """Return how many words of state `dim` values need."""
    return 1 if isinstance(optimizer, RowAdagrad) else _STEPS[optimizer.kind][1] * dim


def initial_state(optimizer: Optimizer) -> float:
    """Return what every word of a new row's state holds."""
    if not isinstance(optimizer, Adagrad | RowAdagrad):
        return 0.0
    if optimizer.sample_gradient is not None:
        raise ConfigError(
            f"{optimizer.kind}: sample_gradient is for optimizers.sparse of a job, which knows its batch size: give "
            "initial_accumulator, (sample_gradient / batch_size) ** 2"
        )
    return optimizer.initial_accumulator


def coefficients(optimizer: Optimizer, step: int, factor: float, *, sparse: bool) -> FloatArray:
    """Return the numbers that push number `step` (the first is 1) uses, in the order in which `update` reads them.

    The learning rate, `factor` times the optimizer's own, is the first of them. There are at least two, because
    `update` reads the second for every kind: the weight decay where the optimizer has one.
    """
    lr = optimizer.lr * factor
    match optimizer:
        case SGD(weight_decay=decay):
            numbers = [lr, decay]
        case Momentum(momentum=momentum, weight_decay=decay):
            numbers = [lr, decay, momentum]
        case Adagrad(eps=eps, weight_decay=decay) | RowAdagrad(eps=eps, weight_decay=decay):
            numbers = [lr, decay, eps]
        case (
            Adam(beta1=beta1, beta2=beta2, eps=eps, weight_decay=decay)
            | AdamW(beta1=beta1, beta2=beta2, eps=eps, weight_decay=decay)
        ):
            kept, decay = (1 - lr * decay, 0.0) if isinstance(optimizer, AdamW) else (1.0, decay)
            root = math.sqrt(1 - beta2**step)
            rate, eps = lr * root / (1 - beta1**step), eps if sparse else eps * root
            numbers = [rate, decay, eps, 1 - beta1, 1 - beta2, kept]
        case FTRL(beta=beta, l1=l1, l2=l2):
            numbers = [lr, beta, l1, l2]
    return np.array(numbers, np.float32)


# No check for zero divisors, which would prevent vectorising.
@njit(nogil=True, cache=True, error_model="numpy")
def update(
    kind: int, words: FloatArray, starts: NDArray[np.int64], dim: int, grads: FloatArray, first: int, c: FloatArray
) -> None:
    """Make one step for each of `starts`: on the `dim` values from `words[start]` on, followed by their state.

    Their gradients are the rows of the flat `grads` from `first` on. There are no slices, because each would count
    references, which takes longer than a row; positions are unsigned, so that none can be negative, and coefficients
    are read before the loops, so that no store can change one: the compiler then sees loops that it can vectorise.
    """
    a, decay, size, row = c[0], c[1], np.uint64(dim), np.uint64(first * dim)
    if kind == _SGD:
        for i in range(len(starts)):
            w, g0 = np.uint64(starts[i]), row + np.uint64(i) * size
            for j in range(size):
                words[w + j] -= a * (grads[g0 + j] + decay * words[w + j])
    elif kind == _MOMENTUM:
        momentum = c[2]
        for i in range(len(starts)):
            w, g0 = np.uint64(starts[i]), row + np.uint64(i) * size
            s1 = w + size
            for j in range(size):
                b = momentum * words[s1 + j] + (grads[g0 + j] + decay * words[w + j])
                words[s1 + j] = b
                words[w + j] -= a * b
    elif kind == _ADAGRAD:
        eps = c[2]
        for i in range(len(starts)):
            w, g0 = np.uint64(starts[i]), row + np.uint64(i) * size
            s1 = w + size
            for j in range(size):
                g = grads[g0 + j] + decay * words[w + j]
                s = words[s1 + j] + g * g
                words[s1 + j] = s
                words[w + j] -= a * g / (np.sqrt(s) + eps)
    elif kind == _ROW_ADAGRAD:
        eps = c[2]
        for i in range(len(starts)):
            w, g0 = np.uint64(starts[i]), row + np.uint64(i) * size
            total = np.float32(0.0)
            for j in range(size):
                g = grads[g0 + j] + decay * words[w + j]
                total += g * g
            s = words[w + size] + total / np.float32(dim)
            words[w + size] = s
            root = np.sqrt(s) + eps
            for j in range(size):
                words[w + j] -= a * (grads[g0 + j] + decay * words[w + j]) / root
    elif kind == _ADAM:
        eps, part1, part2, kept = c[2], c[3], c[4], c[5]
        for i in range(len(starts)):
            w, g0 = np.uint64(starts[i]), row + np.uint64(i) * size
            s1, s2 = w + size, w + size + size
            for j in range(size):
                g = grads[g0 + j] + decay * words[w + j]
                m = words[s1 + j] + part1 * (g - words[s1 + j])
                v = words[s2 + j] + part2 * (g * g - words[s2 + j])
                words[s1 + j] = m
                words[s2 + j] = v
                words[w + j] = kept * words[w + j] - a * m / (np.sqrt(v) + eps)
    elif kind == _FTRL:
        beta, l1, l2 = c[1], c[2], c[3]
        for i in range(len(starts)):
            w, g0 = np.uint64(starts[i]), row + np.uint64(i) * size
            s1, s2 = w + size, w + size + size
            for j in range(size):
                g = grads[g0 + j]
                n = words[s2 + j] + g * g
                z = words[s1 + j] + (g - (np.sqrt(n) - np.sqrt(words[s2 + j])) / a * words[w + j])
                words[s1 + j] = z
                words[s2 + j] = n
                shrunk = max(abs(z) - l1, np.float32(0.0))
                words[w + j] = -np.copysign(shrunk, z) / ((beta + np.sqrt(n)) / a + l2)
    else:
        raise ValueError("update has no step for this optimizer: if it is new, run `make clean-kernels`")
