"""16 bits for 32: every bit as torch and NumPy round, and nothing finite becomes infinite."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from heterps.wire.arrays import narrow, widen

UPPER = (np.arange(2**16, dtype=np.uint32) << 16)[:, None]
NEAR = np.array([0, 1, 0x0FFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x3001, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
VALUES = (UPPER | NEAR).reshape(-1).view(np.float32)
"""Every sign, exponent and upper part of a mantissa, with what lies at and beside the middle between two halves."""
FINITE, NAN = np.isfinite(VALUES), np.isnan(VALUES)


def torch_bits(values: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    return torch.from_numpy(values.copy()).to(dtype).view(torch.int16).numpy().view(np.uint16)


def test_fp16_rounds_as_torch_and_keeps_finite_values_finite() -> None:
    got, expected = narrow(VALUES, "fp16").view(np.uint16), torch_bits(VALUES, torch.float16)
    overflown = FINITE & (expected & 0x7FFF == 0x7C00)
    assert overflown.any()
    np.testing.assert_array_equal(got[overflown], expected[overflown] - 1)
    rest = ~overflown & ~NAN
    np.testing.assert_array_equal(got[rest], expected[rest])
    assert np.isnan(got.view(np.float16)[NAN]).all()


def test_bf16_rounds_as_torch_and_keeps_finite_values_finite() -> None:
    got, expected = narrow(VALUES, "bf16"), torch_bits(VALUES, torch.bfloat16)
    overflown = FINITE & (expected & 0x7FFF == 0x7F80)
    assert overflown.any()
    np.testing.assert_array_equal(got[overflown], expected[overflown] - 1)
    rest = ~overflown & ~NAN
    np.testing.assert_array_equal(got[rest], expected[rest])
    assert np.isnan(widen(got, "bf16")[NAN]).all()


def test_every_half_becomes_the_number_that_it_is() -> None:
    halves = np.arange(2**16, dtype=np.uint32).astype(np.uint16)
    expected = halves.view(np.float16).astype(np.float32)
    got = widen(halves.view(np.float16), "fp16")
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(got.view(np.uint32)[number], expected.view(np.uint32)[number])
    assert np.isnan(got[~number]).all()
    wide = widen(halves, "bf16")
    np.testing.assert_array_equal(wide.view(np.uint32), halves.astype(np.uint32) << 16)


@given(st.lists(st.floats(width=32, allow_nan=False), max_size=70))
def test_what_was_widened_narrows_to_itself(numbers: list[float]) -> None:
    values = np.array(numbers, np.float32).reshape(-1, 1)
    for dtype in ("fp16", "bf16"):
        once = widen(narrow(values, dtype), dtype)
        assert once.shape == values.shape
        np.testing.assert_array_equal(widen(narrow(once, dtype), dtype), once)
