"""How fast measured workers would be under other policies, and which one to take.

    gain  =  pushes a second under a policy  /  pushes a second under the run's own, both on the simulated clock

The workers do not change, so nothing is learned about gradients: of policies that are as fast, the advice takes the one
with the smallest bound on the lead, whose gradients are the least stale.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from heterps.config import PolicyConfig
from heterps.sim.scenario import Scenario
from heterps.sim.simulator import simulate
from heterps.sim.variants import UNEQUAL, Variant, parse_variant

ALIKE = 0.05
"""Relative difference below which two paces are called the same."""
DEFAULT = ("bsp", "ssp:1", "ssp:3", "dssp:3:12", "ssp:15", "asp")
"""The policies that are compared if nobody says which."""
FITTED_SAMPLES = 1000
"""Samples of a worker's equal batch, where batches are fitted: enough to divide finely."""


@dataclass(frozen=True)
class PolicyPace:
    """How fast workers are under a policy, by seed; the other figures are means over the seeds."""

    policy: str
    bound: int | None  # largest lead at which an iteration may start; None: there is no bound
    gains: tuple[float, ...]
    per_s: float
    max_lead: float
    staleness: float
    wait_share: float  # of the workers' time

    @property
    def gain(self) -> float:
        return statistics.median(self.gains)

    @property
    def range(self) -> tuple[float, float]:
        """The gain with the worst and with the best seed."""
        return min(self.gains), max(self.gains)

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"gain": self.gain}


def compare_paces(
    scenario: Scenario, variants: Sequence[Variant], own: PolicyConfig, num_seeds: int
) -> list[PolicyPace]:
    """Simulates every variant with the scenario's seed and those after it, and compares it with the policy `own`."""
    scenarios = [scenario.model_copy(update={"seed": scenario.seed + i}) for i in range(num_seeds)]
    base = [simulate(one, own).pushes_per_s for one in scenarios]
    return [_pace(variant, scenarios, base) for variant in variants]


def _pace(variant: Variant, scenarios: Sequence[Scenario], base: Sequence[float]) -> PolicyPace:
    results = [simulate(_played(variant, scenario), variant.policy) for scenario in scenarios]
    return PolicyPace(
        policy=variant.label,
        bound=0 if variant.by_rounds else variant.policy.bound,
        gains=tuple(result.pushes_per_s / own for result, own in zip(results, base, strict=True)),
        per_s=statistics.fmean(result.pushes_per_s for result in results),
        max_lead=statistics.fmean(result.max_lead for result in results),
        staleness=statistics.fmean(result.mean_staleness or 0.0 for result in results),
        wait_share=statistics.fmean(result.wait_s / result.present_s for result in results),
    )


def _played(variant: Variant, scenario: Scenario) -> Scenario:
    """The scenario, or with fitted batches that in which workers divide as many batches as there are workers."""
    if not variant.fitted:
        return scenario
    num = len(scenario.workers)
    return variant.fit(scenario.scaled([num] * num), FITTED_SAMPLES * num)[0]


def default_paces(own: PolicyConfig, scenario: Scenario) -> list[Variant]:
    """The run's own policy first, and what is worth comparing with it: fitted batches where workers differ."""
    fitted = ("bsp+fitted",) if max(scenario.workers) > UNEQUAL * min(scenario.workers) else ()
    return [Variant(own), *(variant for variant in map(parse_variant, DEFAULT + fitted) if variant != Variant(own))]


def advised_pace(paces: Sequence[PolicyPace]) -> PolicyPace:
    """The pace with the smallest bound among those that are as fast as the fastest."""
    fastest = max(pace.gain for pace in paces)
    return min(
        (pace for pace in paces if pace.gain >= fastest * (1 - ALIKE)),
        key=lambda pace: (math.inf if pace.bound is None else pace.bound, pace.staleness),
    )


def advise_pace(paces: Sequence[PolicyPace], own: PolicyConfig, num_lanes: int) -> list[str]:
    """Sentences that say which policy to take on these workers, what it gains, and what was not looked at."""
    best, fastest = advised_pace(paces), max(paces, key=lambda pace: pace.gain)
    if best.policy == own.label:
        says = [f"Keep {own.label} with {num_lanes} lanes: no policy is more than {ALIKE:.0%} faster on these workers."]
    else:
        bound = "which bounds no lead" if best.bound is None else f"with leads of {best.bound} at most"
        policy, fitted, _ = best.policy.partition("+fitted")
        fields = "shares: fitted" if fitted else f"lanes: {num_lanes}"
        says = [
            f"Take {best.policy} with {num_lanes} lanes, {bound}. It has {_times(best)} the iterations a second of "
            f"{own.label}, which the run had. In the job: sync: {policy}, workers: {{{fields}}}."
        ]
    if fastest is not best:
        says.append(f"{fastest.policy} has {_times(fastest)}, within {ALIKE:.0%}, with a larger bound.")
    if best.staleness:
        says.append(
            f"Gradients of {best.policy} miss {best.staleness:.1f} updates each: `heterps simulate --from RUN --job "
            "job.yaml --advise` trains with them, and says what that costs."
        )
    return says


def _times(pace: PolicyPace) -> str:
    low, high = pace.range
    return f"{pace.gain:.2f} times ({low:.2f} to {high:.2f} over {len(pace.gains)} seeds)"
