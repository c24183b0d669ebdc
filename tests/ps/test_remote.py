"""RemoteClient: tables on servers give what tables in this process give, to the bit."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import numpy as np
import pytest
from servers import DIM, make_roster, make_tables, remote_client, sorted_rows, threaded_servers

from heterps.config import SGD, Adagrad, Adam, LinearRate, Tiers
from heterps.errors import PeerLost, StaleIncarnation
from heterps.ps import Round
from heterps.ps.client.cache import CachedClient
from heterps.ps.client.interface import Client, JobClient
from heterps.ps.client.local import LocalClient
from heterps.ps.client.remote import RemoteClient
from heterps.ps.client.session import Options
from heterps.ps.keys.dedup import make_lookup
from heterps.ps.ops.tables import ExportCall
from heterps.ps.protocol import parts as parts_module
from heterps.ps.protocol.messages import Coding
from heterps.ps.protocol.specs import DenseSpec, TableSpec, TableSpecs
from heterps.ps.shard import transfer as transfer
from heterps.ps.shard.exports import MAX_IDLE_TICKS
from heterps.ps.table.dense import DenseTable
from heterps.wire import Channel, Limits, MemoryNetwork, TooLarge

OPTIMIZERS = [SGD(lr=0.1), Adagrad(lr=0.1), Adam()]


def train(client: Client, num: int = 8, seed: int = 0) -> list[np.ndarray]:
    """Everything that a few steps on both sparse tables and the dense one saw."""
    rng = np.random.default_rng(seed)
    seen = []
    for _ in range(num):
        keys = rng.integers(0, 200, 120)
        lookup = make_lookup(keys, client.num_shards)
        pulls = [client.pull("rows", lookup), client.pull("wide", lookup), client.pull_dense("dense")]
        seen += [pulls[0].result()[lookup.inverse], pulls[1].result()[lookup.inverse], pulls[2].result().copy()]
        client.push("rows", lookup, rng.normal(size=(120, DIM)).astype(np.float32))
        client.push("wide", lookup, rng.normal(size=(120, 1)).astype(np.float32))
        client.push_dense("dense", rng.normal(size=10).astype(np.float32))
    return seen


def local_client(tables, num_shards: int = 1) -> LocalClient:
    dense = {spec.name: DenseTable(spec.size, spec.optimizer) for spec in tables.dense}
    return LocalClient(tables.sparse, dense, num_shards)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: optimizer.kind)
@pytest.mark.parametrize("num_servers", [1, 3])
def test_servers_give_what_tables_in_this_process_give_to_the_bit(num_servers, optimizer):
    tables = make_tables(optimizer, optimizer)
    local = local_client(tables)
    with remote_client(num_servers, tables) as client:
        for expected, got in zip(train(local), train(client), strict=True):
            np.testing.assert_array_equal(got, expected)
        for table in ("rows", "wide"):
            (rows, num_pushes), (expected, expected_pushes) = client.export_rows(table), local.export_rows(table)
            assert num_pushes == expected_pushes
            for got, wanted in zip(sorted_rows([rows]), sorted_rows([expected]), strict=True):
                np.testing.assert_array_equal(got, wanted)
            assert client.num_rows(table) == local.num_rows(table)
            assert client.num_bytes(table) > 0


def test_schedules_follow_the_samples_that_the_client_is_told():
    schedule = LinearRate(warmup=100, until=1000)
    sparse = TableSpec("rows", DIM, SGD(lr=0.1), 3, 0.1, schedule=schedule)
    tables = TableSpecs((sparse,), (DenseSpec("dense", 10, SGD(lr=0.1), schedule),))
    local = LocalClient(tables.sparse, {"dense": DenseTable(10, SGD(lr=0.1), schedule)})
    lookup = make_lookup(np.arange(20))
    with remote_client(1, tables) as client:
        for samples in (0, 64, 512):
            for each in (local, client):
                each.samples = samples
                each.push("rows", lookup, np.ones((20, DIM), np.float32))
                each.push_dense("dense", np.ones(10, np.float32))
        np.testing.assert_array_equal(client.pull("rows", lookup).result(), local.pull("rows", lookup).result())
        np.testing.assert_array_equal(client.pull_dense("dense").result(), local.pull_dense("dense").result())


def test_what_an_iteration_asks_of_a_server_is_one_message():
    tables = make_tables()
    network, roster = MemoryNetwork(), make_roster(2)
    with threaded_servers(roster, tables, network) as servers:
        client = RemoteClient("worker", network.channel("worker"), roster, tables, options=Options(linger_s=60))
        lookup = make_lookup(np.arange(50), 2)
        futures: list[Future] = [client.pull("rows", lookup), client.pull("wide", lookup), client.pull_dense("dense")]
        for future in futures:
            future.result()
        client.close()
        assert [server.counts.requests for server in servers] == [1, 1]


def test_a_call_that_nobody_waits_for_goes_after_a_while():
    with remote_client(1, make_tables()) as client:
        done = Future()
        client.pull("rows", make_lookup(np.arange(5))).add_done_callback(done.set_result)
        assert done.result(timeout=30).result().shape == (5, DIM)


def test_rows_exported_from_three_servers_train_on_in_two():
    tables = make_tables(Adam())
    with remote_client(3, tables) as first, remote_client(2, tables) as second:
        train(first, 3)
        for table in ("rows", "wide"):
            second.import_rows(table, *first.export_rows(table))
        second.fill_dense("dense", first.pull_dense("dense").result())
        for table in ("rows", "wide"):
            assert second.num_rows(table) == first.num_rows(table)
        lookup, other = make_lookup(np.arange(200), 3), make_lookup(np.arange(200), 2)
        for client, found in ((first, lookup), (second, other)):
            client.push("rows", found, np.ones((200, DIM), np.float32))
        np.testing.assert_array_equal(
            first.pull("rows", lookup).result()[lookup.inverse], second.pull("rows", other).result()[other.inverse]
        )


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: optimizer.kind)
@pytest.mark.parametrize("num_servers", [1, 3, 7])
def test_a_dense_table_goes_on_elsewhere_as_if_nothing_had_happened(num_servers, optimizer):
    """Between servers and this process, both ways; 4 servers cut 10 values unequally, 7 leave some with one."""
    tables = make_tables(optimizer, optimizer)
    straight = local_client(tables)
    with remote_client(4, tables) as first, remote_client(num_servers, tables) as second:
        clients: list[JobClient] = [first, local_client(tables), second, local_client(tables)]
        for client in (straight, first):
            client.fill_dense("dense", np.arange(10, dtype=np.float32))
        for number, client in enumerate(clients):
            if number:
                client.import_dense("dense", *clients[number - 1].export_dense("dense"))
                client.fill_dense("dense", np.zeros(10, np.float32)).result()  # too late to count
            grads = np.random.default_rng(number).normal(size=(3, 10)).astype(np.float32)
            for each in grads:
                client.push_dense("dense", each)
                straight.push_dense("dense", each)
            for got, expected in zip(client.export_dense("dense"), straight.export_dense("dense"), strict=True):
                np.testing.assert_array_equal(got, expected)


def test_tables_of_any_size_travel_in_parts_of_one_moment(monkeypatch):
    """Parts of a hundred bytes; a push between two of them is in none."""
    monkeypatch.setattr(parts_module, "PART_BYTES", 100)
    tables = make_tables(Adam(), Adam(), dense_size=100)
    network, roster = MemoryNetwork(), make_roster(2)
    with threaded_servers(roster, tables, network) as servers, remote_client(3, tables) as second:
        first = RemoteClient("worker", network.channel("worker"), roster, tables)
        other = RemoteClient("other", network.channel("other"), roster, tables)
        lookup = make_lookup(np.arange(50), 2)
        for _ in range(3):
            first.push("rows", lookup, np.ones((50, DIM), np.float32))
            first.push_dense("dense", np.ones(100, np.float32))
        expected = first.pull("rows", lookup).result()
        submit = first._call

        def pushing_between(call):
            if isinstance(call, ExportCall) and call.op.part == 1:
                other.push("rows", lookup, np.ones((50, DIM), np.float32)).result()
                other.push_dense("dense", np.ones(100, np.float32)).result()
            return submit(call)

        monkeypatch.setattr(first, "_call", pushing_between)
        rows, num_pushes = first.export_rows("rows")
        values, state, num_steps = first.export_dense("dense")
        assert (num_pushes, num_steps) == (3, 4)
        second.import_rows("rows", rows, num_pushes)
        second.import_dense("dense", values, state, num_steps)
        there = make_lookup(np.arange(50), 3)
        np.testing.assert_array_equal(second.pull("rows", there).result()[there.inverse], expected[lookup.inverse])
        np.testing.assert_array_equal(second.pull_dense("dense").result(), values)
        for got, told in zip(second.export_dense("dense"), (values, state, num_steps), strict=True):
            np.testing.assert_array_equal(got, told)
        assert [len(server.shard.exports) for server in servers] == [0, 0]
        first.close()
        other.close()


def test_an_export_whose_copy_is_gone_begins_again(monkeypatch):
    monkeypatch.setattr(parts_module, "PART_BYTES", 100)
    network, roster, tables = MemoryNetwork(), make_roster(1), make_tables()
    with threaded_servers(roster, tables, network) as (server,):
        client = RemoteClient("worker", network.channel("worker"), roster, tables)
        client.pull("rows", make_lookup(np.arange(50))).result()
        submit, forgotten = client._call, []

        def forgetting(call):
            if isinstance(call, ExportCall) and call.op.part == 1 and len(forgotten) < 2:
                forgotten.append(call)
                for _ in range(MAX_IDLE_TICKS + 1):
                    server.shard.exports.tick()
            return submit(call)

        monkeypatch.setattr(client, "_call", forgetting)
        rows, _ = client.export_rows("rows")
        assert sorted(rows.keys) == list(range(50))
        assert [call.op.number for call in forgotten] == [1, 2]
        client.close()


def test_rows_are_not_loaded_into_a_table_that_has_some():
    tables = make_tables()
    with remote_client(2, tables) as first, remote_client(2, tables) as second:
        for client in (first, second):
            client.pull("rows", make_lookup(np.arange(50), 2)).result()
        with pytest.raises(PeerLost, match="rows are loaded into an empty table; this one has"):
            second.import_rows("rows", *first.export_rows("rows"))


@pytest.mark.parametrize("num_servers", [0, 2])
def test_dense_state_that_does_not_fit_is_refused_and_changes_nothing(num_servers):
    tables = make_tables(SGD(lr=0.1), Adam())
    with remote_client(max(num_servers, 1), tables) as remote:
        client: JobClient = remote if num_servers else local_client(tables)
        client.fill_dense("dense", np.ones(10, np.float32)).result()
        with pytest.raises(ValueError, match=r"dense table dense has 10 values, got shape \[9\]"):
            client.import_dense("dense", np.zeros(9, np.float32), np.zeros(18, np.float32), 1)
        with pytest.raises(ValueError, match=r"dense table dense has 10 values, got shape \[9\]"):
            client.fill_dense("dense", np.zeros(9, np.float32))
        with pytest.raises(ValueError, match=r"the saved state has 10 words, .* needs 20"):
            client.import_dense("dense", np.zeros(10, np.float32), np.zeros(10, np.float32), 1)
        values, _, num_steps = client.export_dense("dense")
        np.testing.assert_array_equal(values, np.ones(10))
        assert num_steps == 0


def test_the_tiers_of_tables_on_servers_are_told(tmp_path):
    spec = TableSpec("rows", DIM, SGD(lr=0.1), 3, 0.1, tiers=Tiers(memory_bytes=2**20, folder=str(tmp_path)))
    tables = TableSpecs((spec, TableSpec("plain", DIM, SGD(lr=0.1), 3, 0.1)))
    with remote_client(2, tables) as client:
        for table in ("rows", "plain"):
            client.pull(table, make_lookup(np.arange(300), 2))
        counts = client.tier_counts("rows")
        assert counts is not None
        assert (counts.memory_rows, counts.disk_rows) == (300, 0)
        assert client.tier_counts("plain") is None


@pytest.mark.parametrize(("coding", "tolerance"), [(Coding("fp16"), 2e-3), (Coding("bf16", "zstd", 1), 2e-2)])
def test_smaller_values_on_the_wire_are_near_the_exact_ones(coding, tolerance):
    tables = make_tables(SGD(lr=0.1))
    with remote_client(2, tables, Options(codings={"rows": coding})) as client:
        for expected, got in zip(train(local_client(tables), 3), train(client, 3), strict=True):
            np.testing.assert_allclose(got, expected, atol=tolerance)


def test_a_lookup_made_for_another_number_of_servers_works():
    tables = make_tables()
    with remote_client(3, tables) as client:
        lookup, other = make_lookup(np.arange(99), 3), make_lookup(np.arange(99), 5)
        rows = client.pull("rows", other).result()
        np.testing.assert_array_equal(rows[other.inverse], client.pull("rows", lookup).result()[lookup.inverse])


def test_only_the_first_fill_of_a_dense_table_counts():
    with remote_client(3, make_tables()) as client:
        client.fill_dense("dense", np.arange(10, dtype=np.float32)).result()
        client.fill_dense("dense", np.zeros(10, np.float32)).result()
        np.testing.assert_array_equal(client.pull_dense("dense").result(), np.arange(10))


def test_an_empty_pull_needs_no_server():
    with remote_client(1, make_tables()) as client:
        assert client.pull("rows", make_lookup(np.empty(0, np.uint64))).result().shape == (0, DIM)


def test_gradients_of_a_wrong_shape_are_refused_at_once():
    with remote_client(1, make_tables()) as client:
        with pytest.raises(ValueError, match=r"needs gradients \[9, 4\] for this lookup, got \[8, 4\]"):
            client.push("rows", make_lookup(np.arange(9)), np.zeros((8, DIM), np.float32))
        with pytest.raises(ValueError, match="has 10 values, got shape"):
            client.push_dense("dense", np.zeros(9, np.float32))


def test_a_server_that_does_not_answer_is_named_with_table_and_clock():
    network, roster, tables = MemoryNetwork(), make_roster(2), make_tables()
    with threaded_servers(roster, tables, network) as servers:
        options = Options(deadline_s=0.2, first_retry_s=0.05)
        client = RemoteClient("worker", network.channel("worker"), roster, tables, options=options)
        lookup = make_lookup(np.arange(20), 2)
        client.push("rows", lookup, np.ones((20, DIM), np.float32)).result()
        servers[1].handle = lambda *_: []
        with pytest.raises(PeerLost, match=r"server server-1 did not answer worker worker .* of table rows at clock 1"):
            client.pull("rows", lookup).result()
        with pytest.raises(PeerLost, match="server-1"):
            client.pull("wide", lookup)
        client.close()


def test_a_channel_that_breaks_ends_every_call():
    network, roster, tables = MemoryNetwork(), make_roster(1), make_tables()
    channel = network.channel("worker")
    broken = threading.Event()

    def receive(timeout_s: float) -> None:
        broken.wait(timeout_s)
        if broken.is_set():
            raise OSError("the wire is cut")

    channel.receive = receive
    client = RemoteClient("worker", channel, roster, tables)
    pull = client.pull("rows", make_lookup(np.arange(3)))
    broken.set()
    with pytest.raises(PeerLost, match="worker worker cannot reach its servers any more: the wire is cut"):
        pull.result(timeout=30)
    client.close()


def test_a_call_that_no_message_can_hold_fails_and_does_not_hang():
    with remote_client(1, make_tables()) as client:
        client._session._limits = client._session._requests.limits = Limits(message_bytes=1000)
        pull = client.pull("rows", make_lookup(np.arange(500)))
        with pytest.raises(TooLarge, match="exceeds the limit of 1000"):
            pull.result(timeout=30)


def test_a_worker_that_was_replaced_is_told_so():
    network, roster, tables = MemoryNetwork(), make_roster(1), make_tables()
    lookup = make_lookup(np.arange(3))
    with threaded_servers(roster, tables, network) as servers:
        old = RemoteClient("worker", network.channel("old"), roster, tables, incarnation=1)
        new = RemoteClient("worker", network.channel("new"), roster, tables, incarnation=2)
        old.push("rows", lookup, np.ones((3, DIM), np.float32)).result()
        new.push("rows", lookup, np.ones((3, DIM), np.float32)).result()
        with pytest.raises(StaleIncarnation, match="worker worker lives its life 2 already; its life 1 must end"):
            old.push("rows", lookup, np.ones((3, DIM), np.float32)).result()
        old.close()
        new.close()
        assert servers[0].shard.sparse["rows"].num_pushes == 2


def test_other_tables_than_the_servers_have_are_refused():
    network, roster = MemoryNetwork(), make_roster(1)
    with threaded_servers(roster, make_tables(), network):
        client = RemoteClient("worker", network.channel("worker"), roster, make_tables(SGD(lr=0.5)))
        with pytest.raises(PeerLost, match="expects other tables than server server-0 has"):
            client.pull("rows", make_lookup(np.arange(3))).result()
        client.close()


def test_rows_asked_for_ahead_of_a_push_are_used_while_they_miss_few_enough():
    with remote_client(2, make_tables(SGD(lr=1.0))) as client:
        cached = CachedClient(client, bound=1)
        lookup = make_lookup(np.arange(20), 2)
        grads = np.ones((20, DIM), np.float32)
        before = client.pull("rows", lookup).result().copy()
        first, second = (cached.ask_ahead("rows", lookup, iterations=1) for _ in range(2))
        assert first is not None
        assert second is not None
        cached.push("rows", lookup, grads)
        cached.tick()
        np.testing.assert_array_equal(first().result(), before)
        cached.push("rows", lookup, grads)
        cached.tick()
        np.testing.assert_array_equal(second().result(), before - 1 - 1)  # would miss two


def test_servers_apply_a_round_when_they_are_told_that_it_is_over_though_nobody_asks_for_anything():
    tables, network, roster = make_tables(SGD(lr=1.0), SGD(lr=1.0)), MemoryNetwork(), make_roster(1)
    with threaded_servers(roster, tables, network) as servers:
        first, second, coordinator = (
            RemoteClient(name, network.channel(name), roster, tables) for name in ("first", "second", "coordinator")
        )
        for part, client in enumerate((first, second)):
            client.push_dense("dense", np.ones(10, np.float32), round=Round(1, part, 2, waits=True)).result()
        coordinator.tell_rounds()
        assert coordinator.num_rounds("dense").result() == {0}, "nobody knows yet that the round is over"
        coordinator.end_rounds(1)
        coordinator.tell_rounds()
        coordinator.close()  # the message is on its way before
        first.num_rounds("rows").result()
        assert servers[0].shard.dense["dense"].num_steps == 1
        first.close()
        second.close()


def test_pulled_values_stay_as_they_were_and_may_be_read_only():
    with remote_client(1, make_tables(SGD(lr=1.0), SGD(lr=1.0))) as client:
        before = client.pull_dense("dense").result()
        client.push_dense("dense", np.ones(10, np.float32)).result()
        np.testing.assert_array_equal(client.pull_dense("dense").result(), before - 1)


def test_gradients_of_a_dense_table_are_the_callers_again_when_they_are_pushed():
    with remote_client(1, make_tables(SGD(lr=1.0), SGD(lr=1.0))) as client:
        grads = np.ones(10, np.float32)
        pushed = client.push_dense("dense", grads)
        grads[:] = 100
        pushed.result()
        np.testing.assert_array_equal(client.pull_dense("dense").result(), np.full(10, -1, np.float32))


def test_a_client_tells_what_its_talk_has_come_to():
    with remote_client(2, make_tables()) as client:
        client.pull("rows", make_lookup(np.arange(100), 2)).result()
        counts = client.counts
    assert counts.bytes_sent > 100 * 8
    assert counts.bytes_received > 100 * DIM * 4
    assert (counts.bytes_shared, counts.retries, counts.dropped) == (0, 0, 0)


class Recording:
    """A channel that notes how long each send may wait."""

    def __init__(self, channel: Channel) -> None:
        self.name, self.counters, self._channel = channel.name, channel.counters, channel
        self.receive, self.close = channel.receive, channel.close
        self.sends: list[tuple[str, float | None]] = []

    def send(self, peer, parts, deadline_s=None):
        self.sends.append((peer, deadline_s))
        self._channel.send(peer, parts, deadline_s)


def test_a_server_that_is_not_there_keeps_no_other_waiting_and_is_asked_as_soon_as_it_comes():
    tables, network, roster = make_tables(), MemoryNetwork(), make_roster(2)
    with threaded_servers(roster, tables, network, ["server-0"]):
        channel = Recording(network.channel("worker"))
        client = RemoteClient("worker", channel, roster, tables, options=Options(first_retry_s=60.0, deadline_s=120.0))
        mine = make_lookup(np.arange(50), 2)
        whole = client.pull("rows", mine)  # of both servers
        client.flush()
        first = make_lookup(mine.unique[: mine.bounds[1]], 2)  # of the one that is there
        assert client.pull("rows", first).result(timeout=30).shape == (mine.bounds[1], DIM)
        assert not whole.done()
        with threaded_servers(roster, tables, network, ["server-1"]):
            assert whole.result(timeout=30).shape == (50, DIM)  # long before a retry is due
        assert {deadline_s for _, deadline_s in channel.sends} == {0.0}
        assert client._session.retries == 0
        client.close()


def test_rows_of_another_kind_of_table_are_refused_as_by_tables_in_this_process():
    tables = make_tables(SGD(lr=0.1))
    rows = local_client(make_tables(Adagrad())).export_rows("rows")[0]
    with remote_client(2, tables) as remote:
        for client in (remote, local_client(tables)):
            with pytest.raises(ValueError, match=r"rows of dim 4 with sgd need values \[0, 4\] and state \[0, 0\]"):
                client.import_rows("rows", rows, 1)
        remote.pull("rows", make_lookup(np.arange(5), 2)).result()


def test_ops_with_long_names_go_in_as_many_messages_as_it_takes():
    name = "x" * 200
    tables = TableSpecs((TableSpec(name, DIM, SGD(), 0, 0.1),))
    with remote_client(1, tables, Options(linger_s=60.0)) as client:
        pulls = [client.pull(name, make_lookup(np.arange(3))) for _ in range(300)]
        assert [pull.result().shape for pull in pulls] == [(3, DIM)] * 300
