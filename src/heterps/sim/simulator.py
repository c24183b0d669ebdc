"""Workers over a policy on a simulated clock: one thread, one heap of events, and a seed that reproduces it exactly.

      release          compute            send      queue    update
    ----+----latency----+------------------+--latency--+---------+--------+--> on_push: who may go on?
        | [1] start                        [2]         [3]       [4] push [5]

[1] the go-ahead leaves the server with the newest weights: `hooks.start`
[2] the iteration ends and its gradient is sent
[3] it arrives, and queues for the server, who takes pushes in the order of their arrival
[4] after `server_s` it is applied: `hooks.push`, or `hooks.drop` if it comes too late for its round
[5] the policy decides; after the last push of a round `hooks.end_round` comes before anybody starts

At equal times pushes come first, then joins, deaths and replacements, and workers in their order.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from math import inf

from heterps.config.sync import PolicyConfig
from heterps.sim.result import COMPUTE, PUSH, WAIT, Segment, SimResult, WorkerResult
from heterps.sim.scenario import Scenario
from heterps.sim.speeds import Speed
from heterps.sync import Policy, Staleness, make_policy

ARRIVE, JOIN, DIE, NOTICE, REPLACE = range(5)  # in this order at equal times
PROGRESS_EVERY = 4096


class Hooks:
    """Callbacks of the simulator: override them to train for real. `now` is the simulated time in seconds."""

    def start(self, worker: str, now: float) -> bool | None:  # noqa: ARG002
        """The worker starts an iteration with the current weights. False: no work is left for it, and it leaves."""
        return None

    def push(self, worker: str, now: float) -> None:
        """The worker's gradient, of the weights of its last start, reaches the server and is applied.

        Where the policy works `in_rounds`, it is kept for the mean of the round instead.
        """

    def drop(self, worker: str, now: float) -> None:
        """The worker's gradient came too late for its round, and is not applied."""

    def lose(self, worker: str, now: float) -> None:
        """The worker's death is noticed now: its unfinished batch, if any, is free for others."""

    def end_round(self, now: float) -> None:
        """The mean of the gradients since the last round is applied (only where the policy works `in_rounds`)."""


class _Worker:
    """The state of a worker, and what it has done so far."""

    __slots__ = (
        "compute_s", "computed_at", "dropped", "finish", "index", "is_here", "joined_s", "left_s", "name", "push_s",
        "pushes", "released_at", "running", "seconds", "segments", "spare", "wait_s", "waiting_since", "waits",
    )  # fmt: skip

    def __init__(self, index: int, name: str, seconds: float, joined_s: float, speed: Speed) -> None:
        self.index, self.name, self.seconds, self.joined_s = index, name, seconds, joined_s
        self.finish = speed.finish
        self.pushes = self.waits = self.dropped = self.spare = 0
        self.compute_s = self.push_s = self.wait_s = 0.0
        self.is_here = self.running = False
        self.left_s: float | None = None
        self.waiting_since: float | None = None
        self.released_at = self.computed_at = 0.0
        self.segments: list[Segment] = []


