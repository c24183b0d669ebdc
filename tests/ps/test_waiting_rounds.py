"""Rounds that wait for a factor: measured on every server, applied once and scaled, and never before they are whole."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import pytest
from servers import DIM, make_roster, make_tables, threaded_servers

from heterps.config import SGD
from heterps.errors import PeerLost
from heterps.ps import Round
from heterps.ps.client.local import in_process
from heterps.ps.client.remote import RemoteClient
from heterps.ps.keys.dedup import make_lookup
from heterps.ps.ops.base import Op
from heterps.ps.ops.dense import PushDense
from heterps.ps.ops.moves import Prepare
from heterps.ps.ops.requests import FromServer, OpReply, OpRequest, ToServer, client_codec, server_codec
from heterps.ps.ops.rounds import ApplyRound, RoundSquares, Squares
from heterps.ps.protocol.messages import Hello, Refused
from heterps.ps.protocol.roster import Seat
from heterps.ps.server.server import Server
from heterps.ps.table.norms import square_sum, square_sum_by_key
from heterps.wire import MemoryNetwork, Packed
from heterps.wire.message import contiguous

TABLES = make_tables(SGD(lr=1.0), SGD(lr=1.0))
ROSTER = make_roster(1)


def send(server: Server, header: ToServer, frames=()) -> FromServer:
    parts = [contiguous(part) for part in server_codec().encode(header, frames)]
    ((_, answer),) = server.handle("peer", parts, 0.0)
    return client_codec().decode(answer)[0]


def make_server() -> Server:
    server = Server("server-0", ROSTER, TABLES)
    for worker in ("worker-0", "worker-1", "coordinator"):
        send(server, Hello(1, worker, 1, TABLES.digest))
    return server


def ask(server: Server, op: Op, worker: str = "coordinator", frames=()) -> FromServer:
    return send(server, OpRequest(5, worker, 1, 1, (op,)), frames)


def give(server: Server, part: int, number: int = 1, *, waits: bool = True) -> FromServer:
    """A worker contributes twos to the dense table of 10 values."""
    push = PushDense("dense", number, Packed((10,), "fp32"), None, Round(number, part, 2, waits))
    return ask(server, push, f"worker-{part}", [np.full(10, 2, np.float32)])


def moved(server: Server) -> float:
    (value,) = set(server.shard.dense["dense"].values().tolist())
    return -value


def test_a_round_that_waits_is_applied_once_with_its_factor() -> None:
    server = make_server()
    give(server, 1)
    give(server, 0)
    assert moved(server) == 0, "it is whole, and waits"
    answer = ask(server, RoundSquares("dense", 1))
    assert isinstance(answer, OpReply)
    assert answer.results == (Squares(10 * 4.0**2),)
    for _ in range(3):  # repeats
        assert isinstance(ask(server, ApplyRound("dense", 1, 1, 0.25)), OpReply)
        assert isinstance(give(server, 1), OpReply)
        assert moved(server) == 1.0
    give(server, 0, 2)
    give(server, 1, 2)
    ask(server, ApplyRound("dense", 2, 2, 1.0))
    assert moved(server) == 5.0
    assert server.shard.pieces_of("dense").num_pushes("dense") == 2
    assert server.counts.updates == 2


@pytest.mark.parametrize("op", [RoundSquares("dense", 1), ApplyRound("dense", 1, 1, 0.5)])
def test_a_round_is_not_measured_or_applied_before_it_is_whole(op: Op) -> None:
    server = make_server()
    give(server, 1)
    answer = ask(server, op)
    assert isinstance(answer, Refused)
    assert "round 1 of table dense does not wait for a factor here" in answer.text
    give(server, 0)
    assert isinstance(ask(server, ApplyRound("dense", 1, 1, 0.5)), OpReply), "nothing is in doubt"
    assert moved(server) == 2.0


def test_parts_that_disagree_about_waiting_are_refused() -> None:
    server = make_server()
    give(server, 0)
    answer = give(server, 1, waits=False)
    assert isinstance(answer, Refused)
    assert "waits for a factor for some of its parts only" in answer.text


def test_a_rebalance_waits_for_rounds_that_wait() -> None:
    server = make_server()
    give(server, 0)
    give(server, 1)
    prepare = Prepare(1, ROSTER.add(Seat("server-1")))
    answer = send(server, prepare)
    assert isinstance(answer, Refused)
    assert answer.code == "later"
    ask(server, ApplyRound("dense", 1, 1, 0.5))
    assert not isinstance(send(server, prepare), Refused)


def test_norms_are_of_all_servers_with_equal_keys_added_up() -> None:
    rng = np.random.default_rng(0)
    network = MemoryNetwork()
    batches = [rng.integers(0, 40, 30).astype(np.uint64) for _ in range(2)]
    rows = [rng.normal(size=(30, DIM)).astype(np.float32) for _ in range(2)]
    dense = [rng.normal(size=10).astype(np.float32) for _ in range(2)]
    summed = {int(key): np.zeros(DIM, np.float32) for batch in batches for key in batch}
    for batch, grads in zip(batches, rows, strict=True):
        for key, grad in zip(batch, grads, strict=True):
            summed[int(key)] += grad
    with ExitStack() as opened:
        roster = make_roster(3)
        opened.enter_context(threaded_servers(roster, TABLES, network))
        clients = [RemoteClient(name, network.channel(name), roster, TABLES) for name in ("a", "b", "coordinator")]
        for client in clients:
            opened.callback(client.close)
        for number, (client, keys, grads) in enumerate(zip(clients[:2], batches, rows, strict=True)):
            client.push("rows", make_lookup(keys, 3), grads, Round(1, number, 2, True)).result()
            client.push_dense("dense", dense[number], Round(1, number, 2, True)).result()
        last = clients[2]
        expected = sum(float(np.square(grad.astype(np.float64)).sum()) for grad in summed.values())
        assert last.round_squares("rows", 1).result() == pytest.approx(expected, rel=1e-6)
        whole = np.square((dense[0] + dense[1]).astype(np.float64)).sum()
        assert last.round_squares("dense", 1).result() == pytest.approx(whole, rel=1e-6)
        keys = make_lookup(np.array(sorted(summed), np.uint64), 3)
        before = last.pull("rows", keys).result()
        last.apply_round("rows", 1, 0.125).result()
        after = last.pull("rows", keys).result()
        steps = np.stack([summed[int(key)] for key in keys.unique])
        np.testing.assert_allclose(before - after, 0.125 * steps, rtol=1e-4, atol=1e-6)
        with pytest.raises(PeerLost, match="round 7 of table rows does not wait"):
            last.round_squares("rows", 7).result()


def test_sums_of_squares_add_up_equal_keys_first() -> None:
    grads = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    lookup = make_lookup(np.array([7, 9, 7], np.uint64))
    assert square_sum_by_key(lookup, grads) == 6**2 + 8**2 + 3**2 + 4**2
    assert square_sum(grads[:, ::2]) == 1 + 9 + 25
    assert square_sum_by_key(make_lookup(np.empty(0, np.uint64)), grads[:0]) == 0


def test_tables_in_this_process_keep_no_rounds() -> None:
    client = in_process(TABLES)
    with pytest.raises(ValueError, match="takes rounds of one part"):
        client.push_dense("dense", np.ones(10, np.float32), Round(1, 0, 1, True))
    for call in (lambda: client.round_squares("dense", 1), lambda: client.apply_round("dense", 1, 1.0)):
        with pytest.raises(ValueError, match="round 1 of table dense: tables in this process keep no rounds"):
            call()
