"""Reservations: bundles that Ray keeps for the roles of a job, in placement groups, each reserved whole or not at all.

reserve(cpu, cpu, v100) --> one group, three bundles --> [cpu] [cpu] [v100]     free bundles, by resource
                                                           |
                                          take(cpu) -------+--> an actor      give_back when it is gone

A free bundle is taken only on a node that is there and stays, and is not in doubt. Where there is none, another is
asked for: Ray moves bundles of a node that died, but not of one that is being drained. A node is in doubt for a while
when a process there did not answer, because Ray takes half a minute to notice that a node is gone.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from heterps.errors import ConfigError
from heterps.launch.ray.nodes import is_elsewhere, staying_nodes
from heterps.launch.ray.placement import Bundle, explain

POLL_S = 0.2
PLACE_S = 120.0
"""Seconds to wait until a cluster has room; an autoscaling cluster adds nodes meanwhile."""
DOUBT_S = 30.0
"""Seconds for which nothing is placed on a node where a process did not answer. Ray knows by then if it is gone."""


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
    """Bundles that Ray keeps for the roles of a job. `bundles` has the Ray bundle of one unit of each resource.

    Any thread may call it.
    """

    def __init__(self, bundles: Mapping[str, Bundle]) -> None:
        self._bundles = bundles
        self._groups: list[Any] = []
        self._free: list[ReservedBundle] = []
        self._asked: list[_Asked] = []
        self._held: Counter[str] = Counter()  # of everything, free bundles included
        self._doubted: dict[str, float] = {}  # nodes where a process did not answer, until when
        self._lock = threading.RLock()

    def reserve(self, resources: Sequence[str], deadline_s: float, poll: Callable[[], None] = lambda: None) -> None:
        """Reserves one bundle per resource name. Raises NoPlace, and reserves nothing, after `deadline_s` seconds.

        poll  is called repeatedly while waiting, and may raise
        """
        asked = self._ask(resources)
        begun = time.monotonic()
        while not asked.group.wait(POLL_S):
            poll()
            if (waited_s := time.monotonic() - begun) > deadline_s:
                raise self._give_up([asked], waited_s)
        with self._lock:
            self._arrived(asked)

    def take(self, resources: Sequence[str], deadline_s: float, *, avoid: str = "") -> list[ReservedBundle]:
        """Takes a free bundle for each resource name, and reserves more where that is not enough.

        Raises NoPlace, and takes none, after `deadline_s` seconds.

        avoid  the node on which none may be
        """
        begun = time.monotonic()
        while True:
            with self._lock:
                found, lacking = self._find(resources, avoid)
                if not lacking:
                    self._free = [reserved for reserved in self._free if reserved not in found]
                    return found
                waited_s = time.monotonic() - begun
                if waited_s > deadline_s:
                    raise self._give_up([asked for asked in self._asked if asked.avoid == avoid], waited_s)
            time.sleep(POLL_S)

    def find(self, resources: Sequence[str], *, avoid: str = "") -> list[str]:
        """Returns for which of `resources` there is a free bundle now; others are asked for, and may be there later.

        avoid  the node on which none may be
        """
        with self._lock:
            return [reserved.resource for reserved in self._find(resources, avoid)[0]]

    def doubt(self, resource: str, node: str) -> None:
        """Places nothing for a while on a node where a process on `resource` did not answer, if there is another."""
        with self._lock:
            if is_elsewhere(resource, node):
                self._doubted[node] = time.monotonic() + DOUBT_S

    def give_back(self, reserved: ReservedBundle) -> None:
        """Makes a bundle free again."""
        with self._lock:
            self._free.append(reserved)

    def close(self) -> None:
        """Gives all bundles back to Ray."""
        for group in self._groups[:]:
            self._remove(group)

    def _find(self, resources: Sequence[str], avoid: str) -> tuple[list[ReservedBundle], list[str]]:
        """Free bundles for `resources` on nodes that will do, and those of `resources` for which there is none yet."""
        avoided = self._in_doubt() | ({avoid} if avoid else set())
        nodes = set(staying_nodes()) - avoided
        for asked in [asked for asked in self._asked if asked.avoid == avoid]:
            if _table(asked.group)["state"] == "CREATED":
                self._asked.remove(asked)
                self._arrived(asked)
            elif asked.avoided != avoided:
                self._ask_no_more(asked)
        wanted, found = Counter(resources), []
        nodes_of = {reserved.group.id: _nodes_of(reserved.group) for reserved in self._free}
        for reserved in self._free:
            if wanted[reserved.resource] and nodes_of[reserved.group.id].get(reserved.index) in nodes:
                wanted[reserved.resource] -= 1
                found.append(reserved)
        coming = [asked for asked in self._asked if asked.avoid == avoid]
        for resource in (wanted - Counter(asked.resources[0] for asked in coming)).elements():
            self._asked.append(self._ask([resource], avoid, avoided))
        lacking = list(wanted.elements())
        for asked in coming:
            if not lacking and asked.resources[0] in resources:
                self._ask_no_more(asked)
        return found, lacking

    def _in_doubt(self) -> set[str]:
        self._doubted = {node: until for node, until in self._doubted.items() if until > time.monotonic()}
        return set(self._doubted)

    def _ask(self, resources: Sequence[str], avoid: str = "", avoided: Set[str] = frozenset()) -> _Asked:
        from ray.util.placement_group import placement_group

        bundles = [dict(self._bundles[resource]) for resource in resources]
        elsewhere = [{"ray.io/node-id": f"!in({','.join(sorted(avoided))})"} for _ in bundles] if avoided else None
        group = placement_group(bundles, strategy="PACK", bundle_label_selector=elsewhere)
        self._groups.append(group)
        return _Asked(tuple(resources), avoid, avoided, group)

    def _ask_no_more(self, asked: _Asked) -> None:
        self._asked.remove(asked)
        self._remove(asked.group)

    def _arrived(self, asked: _Asked) -> None:
        for index, resource in enumerate(asked.resources):
            self._free.append(ReservedBundle(resource, self._bundles[resource], asked.group, index))
            self._held.update(self._bundles[resource])

    def _give_up(self, given_up: Sequence[_Asked], waited_s: float) -> NoPlace:
        """Asks for these no more, and returns the error that says what was missing."""
        import ray

        total, free = ray.cluster_resources(), ray.available_resources()
        for asked in given_up:
            self._remove(asked.group)
        self._asked = [asked for asked in self._asked if asked not in given_up]
        left = {name: amount - self._held[name] for name, amount in total.items()}
        return NoPlace(explain([self._bundles[name] for a in given_up for name in a.resources], left, free, waited_s))

    def _remove(self, group: Any) -> None:
        from ray.util.placement_group import remove_placement_group

        self._groups.remove(group)
        remove_placement_group(group)


@dataclass(frozen=True)
class _Asked:
    """A group that was asked for, and is not there yet."""

    resources: tuple[str, ...]
    avoid: str  # the node on which none may be, as the caller said
    avoided: Set[str]  # that one, and those in doubt
    group: Any


def node_of(reserved: ReservedBundle) -> str:
    """Ray's id of the node on which a bundle is; "" while it is on none."""
    return str(_nodes_of(reserved.group).get(reserved.index, ""))


def _nodes_of(group: Any) -> dict[int, str]:
    return dict(_table(group)["bundles_to_node_id"])


def _table(group: Any) -> dict[str, Any]:
    from ray.util.placement_group import placement_group_table

    return dict(placement_group_table(group))
