"""Virtual runs that nobody made, to be compared and drawn."""

from __future__ import annotations

from heterps.sim import Scenario, simulate
from heterps.sim.course import Point, VirtualRun
from heterps.sim.variants import parse_variant

SCENARIO = Scenario(workers="1.0,2.3", horizon_s=100.0)


def make_run(
    policy: str,
    *qualities: float,
    seed: int = 0,
    step_s: float = 10.0,
    step_samples: int = 100,
    failed: str | None = None,
    dropped: int = 0,
) -> VirtualRun:
    """A run that was evaluated every `step_s`, when it had got through `step_samples` more."""
    variant = parse_variant(policy)
    points = tuple(
        Point(step_s * i, step_samples * i, i, quality, 1 - quality) for i, quality in enumerate(qualities, start=1)
    )
    end_s = step_s * len(points)
    sim = simulate(SCENARIO.model_copy(update={"horizon_s": end_s or 1.0, "seed": seed}), variant.policy)
    return VirtualRun(variant, seed, "accuracy", sim, points, step_samples * len(points), dropped, failed)
