"""Flows with simulated workers: whoever has a go-ahead may answer next, in any order that a network could make of it.

Go --> [workers that have one] --any of them--> Pushed or NoBatch --> flow --> more Go
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from random import Random

from hypothesis import strategies as st

from heterps.config.policy_words import parse_policy
from heterps.data.leases import Leases
from heterps.sync import Policy, record
from heterps.sync.trace import replay_lines
from heterps.training.coordinator.flow import Flow, Outgoing
from heterps.training.protocol.layout import Layout, StageLayout, worker_name
from heterps.training.protocol.messages import NoBatch, Pushed, Usage
from heterps.training.protocol.stage_tables import Stages
from heterps.training.run.progress import Scores


def make_layout(counts: Sequence[int], num_lanes: int, epoch: int = 1, *, in_rounds: bool = True) -> Layout:
    stages = tuple(
        StageLayout(number, number, "cpu", tuple(worker_name(number, k) for k in range(count)))
        for number, count in enumerate(counts)
    )
    return Layout(stages, num_lanes, epoch, in_rounds)


@st.composite
def stages(draw: st.DrawFn) -> tuple[list[int], list[Stages]]:
    """Workers of each stage, and which stages are kept in step together."""
    counts = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    ends = [*sorted(draw(st.sets(st.integers(1, len(counts) - 1)))), len(counts)] if len(counts) > 1 else [1]
    return counts, [tuple(range(first, end)) for first, end in zip([0, *ends], ends, strict=False)]


class Play:
    """A flow, the time, and what its policies were told and decided."""

    def __init__(
        self, kind: type[Flow], sync: str, layout: Layout, groups: Sequence[Stages], leases: Leases, seed: int
    ) -> None:
        self.random, self.now = Random(seed), 0.0
        self.traces: dict[Stages, io.StringIO] = {}
        self.flow = kind(layout, groups, parse_policy(sync), leases, on_policy=self._record)

    def tick(self) -> float:
        self.now += self.random.choice([0.0, 0.1, 1.0])
        return self.now

    def check_traces(self) -> None:
        """Policies decided by their inputs alone, and are where their recorded inputs lead."""
        for group, trace in self.traces.items():
            replayed = replay_lines(trace.getvalue().splitlines(), where=str(group))
            assert replayed.clocks.of == self.flow.policies[group].clocks.of
            assert replayed.max_lead == self.flow.policies[group].max_lead

    def _record(self, group: Stages, policy: Policy) -> None:
        self.traces[group] = io.StringIO()
        record(policy, self.traces[group])


def take_push(flow: Flow, message: Pushed, scores: Scores | None, now: float) -> Outgoing:
    """A push comes, and whoever may goes on."""
    flow.pushed(message, scores, now)
    return flow.go_on(now)


def take_no_batch(flow: Flow, message: NoBatch, now: float) -> Outgoing:
    flow.no_batch(message)
    return flow.go_on(now)


def sent_to(messages: Outgoing) -> list[str]:
    return [worker for worker, _ in messages]


NO_USAGE = Usage()
