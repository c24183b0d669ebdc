import gc
import random
import threading
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps.config import Schema
from heterps.data import reader as reader_module
from heterps.data import stream as stream_module
from heterps.data.reader import Position, Reader
from heterps.data.stream import BatchStream
from heterps.errors import DataError, PeerLost

SCHEMA = Schema(label="label", dense=("row",), slots=("a", "b"))
SKIPPING = SCHEMA.model_copy(update={"slot_missing": "skip"})
NUM_ROWS = 100
DEADLINE_S = 20.0


def write(path, ids, labels=None, row_group_size=9):
    """A file whose dense column is the row's number."""
    rows = range(len(ids))
    table = {
        "label": labels or [r % 2 for r in rows],
        "row": pa.array(rows, pa.float64()),
        "a": ids,
        "b": [-r for r in rows],
    }
    pq.write_table(pa.table(table), path, row_group_size=row_group_size)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write(folder / "whole.parquet", list(range(NUM_ROWS)))
    write(folder / "gappy.parquet", [r if r % 3 and r < 80 else None for r in range(NUM_ROWS)])
    write(folder / "bags.parquet", [list(range(100 * r, 100 * r + r % 4)) for r in range(NUM_ROWS)])
    return folder


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(reader_module, "BLOCK_ROWS", 16)


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    yield
    assert not [thread for thread in threading.enumerate() if thread.name == "prefetch"]


def unchanged(rows):
    return rows.pick()


def open_reader(files, kind="whole", batch_size=10, **options):
    schema = SKIPPING if kind == "gappy" else SCHEMA
    return Reader(str(files / f"{kind}.parquet"), schema, batch_size=batch_size, seed=3, **options)


def content(batch):
    offsets = None if batch.slots.offsets is None else batch.slots.offsets.tolist()
    return batch.dense.tolist(), batch.slots.keys.tolist(), offsets, batch.label.tolist()


def read_all(reader, epochs):
    """Every batch by (epoch, number), and where each starts."""
    batches, starts = {}, {}
    for epoch in range(epochs):
        start = Position(epoch, order=reader.order)
        for number, (batch, after) in enumerate(reader.read(Position(epoch))):
            batches[epoch, number], starts[epoch, number], start = content(batch), start, after
        starts[epoch, number + 1] = start
    return batches, starts


def count_decodes(reader, monkeypatch):
    decoded, decode = [], reader._decoder.decode
    monkeypatch.setattr(reader._decoder, "decode", lambda group: decoded.append(group) or decode(group))
    return decoded


def got(stream, keys):
    for key in keys:
        stream.expect(*key)
    return {key: content(stream.get(*key, DEADLINE_S)) for key in keys}


@pytest.mark.parametrize("kind", ["whole", "gappy", "bags"])
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("epochs_ahead", [0, 2, 3])
def test_all_batches_in_order_are_those_of_the_reader_and_end_as_it_does(files, kind, shuffle, epochs_ahead):
    batches, _ = read_all(open_reader(files, kind, shuffle=shuffle), 3)
    with BatchStream(open_reader(files, kind, shuffle=shuffle), 3, unchanged) as stream:
        stream.read_ahead(epochs_ahead)
        for epoch in range(3):
            keys = [key for key in batches if key[0] == epoch]
            assert got(stream, keys) == {key: batches[key] for key in keys}
            assert stream.get(epoch, len(keys), DEADLINE_S) is None
            assert stream.get(epoch, len(keys) + 7, DEADLINE_S) is None
            assert stream.num_batches(epoch) == len(keys)


@settings(max_examples=40)
@given(
    kind=st.sampled_from(["whole", "gappy", "bags"]),
    batch_size=st.integers(1, 60),
    shuffle=st.booleans(),
    depth=st.integers(0, 4),
    epochs_ahead=st.integers(0, 2),
    data=st.data(),
)
def test_any_batches_in_any_order_are_those_of_the_reader(files, kind, batch_size, shuffle, depth, epochs_ahead, data):
    batches, starts = read_all(open_reader(files, kind, batch_size, shuffle=shuffle), 2)
    keys = data.draw(st.lists(st.sampled_from(sorted(batches)), max_size=12))
    expected = data.draw(st.lists(st.sampled_from(sorted(starts)), max_size=5))
    with BatchStream(open_reader(files, kind, batch_size, shuffle=shuffle), depth, unchanged) as stream:
        stream.read_ahead(epochs_ahead)
        for key in expected:
            stream.expect(*key)
        for epoch, number in keys:
            assert content(stream.get(epoch, number, DEADLINE_S)) == batches[epoch, number]


