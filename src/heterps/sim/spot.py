"""Spot capacity over time: what a plan takes and costs while its spot units come and go.

    trace      v100  8 ─────┐        ┌──────────   units that the provider would lend, row by row
                     3      └────────┘
    held             6 ─────┐        ┌──────────   [1] as many as the plan rents, as far as there are
    on demand        0      └ + 3 ───┘             [2] units on demand fill in, as far as the cluster's limit goes
    job        work │ lost_s │ work ...            [3] an interruption costs the job `lost_s` of its time; one that
                                                       comes meanwhile costs all of it again
                                                   [4] while units are missing and nothing fills in, the job waits

Units are paid for each second in which they are held, and besides, each time one is rented, for its start-up, its
minimum and its last billing step. Units that come back take their places again without loss of time. Traffic between
zones is paid for all work, and again for what is lost.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from heterps.config import Cluster, Machine, Resource
from heterps.config.policy_words import parse_policy
from heterps.errors import ConfigError
from heterps.planning import interruptions
from heterps.planning.plan import SPOT, Plan, offer_price
from heterps.sim.spot_traces import Capacity


@dataclass(frozen=True)
class SpotRun:
    """What a job took and cost over a trace."""

    hours: float
    usd: float
    interruptions: int  # moments at which spot units that were held were taken back
    units_taken: int
    lost_s: float  # seconds that went by for the same work again, and for starting it
    lost_samples: float  # samples that could have been trained in them
    waited_s: float  # seconds without the units that the plan needs
    replaced_hours: float  # hours of units on demand in the place of spot units


def spot_units(plan: Plan, cluster: Cluster) -> dict[str, int]:
    """Return the number of spot units that the plan rents of each resource. Raises ConfigError if there are none."""
    found = {
        name.removesuffix(SPOT): count
        for name, count in (plan.rented or {}).items()
        if name not in cluster.resources and name.removesuffix(SPOT) in cluster.resources
    }
    if not found:
        raise ConfigError("the plan rents no spot units, so that no trace of them changes what it costs.")
    if lacking := [name for name in found if cluster.resources[name].spot is None]:
        raise ConfigError(
            f"the plan rents spot units of {', '.join(lacking)}, and the cluster has none: give the cluster file that "
            "it was planned for."
        )
    return found


def play(plan: Plan, cluster: Cluster, trace: Iterable[Capacity]) -> SpotRun:
    """Play the plan over a trace, which begins when its units have started and whose last rows hold to the end.

    Raises ConfigError where the job can never end, or the plan does not say how many samples it is for.
    """
    if plan.samples is None:
        raise ConfigError("the plan does not say how many samples it is for: plan again with this version of heterps.")
    wanted = spot_units(plan, cluster)
    rentals = _Rentals(plan, cluster, wanted)
    work_s = plan.samples / plan.throughput
    now = owed_s = lost_s = waited_s = 0.0
    num_hits = 0
    for time_s, rows in _moments(trace):
        span_s = time_s - now
        if rentals.missing:  # [4]
            waited_s, used_s = waited_s + span_s, span_s
        else:
            used_s = min(span_s, owed_s + work_s)
            again_s = min(owed_s, used_s)
            owed_s, lost_s, work_s = owed_s - again_s, lost_s + again_s, work_s - (used_s - again_s)
        if math.isinf(used_s):
            raise ConfigError(
                f"the job never ends: from second {now:,.0f} of the trace on it lacks units of "
                f"{', '.join(rentals.missing)}, and the limits of the cluster let none on demand fill in. Raise those "
                "limits, or give a longer trace."
            )
        rentals.hold(now, now + used_s)
        now += used_s
        if work_s <= 0:
            break
        hit = rentals.change(now, rows)
        num_hits += bool(hit)
        owed_s = max(owed_s, *hit, 0.0)  # [3]
    rentals.close(now)
    started_s = max(_sold(cluster, name).startup_s for name in plan.rented or {})
    return SpotRun(
        hours=(now + started_s) / 3600,
        usd=rentals.usd + (plan.egress_usd or 0.0) * (1 + lost_s * plan.throughput / plan.samples),
        interruptions=num_hits,
        units_taken=rentals.taken,
        lost_s=lost_s,
        lost_samples=lost_s * plan.throughput,
        waited_s=waited_s,
        replaced_hours=rentals.replaced_s / 3600,
    )


def _moments(trace: Iterable[Capacity]) -> Iterator[tuple[float, list[Capacity]]]:
    """Yield each time of the trace with its rows, and in the end a time that never comes."""
    for time_s, rows in groupby(trace, key=lambda row: row.time_s):
        yield time_s, list(rows)
    yield math.inf, []


class _Rentals:
    """The units that are held, since when, and what was paid for them."""

    def __init__(self, plan: Plan, cluster: Cluster, wanted: dict[str, int]) -> None:
        self.usd, self.replaced_s, self.taken = 0.0, 0.0, 0
        self._cluster, self._wanted = cluster, wanted
        self._sync = parse_policy(plan.sync) if plan.sync is not None else None
        spot = {name + SPOT for name in wanted}
        self._planned = {name: count for name, count in (plan.rented or {}).items() if name not in spot}
        self._since: dict[str, list[float]] = {name: [0.0] * count for name, count in self._planned.items()}
        self._since |= {name + SPOT: [] for name in wanted}
        self._price = {name: offer_price(cluster, name) for name in {*self._since, *wanted}}

    @property
    def missing(self) -> list[str]:
        """Resources of which there are fewer units than the plan needs."""
        return [name for name, count in self._wanted.items() if self._held(name) + self._extra(name) < count]

    def hold(self, begin_s: float, end_s: float) -> None:
        """Pay for what is held in the meantime."""
        hours = (end_s - begin_s) / 3600
        self.usd += hours * math.fsum(len(since) * self._price[name] for name, since in self._since.items())
        self.replaced_s += (end_s - begin_s) * sum(map(self._extra, self._wanted))

    def change(self, now: float, rows: list[Capacity]) -> list[float]:
        """Follow the trace, and return what each resource whose units were taken costs the job, in seconds."""
        lost = []
        for name, count in self._wanted.items():
            mine = [row for row in rows if row.resource == name]
            if not mine:
                continue
            for row in mine:
                if row.usd_per_hour is not None:
                    self._price[name + SPOT] = row.usd_per_hour
            if (gone := self._held(name) - min(row.units for row in mine)) > 0:
                self.taken += gone
                self._rent(name + SPOT, self._held(name) - gone, now)
                lost.append(interruptions.lost_s(self._cluster, name, self._sync))
            self._rent(name + SPOT, min(count, mine[-1].units), now)  # [1]
            resource, planned = self._cluster.resources[name], self._planned.get(name, 0)
            spare = resource.limit - planned if self._cluster.sold_alone(name) else 0
            self._rent(name, planned + min(max(spare, 0), count - self._held(name)), now)  # [2]
        return lost

    def close(self, now: float) -> None:
        """Give everything back."""
        for name in self._since:
            self._rent(name, 0, now)

    def _held(self, name: str) -> int:
        return len(self._since[name + SPOT])

    def _extra(self, name: str) -> int:
        return len(self._since.get(name, ())) - self._planned.get(name, 0)

    def _rent(self, name: str, count: int, now: float) -> None:
        """Hold `count` units from now on. Those that go, the newest first, are paid up to the end of their step."""
        since = self._since.setdefault(name, [])
        since += [now] * (count - len(since))
        while len(since) > count:
            seconds = now - since.pop()
            self.usd += self._price[name] * (_paid_s(_sold(self._cluster, name), seconds) - seconds) / 3600


def _sold(cluster: Cluster, name: str) -> Resource | Machine:
    """Return what an offer of the plan is; spot units start and are billed as those on demand."""
    return cluster.machines.get(name) or cluster.resources.get(name) or cluster.resources[name.removesuffix(SPOT)]


def _paid_s(sold: Resource | Machine, seconds: float) -> float:
    """Return the seconds that are paid for something that was used for so long."""
    paid_s = max(seconds + sold.startup_s, sold.minimum_s)
    return math.ceil(paid_s / sold.billing_s - 1e-9) * sold.billing_s if sold.billing_s else paid_s
