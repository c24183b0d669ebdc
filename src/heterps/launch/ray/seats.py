"""Seats: the places that Ray keeps for the roles of a job, in placement groups, all of one or none.

reserve(cpu, cpu, v100) --> one group, three bundles --> [cpu] [cpu] [v100]     free seats, by resource
                                                           |
                                          take(cpu) -------+--> an actor      give_back when it is gone
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heterps.errors import ConfigError
from heterps.launch.ray.placement import Bundle, explain

POLL_S = 0.2


class NoPlace(ConfigError):
    """The cluster has no place for the roles of a job, as far as it was waited for."""


@dataclass(frozen=True)
class Seat:
    """One bundle of a placement group."""

    resource: str
    bundle: Bundle
    group: Any
    index: int

    @property
    def options(self) -> dict[str, Any]:
        """Of an actor that shall sit here."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        labels = {name: amount for name, amount in self.bundle.items() if name not in ("CPU", "GPU")}
        return {
            "num_cpus": self.bundle.get("CPU", 0),
            "num_gpus": self.bundle.get("GPU", 0),
            "resources": labels,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                self.group, placement_group_bundle_index=self.index
            ),
        }


class Seats:
    """`bundles`: what a unit of each resource takes."""

    def __init__(self, bundles: Mapping[str, Bundle]) -> None:
        self._bundles = bundles
        self._groups: list[Any] = []
        self._free: dict[str, list[Seat]] = {}
        self._held: Counter[str] = Counter()  # of everything, free seats included

    def reserve(self, resources: Sequence[str], deadline_s: float, poll: Callable[[], None] = lambda: None) -> None:
        """Keep a seat for each; NoPlace, and nothing is kept, where the cluster has no place in time.

        poll  is called again and again meanwhile, and may raise
        """
        import ray
        from ray.util.placement_group import placement_group

        bundles = [self._bundles[resource] for resource in resources]
        group = placement_group([dict(bundle) for bundle in bundles], strategy="PACK")
        self._groups.append(group)
        begun = time.monotonic()
        while not group.wait(POLL_S):
            poll()
            if (waited_s := time.monotonic() - begun) > deadline_s:
                total, free = ray.cluster_resources(), ray.available_resources()
                self._remove(group)
                left = {name: amount - self._held[name] for name, amount in total.items()}
                raise NoPlace(explain(bundles, left, free, waited_s))
        for index, resource in enumerate(resources):
            self._free.setdefault(resource, []).append(Seat(resource, self._bundles[resource], group, index))
            self._held.update(self._bundles[resource])

    def more_than_free(self, resources: Sequence[str]) -> list[str]:
        """Those of `resources` for which there is no free seat."""
        wanted = Counter(resources)
        return [name for name, count in wanted.items() for _ in range(count - len(self._free.get(name, [])))]

    def take(self, resource: str) -> Seat:
        return self._free[resource].pop(0)

    def give_back(self, seat: Seat) -> None:
        self._free.setdefault(seat.resource, []).append(seat)

    def close(self) -> None:
        for group in self._groups[:]:
            self._remove(group)

    def _remove(self, group: Any) -> None:
        from ray.util.placement_group import remove_placement_group

        self._groups.remove(group)
        remove_placement_group(group)
