"""All that may go wrong in a simulated job, as hypothesis draws it, and how it happens.

A Fault is a kind, a time, whom it hits and for how long. Faults are `bounded` where a job must go on as if nothing had
been: one of a server and its mirror at a time, and for less than what counts as a loss. Others may end it, by an error
that names who is missed, and must leave what a resumed job goes on from.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from histories import History
from hypothesis import strategies as st

from heterps.sim.job import SimulatedJob
from heterps.sim.servers import SimulatedServer
from heterps.training.run.commands import Scale
from heterps.wire.simulated import Way

SILENCE_S = 2.0
"""A server that is silent for so long is lost."""
LAST_S = 4.0
"""Until when faults begin; an undisturbed job lasts from one to three seconds."""
CALM_S = 40.0
"""When all faults that last are over."""
MOST_WORKERS = 3
SCALE = "scale"


class Fault(NamedTuple):
    at_s: float
    kind: str
    number: int  # of the worker, or of the server and its mirror
    for_s: float


class Storm:
    """A job at work, to which faults happen."""

    def __init__(self, simulated: SimulatedJob, history: History, *, is_bounded: bool) -> None:
        self.simulated, self.history, self.is_bounded = simulated, history, is_bounded
        self.network = simulated.network

    def draw_near(self, faults: list[Fault]) -> None:
        """Let faults happen at their times."""
        began_s = self.network.now_s
        for fault in faults:
            self.network.call_at(began_s + fault.at_s, partial(self._happen, fault))
        self.network.call_at(began_s + CALM_S, self.calm)

    def calm(self) -> None:
        """From now on nothing goes wrong."""
        self.network.calm()
        self.history.disk.is_full = False
        for server in self.simulated.servers.all.values():
            server.resume()

    def _happen(self, fault: Fault) -> None:
        if not self.simulated.core.is_over and self.simulated.failed is None:
            KINDS[fault.kind](self, fault)

    def ends_s(self, fault: Fault) -> float:
        """When a fault ends; one that is bounded before anybody counts as lost."""
        return self.network.now_s + (min(fault.for_s, SILENCE_S / 4) if self.is_bounded else fault.for_s)

    def server(self, role: str, number: int, *, may_be_alone: bool = False) -> SimulatedServer | None:
        """The server or the mirror with a number; None where none is to be hit now."""
        servers, keeper = self.simulated.servers, self.simulated.servers.keeper
        number %= servers.roster.num_shards
        seats = servers.roster.servers[number], servers.roster.mirror(number)
        found = None if (seat := seats[role == "mirror"]) is None else servers.all.get(seat.name)
        if found is None or found.is_dead:
            return None
        if keeper is None:  # nobody takes its place
            return found if may_be_alone and not self.is_bounded else None
        if self.is_bounded and not (keeper.is_complete and all(is_well(servers.all[s.name]) for s in seats if s)):
            return None
        return found


def is_well(server: SimulatedServer) -> bool:
    return not server.is_dead and server._waiting is None


# --- kinds -----------------------------------------------------------------------------------------------------------


def kill_worker(storm: Storm, fault: Fault) -> None:
    simulated, workers = storm.simulated, storm.simulated.core.layout.workers
    worker = workers[fault.number % len(workers)]
    if not (storm.is_bounded and simulated.core.recovery.is_starting(worker)):
        simulated.kill(worker)


def freeze_worker(storm: Storm, fault: Fault) -> None:
    workers = storm.simulated.core.layout.workers
    storm.simulated.workers[workers[fault.number % len(workers)]].freeze(storm.ends_s(fault))


def part_worker(way: Way, storm: Storm, fault: Fault) -> None:
    workers = storm.simulated.core.layout.workers
    storm.simulated.workers[workers[fault.number % len(workers)]].part(storm.ends_s(fault), way)


def scale(storm: Storm, fault: Fault) -> None:
    """Let somebody ask for another number of workers in a stage. That is no fault, but may come at a bad moment."""
    simulated, stages = storm.simulated, storm.simulated.core.layout.stages
    if not simulated.coordinator.is_busy:
        stage = fault.number % len(stages)
        asked = Scale(stage, len(stages[stage].workers) % MOST_WORKERS + 1)
        with simulated.coordinator._told_failures():
            simulated.coordinator.perform(simulated.core.scale(asked, storm.network.now_s)[0])


def kill_coordinator(storm: Storm, fault: Fault) -> None:
    del fault
    servers = storm.simulated.servers
    if not storm.is_bounded or all(is_well(servers.all[seat.name]) for seat in servers.roster.seats):
        storm.simulated.coordinator.kill()


def pause_coordinator(storm: Storm, fault: Fault) -> None:
    storm.simulated.coordinator.pause(storm.ends_s(fault) - storm.network.now_s)


def kill_server(role: str, storm: Storm, fault: Fault) -> None:
    if (server := storm.server(role, fault.number, may_be_alone=True)) is not None:
        storm.simulated.servers.kill(server.server.name)


def pause_server(role: str, storm: Storm, fault: Fault) -> None:
    if (server := storm.server(role, fault.number)) is not None:
        server.pause()
        storm.network.call_at(storm.ends_s(fault), server.resume)


def part_server(role: str, way: Way, storm: Storm, fault: Fault) -> None:
    if (server := storm.server(role, fault.number)) is not None:
        storm.network.part([server.server.name], storm.ends_s(fault), way)


def jump_of_server(role: str, storm: Storm, fault: Fault) -> None:
    if (server := storm.server(role, fault.number)) is not None:
        server.ahead_s += fault.for_s


def jump_of_all(storm: Storm, fault: Fault) -> None:
    storm.network.jump(fault.for_s)


def fill_disk(storm: Storm, fault: Fault) -> None:
    storm.history.disk.is_full = True
    storm.network.call_at(storm.network.now_s + fault.for_s, partial(setattr, storm.history.disk, "is_full", False))


def tear_journal(storm: Storm, fault: Fault) -> None:
    del fault
    storm.history.disk.tears_journal = not (storm.is_bounded and storm.simulated.mirrored)


def lose_power(storm: Storm, fault: Fault) -> None:
    storm.history.disk.crash_in(int(10 * fault.for_s))


Happen = Callable[[Storm, Fault], None]
ROLES, WAYS = ("server", "mirror"), ("both", "out", "in")
BOUNDED: dict[str, Happen] = {
    "kill worker": kill_worker,
    SCALE: scale,
    "kill coordinator": kill_coordinator,
    "freeze worker": freeze_worker,
    "pause coordinator": pause_coordinator,
    "tear journal": tear_journal,
    "jump of all": jump_of_all,
    **{f"part worker, {way}": partial(part_worker, way) for way in WAYS},
    **{f"kill {role}": partial(kill_server, role) for role in ROLES},
    **{f"pause {role}": partial(pause_server, role) for role in ROLES},
    **{f"jump of {role}": partial(jump_of_server, role) for role in ROLES},
    **{f"part {role}, {way}": partial(part_server, role, way) for role in ROLES for way in WAYS},
}
KINDS: dict[str, Happen] = {**BOUNDED, "fill disk": fill_disk, "lose power": lose_power}


def faults(*, is_bounded: bool) -> st.SearchStrategy[list[Fault]]:
    """Some faults; those that are not bounded last up to two minutes."""
    lasts = st.sampled_from([0.1, 0.3, 0.5] if is_bounded else [0.1, 0.5, 1.5, 2.5, 6.0, 30.0, 130.0])
    at_s = st.sampled_from(range(int(100 * LAST_S))).map(lambda number: number / 100)
    kinds = st.sampled_from(sorted(BOUNDED if is_bounded else KINDS))
    return st.lists(st.builds(Fault, at_s, kinds, st.integers(0, 4), lasts), max_size=8)