class Simulator:
    """Simulates one scenario under one policy. `run` may be called once."""

    def __init__(
        self,
        scenario: Scenario,
        policy: PolicyConfig | str,
        *,
        hooks: Hooks | None = None,
        window: tuple[float, float] | None = None,
        on_progress: Callable[[float, int], None] | None = None,
    ) -> None:
        self._scenario, self._hooks, self._window, self._on_progress = scenario, hooks, window, on_progress
        self._latency_s, self._server_s, self._iterations = scenario.latency_s, scenario.server_s, scenario.iterations
        joins_at = scenario.joins_at
        self._workers = [
            _Worker(i, name, seconds, joins_at[name], Speed(name, seconds, scenario))
            for i, (name, seconds) in enumerate(scenario.seconds.items())
        ]
        self._by_name = {worker.name: worker for worker in self._workers}
        first = [worker.name for worker in self._workers[: len(scenario.workers)]]
        self.policy: Policy = make_policy(policy, first)
        self._clocks = self.policy.clocks
        self._staleness = Staleness()
        self._events: list[tuple[float, int, int]] = []  # when, what, whose
        self._served: deque[tuple[float, int]] = deque()  # when applied, whose; in order, as pushes are served in turn
        self._server_free_at = 0.0
        self._lost: set[str] = set()  # workers whose death was noticed
        self._pushes = self._max_lead = 0
        self._now = 0.0

    def run(self) -> SimResult:
        self._schedule()
        self._start([worker.name for worker in self._workers[: len(self._scenario.workers)]], 0.0)
        self._loop(inf if self._scenario.horizon_s is None else self._scenario.horizon_s)
        return self.result()

    def _schedule(self) -> None:
        for worker in self._workers[len(self._scenario.workers) :]:
            heapq.heappush(self._events, (worker.joined_s, JOIN, worker.index))
        for death in self._scenario.deaths:
            index = self._by_name[death.worker].index
            heapq.heappush(self._events, (death.at_s, DIE, index))
            noticed_at = death.at_s + death.noticed_s
            heapq.heappush(self._events, (noticed_at, NOTICE, index))
            if self._scenario.replaced_s is not None:
                heapq.heappush(self._events, (noticed_at + self._scenario.replaced_s, REPLACE, index))

    def _loop(self, horizon_s: float) -> None:
        events, served, workers, server_s = self._events, self._served, self._workers, self._server_s
        while events or served:
            if served and (not events or served[0][0] <= events[0][0]):
                now, index = served.popleft()
                kind = ARRIVE
                is_applied = True
            else:
                now, kind, index = heapq.heappop(events)
                is_applied = server_s == 0.0
            if now > horizon_s:
                break
            worker = workers[index]
            if kind != ARRIVE:
                self._change(kind, worker, now)
            elif is_applied:
                self._apply(worker, now)  # [4], [5]
            else:  # [3]
                self._server_free_at = max(now, self._server_free_at) + server_s
                served.append((self._server_free_at, index))
        if horizon_s < inf and any(worker.left_s is None for worker in workers):
            self._now = horizon_s

    def _start(self, names: Sequence[str], now: float) -> None:  # [1], and [2] and [3] foreseen
        latency_s, hooks, clocks = self._latency_s, self._hooks, self._clocks
        waiting = deque(names)
        while waiting:
            name = waiting.popleft()
            worker = self._by_name[name]
            if worker.running:  # a second go-ahead, as the printed DSSP sends them: it lies there until it is needed
                worker.spare += 1
                continue
            if worker.left_s is not None:
                continue  # dead, and not noticed yet
            worker.is_here = True
            if worker.waiting_since is not None:
                self._account(worker, now)
                worker.waiting_since = None
            if hooks is not None and hooks.start(name, now) is False:
                waiting.extend(self._leave(worker, now))
                continue
            lead = clocks.of[name] - clocks.least
            if lead > self._max_lead:
                self._max_lead = lead
            self._staleness.pulled(name)
            worker.running = True
            worker.released_at = now
            worker.computed_at = computed_at = worker.finish(now + latency_s)
            heapq.heappush(self._events, (computed_at + latency_s, ARRIVE, worker.index))

    def _apply(self, worker: _Worker, now: float) -> None:
        name, policy, staleness, hooks = worker.name, self.policy, self._staleness, self._hooks
        self._now = now
        worker.running = False
        self._account(worker, now)
        worker.pushes += 1
        self._pushes += 1
        if not policy.config.in_rounds or policy.takes(name):  # [4]
            staleness.pushed(name, is_update=not policy.config.in_rounds)
            if hooks is not None:
                hooks.push(name, now)
        else:
            worker.dropped += 1
            if hooks is not None:
                hooks.drop(name, now)
        rounds = policy.rounds
        released = policy.on_push(name, now)  # [5]
        if worker.pushes == self._iterations:
            released = [other for other in released + policy.on_leave(name, now) if other != name]
            worker.left_s = now
        elif not released or released[0] != name:
            if worker.spare:
                worker.spare -= 1
                released = [name, *released]
            else:
                worker.waits += 1
                worker.waiting_since = now
        if policy.rounds > rounds:
            self._end_round(now)
        self._start(released, now)
        if self._on_progress is not None and self._pushes % PROGRESS_EVERY == 0:
            self._on_progress(now, self._pushes)

    def _change(self, kind: int, worker: _Worker, now: float) -> None:
        if kind == JOIN:
            self._now = now
            self._start(self.policy.on_join(worker.name, now), now)
        elif kind == DIE:
            if worker.left_s is None:
                self._now = now
                self._account(worker, now)
                worker.left_s, worker.running, worker.waiting_since = now, False, None
                self._forget_push(worker.index)
        elif kind == REPLACE:
            if worker.name in self._lost:
                self._now, worker.left_s, worker.spare = now, None, 0
                self._start(self.policy.on_join(worker.name, now), now)
        elif worker.name in self._clocks.of:  # else it was done before it died
            self._lost.add(worker.name)
            if self._hooks is not None:
                self._hooks.lose(worker.name, now)
            self._start(self._leave(worker, now), now)

    def _forget_push(self, index: int) -> None:
        """Lose the push of a worker that dies while it is on its way."""
        served = [push for push in self._served if push[1] != index]
        self._served.clear()
        self._served.extend(served)
        self._events[:] = [event for event in self._events if event[1:] != (ARRIVE, index)]
        heapq.heapify(self._events)

    def _leave(self, worker: _Worker, now: float) -> list[str]:
        """Removes a worker that is done or dead. Returns the workers that waited for it alone."""
        worker.left_s = now if worker.left_s is None else worker.left_s
        rounds = self.policy.rounds
        released = self.policy.on_leave(worker.name, now)
        if self.policy.rounds > rounds:
            self._end_round(now)
        return released

    def _end_round(self, now: float) -> None:
        self._staleness.end_round()
        if self._hooks is not None:
            self._hooks.end_round(now)

    def _account(self, worker: _Worker, now: float) -> None:
        """Adds what the worker has done since it was released, or has waited since it pushed, up to `now`."""
        since = worker.waiting_since
        if since is not None:
            worker.wait_s += now - since
            if self._window is not None:
                self._keep(worker, (since, now, WAIT))
            return
        released_at, computed_at = worker.released_at, worker.computed_at
        begun = released_at + self._latency_s
        if computed_at > now:  # cut short by a death or by the horizon
            begun, computed_at = min(begun, now), now
        worker.compute_s += computed_at - begun
        worker.push_s += (begun - released_at) + (now - computed_at)
        if self._window is not None:
            self._keep(
                worker, (released_at, begun, PUSH), (begun, computed_at, COMPUTE), (computed_at, now, PUSH)
            )  # fmt: skip

    def _keep(self, worker: _Worker, *segments: tuple[float, float, str]) -> None:
        first, last = self._window or (0.0, 0.0)
        worker.segments += [Segment(*part) for part in segments if first < part[1] > part[0] < last]

    def result(self) -> SimResult:
        """What the simulation found so far."""
        for worker in self._workers:
            if worker.is_here and worker.left_s is None:
                self._account(worker, self._now)
        here = [worker for worker in self._workers if worker.is_here]
        window = self._window
        if window is not None:
            window = (window[0], min(window[1], self._now)) if window[0] < self._now else None
        return SimResult(
            policy=self.policy.config.label,
            seed=self._scenario.seed,
            end_s=self._now,
            pushes=self._pushes,
            updates=self._staleness.version,
            dropped=self.policy.dropped,
            max_lead=self._max_lead,
            mean_staleness=self._staleness.mean,
            staleness=self._staleness.counts,
            workers=tuple(map(_as_result, here)),
            window=window,
        )


def _as_result(worker: _Worker) -> WorkerResult:
    return WorkerResult(
        name=worker.name,
        seconds=worker.seconds,
        pushes=worker.pushes,
        waits=worker.waits,
        compute_s=worker.compute_s,
        push_s=worker.push_s,
        wait_s=worker.wait_s,
        dropped=worker.dropped,
        joined_s=worker.joined_s,
        left_s=worker.left_s,
        segments=tuple(worker.segments),
    )


def simulate(
    scenario: Scenario,
    policy: PolicyConfig | str,
    *,
    hooks: Hooks | None = None,
    window: tuple[float, float] | None = None,
    on_progress: Callable[[float, int], None] | None = None,
) -> SimResult:
    """Simulates `scenario` under `policy`, a value or a word such as dssp:3:12. Raises ConfigError.

    Segments of the workers are kept for `window`, start and end in seconds, if it is given. `on_progress` is told the
    time and the number of pushes now and then.
    """
    return Simulator(scenario, policy, hooks=hooks, window=window, on_progress=on_progress).run()
