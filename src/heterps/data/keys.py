"""Turn ids into 64-bit keys: there is no vocabulary, and every 64-bit value is a valid id and a valid key.

    integer id ----------------------------+
                                           |--> XOR seed of the slot --> mix64 --> key
    string --> 64-bit hash of its bytes ---+
    null   --> a fixed key of the slot

`mix64` is a bijection, so two integer ids of one slot never share a key; the slot's seed, a hash of its name, keeps
equal ids of different slots apart. Two strings, ids of two slots, or an id and a null share a key with a probability
of 2**-64 per pair. The keys are stored in checkpoints: these functions must never change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import xxhash
from numba import njit, uint64
from numpy.typing import ArrayLike, NDArray

from heterps.arrays import KeyArray
from heterps.data.batch import Slots
from heterps.errors import DataError
from heterps.hashing import mix64

EVERY_BIT_VALID: NDArray[np.uint8] = np.empty(0, np.uint8)
"""An empty validity bitmap, which means that no value is null."""


def slot_seed(slot_name: str) -> np.uint64:
    return np.uint64(xxhash.xxh3_64_intdigest(slot_name.encode()))


def null_key(slot_name: str) -> np.uint64:
    """Return the key of a missing id: a hash of the slot's name with a suffix that no name has."""
    return np.uint64(xxhash.xxh3_64_intdigest(slot_name.encode() + b"\0null"))


def make_keys(ids: ArrayLike, slot_name: str) -> KeyArray:
    """Return the keys [n] of the ids [n] of one slot: integers of any width, strings, or objects with None for null."""
    array = np.asarray(ids)
    values, valid = _as_int64(array, slot_name)
    keys = np.empty(values.size, np.uint64)
    mix_column(values.reshape(-1), EVERY_BIT_VALID, 0, slot_seed(slot_name), null_key(slot_name), keys)
    if valid is not None:
        keys[~valid.reshape(-1)] = null_key(slot_name)
    return keys.reshape(array.shape)


def slots_from_ids(ids: ArrayLike, names: Sequence[str], same_ids: Mapping[str, str] | None = None) -> Slots:
    """Make Slots of n samples from raw ids [n, S], one column per slot, for batches made by hand, as in serving.

    `same_ids` is the schema's: slots that hold the ids of another slot.
    """
    array = np.asarray(ids)
    if array.ndim != 2 or array.shape[1] != len(names):
        raise DataError(f"ids must have the shape [n, {len(names)}], a column a slot, but have {list(array.shape)}.")
    owners = same_ids or {}
    columns = [make_keys(array[:, s], owners.get(name, name)) for s, name in enumerate(names)]
    keys = np.stack(columns, axis=1) if columns else np.empty((len(array), 0), np.uint64)
    return Slots(tuple(names), keys.reshape(-1))


def hash_strings(strings: Sequence[str | bytes]) -> NDArray[np.int64]:
    """Return the 64-bit hashes of strings, equal to those of `hash_bytes`."""
    encoded = [text.encode() if isinstance(text, str) else text for text in strings]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    hashes = np.empty(len(encoded), np.int64)
    hash_bytes(np.frombuffer(b"".join(encoded), np.uint8), ends, hashes)
    return hashes


def _as_int64(array: NDArray[np.generic], slot_name: str) -> tuple[NDArray[np.int64], NDArray[np.bool_] | None]:
    """Return integers that represent the ids (integers one to one), and a mask of those that are not null."""
    if array.dtype.kind in "iub":
        return np.ascontiguousarray(array).astype(np.int64, copy=False), None
    if array.dtype.kind in "US":
        return hash_strings(array.reshape(-1).tolist()).reshape(array.shape), None
    if array.dtype.kind == "O":
        flat = array.reshape(-1).tolist()
        valid = np.array([value is not None for value in flat], bool).reshape(array.shape)
        present = [value for value in flat if value is not None]
        values = np.zeros(array.shape, np.int64)
        if all(isinstance(value, (str, bytes)) for value in present):
            values[valid] = hash_strings(present)
            return values, valid
        if all(isinstance(value, (int, np.integer)) and -(2**63) <= value < 2**64 for value in present):
            values[valid] = np.array([int(value) % 2**64 for value in present], np.uint64).view(np.int64)
            return values, valid
    raise DataError(
        f"ids of slot {slot_name} must be 64-bit integers or strings, all of one kind, but are {array.dtype}."
    )


# --- kernels ---------------------------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def mix_column(
    ids: NDArray[np.int64], bitmap: NDArray[np.uint8], first_bit: int, seed: np.uint64, null: np.uint64, out: KeyArray
) -> None:
    """Set out[i] to the key of ids[i], or to `null` where Arrow's validity bitmap (from bit `first_bit`) has a 0."""
    if len(bitmap) == 0:
        for i in range(len(ids)):
            out[i] = mix64(uint64(ids[i]) ^ seed)
        return
    for i in range(len(ids)):
        bit = first_bit + i
        valid = (bitmap[bit >> 3] >> (bit & 7)) & 1
        out[i] = mix64(uint64(ids[i]) ^ seed) if valid else null


@njit(inline="always")
def _word(data: NDArray[np.uint8], at: int) -> np.uint64:
    """Return 8 little-endian bytes as a number, in a form that the compiler knows to be one load."""
    low = uint64(data[at]) | uint64(data[at + 1]) << uint64(8)
    low |= uint64(data[at + 2]) << uint64(16) | uint64(data[at + 3]) << uint64(24)
    high = uint64(data[at + 4]) | uint64(data[at + 5]) << uint64(8)
    high |= uint64(data[at + 6]) << uint64(16) | uint64(data[at + 7]) << uint64(24)
    return low | high << uint64(32)


@njit(nogil=True, cache=True)
def hash_bytes(data: NDArray[np.uint8], ends: NDArray[np.int64 | np.int32], out: NDArray[np.int64]) -> None:
    """Set out[i] to the hash of data[ends[i] : ends[i + 1]]: its length, then 8 little-endian bytes at a time."""
    length, of_length = -1, uint64(0)
    for i in range(len(out)):
        start, end = ends[i], ends[i + 1]
        if end - start != length:  # ids of a column often have one length
            length = end - start
            of_length = mix64(uint64(length) + uint64(0x9E3779B97F4A7C15))
        state = of_length
        while start + 8 <= end:
            state = mix64(state ^ _word(data, start))
            start += 8
        if start < end:
            word = uint64(0)
            for byte in range(end - start):
                word |= uint64(data[start + byte]) << uint64(8 * byte)
            state = mix64(state ^ word)
        out[i] = state
