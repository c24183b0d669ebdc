"""What is simulated: workers and their speeds, what goes wrong with them, the server, the network, how long.

workers: [8x1.0, 2.3]                       w0 to w7 take 1 s an iteration, w8 takes 2.3 s
jitter: 0.1
slowdowns: [{worker: w3, from_s: 100, to_s: 160, factor: 5}]
deaths: [{worker: w5, at_s: 400, noticed_s: 10}]
joins: [{at_s: 500, workers: 2x1.0}]        w9 and w10
server_s: 0.01
horizon_s: 1000
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from heterps.config.base import Frozen, Name
from heterps.yamlfile import read_model

MOST_WORKERS = 100_000
ENDLESS = 2**53
"""Iterations of each worker where something else ends the simulation: the data of a job."""
GROUP = re.compile(r"\s*(?:(\d+)\s*[x×*]\s*)?([0-9.]+(?:[eE][-+]?\d+)?)\s*")


def _expand(given: Any) -> Any:
    """The seconds of each worker from `8x1.0, 2.3`, or from a list of such words and numbers."""
    items = given.split(",") if isinstance(given, str) else given
    if not isinstance(items, list | tuple):
        items = [items]
    seconds: list[Any] = []
    for item in items:
        if not isinstance(item, str):
            seconds.append(item)
            continue
        match = GROUP.fullmatch(item)
        if match is None or match[2].count(".") > 1:
            raise ValueError(
                f"must be seconds of an iteration for each worker, as 1.0,2.3 or 8x1.0,2.3 for eight equal ones; "
                f"{item.strip()!r} is not"
            )
        count = int(match[1] or 1)
        if count == 0 or len(seconds) + count > MOST_WORKERS:
            raise ValueError(f"must be 1 to {MOST_WORKERS:,} workers")
        seconds += [match[2]] * count
    return seconds


Workers = Annotated[tuple[PositiveFloat, ...], BeforeValidator(_expand), Field(min_length=1, max_length=MOST_WORKERS)]


class Slowdown(Frozen):
    """A worker computes more slowly for a while; where two slowdowns overlap, their factors are multiplied."""

    worker: Name = Field(description="Which one: w0 is the first.")
    from_s: NonNegativeFloat = Field(description="When it begins.")
    to_s: PositiveFloat = Field(description="When it ends.")
    factor: PositiveFloat = Field(description="By what its seconds are multiplied.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.to_s <= self.from_s:
            raise ValueError(f"to_s ({self.to_s:g}) must come after from_s ({self.from_s:g})")
        return self


class Death(Frozen):
    """A worker dies; a push that is not applied by then is lost."""

    worker: Name = Field(description="Which one: w0 is the first.")
    at_s: NonNegativeFloat = Field(description="When.")
    noticed_s: NonNegativeFloat = Field(
        0.0, description="Seconds until that is noticed; until then the others count on it."
    )


class Join(Frozen):
    """New workers, numbered after the last; they start with the lowest clock of all."""

    at_s: NonNegativeFloat = Field(description="When.")
    workers: Workers = Field(description="Seconds of an iteration, as in `workers`.")


class Scenario(Frozen):
    """Workers on a simulated clock. It ends at `horizon_s`, or when all have done their `iterations`."""

    workers: Workers = Field(description="Seconds of an iteration of each worker: numbers, or text such as 8x1.0.")
    jitter: Annotated[float, Field(ge=0, le=10)] = Field(
        0.0, description="Standard deviation of an iteration's seconds, as a part of their mean (log-normal)."
    )
    measured: tuple[Annotated[tuple[NonNegativeFloat, ...], Field(min_length=1)], ...] = Field(
        (),
        description="Seconds of the iterations of each of `workers`, one after the other, instead of their mean and "
        "jitter; the seed chooses the parts that are played.",
    )
    slowdowns: tuple[Slowdown, ...] = Field((), description="Who is slow for a while.")
    deaths: tuple[Death, ...] = Field((), description="Who dies.")
    replaced_s: NonNegativeFloat | None = Field(
        None,
        description="Seconds after a death is noticed until another worker like it has taken its place, as in real "
        "runs; null: it is gone for good.",
    )
    joins: tuple[Join, ...] = Field((), description="Who comes later.")
    server_s: NonNegativeFloat = Field(0.0, description="Seconds of the server for a push; others queue meanwhile.")
    latency_s: NonNegativeFloat = Field(0.0, description="Seconds that a message takes, one way.")
    horizon_s: PositiveFloat | None = Field(None, description="When it ends.")
    iterations: PositiveInt | None = Field(None, description="Iterations after which a worker is done and leaves.")
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(0, description="Seed of the jitter.")

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds per iteration of each worker by name, those who join included."""
        every = (*self.workers, *(seconds for join in self.joins for seconds in join.workers))
        return {f"w{i}": seconds for i, seconds in enumerate(every)}

    @property
    def joins_at(self) -> dict[str, float]:
        """When each worker joins, in seconds; 0 for those present from the beginning."""
        later = [join.at_s for join in self.joins for _ in join.workers]
        return {f"w{i}": at_s for i, at_s in enumerate([0.0] * len(self.workers) + later)}

    def scaled(self, parts: Sequence[float]) -> Scenario:
        """The same with the seconds of each worker, in the order of `seconds`, multiplied by its part."""
        own, later = parts[: len(self.workers)], iter(parts[len(self.workers) :])
        joins = tuple(
            join.model_copy(update={"workers": tuple(s * next(later) for s in join.workers)}) for join in self.joins
        )
        workers = tuple(s * part for s, part in zip(self.workers, own, strict=True))
        measured = tuple(tuple(s * part for s in one) for one, part in zip(self.measured, own, strict=False))
        return self.model_copy(update={"workers": workers, "measured": measured, "joins": joins})

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.horizon_s is None and self.iterations is None:
            raise ValueError("say how long: horizon_s (seconds), iterations (of each worker), or both")
        if self.measured and (self.jitter or len(self.measured) != len(self.workers)):
            raise ValueError(
                f"measured has seconds of {len(self.measured)} workers: there must be {len(self.workers)}, one for "
                "each of `workers`, and no jitter"
            )
        known = self.joins_at
        for name in [slow.worker for slow in self.slowdowns] + [death.worker for death in self.deaths]:
            if name not in known:
                raise ValueError(f"there is no worker {name!r}: they are w0 to w{len(known) - 1}")
        dead: set[str] = set()
        for death in self.deaths:
            if death.worker in dead:
                raise ValueError(f"{death.worker} dies twice; keep one of the two")
            if death.at_s < known[death.worker]:
                raise ValueError(f"{death.worker} dies at {death.at_s:g} s and joins at {known[death.worker]:g} s")
            dead.add(death.worker)
        return self


def load_scenario(path: str | Path) -> Scenario:
    return read_model(path, Scenario, what="scenario")
