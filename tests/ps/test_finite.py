"""Gradients that are NaN or infinite are refused before a table takes them, wherever the table is."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import pytest
from servers import DIM, make_roster, make_tables, threaded_servers

from heterps.config import SGD, Tiers
from heterps.errors import NotFinite
from heterps.ps.client.remote import RemoteClient
from heterps.ps.keys.dedup import make_lookup
from heterps.ps.protocol.messages import Round
from heterps.ps.table.dense import DenseTable
from heterps.ps.table.finite import BLOCK, first_not_finite
from heterps.ps.table.sparse import SparseTable
from heterps.ps.table.tiers import TieredTable
from heterps.wire import MemoryNetwork

BAD = [np.nan, np.inf, -np.inf, np.float32(np.uint32(0x7F800001).view(np.float32))]


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("at", [0, 1, BLOCK - 1, BLOCK, 2 * BLOCK + 7])
def test_the_first_value_that_is_not_finite_is_found(bad: float, at: int) -> None:
    values = np.zeros(2 * BLOCK + 8, np.float32)
    values[[at, -1]] = bad
    assert first_not_finite(values) == at


def test_every_finite_value_is_finite() -> None:
    largest = np.finfo(np.float32).max
    values = np.array([0.0, -0.0, largest, -largest, np.finfo(np.float32).tiny, 1e-45, 1.0], np.float32)
    assert first_not_finite(values) == -1
    assert first_not_finite(np.empty((0, 4), np.float32)) == -1


def test_a_part_of_an_array_that_is_not_in_one_piece_is_looked_at() -> None:
    values = np.zeros((4, 6), np.float32)
    values[2, 1] = np.nan
    assert first_not_finite(values[:, ::2]) == -1
    assert first_not_finite(values[:, 1::2]) == 2 * 3


@pytest.mark.parametrize("has_tiers", [False, True])
@pytest.mark.parametrize("bad", BAD[:3])
def test_a_table_takes_nothing_of_a_push_that_is_not_finite(bad: float, has_tiers: bool, tmp_path) -> None:
    table = SparseTable(2, SGD(lr=1.0))
    if has_tiers:
        table = TieredTable(table, Tiers(memory_bytes=1 << 20, folder=str(tmp_path)))
    before = table.pull(np.array([7, 8])).copy()
    grads = np.array([[1.0, 1.0], [1.0, bad]], np.float32)
    with pytest.raises(NotFinite, match=r"a gradient of key 8 is (nan|-?inf)"):
        table.push(np.array([7, 8]), grads)
    np.testing.assert_array_equal(table.pull(np.array([7, 8])), before)
    assert table.num_pushes == 0


def test_a_dense_table_makes_no_step_with_what_is_not_finite() -> None:
    table = DenseTable(3, SGD(lr=1.0))
    with pytest.raises(NotFinite, match="the gradient of value 1 is nan"):
        table.push(np.array([1.0, np.nan, 1.0], np.float32))
    assert (table.num_pushes, table.values.tolist()) == (0, [0.0, 0.0, 0.0])


@pytest.mark.parametrize("round", [None, Round(1, 0, 1)])
@pytest.mark.parametrize("table", ["rows", "dense"])
def test_a_server_refuses_a_push_that_is_not_finite_and_changes_nothing(table: str, round: Round | None) -> None:
    network, roster, tables = MemoryNetwork(), make_roster(1), make_tables(SGD(lr=1.0), SGD(lr=1.0))
    lookup = make_lookup(np.arange(5))
    with threaded_servers(roster, tables, network) as (server,), ExitStack() as opened:
        bad, other = (RemoteClient(name, network.channel(name), roster, tables) for name in ("bad", "other"))
        opened.callback(bad.close)
        opened.callback(other.close)
        before = other.pull("rows", lookup).result().copy(), other.pull_dense("dense").result().copy()
        if table == "rows":
            pushed = bad.push("rows", lookup, np.full((5, DIM), np.nan, np.float32), round)
        else:
            pushed = bad.push_dense("dense", np.full(10, np.inf, np.float32), round)
        with pytest.raises(NotFinite, match=f"server-0 refused a push: a gradient of table {table} is (nan|inf)"):
            pushed.result()
        assert server.counts.dropped == {"not_finite": 1}
        np.testing.assert_array_equal(other.pull("rows", lookup).result(), before[0])
        np.testing.assert_array_equal(other.pull_dense("dense").result(), before[1])
        assert server.shard.pieces.num_pushes("rows") == 0
