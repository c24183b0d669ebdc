"""What a worker's next incarnation pushes again: servers drop void rounds, and skip what they have applied."""

from __future__ import annotations

import numpy as np
import pytest
from test_waiting_rounds import TABLES, ask, give, make_server, moved, send

from heterps.ps.ops.dense import PullDense, PushDense
from heterps.ps.ops.requests import OpReply, OpRequest, client_codec, server_codec
from heterps.ps.ops.rounds import AppliedRounds, CountRounds, DropRounds
from heterps.ps.protocol.messages import EXACT, Hello, Iteration, Refused, Round
from heterps.ps.server.server import Server
from heterps.wire import Packed
from heterps.wire.message import contiguous

TWOS = [np.full(10, 2, np.float32)]


def push(server: Server, sequence: int, part_of: Iteration | Round, incarnation: int = 1):
    round = part_of if isinstance(part_of, Round) else None
    iteration = part_of if isinstance(part_of, Iteration) else None
    op = PushDense("dense", sequence, Packed((10,), "fp32"), None, round, iteration)
    return send(server, OpRequest(5, "worker-0", incarnation, 1, (op,)), TWOS)


def hear(server: Server, request: OpRequest) -> list[tuple]:
    """Who is answered when a worker sends this, and what."""
    parts = [contiguous(part) for part in server_codec().encode(request, [])]
    return [(peer, *client_codec().decode(answer)) for peer, answer in server.handle(request.worker, parts, 0.0)]


def begin_again(server: Server) -> None:
    send(server, Hello(1, "worker-0", 2, TABLES.digest))


def test_a_round_that_waits_is_applied_by_the_first_request_that_says_it_is_over() -> None:
    server = make_server()
    give(server, 0)
    give(server, 1)
    pull = PullDense("dense", 0, EXACT)
    assert isinstance(send(server, OpRequest(5, "worker-0", 1, 1, (pull,), 0)), OpReply)
    assert moved(server) == 0, "somebody still reads what was before"
    for _ in range(2):
        send(server, OpRequest(6, "worker-1", 1, 1, (pull,), 1))
        assert moved(server) == 4.0
    assert server.shard.pieces_of("dense").num_pushes("dense") == 1


def test_a_round_that_lacks_a_part_is_not_applied_whoever_says_it_is_over() -> None:
    server = make_server()
    give(server, 0)
    send(server, OpRequest(6, "worker-1", 1, 1, (PullDense("dense", 0, EXACT),), 1))
    assert moved(server) == 0


def test_what_is_asked_for_after_a_round_is_answered_when_anybody_says_that_it_is_over() -> None:
    """It is asked for before the other part has come; a repeat is held once, and its answer has the step in it."""
    server = make_server()
    give(server, 0)
    pull = OpRequest(6, "worker-0", 1, 1, (PullDense("dense", 1, EXACT),), 0, after_round=1)
    for _ in range(2):
        assert hear(server, pull) == []
    give(server, 1)
    assert server.stats().held == 1
    told, (peer, answer, frames) = hear(server, OpRequest(7, "coordinator", 1, 1, (CountRounds("dense"),), 1))
    assert (told[0], peer, answer.id) == ("coordinator", "worker-0", 6)
    np.testing.assert_array_equal(np.frombuffer(frames[0], np.float32), -np.full(10, 4, np.float32))
    ((_, answer, _),) = hear(server, OpRequest(8, "worker-0", 1, 1, (PullDense("dense", 1, EXACT),), 2, after_round=2))
    assert answer.id == 8, "the request says itself that the round is over"


def test_a_void_round_is_dropped_once_and_comes_again() -> None:
    server = make_server()
    give(server, 1)
    for _ in range(2):  # a repeat of the request drops nothing
        assert isinstance(ask(server, DropRounds("dense", 1)), OpReply)
        answer = ask(server, CountRounds("dense"))
        assert isinstance(answer, OpReply)
        assert answer.results == (AppliedRounds(frozenset({0})),)
    begin_again(server)
    push = PushDense("dense", 2, Packed((10,), "fp32"), None, Round(1, 1, 2, True))
    assert isinstance(ask(server, push, "worker-1", TWOS), OpReply)
    ask(server, DropRounds("dense", 1))
    push = PushDense("dense", 1, Packed((10,), "fp32"), None, Round(1, 0, 2, True))
    send(server, OpRequest(5, "worker-0", 2, 1, (push,)), TWOS)
    send(server, OpRequest(6, "worker-0", 2, 1, (PullDense("dense", 0, EXACT),), 1))
    assert moved(server) == 4.0


def test_an_iteration_that_an_older_incarnation_has_pushed_is_skipped() -> None:
    server = make_server()
    push(server, 1, Iteration(0, 1))
    push(server, 2, Iteration(3, 2))
    begin_again(server)
    assert isinstance(push(server, 3, Iteration(0, 3)), Refused), "the older incarnation is refused"
    push(server, 1, Iteration(3, 2), incarnation=2)
    assert moved(server) == 4.0, "it was there"
    push(server, 2, Iteration(0, 3), incarnation=2)
    assert moved(server) == 6.0, "it was not"
    assert server.shard.pieces_of("dense").num_pushes("dense") == 3


@pytest.mark.parametrize("is_there", [True, False])
def test_a_round_of_a_worker_that_is_alone_is_applied_once(is_there: bool) -> None:
    server = make_server()
    push(server, 1, Round(1, 0, 1))
    if is_there:
        push(server, 2, Round(2, 0, 1))
    begin_again(server)
    assert isinstance(push(server, 1, Round(2, 0, 1), incarnation=2), OpReply)
    assert moved(server) == 4.0
