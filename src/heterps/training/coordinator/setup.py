"""What the coordinator's core begins with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from heterps.data.leases import Leases
from heterps.training.coordinator.flow import OnPolicy
from heterps.training.protocol.emulation import StagePace
from heterps.training.protocol.layout import Layout
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
    """

    layout: Layout
    groups: Sequence[Stages]
    leases: Leases
    clock: int = 0
    paces: Callable[[Layout], Sequence[StagePace]] | None = None
    scale: float = 1.0
    on_policy: OnPolicy = lambda *_: None


class StateOfStages(Protocol):
    """What workers have and servers have not, as the coordinator keeps it between cuts."""

    @property
    def is_any(self) -> bool: ...

    def of_stage(self, number: int) -> dict[str, Any]:
        """What a worker of a stage begins with."""

    def take(self, state: Values) -> None:
        """Keep what a worker gave."""
