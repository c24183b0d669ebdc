"""ModelTable: what comes and goes in a table, over a dict: admission by an exact sketch, eviction by sorting."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from reference_table import MASK_64, ReferenceTable, mix64

from heterps.config import Admission, AfterSightings, Always, Eviction, WithProbability
from heterps.ps.keys.dedup import as_keys
from heterps.ps.table.sparse import EVICT_STEP
from heterps.ps.table.usage import faded, make_fading


class ModelTable(ReferenceTable):
    """A ReferenceTable with admission and eviction. Slow: it sorts all rows to pass some."""

    def __init__(self, *args, admission: Admission = Always(), eviction: Eviction = Eviction(), **options) -> None:
        super().__init__(*args, **options)
        self.admission, self.eviction = admission, eviction
        self._fading = make_fading(eviction.half_life)
        self.hand = self.sightings = 0
        self.counts: dict[tuple[int, int], int] = {}
        self.gone: list[tuple[int, str]] = []  # key and reason
        self.num_refused = 0
        self.row_bytes = 4 * -(-(4 + self.dim + self._as_rows({}).state.shape[1]) // 2) * 2

    # --- admission ---------------------------------------------------------------------------------------------------

    def pull(self, keys, out=None, *, create=True):
        creates = isinstance(self.admission, Always) and self.eviction.max_bytes is None
        return super().pull(keys, out, create=create and creates)

    def push_unique(self, keys, grads, *, samples=None):
        keys, clock = as_keys(keys), self.num_pushes + 1
        admitted = [key in self._rows or self._admit(key, clock) for key in keys.tolist()]
        self.num_refused += len(admitted) - sum(admitted)
        which = np.array(admitted, np.bool_)
        super().push_unique(keys[which], np.asarray(grads, np.float32)[which], samples=samples)
        self.evict(max(EVICT_STEP, 2 * len(keys)))

    def _admit(self, key: int, clock: int) -> bool:
        match self.admission:
            case WithProbability(p=p):
                return (mix64(key ^ mix64(self.seed ^ mix64(clock))) >> 11) * 2.0**-53 < p
            case AfterSightings(num=num, sketch_bytes=sketch_bytes):
                return self._sight(key, sketch_bytes) >= num
            case _:
                return True

    def _sight(self, key: int, num_counts: int) -> int:
        hashed = mix64((key + 1) & MASK_64)
        low, high = hashed & 0xFFFFFFFF, hashed >> 32
        places = [(part, (low + part * high) % (num_counts // 4)) for part in range(4)]
        least = min(self.counts.get(place, 0) for place in places)
        if least < 255:
            for place in places:
                self.counts[place] = max(self.counts.get(place, 0), least + 1)
        self.sightings += 1
        if self.sightings == num_counts:
            self.sightings = 0
            self.counts = {place: count // 2 for place, count in self.counts.items()}
        return min(least + 1, 255)

    # --- eviction ----------------------------------------------------------------------------------------------------

    def evict(self, step: int) -> int:
        policy, before = self.eviction, len(self)
        if policy.max_age is not None or policy.min_uses is not None:
            passed = self._advance(step)
            old = [key for key in passed if policy.max_age is not None and self._age(key) > policy.max_age]
            rare = [key for key in passed if policy.min_uses is not None and self._left(key) < policy.min_uses]
            self._drop("age", old)
            self._drop("uses", [key for key in rare if key not in old])
        if policy.max_bytes is not None:
            excess = min(len(self) - self._most_rows(policy.max_bytes), step)
            if excess > 0:
                passed = self._advance(8 * excess)
                cold = sorted(range(len(passed)), key=lambda i: (*self._warmth(passed[i]), i))[:excess]
                self._drop("bytes", [passed[i] for i in sorted(cold)])
        return before - len(self)

    def _most_rows(self, max_bytes: int) -> int:
        """Count up while the rows fit, and an index of 1024 * 2^k entries, at most 0.7 full with a quarter more rows,
        beside the one of half its size that it replaced."""
        num, entries = 1, 1024
        while True:
            while 1.25 * (num + 1) > int(0.7 * entries) - 64:
                entries *= 2
            if (num + 1) * self.row_bytes + 8 * entries + 8 * entries // 2 > max_bytes:
                return num
            num += 1

    def _advance(self, num: int) -> list[int]:
        order = sorted(self._rows, key=lambda key: ((mix64(key) >> 32) - self.hand) % 2**32)[:num]
        if order:
            self.hand = ((mix64(order[-1]) >> 32) + 1) % 2**32
        return order

    def _age(self, key: int) -> int:
        return self.num_pushes - int(self._rows[key].clock)

    def _left(self, key: int) -> float:
        row = self._rows[key]
        return float(faded(np.array([row.uses]), np.array([row.clock]), self.num_pushes, self._fading)[0])

    def _warmth(self, key: int) -> tuple[float, float]:
        left, since = self._left(key), -self._age(key)
        return (left, since) if self.eviction.order == "lfu" else (since, left)

    def _drop(self, reason: str, keys: list[int]) -> None:
        for key in keys:
            del self._rows[key]
            self.gone.append((key, reason))

    def sketch(self, num_counts: int) -> NDArray[np.uint8]:
        counts = np.zeros((4, num_counts // 4), np.uint8)
        for place, count in self.counts.items():
            counts[place] = count
        return counts.ravel()