@pytest.mark.parametrize("kind", ["whole", "gappy"])
def test_two_streams_divide_the_batches_between_them(files, kind):
    batches, _ = read_all(open_reader(files, kind, 4), 2)
    keys = list(batches)
    random.Random(0).shuffle(keys)
    with (
        BatchStream(open_reader(files, kind, 4), 2, unchanged) as one,
        BatchStream(open_reader(files, kind, 4), 2, unchanged) as other,
    ):
        half = len(keys) // 2
        assert got(one, sorted(keys[:half])) | got(other, sorted(keys[half:])) == batches


def test_blocks_without_a_wanted_batch_are_not_decoded(files, monkeypatch):
    reader = open_reader(files, batch_size=5)
    decoded = count_decodes(reader, monkeypatch)
    with BatchStream(reader, 2, unchanged) as stream:
        numbers = [1, 9, 10, 17]
        got(stream, [(0, number) for number in numbers])
    wanted = []
    for number in numbers:
        first, end = reader.position_of(0, number), reader.position_of(0, number + 1)
        wanted += range(first.block, end.block + (end.row > 0))
    groups = [group for block in sorted(set(wanted)) for group in reader.epoch(0).blocks[block]]
    assert decoded == groups
    assert len(groups) < len(reader.dataset.row_groups)


def test_going_back_one_block_decodes_nothing_again(files, monkeypatch):
    reader = open_reader(files, batch_size=3)
    decoded = count_decodes(reader, monkeypatch)
    with BatchStream(reader, 1, unchanged) as stream:
        for number in (0, 26, 1, 27, 2):
            stream.get(0, number, DEADLINE_S)
    assert len(decoded) == len(set(decoded))


def test_no_more_than_depth_batches_are_made_ahead(files):
    made, full = [], threading.Event()

    def prepare(rows):
        made.append(rows.pick())
        if len(made) == 3:
            full.set()
        return made[-1]

    with BatchStream(open_reader(files), 3, prepare) as stream:
        for number in range(8):
            stream.expect(0, number)
        assert full.wait(DEADLINE_S)
        assert stream.get(0, 7, DEADLINE_S) is made[3]  # who waits gets a batch though the line is full
        assert len(made) == 4
        assert stream.get(0, 0, DEADLINE_S) is made[0]
        assert stream.get(0, 3, DEADLINE_S) is made[4]


def test_a_batch_that_takes_too_long_is_named(files):
    go_on = threading.Event()

    def prepare(rows):
        assert go_on.wait(DEADLINE_S)
        return rows.pick()

    with BatchStream(open_reader(files), 1, prepare) as stream:
        with pytest.raises(PeerLost, match=r"batch 4 of epoch 1 was not read and prepared within 0\.01 s"):
            stream.get(1, 4, 0.01)
        go_on.set()
        assert len(stream.get(1, 4, DEADLINE_S)) == 10


def watch_blocks(reader, monkeypatch):
    """The blocks that are decoded, as (epoch, number), and a semaphore that counts them."""
    decoded, is_wanted, decode = [], threading.Semaphore(0), reader.decode

    def counted(epoch, block):
        decoded.append((epoch, block))
        is_wanted.release()
        return decode(epoch, block)

    monkeypatch.setattr(reader, "decode", counted)
    return decoded, is_wanted


def test_of_batches_that_are_shared_with_others_the_announced_one_is_decoded_ahead(files, monkeypatch):
    reader = open_reader(files, batch_size=5)
    decoded, is_wanted = watch_blocks(reader, monkeypatch)
    with BatchStream(reader, 1, unchanged) as stream:
        stream.announce(0, 15)
        stream.get(0, 0, DEADLINE_S)
        for _ in range(2):
            assert is_wanted.acquire(timeout=DEADLINE_S)
        there = reader.position_of(0, 15)
        assert decoded == [(0, 0), (0, there.block)]
        assert len(stream.get(0, 15, DEADLINE_S)) == 5
        for number in range(15, 0, -1):  # back, through other blocks
            stream.get(0, number, DEADLINE_S)
    assert decoded.count((0, there.block)) == 1, "it was announced once, and is over"


