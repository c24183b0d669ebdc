"""Reservations: bundles that Ray keeps for the roles of a job, in placement groups, each reserved whole or not at all.

reserve(cpu, cpu, v100) --> one group, three bundles --> [cpu] [cpu] [v100]     free bundles, by resource
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
    """The cluster had no room for the roles of a job within the time that was allowed."""


@dataclass(frozen=True)
class ReservedBundle:
    """One bundle of a placement group: the place of one actor."""

    resource: str
    bundle: Bundle
    group: Any
    index: int

    @property
    def options(self) -> dict[str, Any]:
        """Ray options of an actor that runs on this bundle."""
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


class Reservations:
    """Bundles that Ray keeps for the roles of a job. `bundles` has the Ray bundle of one unit of each resource."""

    def __init__(self, bundles: Mapping[str, Bundle]) -> None:
        self._bundles = bundles
        self._groups: list[Any] = []
        self._free: dict[str, list[ReservedBundle]] = {}
        self._held: Counter[str] = Counter()  # of everything, free bundles included

    def reserve(self, resources: Sequence[str], deadline_s: float, poll: Callable[[], None] = lambda: None) -> None:
        """Reserves one bundle per resource name. Raises NoPlace, and reserves nothing, after `deadline_s` seconds.

        poll  is called repeatedly while waiting, and may raise
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
            self._free.setdefault(resource, []).append(ReservedBundle(resource, self._bundles[resource], group, index))
            self._held.update(self._bundles[resource])

    def more_than_free(self, resources: Sequence[str]) -> list[str]:
        """The entries of `resources` for which no free bundle is reserved."""
        wanted = Counter(resources)
        return [name for name, count in wanted.items() for _ in range(count - len(self._free.get(name, [])))]

    def take(self, resource: str) -> ReservedBundle:
        """Takes a free bundle of the resource."""
        return self._free[resource].pop(0)

    def give_back(self, reserved: ReservedBundle) -> None:
        """Makes a bundle free again."""
        self._free.setdefault(reserved.resource, []).append(reserved)

    def close(self) -> None:
        """Gives all bundles back to Ray."""
        for group in self._groups[:]:
            self._remove(group)

    def _remove(self, group: Any) -> None:
        from ray.util.placement_group import remove_placement_group

        self._groups.remove(group)
        remove_placement_group(group)
