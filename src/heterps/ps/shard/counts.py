"""What a server counts while it works: messages, rows and how long they took."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import accumulate

BUCKETS_PER_OCTAVE = 4
LEAST_S = 1e-6
NUM_OCTAVES = 26  # up to a minute
NUM_BUCKETS = NUM_OCTAVES * BUCKETS_PER_OCTAVE


class Histogram:
    """Times in buckets whose borders are a factor 2**(1/4) apart: a percentile is at most 19 % above the truth."""

    def __init__(self) -> None:
        self._counts = [0] * (NUM_BUCKETS + 1)
        self.num = 0
        self.total_s = 0.0

    def add(self, seconds: float) -> None:
        octaves = math.log2(max(seconds, LEAST_S) / LEAST_S)
        self._counts[min(math.ceil(octaves * BUCKETS_PER_OCTAVE), NUM_BUCKETS)] += 1
        self.num += 1
        self.total_s += seconds

    def percentile(self, percent: float) -> float:
        """Return an upper bound of the time that `percent` of all took at most; 0 without any."""
        wanted, seen = percent / 100 * self.num, 0
        for bucket, count in enumerate(self._counts):
            seen += count
            if count and seen >= wanted:
                return float(LEAST_S * 2 ** (bucket / BUCKETS_PER_OCTAVE))
        return 0.0

    def octaves(self) -> list[int]:
        """Return how many took at most 1, 2, 4, ... microseconds, and last how many there are."""
        sums = list(accumulate(self._counts))
        return [*(sums[octave * BUCKETS_PER_OCTAVE] for octave in range(NUM_OCTAVES)), sums[-1]]


@dataclass
class TableTraffic:
    """Pulls and pushes of a table."""

    pulls: int = 0
    pushes: int = 0
    rows_pulled: int = 0
    rows_pushed: int = 0


@dataclass
class ServerCounts:
    """What a server counts."""

    requests: int = 0
    repeats: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    tables: dict[str, TableTraffic] = field(default_factory=dict)
    latency: Histogram = field(default_factory=Histogram)
    received_bytes: int = 0
    sent_bytes: int = 0
    heard: dict[str, float] = field(default_factory=dict)  # by worker: when it sent its last request or greeting
    began_at: float = 0.0  # when its first tick was
    updates: float = 0.0  # of tables, without repeats; one of p parts of a round is 1/p of an update

    def drop(self, reason: str) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1

    def traffic(self, table: str) -> tuple[int, int, int, int]:
        """Pulls, pushes, rows pulled and rows pushed of a table."""
        traffic = self.tables.get(table, TableTraffic())
        return traffic.pulls, traffic.pushes, traffic.rows_pulled, traffic.rows_pushed

    def pulled(self, table: str, num_rows: int) -> None:
        traffic = self.tables.setdefault(table, TableTraffic())
        traffic.pulls += 1
        traffic.rows_pulled += num_rows

    def pushed(self, table: str, num_rows: int, parts: int = 1) -> None:
        self.updates += 1 / parts
        traffic = self.tables.setdefault(table, TableTraffic())
        traffic.pushes += 1
        traffic.rows_pushed += num_rows

    @property
    def num_rows(self) -> int:
        return sum(traffic.rows_pulled + traffic.rows_pushed for traffic in self.tables.values())
