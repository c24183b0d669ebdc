"""Variants to compare: a policy, and what is done with gradients and batches beside it.

bsp   asp   ssp:3   dssp:3:12        policies (see heterps.sync)
bsp+fitted                           batches fitted to the speed of each worker (LB-BSP): all are done at once
bsp+summed                           the gradients of a round are added up, as with a learning rate for each worker
asp+damped                           the learning rate divided by the staleness of each gradient
asp+compensated:0.04                 DC-ASGD: gradients corrected for what the weights have moved meanwhile
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from heterps.config import PolicyConfig
from heterps.errors import ConfigError
from heterps.sim.scenario import Scenario
from heterps.sync import parse_policy
from heterps.sync.shares import fitted_sizes

COMPENSATION = 0.04
UNEQUAL = 1.1
"""Ratio of the slowest to the fastest worker from which fitted batches are tried by default."""
STEPS = "besides a policy's own options there are +fitted and +summed for bsp, +damped and +compensated:0.04 for others"


@dataclass(frozen=True)
class Variant:
    policy: PolicyConfig
    damped: bool = False
    compensation: float = 0.0
    fitted: bool = False
    summed: bool = False

    @property
    def label(self) -> str:
        """The word from which `parse_variant` makes this variant."""
        words = [self.policy.label]
        words += ["damped"] if self.damped else []
        words += [f"compensated:{self.compensation:g}"] if self.compensation else []
        words += ["fitted"] if self.fitted else []
        words += ["summed"] if self.summed else []
        return "+".join(words)

    @property
    def by_rounds(self) -> bool:
        return self.policy.in_rounds

    @property
    def can_train(self) -> bool:
        """Whether `heterps train` can do it: policies whose rounds need all workers, and fitted shares of rounds."""
        return self in (Variant(self.policy), Variant(self.policy, fitted=True)) and not self.policy.drops_late

    def fit(self, scenario: Scenario, batch_size: int) -> tuple[Scenario, dict[str, int]]:
        """The scenario with the seconds of what each worker computes at once, and the samples of that by worker.

        A worker of `scenario` takes its seconds for a whole batch. In rounds the workers divide a batch: equally, or so
        that their seconds are as nearly equal as whole samples allow, where shares are fitted. Workers that join later
        have a share as if they had been there from the beginning, and shares stay when workers come and go.
        """
        if not self.by_rounds:
            return scenario, dict.fromkeys(scenario.seconds, batch_size)
        if self.fitted and (scenario.joins or scenario.deaths):
            raise ConfigError(f"{self.label}: batches are fitted to workers that stay: leave out joins and deaths.")
        num = len(scenario.workers)
        if batch_size < len(scenario.seconds):
            raise ConfigError(
                f"data.batch_size: {batch_size} samples cannot be divided among {len(scenario.seconds)} workers"
            )
        equal = [batch_size * (i + 1) // num - batch_size * i // num for i in range(num)]
        sizes = fitted_sizes(scenario.workers, batch_size) if self.fitted else equal
        sizes += [max(batch_size // num, 1)] * (len(scenario.seconds) - num)
        return scenario.scaled([size / batch_size for size in sizes]), dict(zip(scenario.seconds, sizes, strict=True))


def default_variants(scenario: Scenario) -> tuple[Variant, ...]:
    """The variants to compare on these workers by default: those that `heterps train` can do, and that fit them."""
    is_stable = not (scenario.joins or scenario.deaths)
    is_unequal = max(scenario.workers) > UNEQUAL * min(scenario.workers)
    words = ("bsp", "asp", "ssp:3", "dssp:3:12", *(("bsp+fitted",) if is_unequal and is_stable else ()))
    return tuple(map(parse_variant, words))


def parse_variants(text: str) -> tuple[Variant, ...]:
    """The variants in a comma-separated list. Raises ConfigError, also where one is listed twice."""
    variants = tuple(parse_variant(word) for word in text.split(","))
    for variant in variants:
        if variants.count(variant) > 1:
            raise ConfigError(f"--compare {text}: {variant.label} is there twice; keep one of the two.")
    return variants


def parse_variant(text: str) -> Variant:
    """A policy word with any of +damped, +compensated[:STRENGTH], +fitted and +summed. Raises ConfigError."""
    steps: dict[str, str] = {}
    words = []
    for word in text.strip().lower().split("+"):
        name, _, number = word.partition(":")
        if name not in ("damped", "compensated", "fitted", "summed"):
            words.append(word)
            continue
        if name in steps:
            raise ConfigError(f"policy {text!r}: {name} is given twice; keep one of the two.")
        if number and name != "compensated":
            raise ConfigError(f"policy {text!r}: {name} takes no number: {STEPS}.")
        steps[name] = number
    variant = Variant(
        parse_policy("+".join(words)),
        damped="damped" in steps,
        compensation=_strength(text, steps["compensated"]) if "compensated" in steps else 0.0,
        fitted="fitted" in steps,
        summed="summed" in steps,
    )
    if variant.by_rounds and (variant.damped or variant.compensation):
        raise ConfigError(f"policy {text!r}: in bsp nothing is stale: +damped and +compensated are for the others.")
    if (variant.fitted or variant.summed) and not variant.by_rounds:
        raise ConfigError(f"policy {text!r}: +fitted and +summed are for bsp, which has rounds.")
    return variant


def _strength(text: str, number: str) -> float:
    try:
        strength = float(number) if number else COMPENSATION
    except ValueError:
        strength = math.nan
    if not 0 < strength < math.inf:
        raise ConfigError(
            f"policy {text!r}: compensated needs a number above 0, as in +compensated:{COMPENSATION} (got {number!r})."
        )
    return strength
