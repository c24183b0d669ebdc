"""A server and its mirror, message by message: answers wait, a new mirror is filled, a replaced server is fenced."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np
import pytest
from rich.console import Console, RenderableType
from servers import DIM, SimulatedJob, Worker, make_tables

from heterps.config import Adam, AfterSightings, Eviction, Faults, Tiers
from heterps.errors import MirrorDiffers, PeerLost
from heterps.ps.client.keeper import Keeper
from heterps.ps.client.session import Options
from heterps.ps.keys.dedup import make_lookup
from heterps.ps.ops.base import Ask, Done
from heterps.ps.ops.dense import PushDenseCall
from heterps.ps.ops.mirrors import CompareMirror, Lead
from heterps.ps.ops.requests import MirrorOps, OpRequest
from heterps.ps.ops.rows import PushRowsCall
from heterps.ps.protocol.messages import EXACT, Hello, Round
from heterps.ps.protocol.roster import Roster, Seat
from heterps.ps.protocol.specs import TableSpec, TableSpecs
from heterps.ps.server.mirror_role import Lease, MirrorRole
from heterps.ps.server.mirror_stream import MAX_SENT
from heterps.ps.shard.copies import table_digest
from heterps.report.terminal.server_table import server_table
from heterps.sim.servers import SimulatedServers
from heterps.wire import SimulatedNetwork

KEYS = np.arange(40, dtype=np.uint64)
OPTIONS = Options(deadline_s=1e6, first_retry_s=0.5, longest_retry_s=2.0)


class MirroredJob(SimulatedJob):
    """Servers with mirrors and their keeper, and sessions, on a simulated network without faults unless said."""

    def __init__(
        self,
        tables: TableSpecs,
        num_servers: int = 1,
        faults: Faults = Faults(),
        seed: int = 0,
        silence_s: float = 2.0,
    ) -> None:
        self.network = SimulatedNetwork(seed, faults=faults)
        self.tables, self.sessions = tables, {}
        self.news: list[str] = []
        self.kept = SimulatedServers(
            self.network, num_servers, tables, replicas=1, silence_s=silence_s, start_s=0.1,
            tell=lambda news: self.news.append(news.text),
        )  # fmt: skip
        self.roster = self.kept.roster

    def run_until(self, is_so: Callable[[], bool], within_s: float = 60.0) -> None:
        until_s = self.now + within_s
        while not is_so():
            assert self.now < until_s, self.news
            self.step()

    def run_for(self, seconds: float) -> None:
        until_s = self.now + seconds
        self.run_until(lambda: self.now >= until_s)

    def server(self, name: str):
        return self.kept.all[name].server

    def digests(self, name: str) -> list[str]:
        shard = self.server(name).shard
        return [table_digest(shard, table) for table in (*shard.sparse, *shard.dense)]


def train(worker: Worker, steps: int, rng: np.random.Generator, num_keys: int = 20, above: int = 0) -> None:
    for _ in range(steps):
        keys = (rng.permutation(40)[:num_keys] + above).astype(np.uint64)
        worker.pull(keys)
        worker.push(keys, rng.normal(size=(num_keys, DIM)).astype(np.float32))
        worker.push_dense(rng.normal(size=10).astype(np.float32))
        worker.session.flush()
        worker.job.step()
    worker.job.finish(worker.futures)


def test_a_push_is_answered_when_the_mirror_has_it_and_a_pull_that_makes_nothing_at_once():
    job = MirroredJob(make_tables())
    worker = Worker(job, "worker", OPTIONS)
    train(worker, 3, np.random.default_rng(0), num_keys=40)
    job.kept.all["server-0.1"].pause()
    pull = worker.pull(KEYS)
    job.finish([pull])
    worker.push(KEYS, np.ones((40, DIM), np.float32))
    worker.session.flush()
    job.run_for(0.5)
    assert not worker.futures[-1].done(), "the mirror does not have it"
    new = worker.pull(KEYS + np.uint64(1000))
    worker.session.flush()
    job.run_for(0.5)
    assert not new.done(), "it makes rows"
    job.kept.all["server-0.1"].resume()
    job.finish(worker.futures)
    assert job.news == []
    assert job.digests("server-0") == job.digests("server-0.1")


def test_a_server_tells_how_near_its_mirror_is():
    job = MirroredJob(make_tables())
    worker = Worker(job, "worker", OPTIONS)
    train(worker, 3, np.random.default_rng(0), num_keys=40)
    job.run_for(1.0)
    server, before = job.server("server-0"), job.server("server-0").stats().mirror
    assert (before.name, before.is_synced, before.behind, before.behind_bytes) == ("server-0.1", True, 0, 0)
    assert before.behind_s == 0.0
    assert before.requests > 3
    assert job.server("server-0.1").stats().mirror is None
    job.kept.all["server-0.1"].pause()
    worker.push(KEYS, np.ones((40, DIM), np.float32))
    worker.session.flush()
    job.run_for(0.5)
    behind = server.stats().mirror
    assert (behind.is_synced, behind.behind, behind.requests) == (True, 1, before.requests + 1)
    assert behind.behind_bytes > KEYS.nbytes + 40 * DIM * 4
    assert 0.3 < behind.behind_s < 0.6
    text = console_text(server_table(server.stats()))
    assert f"mirror server-0.1 lacks 1 of {behind.requests} requests" in text
    job.kept.all["server-0.1"].resume()
    job.finish(worker.futures)
    job.run_for(2.5)
    assert server.stats().mirror.behind == 0
    assert "mirror server-0.1 has all" in console_text(server_table(server.stats()))


def console_text(shown: RenderableType) -> str:
    console = Console(width=100)
    with console.capture() as captured:
        console.print(shown)
    return " ".join(captured.get().split())


def test_requests_that_are_asked_again_do_not_make_the_log_longer():
    """Otherwise a log over a bad network grows faster than the mirror takes it, and nobody is ever answered."""
    job = MirroredJob(make_tables())
    worker = Worker(job, "worker", OPTIONS)
    train(worker, 3, np.random.default_rng(0), num_keys=40)
    job.kept.all["server-0.1"].pause()
    worker.push(KEYS, np.ones((40, DIM), np.float32))
    fill = worker.call(PushDenseCall("dense", np.zeros(10, np.float32), 0))
    worker.session.flush()
    job.run_for(0.2)
    stream = job.server("server-0").mirroring._stream
    before, retries = (stream._last, len(stream.held)), worker.session.retries
    job.run_for(1.7)
    assert worker.session.retries > retries
    assert (stream._last, len(stream.held)) == before
    assert not fill.done(), "what the first copy changed is not at the mirror"
    job.kept.all["server-0.1"].resume()
    job.finish(worker.futures)
    assert job.digests("server-0") == job.digests("server-0.1")


def test_a_mirror_keeps_what_comes_too_early_up_to_what_may_be_on_its_way():
    role = MirrorRole(MirroredJob(make_tables()).server("server-0.1").shard)
    items = {number: MirrorOps(number) for number in range(1, 100)}
    for number in (3, 2, 3, 5, MAX_SENT + 1, 1):
        role.take(items[number], [])
    assert role.taken.id == 3
    role.take(items[4], [])
    assert [item.id for item, _ in role.queue] == [1, 2, 3, 4, 5]
    for number in range(6, MAX_SENT + 1):
        role.take(items[number], [])
    assert role.taken.id == MAX_SENT, "the one after it was too early to be kept"


STORMS = [
    Faults(drop=0.1, double=0.1, delay_s=0.2, reorder=0.3, reorder_s=0.1),
    Faults(drop=0.2, reorder=0.6, reorder_s=0.05),
    Faults(delay_s=0.3, reorder=0.6, reorder_s=0.5, cut=0.005, cut_s=0.8),
]


@pytest.mark.parametrize("faults", STORMS, ids=str)
def test_pushes_get_through_to_the_mirror_over_a_bad_network(faults):
    job = MirroredJob(make_tables(), faults=faults, silence_s=20.0)
    workers = [Worker(job, f"worker-{number}", OPTIONS) for number in range(3)]
    random = np.random.default_rng(0)
    began_s = job.now
    for _ in range(10):
        for worker in workers:
            worker.push(random.permutation(40)[:20].astype(np.uint64), np.ones((20, DIM), np.float32))
            worker.push_dense(np.ones(10, np.float32))
        job.run_for(0.1)
    job.finish([future for worker in workers for future in worker.futures])
    assert job.now - began_s < 60.0
    job.run_for(10.0)
    assert job.digests("server-0") == job.digests("server-0.1")


def test_a_lead_that_comes_twice_or_late_does_not_let_a_server_serve_that_was_asleep():
    lease, roster = Lease(), Roster((Seat("server-0"),))
    lead = {number: Lead(number, roster, heard=number - 1, lease_s=2.0) for number in (1, 2, 3)}
    lease.renew(lead[1], 1.0)
    lease.renew(lead[2], 1.2)
    assert lease.is_valid(2.9)
    for number in (1, 2, 3, 2, 1):  # after a sleep: doubles, then the one that was on its way
        lease.renew(lead[number], 40.0)
        assert not lease.is_valid(40.0), "the keeper has heard nothing since 1.2"


TABLES = {
    "evicted": TableSpecs((TableSpec("rows", DIM, Adam(lr=0.1), 3, 0.1, eviction=Eviction(max_age=3, min_uses=0.5)),)),
    "admitted": TableSpecs((TableSpec("rows", DIM, Adam(lr=0.1), 3, 0.1, admission=AfterSightings(num=2)),)),
}


@pytest.mark.parametrize("name", ["evicted", "admitted", "tiered"])
def test_eviction_admission_and_tiers_follow_the_log(name, tmp_path):
    if name == "tiered":
        spec = TableSpec("rows", DIM, Adam(lr=0.1), 3, 0.1, tiers=Tiers(memory_bytes=200_000, folder=str(tmp_path)))
        tables = TableSpecs((spec, *make_tables().sparse[1:]), make_tables().dense)
    else:
        tables = TableSpecs((*TABLES[name].sparse, *make_tables().sparse[1:]), make_tables().dense)
    job, rng = MirroredJob(tables), np.random.default_rng(1)
    worker = Worker(job, "worker", OPTIONS)
    train(worker, 6, rng)
    job.kept.kill("server-0.1")
    train(worker, 6, rng, above=20)
    job.run_until(lambda: job.kept.keeper.is_complete)
    train(worker, 6, rng, above=30)
    assert job.digests("server-0") == job.digests("server-0.2"), "one was there from the start, one was filled"
    if name == "evicted":
        assert sum(job.server("server-0").shard.sparse["rows"].counters().evicted.values()) > 0
    if name == "admitted":
        assert job.server("server-0").shard.sparse["rows"].counters().refused > 0


def test_a_new_mirror_is_filled_between_rounds():
    job = MirroredJob(make_tables())
    worker = Worker(job, "worker", OPTIONS)
    worker.push(KEYS, np.ones((40, DIM), np.float32), Round(1, 0, 1, waits=True))
    job.finish(worker.futures)
    job.kept.kill("server-0.1")
    job.run_until(lambda: job.kept.roster.epoch == 3)  # it was lost, and another is in its place
    job.run_for(5.0)
    assert not job.kept.keeper.is_complete, "a contribution is kept"
    worker.session.rounds = 1
    job.finish([worker.pull(KEYS)])
    job.run_until(lambda: job.kept.keeper.is_complete)
    assert job.digests("server-0") == job.digests("server-0.2")


def test_a_server_that_was_replaced_says_of_nothing_that_it_is_done():
    job = MirroredJob(make_tables())
    worker = Worker(job, "worker", OPTIONS)
    train(worker, 3, np.random.default_rng(0))
    old = job.kept.all["server-0"]
    job.network.part(["server-0"], math.inf)  # it works, and reaches nobody
    worker.push(KEYS, np.ones((40, DIM), np.float32))
    job.finish(worker.futures)
    assert job.kept.roster.servers[0].name == "server-0.1"
    assert worker.session.roster.epoch == job.kept.roster.epoch
    hello, push = [job.server("server-0")._codec.encode(header, frames) for header, frames in stray_requests(worker)]
    sent = old.server.handle("stray", [memoryview(bytes(part)) for part in hello], job.now)
    sent += old.server.handle("stray", [memoryview(bytes(part)) for part in push], job.now)
    answers = [old.server._answers.decode(parts)[0] for peer, parts in sent if peer == "stray"]
    assert [getattr(answer, "code", "done") for answer in answers] == ["later"], "its lease has ended"


def stray_requests(worker: Worker):
    """A greeting and a push of a worker that has not heard of the new roster."""
    call = PushRowsCall("rows", make_lookup(KEYS, 1), np.ones((40, DIM), np.float32), 1, EXACT)
    built = call.build(0, Roster((Seat("server-0"),)))
    yield Hello(1, "stray", 1, worker.job.tables.digest), []
    yield OpRequest(2, "stray", 1, 1, (built.op,)), built.frames


def test_a_difference_names_table_server_and_mirror():
    job = MirroredJob(make_tables())
    worker = Worker(job, "worker", OPTIONS)
    train(worker, 3, np.random.default_rng(0))
    for table in ("rows", "dense"):
        job.finish([worker.call(Ask(CompareMirror(table), Done))])
    job.server("server-0.1").shard.sparse["rows"].store.words()[3, 5] += 1.0
    compared = worker.call(Ask(CompareMirror("rows"), Done))
    job.finish([compared])
    with pytest.raises(MirrorDiffers, match=r"server server-0 and its mirror server-0\.1 are not equal: table rows"):
        compared.result()
    job.network.run(job.now + 1.0)
    assert isinstance(job.kept.failure, MirrorDiffers)


def test_both_lost_is_a_failure_that_names_them():
    job = MirroredJob(make_tables())
    job.kept.kill("server-0.1")
    job.kept.kill("server-0")
    job.network.run(job.now + 1.0)
    assert isinstance(job.kept.failure, PeerLost)
    assert re.fullmatch(
        r"server-0 was killed; it was last heard of [\d.]+ s before, and it has no mirror", str(job.kept.failure)
    )


def test_a_keeper_that_was_held_up_itself_replaces_nobody():
    job = MirroredJob(make_tables())
    keeper: Keeper = job.kept.keeper
    keeper.tick(job.now + 100.0)
    assert keeper.take_news() == []
    assert keeper.roster.epoch == 1
