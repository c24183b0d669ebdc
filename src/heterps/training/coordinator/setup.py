"""What the coordinator's core begins with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from heterps.data.leases import Leases
from heterps.training.coordinator.flow import OnPolicy
from heterps.training.coordinator.journal import Decisions
from heterps.training.protocol.emulated_units import StagePace
from heterps.training.protocol.layout import Layout
from heterps.training.protocol.messages import Assign, Send
from heterps.training.protocol.stage_tables import Stages

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Setup:
    """What a job begins with.

    groups     stages that are kept in step together
    clock      updates before this process
    paces      of emulated units, for the stages of a layout; None: units are real
    scale      real seconds of an emulated one
    on_policy  is told of every policy before its first input: to record it
    resumed    what another coordinator had begun when it died; None: this one is the first
    journals   whether what is decided is noted
    """

    layout: Layout
    groups: Sequence[Stages]
    leases: Leases
    clock: int = 0
    paces: Callable[[Layout], Sequence[StagePace]] | None = None
    scale: float = 1.0
    on_policy: OnPolicy = lambda *_: None
    resumed: Decisions | None = None
    journals: bool = False


class StateOfStages(Protocol):
    """What workers have and servers have not, as the coordinator keeps it between cuts."""

    @property
    def is_any(self) -> bool: ...

    def of_stage(self, number: int) -> dict[str, Any]:
        """What a worker of a stage begins with."""

    def take(self, state: Values) -> None:
        """Keep what a worker gave."""


def assignments(setup: Setup, layout: Layout, addresses: Mapping[str, str], state: StateOfStages) -> list[Send]:
    """What tells every worker of a layout its place, and how to reach the workers of the next stage."""
    paces = setup.paces(layout) if setup.paces is not None else [None] * len(layout.stages)
    messages = []
    for number, stage in enumerate(layout.stages):
        following = layout.stages[number + 1].workers if number + 1 < len(layout.stages) else ()
        assign = Assign(layout, {worker: addresses[worker] for worker in following}, paces[number], setup.scale)
        begins_with = state.of_stage(number) if state.is_any else None
        messages += [Send(worker, assign, begins_with) for worker in stage.workers]
    return messages
