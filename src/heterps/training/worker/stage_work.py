"""StageWork: what a worker computes with and where it is kept: replicas, rows, dense parameters, data and devices.

    ask(values)  --> rows and dense parameters travel to the replicas             [1]
    run(turn)    --> waits for them, computes with the turn's replicas            [2]
    push         --> gradients of the replicas to the servers, or among workers   [3]

The core (core.py) decides what is done when; this does it. It waits only for parameters that are under way: `missing`
names them, for those who must not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct, structs
from torch import Tensor

from heterps.arrays import FloatArray
from heterps.config import Job
from heterps.data.batch import Slots
from heterps.data.reader import open_reader
from heterps.errors import NotFinite
from heterps.lookups import RowGradients, prepared
from heterps.model.build import build_model
from heterps.model.stages import split
from heterps.model.trace import trace_or_whole
from heterps.ps.client.cache import CachedClient
from heterps.ps.client.counts import ClientCounts, row_bytes
from heterps.ps.client.interface import JobClient
from heterps.ps.protocol.specs import TableSpecs
from heterps.training.model.clipping import clip_gradients, clipped_by_servers
from heterps.training.model.device import open_device
from heterps.training.model.objectives import Objectives
from heterps.training.model.replicas import Replicas, StagePart
from heterps.training.model.trainer import check_cache
from heterps.training.protocol.layout import Layout
from heterps.training.protocol.messages import ALL_LANES, Assign, CacheUse, Go, RowGroupCounts, Usage, WorkerTraffic
from heterps.training.protocol.pacing import make_pace
from heterps.training.protocol.stage_tables import stage_tables
from heterps.training.worker.core import Computed, PushGradients, Turn
from heterps.training.worker.dense_parts import DenseParts, ReducedDense, ServedDense
from heterps.training.worker.feed import Feed, LanePieces
from heterps.training.worker.memory import UnitMemory
from heterps.training.worker.pushes import RoundPlace, send_gradients
from heterps.training.worker.turns import Key
from heterps.training.worker.usage import Meter, metered
from heterps.wire.ports import Port

QUARANTINE = "With on_not_finite: quarantine such a batch is skipped, and its bad rows are named by file and number."
"""Advice where a batch that is not finite ends the run."""


class WorkerStart(Struct, frozen=True):
    """Who a worker is: everything else it makes from the job. `firsts` are the first layers of all stages.

    `begins` are its place among the workers of its stage, and their number, where it begins a run with them.
    """

    name: str
    stage: int
    firsts: tuple[int, ...]
    device: str = "cpu"
    folder: str = ""  # where workers of one machine meet: to add up gradients, to share what they decode
    threads: int = 1
    port: Port | None = None  # of the emulated machine that it is on
    attempt: int = 0  # how many times the worker had been lost when it was started
    begins: tuple[int, int] | None = None


class StageWork:
    def __init__(self, job: Job, start: WorkerStart, connect: Callable[[TableSpecs], JobClient]) -> None:
        self._job, self._start = job, start
        model = build_model(job.model, job.data.columns, job.seed).train()
        trace = trace_or_whole(model)
        stages = split(trace, start.firsts[1:])
        self._tables = stage_tables(job, model, trace, start.firsts)
        self._part = StagePart(
            model,
            trace,
            stages,
            self._tables,
            start.stage,
            Objectives(job.data.columns),
            open_device(start.device),
            job.precision,
        )
        self._own_tables = self._tables.of_stage(start.stage)
        self.meter = Meter()
        with ExitStack() as opened:  # what is open is closed if the rest of it fails
            self._feed = Feed(job, open_reader(job), trace.inputs, start.folder) if start.stage == 0 else None
            if self._feed is not None:
                opened.callback(self._feed.close)
                self._feed.begin(start.begins)
            self._served = self._tables.on_servers(job.workers.dense == "servers")
            self._client = connect(self._served)
            opened.callback(self._client.close)
            opened.callback(self._leave_place)
            self._opened = opened.pop_all()
        self._replicas: list[Replicas] = []
        self._caches: list[CachedClient] = []
        self._dense: DenseParts | None = None
        self._asked: dict[Key | None, dict[str, Future[FloatArray]]] = {}  # dense parameters; None: those of a round
        self._asked_after = 0  # the round after which servers answer what was asked for ahead; 0: none
        self._asks_anew = False  # for this round: what was asked for ahead would come after it
        self._skips = job.on_not_finite != "raise"
        self._before: dict[int, dict[str, Tensor]] = {}  # buffers before a batch that may be skipped, by replicas
        self._pace = make_pace(None, 1.0)
        self._memory = UnitMemory(start.name, None)

    @property
    def num_stages(self) -> int:
        return len(self._part.stages)

    @property
    def num_replicas(self) -> int:
        """How many pushes may be under way before nothing more can be computed."""
        return len(self._replicas)

    def close(self) -> None:
        self._opened.close()

    # --- places ------------------------------------------------------------------------------------------------------

    def take_place(self, assign: Assign, state: Mapping[str, Any]) -> None:
        """Make what a layout needs; what was under way is forgotten."""
        self._leave_place()
        self.meter.keep_spans()
        self.layout: Layout = assign.layout
        self._lanes = assign.layout.lanes_of(self._start.name)
        self._clip = self._job.optimizers.clip
        if clipped_by_servers(self._clip, assign.layout):
            self._clip = None
        self._place = RoundPlace(self._tables, assign.layout, self._start.name)
        self._asked, self._asked_after, self._asks_anew = {}, 0, False
        self._go: Go | None = None
        self._pace = make_pace(assign.pace, assign.scale)
        self._dense = self._make_dense(state.get("dense", {}))
        shared = self._shared_values() if self.layout.in_rounds else None
        count = 1 if self.layout.in_rounds else len(self._lanes)
        self._caches = [self._make_cache(count) for _ in range(count)]
        accumulate = self._job.optimizers.accumulate
        self._replicas = [
            Replicas(self._part, cache, self._start.threads, shared, accumulate=accumulate) for cache in self._caches
        ]
        self._before = {}
        self._memory = UnitMemory(self._start.name, assign.pace.memory_bytes if assign.pace else None)
        for replicas in self._replicas:
            self._memory.hold_values(replicas.first.values.values())
            replicas.first.load_buffers(state.get("buffers", {}))
        if self._feed is not None:
            self._feed.follow(assign.layout, self._lanes, self._replicas[0])

    def state(self) -> dict[str, Any]:
        """What is here and not on the servers: buffers of layers, dense parameters that workers reduce."""
        return {"buffers": self._replicas[0].first.buffers(), "dense": self._dense_parts.state()}

    def usage(self, queue: int, border_bytes: int = 0) -> Usage:
        """What the worker has done so far. `border_bytes` were sent to other stages."""
        used = self.meter.usage(queue, self._pace.late_s)
        if any(cache.bound for cache in self._caches):
            counts = [cache.counts() for cache in self._caches]
            hits, misses = sum(c.num_hits for c in counts), sum(c.num_misses for c in counts)
            used = structs.replace(used, cache=CacheUse(hits, misses))
        if (traffic := self._client.counts) is not None:
            used = structs.replace(used, traffic=self._traffic(traffic, border_bytes))
        return used

    def _traffic(self, counts: ClientCounts, border_bytes: int) -> WorkerTraffic:
        """The counts of the client, with what the caches in front of it did not ask for."""
        found = {**vars(counts), "caching_saved_bytes": 0, "border_bytes": border_bytes}
        for cache in self._caches if any(cache.bound for cache in self._caches) else ():
            for spec in self._tables.tables.sparse:
                of_table = cache.counts(spec.name)
                found["deduplication_saved_bytes"] += of_table.num_repeats * row_bytes(spec.dim)
                found["caching_saved_bytes"] += of_table.num_hits * row_bytes(spec.dim)
        return WorkerTraffic(**found)

    def _make_cache(self, num_caches: int) -> CachedClient:
        """Copies of hot rows, as old as the job allows, but never older than its policy does."""
        how = self._job.servers
        if how is None or not self._client.is_remote:
            return CachedClient(self._client, 0, 0)
        bound = how.staleness if self._job.sync.bound is None else min(how.staleness, self._job.sync.bound)
        if bound and how.cache_bytes:
            check_cache(how.cache_bytes // num_caches, self._tables.tables)
        return CachedClient(self._client, bound, how.cache_bytes // num_caches)

    def _leave_place(self) -> None:
        for replicas in self._replicas:
            replicas.close()
        if self._dense is not None:
            self._dense.close()
        self._replicas, self._dense = [], None

    def _shared_values(self) -> dict[str, Tensor] | None:
        """The memory of dense tables in this process, which replicas of a round may use as their own."""
        if self._client.is_remote or self._job.workers.dense != "servers":
            return None
        pulled = self._dense_parts.pull()
        return {table: torch.from_numpy(values.result()) for table, values in pulled.items()}

    def _make_dense(self, state: Mapping[str, Mapping[str, Any]]) -> DenseParts:
        own = [spec.name for spec in self._tables.tables.dense if spec.name in self._own_tables]
        if self._job.workers.dense == "servers":
            return ServedDense(self._client, own)
        members = {table: self._place.contributors(table) for table in own}
        folder, epoch = Path(self._start.folder), self.layout.epoch
        return ReducedDense(
            self._tables.tables,
            members,
            self._start.name,
            state,
            lambda table: folder / f"{table}-{epoch}",
            self._job.workers.deadline_s,
        )

    # --- batches and parameters --------------------------------------------------------------------------------------

    def read(self, go: Go) -> LanePieces | int:
        """The pieces of a batch; the number of batches of its epoch where it has fewer."""
        assert self._feed is not None
        self._go = go
        pieces = self._feed.take(go)
        if pieces is None:
            return self._feed.num_batches(go.epoch)
        self._pace.read(pieces.num_here, self._job.data.prefetch)
        return pieces

    def new_counts(self) -> tuple[RowGroupCounts, ...]:
        """What was missing in the row groups that this worker has read since the last call."""
        return () if self._feed is None else self._feed.new_counts()

    def begin_round(self, number: int) -> None:
        """Ask for the dense parameters of a round, unless that was done with the last push.

        What was asked for then was for the round after that push. Where that was void its number comes again, and
        servers will not answer before it has ended: nothing of it is used.
        """
        self._client.end_rounds(number - 1)
        self._asks_anew, self._asked_after = self._asked_after >= number, 0
        if self._asks_anew:
            self._asked.pop(None, None)
        if None not in self._asked:
            self._asked[None] = self._dense_parts.pull()
        if self._feed is None:
            self._client.flush()  # else they travel with the rows of the batch that comes next

    def ask(self, key: Key, values: dict[str, Any] | None, lead: int = 0) -> None:  # [1]
        """Ask for the parameters that a micro-batch will need. Its go-ahead was given: they are new enough.

        Slots among the values are replaced by prepared ones, which carry the rows that were asked for.
        """
        if not self.layout.in_rounds:
            self._cache_of(key).tick(lead if self._job.sync.bound is not None else 0)
            self._asked[key] = self._dense_parts.pull()
        if values is None:
            return
        for name, value in values.items():
            if isinstance(value, Slots):
                values[name] = prepared(value)
        for table, part in self._of(key).parts(values):
            if table in part.ahead and not self._asks_anew:
                continue
            if (asked := self._cache_of(key).ask_ahead(table, part.lookup)) is not None:
                part.ahead[table] = metered(asked, self.meter)
        if self.layout.in_rounds:
            self._ask_upcoming(iterations=1)
        self._client.flush()

    def _ask_upcoming(self, iterations: int) -> None:
        """Ask for the rows of the next batch, if they will be new enough so many iterations from now."""
        slots = None if self._feed is None or self._go is None else self._feed.upcoming(self._go)
        if slots is None or not self._client.is_remote:
            return
        for table, part in self._replicas[0].parts({"slots": slots}):
            if table not in part.ahead and (asked := self._caches[0].ask_ahead(table, part.lookup, iterations)):
                part.ahead[table] = metered(asked, self.meter)

    def missing(self, turn: Turn) -> Iterator[Future[Any]]:
        """Return the parameters that a turn needs and that have not come."""
        if turn.does == "backward":
            return
        asked = self._asked.get(None if self.layout.in_rounds else turn.key, {})
        yield from (values for values in asked.values() if not values.done())
        for table, part in self._of(turn.key).parts(turn.values or {}):
            if table in part.ahead and not (rows := part.ahead[table]()).done():
                yield rows

    # --- computing ---------------------------------------------------------------------------------------------------

    def run(self, turn: Turn) -> Computed:  # [2]
        replicas = self._of(turn.key)
        if turn.does == "backward":
            if turn.values is None:  # no samples, or a batch that is to be skipped
                with self._memory.backward(turn.key):
                    replicas.drop(turn.key)
                return Computed()
            with self.meter.doing("compute"), self._pace.backward(turn.here), self._memory.backward(turn.key):
                return Computed(replicas.backward(turn.key, turn.values))
        self._load(replicas, None if self.layout.in_rounds else turn.key)
        if turn.values is None:
            return Computed()
        seed = self._seed(turn)
        self._keep_buffers(turn.key)
        if turn.does == "forward":
            with self.meter.doing("compute"), self._pace.forward(turn.here), self._memory.forward(turn.key):
                return Computed(replicas.forward(turn.key, turn.values, seed))
        assert turn.label is not None
        try:
            with self.meter.doing("compute"), self._pace.fused(turn.here), self._memory.fused(turn.key):
                loss, logits, gradients = replicas.loss(turn.key, turn.values, turn.label, turn.num_samples, seed)
        except NotFinite as error:
            if not self._skips:
                raise NotFinite(f"{error} {QUARANTINE}") from error
            return Computed(not_finite=str(error))
        return Computed(gradients, loss, torch.from_numpy(logits))

    def push(self, asked: PushGradients) -> tuple[list[Future[None]], str]:  # [3]
        """Send gradients to the servers, or add them up among workers; the futures say when they are applied.

        Nothing is sent of a batch that is to be skipped; the sentence says why.
        """
        with self.meter.doing("communicate"):
            pushes: list[Future[None]] = []
            dense, rows, not_finite = self._take_gradients(asked)
            if not not_finite:
                pushes = send_gradients(
                    self._client, self._dense_parts, self._place, dense, rows, asked.samples, asked.key
                )
            if self.layout.in_rounds:
                self._after_round(asked.key[0])
            self._client.flush()
        return pushes, not_finite

    def _take_gradients(self, asked: PushGradients) -> tuple[dict[str, FloatArray], list[RowGradients], str]:
        """The gradients of a batch, clipped; or none, and why, where the batch is to be skipped."""
        replicas, not_finite = self._of(asked.key), asked.not_finite
        before = self._before.pop(self._number(asked.key), {})
        if not not_finite:
            when = f"of step {asked.key[0]}" if self._part.is_whole else f"in stage {self._start.stage + 1}"
            try:
                return *clip_gradients(self._clip, *replicas.take_gradients(when)), ""
            except NotFinite as error:
                if not self._skips:
                    raise NotFinite(f"{error} {QUARANTINE}") from error
                not_finite = str(error)
        replicas.forget()
        replicas.first.load_buffers(before)
        return {}, [], not_finite

    def _keep_buffers(self, key: Key) -> None:
        """Keep what layers know besides parameters, such as running means, until the batch is known to be good."""
        if self._skips and self._number(key) not in self._before:
            self._before[self._number(key)] = self._of(key).first.buffers()

    def _after_round(self, number: int) -> None:
        """Count rows as an iteration older, and ask for what is needed next. Of a worker that is alone, servers answer
        that after its pushes, the only ones, which go in the same message; of several, when the round is over."""
        self._caches[0].tick()
        if not self._client.is_remote:
            return
        self._asked_after = number if len(self.layout.workers) > 1 else 0
        with self._client.after_round(self._asked_after):
            self._ask_upcoming(iterations=0)
            self._asked[None] = self._dense_parts.pull()

    def _load(self, replicas: Replicas, key: Key | None) -> None:
        if (asked := self._asked.pop(key, None)) is not None:
            with self.meter.doing("communicate"):
                replicas.load({table: values.result() for table, values in asked.items()})

    def _of(self, key: Key) -> Replicas:
        """The replicas that compute a lane. In rounds parameters stay as they are, and one set does for all lanes."""
        return self._replicas[self._number(key)]

    def _cache_of(self, key: Key) -> CachedClient:
        return self._caches[self._number(key)]

    def _number(self, key: Key) -> int:
        return 0 if self.layout.in_rounds or key[1] == ALL_LANES else self._lanes.index(key[1])

    @property
    def _dense_parts(self) -> DenseParts:
        assert self._dense is not None
        return self._dense

    def _seed(self, turn: Turn) -> int:
        """The seed of what layers draw: the same in every run, on any worker. Iterations begin anew when a run is
        resumed, samples go on."""
        return hash((self._job.seed, turn.samples, turn.lane, self._start.stage)) % 2**63