def test_the_next_block_is_decoded_while_one_is_used_and_none_twice(files, monkeypatch):
    reader = open_reader(files, batch_size=5)
    decoded, is_wanted = watch_blocks(reader, monkeypatch)
    blocks = [(epoch, block) for epoch in range(2) for block in range(len(reader.epoch(epoch).blocks))]
    with BatchStream(reader, 1, unchanged) as stream:
        stream.read_ahead(2)
        assert len(stream.get(0, 0, DEADLINE_S)) == 5, "of the first block, and there is more in it"
        for _ in range(2):
            assert is_wanted.acquire(timeout=DEADLINE_S)
        assert decoded == blocks[:2], "the second is decoded though nobody has asked for a batch of it"
        for epoch in range(2):
            for number in range(20):
                stream.get(epoch, number, DEADLINE_S)
                assert len(stream._state._blocks._decoded) <= stream_module.BLOCKS_KEPT, "a block is large"
    assert decoded == blocks


def test_a_block_that_cannot_be_read_ahead_is_an_error_of_its_own_batches_only(tmp_path, monkeypatch):
    write(tmp_path / "data.parquet", list(range(40)), row_group_size=20)
    reader = Reader(str(tmp_path), SCHEMA, batch_size=10, shuffle=False)
    decode, failures = reader.decode, [OSError("the disk is away")]

    def sometimes(epoch, block):
        if block == 1 and failures:
            raise failures.pop()
        return decode(epoch, block)

    monkeypatch.setattr(reader, "decode", sometimes)
    with BatchStream(reader, 1, unchanged) as stream:
        stream.read_ahead(1)
        for number in (0, 1):
            assert len(stream.get(0, number, DEADLINE_S)) == 10
        with pytest.raises(OSError, match="the disk is away"):
            stream.get(0, 2, DEADLINE_S)
        assert len(stream.get(0, 2, DEADLINE_S)) == 10, "it is tried again"


def test_an_error_of_the_data_comes_out_of_the_batch_concerned_only(tmp_path):
    write(
        tmp_path / "data.parquet", list(range(40)), labels=[7 if r == 25 else 0 for r in range(40)], row_group_size=10
    )
    reader = Reader(str(tmp_path), SCHEMA, batch_size=10, shuffle=False)
    with BatchStream(reader, 4, unchanged) as stream:
        for number in range(4):
            stream.expect(0, number)
        for _ in range(2):
            with pytest.raises(DataError, match=r"row 25 \(row 5 of row group 2\), column label"):
                stream.get(0, 2, DEADLINE_S)
        for number in (0, 1, 3):
            assert len(stream.get(0, number, DEADLINE_S)) == 10


def test_where_rows_may_be_skipped_an_error_behind_a_batch_does_not_concern_it(tmp_path):
    write(
        tmp_path / "data.parquet", list(range(20)), labels=[7 if r == 15 else 0 for r in range(20)], row_group_size=10
    )
    reader = Reader(str(tmp_path), SKIPPING, batch_size=10, shuffle=False)
    with BatchStream(reader, 4, unchanged) as stream:
        assert len(stream.get(0, 0, DEADLINE_S)) == 10
        with pytest.raises(DataError, match="row 15"):
            stream.get(0, 1, DEADLINE_S)


def test_data_of_which_every_row_is_skipped_is_an_error(tmp_path):
    write(tmp_path / "data.parquet", pa.array([None] * 5, pa.int64()))
    with (
        BatchStream(Reader(str(tmp_path), SKIPPING, batch_size=2), 1, unchanged) as stream,
        pytest.raises(DataError, match="every one of the 5 rows was skipped"),
    ):
        stream.get(0, 0, DEADLINE_S)


