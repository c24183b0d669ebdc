"""WorkerPlaces: what workers have told of themselves, and the walks in which all are asked for it.

Ready       where a worker listens
Assigned    it has taken its place
StageState  what it has, and servers have not

A worker that is lost while places are taken is replaced, and all are told their places anew, in the next epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial

from msgspec import structs

from heterps.training.coordinator.effects import Effect
from heterps.training.coordinator.recovery import Recovery
from heterps.training.coordinator.setup import Setup, StateOfStages, Values, assignments
from heterps.training.coordinator.waits import Wait, Walk, not_assigned, not_told
from heterps.training.protocol.layout import Layout
from heterps.training.protocol.messages import AskState, Assigned, Send


class WorkerPlaces:
    """The places of workers. Each wait lasts at most `deadline_s`; `tell` takes what is to be sent."""

    def __init__(
        self,
        setup: Setup,
        state: StateOfStages,
        recovery: Recovery,
        deadline_s: float,
        tell: Callable[[Iterable[Effect]], None],
    ) -> None:
        self._setup, self._state, self._recovery = setup, state, recovery
        self._deadline_s, self._tell = deadline_s, tell
        self._addresses: dict[str, str] = {}
        self._assigned: set[tuple[str, int]] = set()
        self._states: dict[str, Values] = {}

    def ready(self, worker: str, address: str) -> None:
        self._addresses[worker] = address

    def left(self, worker: str) -> None:
        """Record that a worker has gone."""
        self._addresses.pop(worker, None)

    def assigned(self, message: Assigned) -> None:
        self._assigned.add((message.worker, message.epoch))

    def told(self, worker: str, state: Values | None) -> None:
        self._states[worker] = state or {}

    def missing(self, layout: Layout) -> Sequence[str]:
        """Return the workers of a layout that are not ready."""
        return [worker for worker in layout.workers if worker not in self._addresses]

    def assign(self, layout: Layout) -> Generator[Wait, None, Layout]:
        """Tell every worker its place, and wait until all have taken it. Return the layout in which they have."""
        while True:
            yield Wait(lambda: self._recovery.is_complete)
            self._assigned = set()
            self._tell(assignments(self._setup, layout, self._addresses, self._state))
            wanted = {(worker, layout.epoch) for worker in layout.workers}
            late = partial(not_assigned, wanted, self._assigned)
            yield Wait(partial(self._is_settled, wanted), self._deadline_s, late)
            if self._recovery.is_complete:
                return layout
            layout = next_epoch(layout)

    def collect_state(self, layout: Layout) -> Walk:
        """Ask the first worker of each stage for what it has and servers have not."""
        if not self._state.is_any or not self._assigned:
            return
        asked = [stage.workers[0] for stage in layout.stages]
        self._states = {}
        self._tell([Send(worker, AskState()) for worker in asked])
        late = partial(not_told, asked, self._states)
        yield Wait(lambda: set(self._states) >= set(asked), self._deadline_s, late)
        for worker in asked:
            self._state.take(self._states[worker])

    def _is_settled(self, wanted: set[tuple[str, int]]) -> bool:
        """Whether all have taken their places, or somebody was lost, who cannot."""
        return self._assigned >= wanted or not self._recovery.is_complete


def next_epoch(layout: Layout) -> Layout:
    """Return the same layout, with an epoch that tells its messages from those before."""
    return structs.replace(layout, epoch=layout.epoch + 1)
