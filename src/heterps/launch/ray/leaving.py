"""Leaving: workers on nodes that are being drained make room before their nodes end.

node is drained --> [1] a place elsewhere is asked for    none yet: the worker works on
                    [2] there is one: the worker is told to leave, and ends what it does
                    [3] it has ended, or takes too long: it is lost, but that is no failure
                    [4] its next incarnation starts on the place of [1]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from heterps.launch.ray.actor import Actor
from heterps.launch.ray.nodes import leaving_nodes, own_node
from heterps.launch.ray.reservations import Reservations
from heterps.training.run.observer import Observer

LOOK_S = 1.0
"""Seconds between two looks at which nodes are being drained."""
LEAVE_S = 10.0
"""Seconds that a worker gets to leave once it is told to."""
PATIENCE_S = 10.0
"""Seconds without a place elsewhere, after which people are told."""


class LeavingNodes:
    """Ray's ids of the nodes that are being drained, or were, as of at most LOOK_S ago. Any thread may ask."""

    def __init__(self) -> None:
        self._nodes: set[str] = set()
        self._looked_at = 0.0

    def has(self, actor: Actor, now: float) -> bool:
        """Whether an actor is on one of them."""
        self._look(now)
        return bool(self._nodes) and actor.place is not None and actor.place.node in self._nodes

    def has_own(self, now: float) -> bool:
        """Whether this process is on one of them."""
        self._look(now)
        return bool(self._nodes) and own_node() in self._nodes

    def _look(self, now: float) -> None:
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            self._nodes |= leaving_nodes()


class Leaving:
    """The workers that have to leave `nodes`."""

    def __init__(self, nodes: LeavingNodes, reservations: Reservations, observer: Observer) -> None:
        self.nodes, self._reservations, self._observer = nodes, reservations, observer
        self._noticed: dict[Actor, float] = {}
        self._told: dict[Actor, float] = {}
        self._warned: set[Actor] = set()

    def look(self, actors: Iterable[Actor], now: float) -> None:
        """[1] and [2] for those of these workers that have to leave."""
        there = [actor for actor in actors if self.nodes.has(actor, now)]
        self._noticed = {actor: self._noticed.get(actor, now) for actor in there}
        self._told = {actor: at for actor, at in self._told.items() if actor in self._noticed}
        if len(self._told) == len(there):
            return
        places = Counter(self._reservations.find([actor.reserved.resource for actor in there]))
        places -= Counter(actor.reserved.resource for actor in self._told)
        for actor in there:
            if actor in self._told:
                continue
            if places[actor.reserved.resource]:
                places[actor.reserved.resource] -= 1
                self._told[actor] = now
                actor.release()
            elif now - self._noticed[actor] > PATIENCE_S and actor not in self._warned:
                self._warned.add(actor)
                self._observer.warned(
                    f"{actor.called} is on a node that is being drained, and there is no {actor.reserved.resource} for "
                    "it elsewhere: it works until its node ends"
                )

    def has_left(self, actor: Actor, now: float) -> bool:
        """[3] Whether a worker that was told to leave has done so, or has had its time."""
        told_at = self._told.get(actor)
        return told_at is not None and (actor.ended is not None or now - told_at > LEAVE_S)
