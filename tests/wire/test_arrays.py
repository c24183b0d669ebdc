"""Values and keys come back as they were, or as their dtype rounds them, and nonsense takes no memory."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from heterps.wire import (
    Limits,
    Packed,
    PackedKeys,
    TooLarge,
    WireError,
    pack_keys,
    pack_values,
    unpack_keys,
    unpack_values,
)

SHAPES = arrays.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=9)
VALUES = arrays.arrays(np.float32, SHAPES, elements=st.floats(width=32))
KEYS = arrays.arrays(np.uint64, st.integers(0, 50), elements=st.integers(0, 2**64 - 1))
DTYPES = st.sampled_from(["fp32", "fp16", "bf16"])
COMPRESSIONS = st.sampled_from([None, "lz4", "zstd"])


def bf16(values: np.ndarray) -> np.ndarray:
    """torch's rounding, except that finite values stay finite."""
    rounded = torch.from_numpy(values.copy()).to(torch.bfloat16).to(torch.float32).numpy()
    largest = np.uint32(0x7F7F0000).view(np.float32)
    return np.where(np.isinf(rounded) & np.isfinite(values), np.copysign(largest, values), rounded)


def fp16(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        rounded = values.astype(np.float16).astype(np.float32)
    return np.where(np.isinf(rounded) & np.isfinite(values), np.copysign(np.float32(65504), values), rounded)


@given(VALUES, DTYPES, COMPRESSIONS, st.sampled_from([0, 64]))
def test_values_come_back_as_their_dtype_rounds_them(array: Any, dtype: Any, compression: Any, least: int) -> None:
    packed, frame = pack_values(array, dtype, compression, least)
    packed = msgspec.msgpack.decode(msgspec.msgpack.encode(packed), type=Packed)
    expected = {"fp32": lambda values: values, "fp16": fp16, "bf16": bf16}[dtype](array)
    back = unpack_values(packed, frame)
    assert back.dtype == np.float32
    np.testing.assert_array_equal(back, expected, strict=True)


def test_every_bf16_pattern_survives_the_way_there_and_back() -> None:
    every = (np.arange(2**16, dtype=np.uint32) << 16).view(np.float32)
    back = unpack_values(*pack_values(every, "bf16"))
    np.testing.assert_array_equal(np.isnan(back), np.isnan(every))
    numbers = ~np.isnan(every)
    assert (back.view(np.uint32)[numbers] == every.view(np.uint32)[numbers]).all()


@given(KEYS, st.booleans())
def test_keys_come_back_raw_or_as_differences(keys: Any, delta: bool) -> None:
    keys = np.sort(keys) if delta else keys
    packed, frame = pack_keys(keys, delta=delta)
    packed = msgspec.msgpack.decode(msgspec.msgpack.encode(packed), type=PackedKeys)
    np.testing.assert_array_equal(unpack_keys(packed, frame), keys, strict=True)


@pytest.mark.parametrize(("step", "width"), [(1, 1), (255, 1), (256, 2), (2**16, 4), (2**32 - 1, 4), (2**32, 0)])
def test_differences_take_the_fewest_bytes(step: int, width: int) -> None:
    packed, frame = pack_keys(np.array([2**63, 2**63 + step], np.uint64), delta=True)
    assert packed.width == width
    assert memoryview(frame).nbytes == (width or 16)


def test_values_and_raw_keys_are_not_copied() -> None:
    values, keys = np.ones((3, 2), np.float32), np.arange(5, dtype=np.uint64)
    _, frame = pack_values(values)
    assert np.shares_memory(np.asarray(frame), values)
    assert np.shares_memory(unpack_values(Packed((3, 2), "fp32"), frame), values)
    packed, frame = pack_keys(keys)
    assert np.shares_memory(unpack_keys(packed, frame), keys)


def test_compression_that_does_not_shrink_or_is_too_small_is_left_out() -> None:
    noise = np.random.default_rng(0).random(10_000, np.float32)
    assert pack_values(noise, compression="lz4")[0].compression is None
    zeros = np.zeros(10_000, np.float32)
    assert pack_values(zeros, compression="zstd")[0].compression == "zstd"
    assert pack_values(zeros, compression="zstd", least_bytes=40_000)[0].compression == "zstd"
    assert pack_values(zeros, compression="zstd", least_bytes=40_001)[0].compression is None


def test_a_transposed_array_is_packed_in_its_own_order() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    for dtype in ("fp32", "fp16", "bf16"):
        np.testing.assert_array_equal(unpack_values(*pack_values(array, dtype)), array)


def test_a_number_is_refused_with_the_fix() -> None:
    with pytest.raises(ValueError, match=r"reshape\(1\)"):
        pack_values(np.float32(1.0) * np.ones((), np.float32).reshape(()))  # type: ignore[arg-type]


@pytest.mark.parametrize("keys", [np.zeros((2, 2), np.uint64), np.zeros(2, np.int64)])
def test_what_is_no_key_array_is_refused(keys: Any) -> None:
    with pytest.raises(ValueError, match="uint64 of one dimension"):
        pack_keys(keys)


def test_differences_of_unsorted_keys_are_refused() -> None:
    with pytest.raises(ValueError, match="sorted"):
        pack_keys(np.array([2, 1], np.uint64), delta=True)


@given(
    st.builds(Packed, st.lists(st.integers(0, 2**62), min_size=1, max_size=4).map(tuple), DTYPES, COMPRESSIONS),
    st.binary(max_size=200),
)
def test_values_that_do_not_match_their_frame_are_refused_or_exact(packed: Packed, frame: bytes) -> None:
    try:
        array = unpack_values(packed, frame)
    except WireError:
        return
    assert array.shape == packed.shape


@given(
    st.builds(PackedKeys, st.integers(0, 2**62), st.integers(0, 2**70), st.sampled_from([0, 1, 2, 4, 8])),
    st.binary(max_size=200),
)
def test_keys_that_do_not_match_their_frame_are_refused_or_exact(packed: PackedKeys, frame: bytes) -> None:
    try:
        keys = unpack_keys(packed, frame)
    except WireError:
        return
    assert keys.shape == (packed.num_keys,)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
@pytest.mark.parametrize("shape", [(999,), (1001,), (10**8,)])
def test_compressed_data_of_another_length_than_announced_is_refused(compression: Any, shape: tuple[int]) -> None:
    _, frame = pack_values(np.zeros(1000, np.float32), "fp32", compression, 0)
    with pytest.raises(WireError):
        unpack_values(Packed(shape, "fp32", compression), frame)


def test_values_beyond_the_limit_are_refused_before_they_are_made() -> None:
    packed, frame = pack_values(np.zeros(10_000, np.float32), "fp16", "lz4")
    with pytest.raises(TooLarge, match="limit of 39999"):
        unpack_values(packed, frame, Limits(message_bytes=39_999))
    with pytest.raises(TooLarge):
        unpack_keys(PackedKeys(6), b"", Limits(message_bytes=47))


def test_values_and_keys_exactly_at_the_limit_are_taken() -> None:
    packed, frame = pack_values(np.ones(10_000, np.float32), "fp16", "lz4")
    assert unpack_values(packed, frame, Limits(message_bytes=40_000)).sum() == 10_000
    for delta in (False, True):
        keys = unpack_keys(*pack_keys(np.arange(6, dtype=np.uint64), delta=delta), Limits(message_bytes=48))
        assert keys.tolist() == list(range(6))


@pytest.mark.parametrize(
    ("first", "steps"), [(2**64 - 1, [1]), (5, [2**64 - 3, 2**62]), (5, [2**64 - 1, 2**64 - 1]), (2**63, [2**63])]
)
def test_differences_that_overflow_are_refused(first: int, steps: list[int]) -> None:
    """Also where they go all the way round, so that the last key is above the first again."""
    with pytest.raises(WireError, match="64 bits"):
        unpack_keys(PackedKeys(len(steps) + 1, first, 8), np.array(steps, np.uint64))


def test_differences_up_to_the_largest_key_are_taken() -> None:
    keys = unpack_keys(PackedKeys(3, 5, 8), np.array([2**62, 2**64 - 1 - 2**62 - 5], np.uint64))
    assert keys.tolist() == [5, 5 + 2**62, 2**64 - 1]
