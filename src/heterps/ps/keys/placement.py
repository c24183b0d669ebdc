"""Which shard holds which key.

    key --hash--> slot (one of 16,384) --jump hash--> shard

Jump hashing (Lamping and Veach, 2014, arXiv 1406.2294) gives each of n shards an equal share, and one more shard takes
1/(n+1) of every other's slots while nothing moves between those. Hashing the slots instead of the keys makes that a
table of 32 KiB, which a lookup reads faster than it could divide, and gives moves between servers a unit: the slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numba import njit
from numpy.typing import NDArray

from heterps.hashing import mix64

NUM_SLOTS = 2**14
_SLOT_BITS = np.uint64(NUM_SLOTS - 1)

Owners = NDArray[np.int16]


@njit(nogil=True, cache=True, inline="always")
def slot_of(hashed: np.uint64) -> int:
    """Return the slot of a mixed hash by its lowest bits; the index inside a shard uses the highest."""
    return np.int64(hashed & _SLOT_BITS)


@njit(nogil=True, cache=True)
def slots_of(keys: NDArray[np.uint64]) -> NDArray[np.int16]:
    """Return the slot of every key."""
    slots = np.empty(len(keys), np.int16)
    for i in range(len(keys)):
        slots[i] = slot_of(mix64(keys[i]))
    return slots


@njit(nogil=True, cache=True)
def all_in(keys: NDArray[np.uint64], slots: NDArray[np.bool_]) -> bool:
    """Whether every key is in one of `slots` [NUM_SLOTS]."""
    for i in range(len(keys)):  # noqa: SIM110 - numba knows no generators
        if not slots[slot_of(mix64(keys[i]))]:
            return False
    return True


def slot_mask(slots: Sequence[int] | NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return a mask [NUM_SLOTS], true at `slots`."""
    mask = np.zeros(NUM_SLOTS, np.bool_)
    mask[slots] = True
    return mask


def shard_numbers(keys: NDArray[np.uint64], num_shards: int) -> Owners:
    """Return the shard of every key."""
    return owners(num_shards)[slots_of(keys)]


@lru_cache(maxsize=64)
def owners(num_shards: int) -> Owners:
    """Return the shard of every slot, read-only. For a number of shards it must never change, in any process."""
    if not 1 <= num_shards <= NUM_SLOTS:
        raise ValueError(f"num_shards must be at least 1 and at most {NUM_SLOTS:,}, got {num_shards}")
    table = _owners(num_shards)
    table.flags.writeable = False
    return table


@lru_cache(maxsize=1024)
def largest_share(num_shards: int) -> float:
    """Return the share of all slots that the largest of `num_shards` shards has. It falls with their number.

    Slots are dealt by a hash: the largest of 4 shards has 1.02 quarters of them, the largest of 100 1.16 hundredths.
    """
    return 1.0 if num_shards == 1 else float(np.bincount(owners(num_shards)).max()) / NUM_SLOTS


@njit(nogil=True, cache=True)
def _owners(num_shards: int) -> Owners:
    table = np.empty(NUM_SLOTS, np.int16)
    for slot in range(NUM_SLOTS):
        table[slot] = _jump(mix64(np.uint64(slot + 1)), num_shards)
    return table


@njit(nogil=True, cache=True)
def _jump(hashed: np.uint64, num_shards: int) -> int:
    """Compute a shard by figure 1 of the paper: each jump is to the next number of shards at which the hash moves."""
    at, following = np.int64(-1), np.int64(0)
    while following < num_shards:
        at = following
        hashed = hashed * np.uint64(2862933555777941757) + np.uint64(1)
        following = np.int64((at + 1) * (float(1 << 31) / float((hashed >> np.uint64(33)) + np.uint64(1))))
    return at
