"""Rounds on one server: what belongs to one is one step, what does not fit is refused, and memory has its limits."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import ExitStack
from itertools import permutations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from servers import DIM, make_roster, make_tables, remote_client, restore_shard, save_shard, threaded_servers

from heterps.config import SGD, Adam, LinearRate
from heterps.errors import PeerLost
from heterps.ps import Round
from heterps.ps.client.cache import CachedClient
from heterps.ps.client.local import in_process
from heterps.ps.client.rebalance import run_rebalance
from heterps.ps.client.remote import RemoteClient
from heterps.ps.keys.dedup import make_lookup
from heterps.ps.ops.dense import PushDense
from heterps.ps.ops.moves import Agreed, Prepare, Switch
from heterps.ps.ops.requests import FromServer, OpReply, OpRequest, ToServer, client_codec, server_codec
from heterps.ps.ops.rows import PushRows
from heterps.ps.protocol.messages import Hello, Refused
from heterps.ps.protocol.roster import Seat
from heterps.ps.protocol.specs import TableSpec, TableSpecs
from heterps.ps.server import refusals
from heterps.ps.server import server as server_module
from heterps.ps.server.server import Server
from heterps.ps.shard.ledger import Ledger, PushSource
from heterps.ps.shard.rounds import Contribution, Stash, end_rounds, push_once
from heterps.report.terminal.server_table import server_table
from heterps.wire import Channel, MemoryNetwork, Packed, PackedKeys, Received
from heterps.wire.message import contiguous

TABLES = make_tables(SGD(lr=1.0), SGD(lr=1.0))
KEYS = np.arange(3, dtype=np.uint64)
GRADS = np.ones((3, DIM), np.float32)
ROSTER = make_roster(1)


def make_server(num_workers: int = 3) -> Server:
    server = Server("server-0", ROSTER, TABLES)
    for number in range(num_workers):
        send(server, Hello(1, f"worker-{number}", 1, TABLES.digest))
    return server


def send(server: Server, header: ToServer, frames=(), now: float = 0.0) -> FromServer:
    parts = [contiguous(part) for part in server_codec().encode(header, frames)]
    ((_, answer),) = server.handle("peer", parts, now)
    return client_codec().decode(answer)[0]


def give(server: Server, worker: int, sequence: int, *rounds: Round, epoch: int = 1, now: float = 0.0):
    """Worker `worker` contributes ones to the dense table."""
    ops = [PushDense("dense", sequence + i, Packed((10,), "fp32"), None, each) for i, each in enumerate(rounds)]
    request = OpRequest(5, f"worker-{worker}", 1, epoch, tuple(ops))
    return send(server, request, [np.ones(10, np.float32)] * len(ops), now)


def steps(server: Server) -> float:
    """Each contribution of ones that was applied moves every value by -1."""
    values = set(server.shard.dense["dense"].values().tolist())
    assert len(values) == 1
    return -values.pop()


def is_done(answer: FromServer) -> bool:
    return isinstance(answer, OpReply)


def refusal(answer: FromServer) -> tuple[str, str]:
    assert isinstance(answer, Refused), answer
    return answer.code, answer.text


# --- the maths --------------------------------------------------------------------------------------------------------


@given(order=st.permutations(range(5)), seed=st.integers(0, 2**32), is_dense=st.booleans())
def test_a_sum_does_not_depend_on_the_order_of_arrival(order: list[int], seed: int, is_dense: bool) -> None:
    rng = np.random.default_rng(seed)
    keys = [None if is_dense else rng.permutation(30)[: rng.integers(0, 20)].astype(np.uint64) for _ in range(5)]
    shapes = [(12,) if k is None else (len(k), DIM) for k in keys]
    parts = [
        Contribution(k, rng.normal(size=shape).astype(np.float32), 100 + part)
        for part, (k, shape) in enumerate(zip(keys, shapes, strict=True))
    ]
    stash = Stash()
    for part in order:
        assert stash.take("t", 1) is None
        stash.add("t", Round(1, part, 5), parts[part])
    whole = stash.take("t", 1)
    assert whole is not None
    assert whole.samples == 100
    expected: dict[int, np.ndarray] = {}
    for contribution in parts:
        names = [0] if contribution.keys is None else contribution.keys.tolist()
        rows = [contribution.grads] if contribution.keys is None else list(contribution.grads)
        for name, row in zip(names, rows, strict=True):
            expected[name] = expected[name] + row if name in expected else row
    assert ([0] if whole.keys is None else whole.keys.tolist()) == list(expected), "in the order of first appearance"
    got = whole.grads[None] if is_dense else whole.grads
    for row, wanted in zip(got, expected.values(), strict=True):
        np.testing.assert_array_equal(row, wanted)
    assert len(stash) == stash.num_bytes == stash.newest == 0


ORDERS = [order for num_parts in (2, 3, 4) for order in permutations(range(num_parts))]


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: "".join(map(str, order)))
@pytest.mark.parametrize("kind", ["dense", "rows"])
def test_no_order_of_arrival_needs_the_memory_of_a_part_that_was_taken(kind: str, order: tuple[int, ...]) -> None:
    """All parts come in one buffer, which is overwritten as soon as a part is taken."""
    keys = None if kind == "dense" else np.zeros(2, np.uint64)
    grads = np.zeros(2 if kind == "dense" else (2, 1), np.float32)
    ledger, stash, steps = Ledger(), Stash(), []

    def apply(whole: Contribution) -> None:
        names = [0, 1] if whole.keys is None else whole.keys.tolist()
        steps.append(dict(zip(names, whole.grads.reshape(-1).tolist(), strict=True)))

    for number in (2, 1):  # round 2 is complete before round 1, and waits for it
        for part in order:
            assert steps == []
            grads[:] = np.float32([[10.0**part], [number * 10.0**part]]).reshape(grads.shape)
            if keys is not None:
                keys[:] = [7, 8 + part]
            contribution = Contribution(keys, grads, None)
            push_once(ledger, stash, PushSource("a", 1), "t", contribution, Round(number, part, len(order)), apply)
            grads[:] = np.nan
            if keys is not None:
                keys[:] = 99
    ones = sum(10.0**part for part in order)
    if kind == "dense":
        assert steps == [{0: ones, 1: ones}, {0: ones, 1: 2 * ones}]
    else:
        assert steps == [{7: ones} | {8 + part: number * 10.0**part for part in order} for number in (1, 2)]


def test_a_round_of_one_part_that_waits_for_the_rounds_before_it_keeps_a_copy() -> None:
    ledger, stash, grads, steps = Ledger(), Stash(), np.zeros(2, np.float32), []
    for number in (3, 2, 1):
        grads[:] = number
        contribution = Contribution(None, grads, None)
        push_once(
            ledger,
            stash,
            PushSource("a", 1),
            "t",
            contribution,
            Round(number, 0, 1),
            lambda c: steps.append(c.grads[0]),
        )
        grads[:] = np.nan
    assert steps == [1, 2, 3]


def test_a_stash_counts_what_it_keeps() -> None:
    stash, dense = Stash(), Contribution(None, np.ones(10, np.float32), None)
    rows = Contribution(KEYS, GRADS, None)
    stash.add("dense", Round(4, 2, 3), dense)
    assert (len(stash), stash.num_bytes, stash.newest) == (1, 40, 4)
    stash.add("dense", Round(4, 0, 3), dense)
    stash.add("rows", Round(3, 0, 2), rows)
    assert (len(stash), stash.num_bytes, stash.newest) == (3, 80 + 24 + 48, 4)
    stash.add("dense", Round(4, 1, 3), dense)
    assert (len(stash), stash.num_bytes) == (4, 40 + 24 + 48), "what is summed takes the room of one"


def test_only_whole_rounds_are_summed_ahead() -> None:
    ledger, stash = Ledger(), Stash()
    for number, parts in ((1, (1, 0)), (2, (1,))):
        for part in parts:
            stash.add("rows", Round(number, part, 2, waits=True), Contribution(KEYS, GRADS, part))
    before = stash.num_bytes
    stash.sum_ahead()
    assert stash.num_bytes == before - (24 + 48), "of round 1 the sum is kept, of round 2 the part that came"
    applied: list[Contribution] = []
    end_rounds(ledger, stash, 2, lambda _: applied.append)
    assert [one.samples for one in applied] == [0], "the second is not whole"
    np.testing.assert_array_equal(applied[0].grads, 2 * GRADS)


def test_a_round_that_fails_to_apply_is_in_doubt_and_never_applied_again() -> None:
    ledger, stash, dense = Ledger(), Stash(), Contribution(None, np.ones(2, np.float32), None)

    def fail(_: Contribution) -> None:
        raise MemoryError

    push_once(ledger, stash, PushSource("a", 1), "t", dense, Round(1, 0, 2), fail)
    with pytest.raises(MemoryError):
        push_once(ledger, stash, PushSource("b", 1), "t", dense, Round(1, 1, 2), fail)
    assert ledger.workers["b"]["t"].applying
    assert ledger.next_round("t") == 1
    assert stash.take("t", 1) is None


# --- one server -------------------------------------------------------------------------------------------------------


def test_a_round_is_one_step_once_all_parts_have_come() -> None:
    server = make_server()
    assert is_done(give(server, 0, 1, Round(1, 1, 3)))
    assert is_done(give(server, 1, 1, Round(1, 0, 3)))
    assert steps(server) == 0
    assert (server.stats().kept, server.shard.dense["dense"].num_steps) == (2, 0)
    assert is_done(give(server, 2, 1, Round(1, 2, 3)))
    assert steps(server) == 3
    assert (server.stats().kept, server.shard.dense["dense"].num_steps) == (0, 1)


def test_repeats_are_answered_and_not_kept_again() -> None:
    server = make_server()
    for _ in range(3):
        assert is_done(give(server, 0, 1, Round(1, 0, 2)))
    assert (server.stats().kept, server.counts.repeats) == (1, 2)
    for _ in range(2):
        assert is_done(give(server, 1, 1, Round(1, 1, 2)))
    assert is_done(give(server, 0, 1, Round(1, 0, 2))), "its round has been applied meanwhile"
    assert steps(server) == 2


def test_rounds_that_overlap_are_applied_in_the_order_of_their_numbers() -> None:
    server = make_server(2)
    assert is_done(give(server, 0, 1, Round(1, 0, 2), Round(2, 0, 2), Round(3, 0, 1)))
    assert (steps(server), server.stats().kept) == (0, 3)
    assert is_done(give(server, 1, 1, Round(2, 1, 2)))
    assert (steps(server), server.stats().kept) == (0, 4), "round 2 is complete, and round 1 is not"
    assert is_done(give(server, 1, 2, Round(1, 1, 2)))
    assert (steps(server), server.stats().kept) == (5, 0)
    assert server.shard.dense["dense"].num_steps == 3


def test_one_worker_may_bring_several_parts() -> None:
    server = make_server(1)
    assert is_done(give(server, 0, 1, Round(1, 1, 2), Round(1, 0, 2), Round(2, 0, 2)))
    assert (steps(server), server.stats().kept) == (2, 1)


def test_a_push_without_a_round_is_applied_at_once_beside_them() -> None:
    server = make_server(1)
    give(server, 0, 1, Round(1, 0, 2))
    answer = send(
        server,
        OpRequest(6, "worker-0", 1, 1, (PushDense("dense", 2, Packed((10,), "fp32")),)),
        [np.ones(10, np.float32)],
    )
    assert is_done(answer)
    assert (steps(server), server.stats().kept) == (1, 1)


@pytest.mark.parametrize(
    ("rounds", "text"),
    [
        ([Round(2, 0, 2)], "part 0 of round 2 of table dense came already, in another push"),
        ([Round(2, 1, 3)], "round 2 of table dense has 2 parts, and this contribution says 3"),
        ([Round(2, 0, 1)], "round 2 of table dense has 2 parts, and this contribution says 1"),
        ([Round(1, 0, 1)], "round 1 of table dense has been applied already, the next is round 2"),
        ([Round(2, 2, 2)], "table dense: part 2 of a round that has 2, 0 the first"),
        (
            [Round(3, 0, 2), Round(3, 0, 2)],
            "two contributions of a request do not fit together: round 3 of table dense",
        ),
        (
            [Round(3, 0, 2), Round(3, 1, 3)],
            "two contributions of a request do not fit together: round 3 of table dense",
        ),
        ([Round(3, 0, 2), Round(2, 1, 3)], "round 2 of table dense has 2 parts, and this contribution says 3"),
    ],
)
def test_what_does_not_fit_its_round_is_refused_and_changes_nothing(rounds: list[Round], text: str) -> None:
    server = make_server()
    give(server, 0, 1, Round(1, 0, 1), Round(2, 0, 2))
    assert refusal(give(server, 1, 1, *rounds)) == ("bad_request", text)
    assert (steps(server), server.stats().kept) == (1, 1)
    assert server.shard.dense["dense"].pieces.applied(PushSource("worker-1", 1), "dense") == 0
    assert is_done(give(server, 1, 1, Round(2, 1, 2))), "its place is still free"
    assert steps(server) == 3


def test_a_contribution_that_was_held_is_refused_like_others() -> None:
    """It fitted when it came, and no longer when its predecessor had."""
    server = make_server(2)
    op = PushDense("dense", 2, Packed((10,), "fp32"), None, Round(1, 0, 2))
    parts = server_codec().encode(OpRequest(9, "worker-1", 1, 1, (op,)), [np.ones(10, np.float32)])
    assert server.handle("peer", [contiguous(part) for part in parts], 0.0) == []
    give(server, 0, 1, Round(1, 0, 2))
    first = PushDense("dense", 1, Packed((10,), "fp32"))
    parts = server_codec().encode(OpRequest(8, "worker-1", 1, 1, (first,)), [np.ones(10, np.float32)])
    answers = server.handle("peer", [contiguous(part) for part in parts], 0.0)
    headers = [client_codec().decode(answer)[0] for _, answer in answers]
    assert [type(header) for header in headers] == [OpReply, Refused]
    assert server.stats().kept == 1


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=lambda order: "".join(map(str, order)))
def test_what_is_kept_is_a_copy(order: tuple[int, ...]) -> None:
    """Frames may lie in memory that the sender uses again as soon as it is answered."""
    server = make_server(3)
    start = server.shard.sparse["rows"].pull(KEYS)
    keys, grads, dense = KEYS.copy(), GRADS.copy(), np.empty(10, np.float32)
    for part in order:
        keys[:], grads[:], dense[:] = KEYS, 4**part, 4**part
        ops = (
            PushRows("rows", 1, PackedKeys(3), Packed((3, DIM), "fp32"), None, Round(1, part, 3)),
            PushDense("dense", 1, Packed((10,), "fp32"), None, Round(1, part, 3)),
        )
        parts = server_codec().encode(OpRequest(1, f"worker-{part}", 1, 1, ops), [keys, grads, dense])
        server.handle("peer", [memoryview(part).cast("B") for part in parts], 0.0)
        for array in (keys, grads, dense):
            array[:] = 99
    np.testing.assert_array_equal(server.shard.sparse["rows"].pull(KEYS, create=False), start - np.float32(21))
    assert len(server.shard.sparse["rows"]) == 3
    assert steps(server) == 21


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "value"), [("MAX_HELD", 2), ("MAX_HELD_BYTES", 80)])
def test_what_is_kept_has_limits_and_a_round_can_end_all_the_same(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(refusals, limit, value)
    server = make_server()
    assert is_done(give(server, 0, 1, Round(1, 1, 3), Round(2, 0, 3)))
    for worker, round in ((1, Round(1, 2, 3)), (2, Round(2, 1, 3))):
        code, text = refusal(give(server, worker, 1, round))
        assert code == "later"
        assert text.startswith("server server-0 keeps 2 contributions to rounds whose other parts have not come")
    assert is_done(give(server, 2, 1, Round(1, 0, 3), Round(1, 2, 3))), "what round 1 waits for has always room"
    assert (steps(server), server.stats().kept) == (3, 1)
    assert is_done(give(server, 1, 1, Round(2, 2, 3)))


def test_rounds_go_on_where_they_were_on_a_server_that_took_the_tables_over() -> None:
    server = make_server()
    give(server, 0, 1, Round(1, 0, 2))
    give(server, 1, 1, Round(1, 1, 2))
    again = Server("server-0", ROSTER, TABLES)
    restore_shard(again, [save_shard(server)])
    send(again, Hello(1, "worker-2", 1, TABLES.digest))
    assert refusal(give(again, 2, 1, Round(1, 0, 2)))[1].endswith("the next is round 2"), "rounds go on where they were"


def test_the_schedule_goes_by_the_samples_of_part_0() -> None:
    spec = TableSpec("rows", DIM, SGD(lr=1.0), seed=3, init_scale=0.0, schedule=LinearRate(until=100))
    moved = []
    for rounds in ([None], [Round(1, 1, 2), Round(1, 0, 2)]):
        server = Server("server-0", ROSTER, TableSpecs((spec,)))
        send(server, Hello(1, "worker-0", 1, TableSpecs((spec,)).digest))
        for sequence, round in enumerate(rounds, 1):
            samples = 90 if round is not None and round.part else 50
            op = PushRows("rows", sequence, PackedKeys(3), Packed((3, DIM), "fp32"), samples, round)
            assert is_done(send(server, OpRequest(1, "worker-0", 1, 1, (op,)), [KEYS, GRADS / len(rounds)]))
        moved.append(server.shard.sparse["rows"].pull(KEYS))
    assert moved[0].any()
    np.testing.assert_array_equal(*moved)


# --- changes of the roster --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Prepare, Switch])
def test_a_server_follows_no_roster_in_the_middle_of_a_round_and_begins_no_other_meanwhile(kind) -> None:
    server, new = make_server(), ROSTER.add(Seat("server-1"))
    give(server, 0, 1, Round(5, 0, 2))
    code, text = refusal(send(server, kind(2, new)))
    assert (code, text) == ("later", "server server-0 keeps 1 contributions to rounds whose other parts have not come")
    waits = "later", "server server-0 begins no round before it follows the next roster"
    assert refusal(give(server, 1, 1, Round(6, 0, 2))) == waits
    assert is_done(give(server, 0, 1, Round(5, 0, 2))), "a repeat"
    assert is_done(give(server, 0, 2, *(Round(number, 0, 1) for number in range(1, 5)))), "those before it must come"
    assert is_done(give(server, 1, 1, Round(5, 1, 2)))
    assert refusal(give(server, 1, 2, Round(6, 0, 2))) == waits
    assert isinstance(send(server, kind(3, new)), Agreed)
    assert isinstance(send(server, Switch(4, new)), Agreed)
    for answer in (send(server, Prepare(5, new)), send(server, Switch(6, new))):
        assert isinstance(answer, Agreed), "asked again"


def test_rounds_begin_again_if_the_rebalance_does_not_go_on() -> None:
    server = make_server()
    assert isinstance(send(server, Prepare(2, ROSTER.add(Seat("server-1"))), now=10.0), Agreed)
    assert refusal(give(server, 0, 1, Round(1, 0, 2), now=11.0))[0] == "later"
    assert is_done(give(server, 0, 1, Round(1, 0, 2), now=10.0 + server_module.DRAIN_S))


def test_a_request_with_a_part_that_a_begun_round_waits_for_is_taken_while_no_round_may_begin() -> None:
    """Beside it is a part of the next round. Refusing both would keep the begun round from its end."""
    server, new = make_server(), ROSTER.add(Seat("server-1"))
    give(server, 0, 1, Round(1, 0, 2))
    assert refusal(send(server, Prepare(2, new)))[0] == "later"
    assert is_done(give(server, 1, 1, Round(1, 1, 2), Round(2, 0, 2)))
    assert (steps(server), server.stats().kept) == (2, 1)


def test_rounds_begin_at_once_by_the_roster_that_was_prepared_for() -> None:
    server, new = make_server(), ROSTER.add(Seat("server-1"))
    for header in (Prepare(2, new), Switch(3, new)):
        assert isinstance(send(server, header, now=10.0), Agreed)
    op = PushDense("dense", 1, Packed((5,), "fp32"), None, Round(1, 0, 1))
    assert is_done(send(server, OpRequest(4, "worker-0", 1, new.epoch, (op,)), [np.ones(5, np.float32)], now=10.0))
    assert steps(server) == 1


def test_a_roster_that_does_not_follow_is_not_prepared_for() -> None:
    server = make_server()
    assert refusal(send(server, Prepare(2, ROSTER.add(Seat("server-1")).add(Seat("server-2")))))[0] == "bad_request"
    assert is_done(give(server, 0, 1, Round(1, 0, 2)))


class Overheard:
    """A channel that calls `then` once, when the first answer has come."""

    def __init__(self, channel: Channel, then: Callable[[], object]) -> None:
        self._channel, self._then = channel, [then]
        self.send = channel.send

    def receive(self, timeout_s: float | None = None) -> Received | None:
        received = self._channel.receive(timeout_s)
        if received is not None and self._then:
            self._then.pop()()
        return received


def test_a_rebalance_comes_again_until_the_round_has_ended() -> None:
    network, old = MemoryNetwork(), make_roster(2)
    with threaded_servers(old, TABLES, network) as servers, ExitStack() as clients:
        first, second = (RemoteClient(name, network.channel(name), old, TABLES) for name in ("first", "second"))
        clients.callback(first.close)
        clients.callback(second.close)
        first.push_dense("dense", np.ones(10, np.float32), round=Round(1, 0, 2)).result(30)
        channel = network.channel("asker")

        def end_round() -> None:
            second.push_dense("dense", np.ones(10, np.float32), round=Round(1, 1, 2)).result(30)

        assert run_rebalance(Overheard(channel, end_round), old, old.drop_last(), deadline_s=30.0) > 0
        np.testing.assert_array_equal(first.pull_dense("dense").result(30), np.full(10, -2, np.float32))
        assert servers[0].counts.dropped["later"] == 1
        first.push_dense("dense", np.ones(10, np.float32), round=Round(2, 0, 2)).result(30)
        with pytest.raises(PeerLost, match=r"within 0.2 s: server server-0 keeps 1 contributions to rounds"):
            run_rebalance(channel, old.drop_last(), old.drop_last().add(Seat("server-2")), deadline_s=0.2)


# --- clients ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_servers", [1, 3])
def test_clients_bring_contributions_by_keyword(num_servers: int) -> None:
    tables = make_tables(Adam(lr=0.1), Adam(lr=0.1))
    keys, grads = np.array([4, 9, 4, 7], np.uint64), np.arange(16, dtype=np.float32).reshape(4, DIM)
    dense = np.arange(10, dtype=np.float32)
    with remote_client(num_servers, tables) as client:
        cached = CachedClient(client, 0)
        pushes = []
        for part in range(2):
            lookup, round = make_lookup(keys[2 * part :][:2], num_servers), Round(1, part, 2)
            pushes.append(cached.push("rows", lookup, grads[2 * part :][:2], round=round))
            pushes.append(client.push_dense("dense", dense * part, round=round))
        for push in pushes:
            push.result(30)
        got = client.export_rows("rows")[0], *client.export_dense("dense")
        assert client.num_pushes("rows") == 1
    local = in_process(tables)
    local.push("rows", make_lookup(keys), grads, round=Round(1, 0, 1)).result()
    local.push_dense("dense", dense, round=Round(1, 0, 1)).result()
    expected = local.export_rows("rows")[0], *local.export_dense("dense")
    order = np.argsort(got[0].keys), np.argsort(expected[0].keys)
    for mine, wanted in zip(got[0].select(order[0]), expected[0].select(order[1]), strict=True):
        np.testing.assert_array_equal(mine, wanted)
    for mine, wanted in zip(got[1:], expected[1:], strict=True):
        np.testing.assert_array_equal(mine, wanted)


def test_tables_in_this_process_take_whole_rounds_only() -> None:
    local = in_process(TABLES)
    with pytest.raises(ValueError, match=r"table rows is in this process and takes rounds of one part, got one of 2"):
        local.push("rows", make_lookup(KEYS), GRADS, round=Round(1, 0, 2))
    with pytest.raises(ValueError, match="table dense is in this process"):
        local.push_dense("dense", np.ones(10, np.float32), round=Round(1, 0, 2))
    assert local.num_rows("rows") == 0


def test_stats_show_what_is_kept() -> None:
    server = make_server()
    for expected in (False, True):
        text = io.StringIO()
        Console(file=text, width=120).print(server_table(server.stats()))
        assert ("1 contribution kept for rounds" in text.getvalue()) == expected
        give(server, 0, 1, Round(1, 0, 2))


def test_a_ledger_of_before_rounds_can_be_read() -> None:
    old = Ledger()
    old.begin(PushSource("a", 1), "t")
    old.finish(PushSource("a", 1), "t")
    data = msgspec.msgpack.encode(old).replace(b"\x83", b"\x82", 1).replace(b"\xaanum_rounds\x80", b"", 1)
    ledger = msgspec.msgpack.decode(data, type=Ledger)
    assert ledger == old
    assert ledger.next_round("t") == 1
