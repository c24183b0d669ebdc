"""Versions of tables: rows that changed and keys that went, put together, are the table, whatever happened to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from servers import make_roster, threaded_servers

from heterps.checkpoint import RowFolder
from heterps.config import Adam, AfterSightings, Eviction, Tiers
from heterps.errors import NotFinite
from heterps.ps.client.interface import JobClient
from heterps.ps.client.local import in_process
from heterps.ps.client.rebalance import run_rebalance
from heterps.ps.client.remote import RemoteClient
from heterps.ps.keys.dedup import make_lookup
from heterps.ps.protocol.roster import Seat
from heterps.ps.protocol.row_files import RowFileInfo, VersionRange
from heterps.ps.protocol.specs import TableSpec, TableSpecs
from heterps.ps.server.server import Server
from heterps.ps.table import changes
from heterps.ps.table.changes import ChangeLog
from heterps.ps.table.sparse import SparseTable
from heterps.wire import MemoryNetwork

DIM = 4
PLAIN = TableSpec("rows", DIM, Adam(lr=0.1), 3, 0.1)
KINDS = {
    "plain": PLAIN,
    "evicts old rows": replace(PLAIN, eviction=Eviction(max_age=6)),
    "evicts beyond its memory": replace(PLAIN, eviction=Eviction(max_bytes=12 * 1024 + 150 * 64)),
    "admits late and evicts": replace(PLAIN, admission=AfterSightings(num=2), eviction=Eviction(max_age=6)),
    "has tiers": replace(PLAIN, tiers=Tiers(memory_bytes=80_000)),
    "has tiers and evicts": replace(PLAIN, tiers=Tiers(memory_bytes=86_000), eviction=Eviction(max_age=30)),
}


class Publisher:
    """Writes versions of the table of a client, and what a follower makes of them."""

    def __init__(self, client: JobClient, folder: Path, random: np.random.Generator) -> None:
        self.client, self.folder, self.random = client, folder, random
        self.rows: dict[int, bytes] = {}
        self.version = self.last = self.first_key = self.num_full = self.num_gone = 0
        self.touched: set[int] = set()
        self.written: list[RowFileInfo] = []

    def train(self, num_steps: int) -> None:
        """Keys drift, so that most of them are used for a while and then never again."""
        for _ in range(num_steps):
            self.first_key += int(self.random.integers(0, 60))
            keys = self.first_key + self.random.zipf(1.3, 120) % 400
            lookup = make_lookup(keys, self.client.num_shards)
            self.client.pull("rows", lookup).result()
            if self.random.random() < 0.8:  # else rows are created, and not pushed to
                self.client.push("rows", lookup, self.random.normal(size=(120, DIM)).astype(np.float32)).result()
                self.last_pushed = set(lookup.unique.tolist())
            self.touched |= set(lookup.unique.tolist())

    def publish(self) -> int:
        """Write a version, take it in as a follower does, and return how many rows it has."""
        self.version += 1
        draft = f"stream/.saving-{self.version}"
        (self.folder / draft).mkdir(parents=True)
        files = RowFolder(self.folder)
        gone = self.client.keys_gone("rows", self.last)
        since = 0 if gone is None else self.last
        version = VersionRange(self.version, since, "followers")
        self.written = self.client.begin_save("rows", files, f"{draft}/rows", version)()
        self.num_full += gone is None
        self.num_gone += 0 if gone is None else len(gone)
        if gone is None:
            self.rows.clear()
        for key in [] if gone is None else gone.tolist():
            self.rows.pop(key, None)
        parts = [part for file in self.written for part in files.read(file.path)]
        assert all(part.state.shape[1] == 0 for part in parts), "followers need no optimizer state"
        written = {int(key) for part in parts for key in part.keys}
        assert gone is None or written.isdisjoint(gone.tolist()), "a key that came back is not gone"
        for part in parts:
            self.rows |= {int(key): row.tobytes() for key, row in zip(part.keys, part.values, strict=True)}
        self.last = self.version
        return sum(len(part.keys) for part in parts)

    def check(self) -> None:
        rows, _ = self.client.export_rows("rows")
        assert self.rows == {int(key): row.tobytes() for key, row in zip(rows.keys, rows.values, strict=True)}


@contextmanager
def publisher(spec: TableSpec, folder: Path, seed: int = 0, num_servers: int = 0) -> Iterator[Publisher]:
    """Of a table in two shards of this process, or on servers."""
    if spec.tiers is not None:
        spec = replace(spec, tiers=spec.tiers.model_copy(update={"folder": str(folder / "cold")}))
    random = np.random.default_rng(seed)
    with ExitStack() as opened:
        client: JobClient
        if num_servers == 0:
            client = in_process(TableSpecs((spec,)), 2)
        else:
            network, roster = MemoryNetwork(), make_roster(num_servers)
            for server in opened.enter_context(threaded_servers(roster, TableSpecs((spec,)), network)):
                server.shard.row_files = RowFolder(folder)
                opened.callback(close_table, server)
            client = RemoteClient("worker", network.channel("worker"), roster, TableSpecs((spec,)))
        opened.callback(client.close)
        yield Publisher(client, folder, random)


def close_table(server: Server) -> None:
    table = server.shard.sparse["rows"]
    if not isinstance(table, SparseTable):
        table.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_servers", [0, 3])
def test_versions_put_together_are_the_table(tmp_path: Path, kind: str, num_servers: int) -> None:
    with publisher(KINDS[kind], tmp_path, num_servers=num_servers) as run:
        for num_steps in (5, 3, 0, 1, 8, 20, 2):
            run.train(num_steps)
            run.publish()
            run.check()
        assert run.num_full == 1, "only the first"
        assert bool(run.num_gone) == ("evict" in kind)
        counts = run.client.tier_counts("rows")
        assert counts is None or num_servers or counts.num_demotions > 100, "rows were on disk"


@settings(max_examples=25)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    seed=st.integers(0, 2**32),
    steps=st.lists(st.integers(0, 12), min_size=2, max_size=8),
)
def test_any_versions_of_any_table_are_the_table(
    tmp_path_factory: pytest.TempPathFactory, kind: str, seed: int, steps: list[int]
) -> None:
    with publisher(KINDS[kind], tmp_path_factory.mktemp("run"), seed) as run:
        for num_steps in steps:
            run.train(num_steps)
            run.publish()
            run.check()


def test_a_version_has_the_rows_that_were_used_since_the_last_and_few_others(tmp_path: Path) -> None:
    with publisher(PLAIN, tmp_path) as run:
        run.train(40)
        assert run.publish() == len(run.touched)
        run.touched, again = set(), run.last_pushed
        run.train(2)
        assert run.publish() <= len(run.touched | again) < len(run.rows) / 2


def test_a_version_between_the_pushes_of_a_step_misses_no_row_that_a_pull_created(tmp_path: Path) -> None:
    """A pull notes the clock at which the last version was written, and not a later one."""
    with publisher(PLAIN, tmp_path) as run:
        run.train(3)
        run.publish()
        run.client.pull("rows", make_lookup(np.arange(10**6, 10**6 + 5), run.client.num_shards)).result()
        run.publish()
        run.check()
        assert 10**6 in run.rows


@pytest.mark.parametrize("joins", [True, False])
def test_after_a_move_between_servers_a_version_has_all_rows(tmp_path: Path, joins: bool) -> None:
    tables, network, old = TableSpecs((KINDS["evicts old rows"],)), MemoryNetwork(), make_roster(2)
    new = old.add(Seat("server-2", incarnation=2)) if joins else old.drop_last()
    with ExitStack() as opened:
        servers = opened.enter_context(threaded_servers(old, tables, network))
        if joins:
            servers += opened.enter_context(threaded_servers(new, tables, network, ["server-2"], joining=True))
        for server in servers:
            server.shard.row_files = RowFolder(tmp_path)
        client = RemoteClient("worker", network.channel("worker"), old, tables)
        opened.callback(client.close)
        run = Publisher(client, tmp_path, np.random.default_rng(0))
        for _ in range(2):
            run.train(5)
            run.publish()
        run_rebalance(network.channel("mover"), old, new)
        for _ in range(3):
            run.train(5)
            run.publish()
            run.check()
        assert run.num_full == 2, "the first, and the first after the move"
        assert len(run.written) == new.num_shards


def test_servers_that_see_another_disk_send_their_rows(tmp_path: Path) -> None:
    with publisher(KINDS["evicts old rows"], tmp_path, num_servers=2) as run:
        network = MemoryNetwork()
        with threaded_servers(make_roster(2), TableSpecs((PLAIN,)), network):
            run.client = RemoteClient("worker", network.channel("worker"), make_roster(2), TableSpecs((PLAIN,)))
            for _ in range(2):
                run.train(3)
                assert run.publish() == len(run.rows)
                run.check()
            assert run.num_full == 2
            run.client.close()


def test_a_table_that_loses_more_keys_than_it_notes_writes_all_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "MAX_KEYS", 20)
    with publisher(KINDS["evicts old rows"], tmp_path) as run:
        for _ in range(3):
            run.train(12)
            run.publish()
            run.check()
        assert run.num_full == 3


def test_a_version_that_was_not_taken_is_made_up_for_by_all_rows(tmp_path: Path) -> None:
    """The coordinator could not finish it, so that the next builds on the one before, which servers do not know."""
    with publisher(KINDS["evicts old rows"], tmp_path) as run:
        run.train(5)
        run.publish()
        taken, run.last = run.last, 0
        run.train(5)
        run.publish()
        run.last = taken
        run.train(5)
        run.publish()
        run.check()
        assert run.num_full == 3


def test_rows_that_are_not_finite_are_not_published(tmp_path: Path) -> None:
    with publisher(PLAIN, tmp_path) as run:
        run.train(2)
        rows, _ = run.client.export_rows("rows")
        one = rows.select(slice(0, 1))
        client = in_process(TableSpecs((PLAIN,)))
        client.import_rows("rows", one._replace(values=np.full_like(one.values, np.nan)), 1)
        run.client = client
        with pytest.raises(NotFinite, match="table rows: the row of key"):
            run.publish()


def test_the_clock_of_a_table_may_wrap_round() -> None:
    table = SparseTable(2)
    table.num_pushes = 2**32 - 2
    table.push([1], np.ones((1, 2)))
    table.changes["followers"].begin(1, table.num_pushes)
    for key in (2, 3, 4):
        table.push([key], np.ones((1, 2)))
    assert set(next(table.freeze("followers").parts()).keys.tolist()) == {1, 2, 3, 4}
    table.changes["followers"].begin(2, table.num_pushes)
    table.push([5], np.ones((1, 2)))
    assert set(next(table.freeze("followers").parts()).keys.tolist()) == {4, 5}


def test_a_log_notes_nothing_before_the_first_version() -> None:
    log = ChangeLog()
    log.went(np.arange(5, dtype=np.uint64))
    log.begin(1, 0)
    assert len(log.gone) == 0
    log.went(np.array([3, 3, 1], np.uint64))
    assert log.gone.tolist() == [1, 3]
    log.forget()
    assert (log.version, len(log.gone)) == (0, 0)
