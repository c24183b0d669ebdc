"""What a simulation found: plain values for tables, timelines and JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

COMPUTE, PUSH, WAIT = "compute", "push", "wait"


class Segment(NamedTuple):
    """What a worker did from `start` to `end`: compute; push (network, the server's queue, its update); or wait."""

    start: float
    end: float
    kind: str


@dataclass(frozen=True)
class WorkerResult:
    """What one worker did. Its compute, push and wait seconds add up to the time that it was present."""

    name: str
    seconds: float
    """Seconds of one iteration, as the scenario says."""
    pushes: int
    waits: int
    compute_s: float
    push_s: float
    wait_s: float
    dropped: int
    """Number of pushes that came too late for their round and were not applied."""
    joined_s: float
    left_s: float | None
    """When the worker died or was done; None: it was present to the end."""
    segments: tuple[Segment, ...] = field(default=(), repr=False)

    def as_json(self) -> dict[str, Any]:
        shown = ("name", "seconds", "pushes", "waits", "wait_s", "compute_s", "push_s", "dropped", "joined_s", "left_s")
        return {name: getattr(self, name) for name in shown}


@dataclass(frozen=True)
class SimResult:
    """What a simulation found. `updates` counts the versions of the weights: one per push, or one per round in BSP."""

    policy: str
    seed: int
    end_s: float
    pushes: int
    updates: int
    dropped: int
    max_lead: int
    """Largest lead over the slowest worker at which an iteration was started."""
    mean_staleness: float | None
    """Mean number of updates by others between a worker's pull and its push; None: nobody pushed."""
    staleness: dict[int, int]
    """Number of gradients by their staleness."""
    workers: tuple[WorkerResult, ...]
    window: tuple[float, float] | None = None
    """Part of the time, in seconds, for which segments of workers are kept; None: none, or one after the end."""

    @property
    def waits(self) -> int:
        return sum(worker.waits for worker in self.workers)

    @property
    def wait_s(self) -> float:
        return sum(worker.wait_s for worker in self.workers)

    @property
    def present_s(self) -> float:
        """Sum over all workers of the seconds that they were present."""
        return sum(worker.compute_s + worker.push_s + worker.wait_s for worker in self.workers)

    @property
    def pushes_per_s(self) -> float:
        return self.pushes / self.end_s if self.end_s else 0.0

    def as_json(self) -> dict[str, Any]:
        return {
            "policy": self.policy,
            "pushes": self.pushes,
            "workers": [worker.as_json() for worker in self.workers],
            "max_lead": self.max_lead,
            "mean_staleness": self.mean_staleness,
            "staleness": {str(key): self.staleness[key] for key in sorted(self.staleness)},
            "waits": self.waits,
            "wait_s": self.wait_s,
            "updates": self.updates,
            "dropped": self.dropped,
            "end_s": self.end_s,
            "seed": self.seed,
        }
