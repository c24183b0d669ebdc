"""Flow: which iterations are under way, who may start the next, and which batches are done.

    policy says go --> [lease of a batch] --Go--> stage 0 --Forward--> ... --Backward--> Pushed by every worker
        ^                   |                                                              |         |
        |                   held back for a cut, until nothing is under way                |    Step: a batch is done
        +----------------------------------------------------------------------------------+

RoundFlow (BSP): all lanes take part in each batch. LaneFlow (ASP, SSP, DSSP): each lane takes batches of its own. Both
are state machines: messages and the time in, messages out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from heterps.config.sync import PolicyConfig
from heterps.data.leases import Leases
from heterps.sync import Policy, make_policy
from heterps.training.protocol.layout import Layout
from heterps.training.protocol.messages import ALL_LANES, Go, NoBatch, Pushed
from heterps.training.protocol.stage_tables import Stages
from heterps.training.run.progress import Scores

Outgoing = list[tuple[str, Go]]
OnPolicy = Callable[[Stages, Policy], None]


@dataclass(frozen=True)
class SkippedBatch:
    """A batch whose loss or gradients were not finite, and that changed nothing. `why` is a sentence."""

    epoch: int
    batch: int  # its number in the epoch
    why: str


@dataclass(frozen=True)
class Step:
    """A batch that is done at every stage: one update, or none where it was skipped."""

    num_samples: int
    loss: float  # mean over the batch
    scores: tuple[Scores, ...]
    staleness: int  # updates of others since its parameters were read
    is_repeated: bool = False  # it was under way when a worker or the coordinator died
    lane: int = ALL_LANES  # of a round
    iteration: int = 0
    skipped: SkippedBatch | None = None


class EndedRound(NamedTuple):
    """A round that all workers have pushed. One that is void is to be in no table: the next has its number again."""

    number: int
    is_void: bool
    is_repeated: bool = False


class Flow(ABC):
    """`groups` are the stages that are kept in step together, with a policy for each.

    on_policy  is told of every policy before its first input: to record it
    """

    def __init__(
        self,
        layout: Layout,
        groups: Sequence[Stages],
        sync: PolicyConfig,
        leases: Leases,
        *,
        samples: int = 0,
        now: float = 0.0,
        on_policy: OnPolicy = lambda *_: None,
    ) -> None:
        self.layout = layout
        self.groups = list(groups)
        self.leases = leases
        self.samples = samples  # of batches that are done
        self.steps: deque[Step] = deque()
        self.is_held = False
        self.hold_at: int | None = None  # samples: a checkpoint is due then
        self.policies = {group: make_policy(sync, self._members(group), now=now) for group in self.groups}
        for group, policy in self.policies.items():
            on_policy(group, policy)
        self._begin()

    @abstractmethod
    def start(self, now: float) -> Outgoing:
        """Let every worker begin: at first and after each change of the layout, when all of them know it."""

    @abstractmethod
    def pushed(self, message: Pushed, scores: Scores | None, now: float) -> None:
        """Handle that the servers have a worker's gradients of an iteration."""

    @abstractmethod
    def no_batch(self, message: NoBatch) -> None:
        """Handle that the batch of a go-ahead does not exist, because its epoch has fewer."""

    @abstractmethod
    def go_on(self, now: float) -> Outgoing:
        """Let all workers that may start their next iteration do so, unless the flow is held."""

    @abstractmethod
    def change(self, layout: Layout, now: float) -> None:
        """Follow another layout of the same stages. Only while nothing is under way."""

    @abstractmethod
    def lose(self, worker: str, now: float) -> tuple[int, ...]:
        """A worker has died: nothing more is expected of what it took part in. Returns the lanes of that."""

    @abstractmethod
    def recover(self, layout: Layout, now: float) -> None:
        """Go on with all workers, in a layout with the next epoch: `start` repeats what the lost ones took part in."""

    @abstractmethod
    def resume(self, iterations: Mapping[int, int], under_way: Mapping[int, Go]) -> None:
        """Go on where another coordinator died: with the last iteration of each lane, and what `start` repeats."""

    @property
    @abstractmethod
    def is_quiet(self) -> bool:
        """Whether nothing is under way, but for what is to be repeated."""

    @property
    @abstractmethod
    def waited_for(self) -> list[str]:
        """The workers without whom nothing goes on."""

    def take_ended(self) -> list[EndedRound]:
        """The rounds that ended since the last call; none without rounds."""
        return []

    @property
    def is_at_cut(self) -> bool:
        return self.is_held and self.is_quiet

    def hold(self) -> None:
        """Start nothing more until `start`."""
        self.is_held = True

    def _skipped(self, pushed: Iterable[Pushed], lease: tuple[int, int]) -> SkippedBatch | None:
        """Return what is known of a batch that a worker found to be not finite; None where none has."""
        why = next((message.not_finite for message in pushed if message.not_finite), None)
        return None if why is None else SkippedBatch(*lease, why)

    def _done(self, step: Step) -> None:
        """Record that a batch is done."""
        self.samples += step.num_samples
        self.steps.append(step)
        if self.hold_at is not None and self.samples >= self.hold_at:
            self.hold()

    @property
    def is_over(self) -> bool:
        """Whether all batches are done."""
        return self.is_quiet and self.leases.is_over

    @property
    def leads(self) -> dict[str, int]:
        """The largest lead at which an iteration was started, by group."""
        return {"-".join(map(str, group)): policy.max_lead for group, policy in self.policies.items()}

    @abstractmethod
    def _begin(self) -> None:
        """Make the state of a flow that has started nothing."""

    @abstractmethod
    def _members(self, group: Stages) -> list[str]:
        """The members that the policy of a group keeps in step."""
