"""Calls on whole tables: what a server that has left said does not count any more."""

from __future__ import annotations

import numpy as np
from servers import make_roster

from heterps.ps.ops.base import Ask
from heterps.ps.ops.metadata import Counted, CountRows, Metadata, ReadMetadataCall
from heterps.ps.ops.tables import ExportCall, ExportedPart
from heterps.ps.protocol.frames import Frames, pack_metadata
from heterps.ps.protocol.roster import Roster
from heterps.ps.table.metadata import TableCounters, TableMetadata
from heterps.wire.message import contiguous

NOTHING = TableCounters(0, 0, {"age": 0, "uses": 0, "bytes": 0})
OLD = make_roster(2)
NEW = OLD.drop_last()


def test_rows_of_a_server_that_has_left_are_not_counted() -> None:
    call = Ask(CountRows("rows", 0), Counted)
    for number, num_rows in enumerate((10, 5)):
        call.build(number, OLD)
        call.take(number, OLD, Counted(num_rows, 100 * num_rows, NOTHING, None), Frames([]))
    assert Counted.total(call.result().values()).num_rows == 15
    call.build(0, NEW)
    call.take(0, NEW, Counted(15, 1500, NOTHING, None), Frames([]))
    assert [(answer.num_rows, answer.num_bytes) for answer in call.result().values()] == [(15, 1500)]


def test_a_table_has_seen_as_many_pushes_as_the_shard_that_has_seen_the_fewest() -> None:
    call = ReadMetadataCall("rows", 0)

    def answer(number: int, roster: Roster, num_pushes: int) -> None:
        call.build(number, roster)
        infos, frames = pack_metadata(TableMetadata(number, 0, NOTHING, np.zeros(0, np.uint8)))
        call.take(number, roster, Metadata(num_pushes, infos), Frames([contiguous(frame) for frame in frames]))

    answer(0, OLD, 9)
    answer(1, OLD, 7)
    num_pushes, metadata = call.result()
    assert num_pushes == 7
    assert [each.hand for each in metadata] == [0, 1]
    answer(0, NEW, 9)
    assert call.result()[0] == 9
    assert len(call.result()[1]) == 1


def test_pages_of_an_older_roster_are_not_pages_of_an_export() -> None:
    call = ExportCall("rows", 0, 1)
    for number in range(2):
        call.build(number, OLD)
        call.take(number, OLD, ExportedPart(3, 1), Frames([]))
    assert (call.result().epoch, set(call.result().pages)) == (OLD.epoch, {0, 1})
    call.build(0, NEW)
    assert (call.result().epoch, call.result().pages) == (NEW.epoch, {})
    call.take(0, NEW, ExportedPart(3, 1), Frames([]))
    assert set(call.result().pages) == {0}
