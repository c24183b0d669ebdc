"""Play workers of random speeds against a policy, and keep what happened."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from dataclasses import dataclass, field

from hypothesis import strategies as st

from heterps.sync import Event, Policy, make_policy


@dataclass
class Played:
    policy: Policy
    events: list[Event] = field(default_factory=list)
    pushes: Counter[str] = field(default_factory=Counter)
    go_aheads: Counter[str] = field(default_factory=Counter)
    leasts: list[int] = field(default_factory=list)

    def kinds(self, *kinds: str) -> list[Event]:
        return [event for event in self.events if event.kind in kinds]


@dataclass(frozen=True)
class Play:
    """`speeds` are seconds an iteration, `churn` the chance that a worker leaves or joins after a push."""

    speeds: tuple[float, ...]
    num_pushes: int
    jitter: float
    seed: int
    churn: float = 0.0

    def run(self, kind: str) -> Played:
        names = [f"w{i}" for i in range(len(self.speeds))]
        rng = {name: random.Random(f"{self.seed} {name}") for name in names}
        chance = random.Random(self.seed)
        speeds = dict(zip(names, self.speeds, strict=True))
        played = Played(make_policy(kind, names))
        policy = played.policy
        policy.on_event = played.events.append
        queue: list[tuple[float, str, int]] = []
        lives: Counter[str] = Counter()

        def start(workers: list[str], now: float) -> None:
            for worker in workers:
                played.go_aheads[worker] += 1
                took = speeds[worker] * (1 + self.jitter * rng[worker].random())
                heapq.heappush(queue, (now + took, worker, lives[worker]))

        start(names, 0.0)
        gone: list[str] = []
        while queue and sum(played.pushes.values()) < self.num_pushes:
            now, worker, life = heapq.heappop(queue)
            if life != lives[worker]:
                continue  # it was on its way when it died
            played.pushes[worker] += 1
            start(policy.on_push(worker, now), now)
            if chance.random() < self.churn:
                if gone and chance.random() < 0.5:
                    start(policy.on_join(gone.pop(), now), now)
                elif len(policy.clocks.of) > 1:
                    leaver = chance.choice(list(policy.clocks.of))
                    lives[leaver] += 1
                    gone.append(leaver)
                    played.go_aheads[leaver] = played.pushes[leaver] = 0
                    start(policy.on_leave(leaver, now), now)
            played.leasts.append(policy.clocks.least)
            check(played)
        return played


def check(played: Played) -> None:
    """What holds for every policy at any moment."""
    policy = played.policy
    assert policy.clocks.least == min(policy.clocks.of[worker] for worker in policy.clocks.of)
    assert policy.clocks.most == max(policy.clocks.of[worker] for worker in policy.clocks.of)
    for worker in policy.clocks.of:
        is_waiting = worker in policy.waiting
        assert played.go_aheads[worker] == played.pushes[worker] + 1 - is_waiting, "a wake-up was lost or doubled"
    assert len(policy.waiting) < len(policy.clocks.of), "everybody waits"
    if not policy.config.in_rounds:
        assert all(policy.lead(worker) > 0 for worker in policy.waiting), "the slowest waits"


def plays(churn: bool = False) -> st.SearchStrategy[Play]:
    return st.builds(
        Play,
        speeds=st.lists(st.floats(0.1, 10.0), min_size=1, max_size=7).map(tuple),
        num_pushes=st.integers(1, 200),
        jitter=st.sampled_from([0.0, 0.3, 3.0]),
        seed=st.integers(0, 2**32),
        churn=st.just(0.1) if churn else st.just(0.0),
    )
