"""Servers save and load their own rows: into files that all see, or through the client where they see another disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from servers import DIM, make_roster, make_tables, threaded_servers

from heterps.checkpoint import RowFolder
from heterps.errors import NotFinite, PeerLost, StorageError
from heterps.ps.client.interface import JobClient
from heterps.ps.client.local import in_process
from heterps.ps.client.remote import RemoteClient
from heterps.ps.keys.dedup import make_lookup
from heterps.ps.protocol import parts as parts_module
from heterps.ps.server.server import Server
from heterps.ps.table import frozen, sparse
from heterps.wire import MemoryNetwork

TABLES = make_tables()
KEYS = np.arange(300)
DRAFT = ".saving-0000000007/tables"


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of many parts."""
    monkeypatch.setattr(frozen, "PART_ROWS", 16)
    monkeypatch.setattr(parts_module, "PART_BYTES", 500)


@pytest.fixture
def files(tmp_path: Path) -> RowFolder:
    (tmp_path / DRAFT).mkdir(parents=True)
    return RowFolder(tmp_path)


@contextmanager
def on_servers(num_servers: int, row_files: RowFolder | None) -> Iterator[tuple[JobClient, list[Server]]]:
    network, roster = MemoryNetwork(), make_roster(num_servers)
    with threaded_servers(roster, TABLES, network) as servers:
        for server in servers:
            server.shard.row_files = row_files
        client = RemoteClient("worker", network.channel("worker"), roster, TABLES)
        try:
            yield client, servers
        finally:
            client.close()


def train(client: JobClient) -> None:
    lookup = make_lookup(KEYS, client.num_shards)
    client.pull("rows", lookup).result()
    client.push("rows", lookup, np.random.default_rng(0).normal(size=(len(KEYS), DIM)).astype(np.float32)).result()


def saved_names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / DRAFT).iterdir())


@pytest.mark.parametrize("sees_the_disk", [True, False])
@pytest.mark.parametrize("num_servers", [1, 3])
def test_rows_come_back_on_any_number_of_servers(
    tmp_path: Path, files: RowFolder, num_servers: int, sees_the_disk: bool
) -> None:
    row_files = files if sees_the_disk else None
    with on_servers(num_servers, row_files) as (client, _):
        train(client)
        written = client.begin_save("rows", files, f"{DRAFT}/000-rows")()
        expected, num_pushes = client.export_rows("rows")
    assert len(written) == (num_servers if sees_the_disk else 1), "a file a shard, where servers write"
    assert saved_names(tmp_path) == sorted(Path(file.path).name for file in written)
    for file in written:
        assert (tmp_path / file.path).stat().st_size == file.num_bytes
    paths = [file.path for file in written]
    for others in (1, 2):
        with on_servers(others, row_files) as (client, servers):
            client.load_rows("rows", files, paths, num_pushes, {})
            assert client.num_pushes("rows") == num_pushes
            for mine, theirs in zip(sorted_by_key(client.export_rows("rows")[0]), sorted_by_key(expected), strict=True):
                np.testing.assert_array_equal(mine, theirs)
            assert sum(len(server.shard.sparse["rows"]) for server in servers) == len(KEYS)
    here = in_process(TABLES, 2)
    here.load_rows("rows", files, paths, num_pushes, {})
    for mine, theirs in zip(sorted_by_key(here.export_rows("rows")[0]), sorted_by_key(expected), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    here.close()


def sorted_by_key(rows) -> list[np.ndarray]:
    order = np.argsort(rows.keys)
    return [field[order] for field in rows]


def test_a_save_that_is_asked_for_again_is_made_once(tmp_path: Path, files: RowFolder) -> None:
    writes: list[str] = []

    class Noted(RowFolder):
        def write(self, path, parts, num_rows, widths):
            writes.append(path)
            return super().write(path, parts, num_rows, widths)

    with on_servers(2, Noted(tmp_path)) as (client, _):
        train(client)
        written = client.begin_save("rows", files, f"{DRAFT}/000-rows")()
        assert client.begin_save("rows", files, f"{DRAFT}/000-rows")() == written, "as if an answer had been lost"
    assert sorted(writes) == sorted(file.path for file in written)


@pytest.mark.parametrize("path", ["../secret", "/etc/secret", ".saving-1/../../secret", "0000000001/tables/000-rows"])
def test_a_server_writes_nowhere_but_into_a_draft(tmp_path: Path, path: str) -> None:
    (tmp_path / "checkpoints" / "0000000001" / "tables").mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    with on_servers(1, RowFolder(tmp_path / "checkpoints")) as (client, _):
        train(client)
        with pytest.raises((PeerLost, ValueError), match=r"no path below|draft of a checkpoint only"):
            client.begin_save("rows", RowFolder(tmp_path / "checkpoints"), path)()
    assert sorted(tmp_path.rglob("*")) == before


def test_a_disk_that_refuses_a_server_is_a_storage_error_and_training_goes_on(
    files: RowFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(RowFolder):
        def write(self, *_):
            raise StorageError("the disk is full")

    with on_servers(2, Full(Path("/nowhere"))) as (client, servers):
        for server in servers:
            monkeypatch.setattr(server.shard.row_files, "has_folder", lambda _: True)
        train(client)
        with pytest.raises(StorageError, match="the disk is full"):
            client.begin_save("rows", files, f"{DRAFT}/000-rows")()
        train(client)
        assert client.num_pushes("rows") == 2


def test_a_save_that_a_server_does_not_know_any_more_fails_and_is_not_begun_again(files: RowFolder) -> None:
    with on_servers(2, files) as (client, servers):
        train(client)
        finish = client.begin_save("rows", files, f"{DRAFT}/000-rows")
        train(client)
        servers[1].shard._saves.clear()  # as after its mirror took over
        with pytest.raises(StorageError, match=r"started anew while it wrote .*000-rows.*-001\.arrow"):
            finish()
        assert servers[1].shard._saves == {}, "what it would write now is of another moment"


@pytest.mark.parametrize("sees_the_disk", [True, False])
def test_rows_that_are_not_finite_are_not_saved(files: RowFolder, sees_the_disk: bool) -> None:
    with on_servers(1, files if sees_the_disk else None) as (client, (server,)):
        train(client)
        server.shard.sparse["rows"].put(broken_row())
        with pytest.raises(NotFinite, match=r"table rows: the row of key 1000 has the value nan"):
            client.begin_save("rows", files, f"{DRAFT}/000-rows")()


def broken_row():
    one = np.array([1000], np.uint64)
    values = np.full((1, DIM), np.nan, np.float32)
    return sparse.Rows(one, values, np.zeros((1, DIM), np.float32), np.ones(1, np.float32), np.zeros(1, np.uint32))


def test_rows_are_loaded_into_an_empty_table_only(files: RowFolder) -> None:
    with on_servers(1, files) as (client, _):
        train(client)
        written = client.begin_save("rows", files, f"{DRAFT}/000-rows")()
        with pytest.raises(PeerLost, match="rows are loaded into an empty table; this one has 300 rows"):
            client.load_rows("rows", files, [file.path for file in written], 1, {})
