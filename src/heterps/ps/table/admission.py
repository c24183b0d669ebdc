"""Which keys without a row get one: a gate before the pushes of a table.

    sightings     a count-min sketch of uint8 counts, four for a key, each in a part of its own. A sighting raises only
                  those that are the least of the four (conservative update), so that a count is at least the truth and
                  seldom much more. It stops at 255. After as many sightings as there are counts all are halved.
    probability   by the hash of (seed, key, clock): the same push repeated admits the same keys, and a key that comes
                  often has its chance often ("Poisson inclusion").
    never         a table keeps the rows that it begins with, and gets no others.

Only pushes count: each trains on its keys once, while pulls may be repeated or made ahead. So a pull creates no rows in
a table with a gate. Sketch and sightings are part of a checkpoint (see metadata.py); chance needs only the clock.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from heterps.arrays import KeyArray, Mask
from heterps.config import Admission, AfterSightings, Never, WithProbability
from heterps.hashing import mix64
from heterps.ps.table.index import Numbers, inline, kernel

SketchCounts = NDArray[np.uint8]
NUM_PARTS = 4


class Gate:
    """Decides for one table (or shard). `num_refused` counts the gradients of keys that it refused."""

    def __init__(self, admission: Admission, seed: int) -> None:
        self.admission = admission
        self.num_refused = 0
        self._seed = seed
        self._counts: SketchCounts = np.zeros(0, np.uint8)
        if isinstance(admission, AfterSightings):
            self._counts = np.zeros(1 << (admission.sketch_bytes.bit_length() - 1), np.uint8)
        self._sightings = np.zeros(1, np.int64)

    @property
    def sightings(self) -> int:
        """The number of sightings since the counts were last halved."""
        return int(self._sightings[0])

    @property
    def sketch(self) -> SketchCounts:
        """A copy of the counts; empty where nothing is counted."""
        return self._counts.copy()

    def check_sketch(self, sketch: SketchCounts) -> None:
        """Raise ValueError where the counts are of a sketch of another size. No counts are good: all are zero then."""
        if len(sketch) not in (0, len(self._counts)):
            raise ValueError(f"a sketch of {len(sketch):,} bytes does not fit one of {len(self._counts):,}")

    def resume(self, sketch: SketchCounts, sightings: int, num_refused: int) -> None:
        """Go on from what another gate of this kind had counted."""
        self.check_sketch(sketch)
        if len(sketch):
            self._counts[:] = sketch
            self._sightings[0] = sightings
        self.num_refused = num_refused

    def admit(self, keys: KeyArray, known: Mask, clock: int) -> Mask:
        """Choose which of `keys`, all different, may be pushed at this clock: those `known`, and those admitted."""
        match self.admission:
            case AfterSightings(num=num):
                admitted = np.empty(len(keys), np.bool_)
                _count(self._counts, self._sightings, keys, known, num, admitted)
            case WithProbability(p=p):
                mixed = mix64(np.uint64(self._seed) ^ mix64(np.uint64(clock)))
                admitted = np.empty(len(keys), np.bool_)
                _draw(np.uint64(mixed), keys, known, p, admitted)
            case Never():
                admitted = known.copy()
            case _:
                return np.ones(len(keys), np.bool_)
        self.num_refused += len(keys) - int(np.count_nonzero(admitted))
        return admitted


@kernel
def _count(counts: SketchCounts, sightings: Numbers, keys: KeyArray, known: Mask, num: int, out: Mask) -> None:
    """Count one sighting more of each key that is not known; `out[i]` = whether it has `num` now."""
    for i in range(len(keys)):
        out[i] = known[i] or _sight(counts, keys[i]) >= num
        if not known[i]:
            sightings[0] += 1
            if sightings[0] >= len(counts):
                sightings[0] = 0
                for j in range(len(counts)):
                    counts[j] >>= np.uint8(1)


@inline
def _sight(counts: SketchCounts, key: np.uint64) -> int:
    """Count one more sighting of a key, and return its count."""
    part = len(counts) // NUM_PARTS
    hashed = mix64(key + np.uint64(1))
    low, high = hashed & np.uint64(0xFFFFFFFF), hashed >> np.uint64(32)
    least = 255
    for j in range(NUM_PARTS):
        at = j * part + np.int64((low + np.uint64(j) * high) & np.uint64(part - 1))
        least = min(least, np.int64(counts[at]))
    if least == 255:
        return least
    for j in range(NUM_PARTS):
        at = j * part + np.int64((low + np.uint64(j) * high) & np.uint64(part - 1))
        if counts[at] == least:
            counts[at] = np.uint8(least + 1)
    return least + 1


@kernel
def _draw(seed: np.uint64, keys: KeyArray, known: Mask, p: float, out: Mask) -> None:
    for i in range(len(keys)):
        bits = mix64(keys[i] ^ seed) >> np.uint64(11)
        out[i] = known[i] or np.float64(bits) * 2.0**-53 < p
