"""Convert arrays of float32 to 16 bits and back: fp16 (5 bits of exponent, 10 of mantissa) and bf16 (8 and 7).

Rounding is to nearest even, as in torch and in hardware. The loops have no branches, only selections between results
that are all computed, so that the compiler vectorises them: several times faster than NumPy's conversion. A finite
value never becomes infinite: a value that is too large for fp16 or bf16 becomes the largest one of that type.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Halves = NDArray[np.uint16]

_SIGN, _INFINITE = np.uint32(0x80000000), np.uint32(0x7F800000)
_1, _13, _16 = np.uint32(1), np.uint32(13), np.uint32(16)
_HALF, _HALF_BITS = np.float32(0.5), np.uint32(0x3F000000)
_LEAST_NORMAL = np.uint32(0x38800000)  # 2**-14, the smallest normal number of fp16, as float32 bits
_EXPONENT = np.uint32(0x0F800000)  # the exponent bits of fp16 after a shift left by 13
_REBIAS = np.uint32(112 << 23)  # difference of the exponent biases of float32 and fp16
_TINY = np.float32(2.0**-14)


@njit(nogil=True, cache=True)
def to_fp16(values: Floats, out: Halves) -> None:
    for i in range(len(values)):
        bits = np.float32(values[i]).view(np.uint32)
        size = np.uint32(bits & ~_SIGN)
        normal = np.uint32(np.uint32(size - _REBIAS + np.uint32(0xFFF) + ((size >> _13) & _1)) >> _13)
        # The addition shifts the mantissa to where a subnormal fp16 number has it, and rounds it.
        small = np.uint32(np.float32(np.uint32(size).view(np.float32) + _HALF).view(np.uint32) - _HALF_BITS)
        nan = np.uint32(np.uint32(0x7E00) | ((size >> _13) & np.uint32(0x3FF)))
        half = small if size < _LEAST_NORMAL else min(normal, np.uint32(0x7BFF))
        half = np.uint32(0x7C00) if size == _INFINITE else half
        half = nan if size > _INFINITE else half
        out[i] = np.uint16(np.uint32(half | np.uint32((bits & _SIGN) >> _16)))


@njit(nogil=True, cache=True)
def from_fp16(halves: Halves, out: Floats) -> None:
    for i in range(len(halves)):
        half = np.uint32(halves[i])
        size = np.uint32((half & np.uint32(0x7FFF)) << _13)
        exponent = np.uint32(size & _EXPONENT)
        bits = np.uint32(size + _REBIAS)
        # The subtraction normalises subnormal fp16 numbers: in float32 they have a full mantissa.
        small = np.float32(np.uint32(bits + np.uint32(1 << 23)).view(np.float32) - _TINY).view(np.uint32)
        bits = np.uint32(bits + _REBIAS) if exponent == _EXPONENT else bits  # infinite, or not a number
        bits = small if exponent == np.uint32(0) else bits
        out[i] = np.uint32(bits | ((half & np.uint32(0x8000)) << _16)).view(np.float32)


@njit(nogil=True, cache=True)
def to_bf16(values: Floats, out: Halves) -> None:
    for i in range(len(values)):
        bits = np.float32(values[i]).view(np.uint32)
        size = np.uint32(bits & ~_SIGN)
        cut = np.uint32(bits >> _16)
        rounded = np.uint32(np.uint32(bits + np.uint32(0x7FFF) + (cut & _1)) >> _16)
        half = cut if size >= np.uint32(0x7F7F8000) else rounded  # would round to infinity, or is not finite
        half = np.uint32(cut | np.uint32(0x40)) if size > _INFINITE else half
        out[i] = np.uint16(half)


@njit(nogil=True, cache=True)
def from_bf16(halves: Halves, out: Floats) -> None:
    for i in range(len(halves)):
        out[i] = np.uint32(np.uint32(halves[i]) << _16).view(np.float32)
