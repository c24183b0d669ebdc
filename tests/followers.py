"""Who follows a run in a test: takes every version as it appears, and compares it with the tables of that moment."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from heterps.checkpoint import Snapshot
from heterps.checkpoint.stream import Stream, Version
from heterps.training.coordinator import following
from heterps.training.coordinator.publishing import Publisher

Rows = dict[str, dict[int, bytes]]


class Follower:
    """What somebody knows of a model who has taken versions of it."""

    def __init__(self) -> None:
        self.versions: list[Version] = []
        self.rows: Rows = {}
        self.weights: dict[str, bytes] = {}
        self.gone: set[int] = set()

    def take(self, version: Version) -> None:
        assert version.is_full or version.parent == self.versions[-1].name
        if version.is_full:
            self.rows = {}
        for table, (keys, values) in version.rows.items():
            known = self.rows.setdefault(table, {})
            for key in version.gone[table].tolist():
                known.pop(key, None)
            known |= {int(key): row.tobytes() for key, row in zip(keys, values, strict=True)}
            self.gone |= set(version.gone[table].tolist())
        self.weights = {name: array.tobytes() for name, array in version.weights.items()}
        self.versions.append(version)

    def compare(self, snapshot: Snapshot) -> None:
        """To the bit."""
        rows = {}
        for name, table in ((name, table.whole()) for name, table in snapshot.tables.items()):
            rows[name] = {int(key): row.tobytes() for key, row in zip(table.keys, table.values, strict=True)}
        assert self.versions[-1].clock == snapshot.clock
        assert self.versions[-1].samples == snapshot.samples
        assert self.rows == rows
        dense = {name: array.tobytes() for name, array in snapshot.dense.items() if name.startswith("model/")}
        assert self.weights == {name.removeprefix("model/"): array for name, array in dense.items()}

    @property
    def clocks(self) -> list[int]:
        return [version.clock for version in self.versions]

    @property
    def num_full(self) -> int:
        return sum(version.is_full for version in self.versions)


def watch(monkeypatch: pytest.MonkeyPatch, folder: str = "run") -> Follower:
    """A follower of the run in `folder` that gets a version whenever nothing is under way, and compares each at once.

    The model is read through the servers, as it is at that moment: by another way than the version came.
    """
    follower, stream, publish = Follower(), Stream(Path(folder)), Publisher.publish

    def compared(self: Publisher, clock: int, samples: int) -> str | None:
        failure = publish(self, clock, samples)
        versions = stream.poll()
        for version in versions:
            follower.take(version)
        if versions:
            follower.compare(self._model.snapshot(clock, samples, {}))
        return failure

    monkeypatch.setattr(Publisher, "publish", compared)
    monkeypatch.setattr(following, "PAUSE", 0.0)
    monkeypatch.setattr(following, "LEASE_S", 1000.0)  # who asks once follows to the end, however slow the machine is
    return follower


def assert_late_follower_knows_the_same(follower: Follower, folder: str = "run") -> None:
    """Who comes after the run knows what one knows who was there all the time."""
    late = Follower()
    for version in Stream(Path(folder)).poll():
        late.take(version)
    assert late.rows == follower.rows
    assert late.weights == follower.weights


def drifting(num_rows: int, span: int = 40) -> dict[str, list[int]]:
    """Columns of slots whose ids come, stay for a while, and never come back."""
    random = np.random.default_rng(0)
    ids = np.arange(num_rows)[:, None] // 4 + random.integers(0, span, (num_rows, 2))
    return {"s": ids[:, 0].tolist(), "t": ids[:, 1].tolist()}
