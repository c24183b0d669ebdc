"""Handover: chunks are taken in their order, once each, from servers of which something is expected."""

from __future__ import annotations

import numpy as np
import pytest
from servers import make_roster, make_tables

from heterps.ps.ops.moves import Deliver, Fetch, Handover
from heterps.ps.protocol import parts as parts_module
from heterps.ps.protocol.frames import Frames
from heterps.ps.protocol.roster import Seat
from heterps.ps.server.server import Server
from heterps.ps.shard import transfer as transfer
from heterps.ps.shard.transfer import ShardTransfer
from heterps.wire import Malformed
from heterps.wire.message import contiguous

OLD = make_roster(1)
NEW = OLD.add(Seat("server-1"))


@pytest.fixture
def deliveries(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Deliver, list[memoryview]]]:
    """All chunks that server 0 has for server 1, as they come to it."""
    monkeypatch.setattr(parts_module, "PART_BYTES", 200)
    source, shard = Handover(), Server("server-0", OLD, make_tables()).shard
    shard.sparse["rows"].pull(np.arange(40, dtype=np.uint64))
    source.begin(OLD, NEW, "server-0", shard, {"worker": 1})
    found, last = [], False
    while not last:
        number = len(found)
        chunk, frames = source.fetch(Fetch(1, 2, 1, number))
        last = chunk.last
        deliver = Deliver(1, 2, 0, number, last, chunk.table, chunk.part)
        found.append((deliver, [contiguous(frame) for frame in frames]))
    assert len(found) > 3
    with pytest.raises(Malformed, match=f"there is no chunk {len(found)} for server number 1"):
        source.fetch(Fetch(1, 2, 1, len(found)))
    assert not source.is_over
    source.forget(1)
    assert source.is_over
    return found


@pytest.fixture
def target() -> Handover:
    target, server = Handover(), Server("server-1", NEW, make_tables(), joining=True)
    target.begin(OLD, NEW, "server-1", server.shard, {})
    assert target.waits_for == ["server-0"]
    return target


def deliver(target: Handover, delivery: tuple[Deliver, list[memoryview]]) -> ShardTransfer | None:
    return target.deliver(delivery[0], Frames(delivery[1]))


def test_parcels_that_come_twice_count_once(target: Handover, deliveries: list) -> None:
    for delivery in deliveries[:-1]:
        assert deliver(target, delivery) is None
        assert deliver(target, delivery) is None
        assert not target.is_complete
    whole = deliver(target, deliveries[-1])
    assert whole is not None
    assert (owners := np.unique(whole.rows["rows"].keys)).size == len(whole.rows["rows"].keys) > 0
    assert owners.max() < 40
    target.arrived(0)
    assert target.is_complete
    assert all(deliver(target, delivery) is None for delivery in deliveries), "the move is over"


def test_a_parcel_before_its_predecessor_is_refused_and_changes_nothing(target: Handover, deliveries: list) -> None:
    for early in deliveries[1:]:
        with pytest.raises(Malformed, match=r"chunk \d+ of server number 0 came before chunk 0"):
            deliver(target, early)
    assert [deliver(target, delivery) is None for delivery in deliveries[:-1]] == [True] * (len(deliveries) - 1)
    with pytest.raises(Malformed, match="the ops of this message need more than its 0 frames"):
        deliver(target, (deliveries[-1][0], []))
    assert deliver(target, deliveries[-1]) is not None


def test_parcels_of_a_server_that_has_nothing_to_hand_over_are_refused(deliveries: list) -> None:
    with pytest.raises(Malformed, match="nothing is expected of server number 0"):
        deliver(Handover(), deliveries[0])
