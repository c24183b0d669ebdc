"""What servers saved is loaded by any number of others, and they know what was applied."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np
import pytest
from servers import DIM, Storm, Worker, make_roster, make_storm, make_tables, sorted_rows

from heterps.config import Adam
from heterps.ps.cargo import from_parcels, to_parcels
from heterps.ps.server import Server
from heterps.ps.shard import Tables
from heterps.wire import Malformed

TABLES = make_tables(Adam(lr=0.1))
CLEAN = {"drop": 0.0, "double": 0.0, "late_s": 0.0, "cut": 0.0}
KEYS = np.arange(200, dtype=np.uint64)


def pushed(num_servers: int, num_pushes: int) -> Storm:
    storm = make_storm(0, TABLES, num_servers, **CLEAN)
    worker = Worker(storm, "worker", TABLES, num_servers)
    for number in range(num_pushes):
        worker.push(KEYS[number:], np.full((200 - number, DIM), number + 1, np.float32))
    storm.finish(worker.futures)
    return storm


def rows_of(servers: list[Server]) -> list[np.ndarray]:
    return sorted_rows([server.shard.sparse["rows"].export_rows() for server in servers])


@pytest.mark.parametrize("num_servers", [1, 2, 3])
def test_saved_tables_go_on_at_any_number_of_servers_as_if_nothing_had_happened(num_servers: int) -> None:
    """The worker asks again for its last push, which was saved, and then makes another."""
    saved = [server.save() for server in pushed(2, 3).servers.values()]
    storm = make_storm(0, TABLES, num_servers, **CLEAN)
    for server in storm.servers.values():
        server.restore([from_parcels(to_parcels(cargo)) for cargo in saved])
        assert len(server.shard.pieces) == 1
    worker = Worker(storm, "worker", TABLES, num_servers)
    worker.pushes["rows"] = 2
    for number in (2, 3):
        worker.push(KEYS[number:], np.full((200 - number, DIM), number + 1, np.float32))
    storm.finish(worker.futures)
    assert all(server.counts.repeats == 1 for server in storm.servers.values())
    for expected, got in zip(
        rows_of(list(pushed(2, 4).servers.values())), rows_of(list(storm.servers.values())), strict=True
    ):
        np.testing.assert_array_equal(got, expected)


def test_what_is_saved_does_not_change_with_the_tables() -> None:
    storm = pushed(1, 1)
    server = storm.servers["server-0"]
    saved = server.save()
    before = saved.rows["rows"].values.copy()
    worker = Worker(storm, "other", TABLES, 1)
    worker.push(KEYS, np.ones((200, DIM), np.float32))
    futures: list[Future] = worker.futures
    storm.finish(futures)
    np.testing.assert_array_equal(saved.rows["rows"].values, before)
    assert saved.label.pieces[0].ledger.num_pushes == {"rows": 1}


def test_rows_that_do_not_fit_are_refused_and_change_nothing() -> None:
    cargo = pushed(1, 1).servers["server-0"].save()
    server = Server("server-0", make_roster(1), TABLES)
    server.restore([cargo])
    with pytest.raises(ValueError, match="200 of 200 rows to put have keys that are in the table"):
        server.shard.load(cargo)
    assert len(server.shard.sparse["rows"]) == 200
    cargo.rows["other"] = cargo.rows.pop("rows")
    with pytest.raises(ValueError, match="there are no tables other here"):
        server.shard.load(cargo)


def test_a_label_that_cannot_be_read_is_refused() -> None:
    parcels = to_parcels(pushed(1, 1).servers["server-0"].save())
    parcels[0].label = b"nonsense"
    with pytest.raises(Malformed, match="the label of a cargo cannot be read"):
        from_parcels(parcels)


def test_tables_have_a_digest_that_does_not_depend_on_their_order() -> None:
    turned = Tables(TABLES.sparse[::-1], TABLES.dense)
    assert turned.digest == TABLES.digest != make_tables().digest
    with pytest.raises(ValueError, match="every table needs a name of its own"):
        Tables((*TABLES.sparse, TABLES.sparse[0]))
