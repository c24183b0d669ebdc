"""Skips: batches that were skipped because their loss or gradients were not finite, and whether they are too many.

A few bad rows among many are a matter of the data. When batch after batch is bad, or more than one in a hundred, the
model itself is broken or diverges, and skipping would hide that.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from heterps.errors import NotFinite

MOST_IN_A_ROW = 10
MOST_SHARE = 0.01
JUDGED_AFTER = 100
"""Number of batches of a run before the share of skipped ones is judged."""


@dataclass
class Skips:
    """Counts of a run, those of the open interval, and of the batches since the last one that was not skipped."""

    batches: int = 0
    samples: int = 0
    interval_batches: int = 0
    interval_samples: int = 0
    in_a_row: int = 0
    total: int = 0  # batches of the run, those that were not skipped included

    def went_on(self) -> None:
        """Count a batch that was not skipped."""
        self.total += 1
        self.in_a_row = 0

    def skipped(self, num_samples: int) -> None:
        self.total += 1
        self.in_a_row += 1
        self.batches += 1
        self.samples += num_samples
        self.interval_batches += 1
        self.interval_samples += num_samples

    def check(self, why: str) -> None:
        """Raise NotFinite where too many batches were skipped for it to be a matter of single rows.

        why  a sentence about the last one
        """
        if self.in_a_row >= MOST_IN_A_ROW:
            many = f"the last {self.in_a_row} batches were all skipped"
        elif self.total >= JUDGED_AFTER and self.batches > MOST_SHARE * self.total:
            many = f"{self.batches:,} of {self.total:,} batches were skipped, more than {MOST_SHARE:.0%}"
        else:
            return
        raise NotFinite(f"{many}: this is not a matter of single rows. The last one: {why}")

    @property
    def warning(self) -> str:
        """A sentence for the summary; "" where nothing was skipped."""
        if not self.batches:
            return ""
        batches = "1 batch was" if self.batches == 1 else f"{self.batches:,} batches were"
        return f"{batches} skipped, with {self.samples:,} samples: their loss or gradients were not finite."

    def close_interval(self) -> dict[str, int]:
        """Return the fields of metrics.jsonl, none where nothing was skipped; the next interval begins."""
        batches, samples = self.interval_batches, self.interval_samples
        self.interval_batches = self.interval_samples = 0
        return {"skipped_batches": batches, "skipped_samples": samples} if batches else {}

    def state(self) -> dict[str, Any]:
        """Return everything counted; `Skips(**state)` goes on from it."""
        return asdict(self)