def test_an_exception_of_prepare_reaches_the_caller(files):
    with (
        BatchStream(open_reader(files), 1, lambda batch: 1 // 0) as stream,
        pytest.raises(ZeroDivisionError),
    ):
        stream.get(0, 0, DEADLINE_S)


def test_closing_ends_the_thread_and_a_closed_stream_says_so(files):
    stream = BatchStream(open_reader(files), 2, unchanged)
    stream.expect(0, 0)
    stream.close()
    stream.close()
    with pytest.raises(PeerLost, match=r"batch 3 of epoch 0 .* closed"):
        stream.get(0, 3, DEADLINE_S)


def test_dropping_the_stream_ends_the_thread(files):
    stream = BatchStream(open_reader(files), 2, unchanged)
    stream.expect(0, 0)
    stream.expect(0, 5)
    assert len(stream.get(0, 0, DEADLINE_S)) == 10
    del stream
    gc.collect()


def test_a_depth_below_zero_is_refused(files):
    with pytest.raises(ValueError, match="at least 0"):
        BatchStream(open_reader(files), -1, unchanged)


def test_without_depth_batches_are_the_same_and_there_is_no_thread(files):
    before, expected = threading.active_count(), [batch for batch, _ in open_reader(files).read()]
    with BatchStream(open_reader(files), 0, unchanged) as stream:
        for number, batch in enumerate(expected):
            stream.expect(0, number + 1)
            found = stream.get(0, number, 1.0)
            assert found is not None
            np.testing.assert_array_equal(found.dense, batch.dense)
            np.testing.assert_array_equal(found.slots.keys, batch.slots.keys)
            assert threading.active_count() == before
        assert stream.peek(0, len(expected)) is stream.get(0, len(expected), 1.0) is None
        assert stream.num_batches(0) == len(expected)
        assert stream.peek(0, 1) is stream.get(0, 1, 1.0) is not None


def test_a_batch_that_is_made_can_be_looked_at_before_it_is_taken(files):
    with BatchStream(open_reader(files), 2, unchanged) as stream:
        assert stream.peek(0, 1) is None
        stream.get(0, 0, 10.0)
        stream.expect(0, 1)
        deadline = time.monotonic() + 10
        while (seen := stream.peek(0, 1)) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert seen is not None
        assert stream.get(0, 1, 10.0) is seen


def test_what_was_expected_and_given_to_others_makes_room(files):
    made, full = [], threading.Event()

    def prepare(rows):
        batch = rows.pick()
        made.append(batch)
        if len(made) == 2:
            full.set()
        return batch

    with BatchStream(open_reader(files), 2, prepare) as stream:
        for number in (0, 1, 5):
            stream.expect(0, number)
        assert full.wait(DEADLINE_S)
        stream.forget_before(0, 5)
        assert stream.get(0, 5, DEADLINE_S) is made[2]
        assert stream.get(0, 0, DEADLINE_S) is made[3]  # it is made anew


def test_the_batch_from_which_on_others_are_forgotten_is_not_forgotten(files):
    made, full = [], threading.Event()

    def prepare(rows):
        batch = rows.pick()
        made.append(batch)
        if len(made) == 2:
            full.set()
        return batch

    with BatchStream(open_reader(files), 2, prepare) as stream:
        for number in (0, 5):
            stream.expect(0, number)
        assert full.wait(DEADLINE_S)
        assert stream.get(0, 0, DEADLINE_S) is made[0]
        stream.expect(0, 6)
        assert stream.get(0, 6, DEADLINE_S) is made[2]  # so that 5 is surely laid down, and not only made
        stream.forget_before(0, 5)
        assert stream.get(0, 5, DEADLINE_S) is made[1]


def test_a_batch_that_waits_for_room_is_kept_where_those_before_it_are_forgotten(files):
    made, full, third = [], threading.Event(), threading.Event()

    def prepare(rows):
        batch = rows.pick()
        made.append(batch)
        if len(made) == 2:
            full.set()
        if len(made) == 3:
            third.set()
        return batch

    with BatchStream(open_reader(files), 2, prepare) as stream:
        for number in (0, 1, 5):
            stream.expect(0, number)
        assert full.wait(DEADLINE_S)
        stream.forget_before(0, 5)
        assert third.wait(DEADLINE_S), "batch 5 was forgotten: it is made only when somebody asks for it"


def test_a_batch_is_made_once_however_often_it_is_expected_and_asked_for(files):
    entered, go_on, made = threading.Event(), threading.Event(), []

    def prepare(rows):
        batch = rows.pick()
        entered.set()
        assert go_on.wait(DEADLINE_S)
        made.append(batch)
        return batch

    with BatchStream(open_reader(files), 3, prepare) as stream:
        stream.expect(0, 0)
        assert entered.wait(DEADLINE_S)
        stream.expect(0, 0)  # while it is being made
        with pytest.raises(PeerLost):
            stream.get(0, 0, 0.001)
        stream.expect(0, 1)
        go_on.set()
        assert stream.get(0, 1, DEADLINE_S) is made[1]
        stream.expect(0, 0)  # when it is made
        stream.expect(0, 2)
        assert stream.get(0, 2, DEADLINE_S) is made[2]
        assert stream.get(0, 0, DEADLINE_S) is made[0]
        assert len(made) == 3
        assert not stream._state._urgent, "nobody waits for anything any more"


def test_a_batch_that_is_ready_after_the_stream_was_closed_is_let_go(files):
    stream = BatchStream(open_reader(files), 3, lambda batch: state.close() or batch)
    state = stream._state
    stream.expect(0, 0)
    for thread in threading.enumerate():
        if thread.name == "prefetch":
            thread.join(DEADLINE_S)
    assert not state.made
    with pytest.raises(PeerLost, match="closed"):
        stream.get(0, 0, DEADLINE_S)
    stream.close()
