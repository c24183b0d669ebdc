"""SimulatedJob: a whole job on a simulated clock and network, in one thread: the code that trains, with real gradients.

    CoordinatorCore <--messages--> [network: latency, faults] <--messages--> WorkerCore, StageWork   a worker each
                                                             <--requests--> Server                   a shard each

Coordinator, workers, clients and servers are those of a real run; only what carries them out differs. A worker takes a
turn when its parameters have come, is busy until `finish` says it ends, and computes it for real at that moment, which
changes nothing: what it needs was pulled before. The same seed gives the same run to the bit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from heterps.checkpoint import RowFolder
from heterps.config import Faults, Job
from heterps.data.batch import Batch
from heterps.errors import ConfigError, PeerLost
from heterps.model.build import build_model
from heterps.model.trace import trace_or_whole
from heterps.planning.plan import Plan
from heterps.ps.client.keeper import News
from heterps.sim.clients import SimulatedClients
from heterps.sim.coordinator import SimulatedCoordinator
from heterps.sim.memory_journal import MemoryJournal
from heterps.sim.servers import SimulatedServers
from heterps.sim.storage import JobFolder
from heterps.sim.worker import Doing, SimulatedWorker
from heterps.training.coordinator.core import CoordinatorCore
from heterps.training.coordinator.fleet import tell_news
from heterps.training.coordinator.journal import JournalContents
from heterps.training.coordinator.loss_budget import LossBudget
from heterps.training.coordinator.model import CoordinatorModel
from heterps.training.coordinator.scaling import check_layout
from heterps.training.coordinator.worker_state import WorkerState
from heterps.training.metrics.metrics import Metrics
from heterps.training.model.objectives import Objectives
from heterps.training.protocol.layout import Layout, job_layout
from heterps.training.protocol.messages import JobCodec, Message
from heterps.training.protocol.stage_tables import stage_tables
from heterps.training.run.observer import Observer
from heterps.training.worker.core import COORDINATOR, Turn
from heterps.training.worker.mailbox import Envelope
from heterps.training.worker.worker import WorkerStart
from heterps.wire.simulated import SimulatedNetwork

LONGEST_S = 1e5
"""A simulated job that meets faults, or whose servers have mirrors, stands still when it is not over by then."""
SPARED = re.compile(rf"{COORDINATOR}|worker-\d+\.\d+")
"""Who speaks over TCP, so that the network loses nothing between them."""
Finish = Callable[[str, Turn, float], float]
"""When a turn of a worker ends, in seconds, if it begins at a time."""


class SimulatedJob:
    """Trains `job` by `plan` on simulated workers and servers.

    finish    says how fast workers are
    server_s  what a server spends on a message with pushes; others queue meanwhile
    start_s   what a worker takes to start, and, in the place of one that died, a server with `servers.replicas`
    silence_s a server with a mirror that is silent for so long is lost
    faults    that messages to and from servers meet; None: none, and nothing is asked twice if servers have no mirrors
    folder    of the run, for checkpoints, and for versions while somebody follows it (see `core.follow`)
    resume    goes on from the newest checkpoint in the folder, if there is one
    journal   makes the journal of each coordinator, from what the one before has left
    """

    def __init__(
        self,
        job: Job,
        plan: Plan,
        finish: Finish,
        *,
        observer: Observer | None = None,
        latency_s: float = 0.0,
        server_s: float = 0.0,
        start_s: float = 1.0,
        silence_s: float = 5.0,
        seed: int = 0,
        folder: Path | None = None,
        faults: Faults | None = None,
        resume: bool = False,
        journal: Callable[[JournalContents | None], MemoryJournal] = MemoryJournal,
    ) -> None:
        if job.workers.dense != "servers":
            raise ConfigError("workers.dense: simulated workers keep dense parameters on servers: use `servers`")
        job = job.model_copy(update={"data": job.data.model_copy(update={"prefetch": 0})})  # no thread reads ahead
        self._job, self._finish, self._observer = job, finish, observer or Observer()
        self.failed: str | None = None
        layout = job_layout(job, plan)
        self.network = SimulatedNetwork(
            seed, latency_s=latency_s, faults=faults or Faults(), spared=lambda who: SPARED.fullmatch(who) is not None
        )
        model = build_model(job.model, job.data.columns, job.seed)
        check_layout(job, layout, model)
        traced = trace_or_whole(model)
        firsts = tuple(stage.first for stage in layout.stages)
        tables = stage_tables(job, model, traced, firsts)
        self.tables = tables.tables
        self.mirrored = job.servers is not None and job.servers.replicas > 0
        self.is_watched = self.mirrored or faults is not None
        self._is_set_up = False
        self.servers = SimulatedServers(
            self.network,
            max(plan.servers.count, 1),
            self.tables,
            replicas=int(self.mirrored),
            server_s=server_s,
            start_s=start_s,
            silence_s=silence_s,
            next_start=LossBudget(job.workers.replacements, job.workers.backoff_s).next_start,
            row_files=None if folder is None else RowFolder(folder),
            tell=self._tell,
        )
        self.clients = SimulatedClients(self.network, self.servers, is_mirrored=self.mirrored, repeats=self.is_watched)
        self.servers.hang_up = self.clients.hang_up
        client = self.clients.watching(COORDINATOR, self.tables, 1)
        try:
            self.coordinator = SimulatedCoordinator(
                job,
                plan,
                self,
                CoordinatorModel(model, tables, client, Objectives(job.data.columns)),
                WorkerState(model, traced, tables, firsts, is_reduced=False),
                layout=layout,
                tables=tables,
                storage=partial(JobFolder, job, folder),
                resume=resume,
                journal=journal,
                observer=self._observer,
                start_s=start_s,
            )
        except PeerLost as error:
            raise self.servers.failure or error from None
        self._codec = JobCodec(job.workers.values)
        self._is_set_up = True
        if self.is_watched:
            self.coordinator.beat()
        self.did: dict[str, list[Doing]] = {}
        """What each worker has done, by its name."""
        self.workers: dict[str, SimulatedWorker] = {}
        self.start_workers(layout, 1)

    @property
    def core(self) -> CoordinatorCore:
        return self.coordinator.core

    @property
    def model(self) -> CoordinatorModel:
        return self.coordinator.model

    @property
    def journal(self) -> MemoryJournal:
        return self.coordinator.journal

    @property
    def layout(self) -> Layout:
        """The layout with which this coordinator began."""
        return self.coordinator.layout

    # --- workers -----------------------------------------------------------------------------------------------------

    def start_workers(self, layout: Layout, incarnation: int) -> None:
        """Start all workers of a layout at once."""
        for name in layout.workers:
            self._add(self.coordinator.start_of(name, layout), incarnation)

    def start_worker(self, start: WorkerStart) -> None:
        """Start a new worker, or the next incarnation of one that has died."""
        before = self.workers.get(start.name)
        self._add(start, 1 if before is None else before.incarnation + 1)

    def _add(self, start: WorkerStart, incarnation: int) -> None:
        did = self.did.setdefault(start.name, [])
        self.workers[start.name] = SimulatedWorker(
            self._job, start, self, partial(self._finish, start.name), did, incarnation
        )

    def kill(self, worker: str, noticed_s: float = 0.0) -> None:
        """Let a worker die now. The coordinator learns of it later; what is on its way to servers arrives."""
        if self.core.is_over or worker not in self.workers:
            return
        self.workers[worker].die()
        tell = partial(self.coordinator.lose, worker, self.journal.life)
        if noticed_s:
            self.network.call_at(self.network.now_s + noticed_s, tell)
        else:
            tell()

    def end_workers(self) -> None:
        for worker in self.workers.values():
            worker.die()

    # --- the run -----------------------------------------------------------------------------------------------------

    def run(self, until_s: float = math.inf) -> None:
        """Go on until the job is over, has failed, or that time has come."""
        while not self.core.is_over and self.failed is None and self.network.step(until_s):
            if self.servers.failure is not None:
                self.failed = str(self.servers.failure)
            if self.is_watched and self.network.now_s > LONGEST_S:
                break
        if not self.core.is_over and self.failed is None and math.isinf(until_s):
            raise PeerLost(f"the simulated job stands still: it waits for {', '.join(self.core.flow.waited_for)}")

    def evaluate(self, batches: Iterable[Batch]) -> Metrics:
        """Return the metrics of batches by the model as it is."""
        return self.coordinator.evaluate(batches)

    def close(self) -> None:
        for worker in self.workers.values():
            worker.close()
        self.model.client.close()

    def send(self, sender: str, peer: str, message: Message, values: Any = None) -> None:
        self.network.send(sender, peer, self._codec.encode(message, values))

    def decode(self, sender: str, parts: list[memoryview]) -> Envelope:
        return Envelope(sender, *self._codec.decode(parts))

    def _tell(self, news: News) -> None:
        """Show the news of servers that were lost, and end the job where one was lost with its mirror."""
        num_lost = tell_news([news], self._observer)
        if self._is_set_up:
            self.core.progress.recoveries += num_lost
