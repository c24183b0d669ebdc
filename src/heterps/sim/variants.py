"""What is compared: a policy, and what is done with gradients and batches beside it.

bsp   asp   ssp:3   dssp:3:12        policies (see heterps.sync)
bsp+fitted                           batches fitted to the speed of each worker (LB-BSP): all are done at once
asp+damped                           the learning rate divided by the staleness of each gradient
asp+compensated:0.04                 DC-ASGD: gradients corrected for what the weights have moved meanwhile
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from heterps.config import BSP, PolicyConfig
from heterps.errors import ConfigError
from heterps.sim.scenario import Scenario
from heterps.sync import parse_policy

PIECES = 16
"""A batch that is to be fitted is made of so many parts, as far as it can be divided."""
COMPENSATION = 0.04


@dataclass(frozen=True)
class Variant:
    policy: PolicyConfig
    damped: bool = False
    compensation: float = 0.0
    fitted: bool = False

    @property
    def label(self) -> str:
        words = [self.policy.label]
        words += ["damped"] if self.damped else []
        words += [f"compensated:{self.compensation:g}"] if self.compensation else []
        words += ["fitted"] if self.fitted else []
        return "+".join(words)

    @property
    def by_rounds(self) -> bool:
        return isinstance(self.policy, BSP)

    def fit(self, scenario: Scenario, batch_size: int) -> tuple[Scenario, dict[str, int], int]:
        """The scenario with the seconds of each worker's own batch, how many parts of a batch that is, and how many
        parts the job's batch has.

        Fitted batches have together the samples that equal ones have. Their seconds are in proportion to them, and as
        nearly equal as whole parts allow; every worker has at least one.
        """
        if not self.fitted:
            return scenario, dict.fromkeys(scenario.seconds, 1), 1
        parts = math.gcd(batch_size, PIECES)
        if scenario.joins or scenario.deaths:
            raise ConfigError(f"{self.label}: batches are fitted to workers that stay: leave out joins and deaths.")
        sizes = fitted_sizes(scenario.workers, parts)
        seconds = [s * size / parts for s, size in zip(scenario.workers, sizes, strict=True)]
        fitted = scenario.model_copy(update={"workers": tuple(seconds)})
        return fitted, dict(zip(scenario.seconds, sizes, strict=True)), parts


def fitted_sizes(seconds: tuple[float, ...], parts: int) -> list[int]:
    """Whole parts of a batch for workers that take `seconds` for a batch of `parts`: `parts` a worker in all, each part
    to the worker that is done with it first. So no other division is done sooner.
    """
    sizes = [1] * len(seconds)
    for _ in range(parts * len(seconds) - len(seconds)):
        soonest = min(range(len(seconds)), key=lambda i: (sizes[i] + 1) * seconds[i])
        sizes[soonest] += 1
    return sizes


def parse_variant(text: str) -> Variant:
    """A policy's word with any of +damped, +compensated[:STRENGTH] and +fitted. Raises ConfigError."""
    damped = fitted = False
    compensation = 0.0
    words = []
    for word in text.strip().lower().split("+"):
        name, _, number = word.partition(":")
        if name == "compensated":
            compensation = _strength(text, number)
        elif word == "damped":
            damped = True
        elif word == "fitted":
            fitted = True
        else:
            words.append(word)
    variant = Variant(parse_policy("+".join(words)), damped, compensation, fitted)
    if variant.by_rounds and (damped or compensation):
        raise ConfigError(f"policy {text!r}: in bsp nothing is stale: +damped and +compensated are for the others.")
    if fitted and not variant.by_rounds:
        raise ConfigError(f"policy {text!r}: +fitted is for bsp, where all wait for the slowest.")
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
