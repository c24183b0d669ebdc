import dataclasses
import itertools
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps.config import Schema
from heterps.data import reader as reader_module
from heterps.data.keys import make_keys
from heterps.data.prefetch import Prefetch
from heterps.data.reader import Blocks, Position, Reader
from heterps.errors import DataError

SCHEMA = Schema(label="label", dense=("row",), slots=("a", "b"))
NUM_ROWS = 100
GOLDEN_ORDER = [5, 0, 18, 87, 7, 88, 10, 3, 90, 12]


def write(path, rows, row_group_size, a=None):
    """A file whose dense column is the row's number, so that a batch tells which rows it holds."""
    table = {
        "label": [r % 2 for r in rows],
        "row": pa.array(rows, pa.float64()),
        "a": a or rows,
        "b": [-r for r in rows],
    }
    pq.write_table(pa.table(table), path, row_group_size=row_group_size)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write(folder / "0.parquet", list(range(70)), 20)
    write(folder / "1.parquet", list(range(70, NUM_ROWS)), 7)
    return folder


@pytest.fixture(scope="module")
def gappy(tmp_path_factory):
    """The same rows, but every third id is null, and all of the last row groups."""
    folder = tmp_path_factory.mktemp("gappy")
    write(folder / "0.parquet", list(range(NUM_ROWS)), 9, a=[r if r % 3 and r < 80 else None for r in range(NUM_ROWS)])
    return folder


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(reader_module, "BLOCK_ROWS", 16)


def make(folder, **options):
    return Reader(str(folder), SCHEMA, **{"batch_size": 10, **options})


def rows_of(batches):
    return [batch.dense[:, 0].astype(int).tolist() for batch, _ in batches]


def flat(lists):
    return [item for items in lists for item in items]


def test_batches_hold_the_values_of_their_rows(folder):
    for batch, _ in make(folder).read():
        rows = batch.dense[:, 0].astype(np.int64)
        keys = batch.slots.keys.reshape(-1, 2)
        assert (batch.label == rows % 2).all()
        assert (keys[:, 0] == make_keys(rows, "a")).all()
        assert (keys[:, 1] == make_keys(-rows, "b")).all()
        assert batch.dense.dtype == batch.label.dtype == np.float32


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("batch_size", [1, 7, 33, 99, 100])
def test_every_row_comes_once_an_epoch_in_full_batches_but_the_last(folder, shuffle, batch_size):
    batches = rows_of(make(folder, batch_size=batch_size, shuffle=shuffle).read())
    assert sorted(flat(batches)) == list(range(NUM_ROWS))
    assert all(len(rows) == batch_size for rows in batches[:-1])
    assert len(batches[-1]) == (NUM_ROWS % batch_size or batch_size)


def test_without_shuffling_rows_come_as_stored(folder):
    assert flat(rows_of(make(folder, shuffle=False).read())) == list(range(NUM_ROWS))


def test_order_is_a_function_of_seed_and_epoch(folder):
    orders = {(s, e): flat(rows_of(make(folder, seed=s).read(Position(epoch=e)))) for s in (0, 1) for e in (0, 1)}
    assert len({tuple(order) for order in orders.values()}) == 4
    assert orders[1, 1] == flat(rows_of(make(folder, seed=1).read(Position(epoch=1))))


def test_shuffling_mixes_row_groups_and_rows(folder):
    first = flat(rows_of(make(folder).read()))
    assert sum(abs(a - b) == 1 for a, b in itertools.pairwise(first)) < 20
    # Small row groups (7 rows) are pooled: a run of 16 rows comes from several of them.
    assert any(max(first[i : i + 8]) - min(first[i : i + 8]) > 20 for i in range(len(first) - 8))


def test_the_order_is_the_same_on_every_machine_and_version(folder):
    assert flat(rows_of(make(folder).read()))[:10] == GOLDEN_ORDER


@settings(max_examples=40)
@given(batch_size=st.integers(1, NUM_ROWS), stop=st.integers(0, 250), shuffle=st.booleans(), skip=st.booleans())
def test_going_on_from_a_position_equals_never_stopping(folder, gappy, batch_size, stop, shuffle, skip):
    schema = SCHEMA.model_copy(update={"slot_missing": "skip" if skip else "key"})

    def run(position, epochs=3):
        reader = Reader(str(gappy if skip else folder), schema, batch_size=batch_size, shuffle=shuffle, seed=5)
        while position.epoch < epochs:
            for batch, position in reader.read(position):  # noqa: B020
                yield batch, position

    whole = list(run(Position()))
    stop = min(stop, len(whole) - 1)
    saved = json.dumps(dataclasses.asdict(whole[stop][1]))
    assert rows_of(run(Position(**json.loads(saved)))) == rows_of(whole[stop + 1 :])


def test_blocks_before_the_position_are_not_read(folder, monkeypatch):
    positions = [position for _, position in make(folder).read()]
    reader, decoded = make(folder), []
    decode = reader._decoder.decode
    monkeypatch.setattr(reader._decoder, "decode", lambda group: decoded.append(group) or decode(group))
    list(reader.read(positions[6]))
    skipped = flat(reader._blocks(0)[: positions[6].block])
    assert skipped
    assert not set(skipped) & set(decoded)


def test_positions_count_samples_and_end_at_the_next_epoch(folder):
    positions = [position for _, position in make(folder, batch_size=30).read()]
    assert [position.samples for position in positions] == [30, 60, 90, 0]
    assert dataclasses.replace(positions[-1], order="") == Position(epoch=1)


def test_a_position_in_other_data_is_refused(folder, tmp_path):
    position = next(iter(make(folder).read()))[1]
    write(tmp_path / "0.parquet", list(range(70)), 20)
    for other in (make(tmp_path), make(folder, seed=1), make(folder, shuffle=False)):
        with pytest.raises(DataError, match="belongs to other data"):
            next(other.read(position))


def test_prefetching_changes_nothing(folder):
    with Prefetch(make(folder).read(), 3) as batches:
        assert rows_of(batches) == rows_of(make(folder).read())


@pytest.mark.parametrize("batch_size", [0, NUM_ROWS + 1])
def test_a_batch_larger_than_the_data_says_both_numbers(folder, batch_size):
    with pytest.raises(DataError, match=rf"batch of {batch_size} samples .* 100 rows\. Set data\.batch_size"):
        make(folder, batch_size=batch_size)


def test_rows_skipped_leave_full_batches_and_an_exact_end(tmp_path):
    ids = [None if r % 3 == 0 or r >= 40 else r for r in range(60)]
    write(tmp_path / "0.parquet", list(range(60)), 10, a=ids)
    kept = [r for r in range(60) if ids[r] is not None]
    schema = SCHEMA.model_copy(update={"slot_missing": "skip"})
    reader = Reader(str(tmp_path), schema, batch_size=13, shuffle=False)
    batches = list(reader.read())
    assert rows_of(batches) == [kept[:13], kept[13:]]  # 26 rows: the last batch is full, and known to be the last
    assert batches[-1][1].epoch == 1
    assert reader.counts.num_skipped == 60 - len(kept)
    assert reader.counts.missing == {"a": 60 - len(kept)}


def test_a_data_set_of_which_every_row_is_skipped_is_an_error(tmp_path):
    write(tmp_path / "0.parquet", list(range(5)), 2, a=[None] * 5)
    schema = SCHEMA.model_copy(update={"slot_missing": "skip"})
    with pytest.raises(DataError, match="every one of the 5 rows was skipped"):
        list(Reader(str(tmp_path), schema, batch_size=2).read())


@pytest.mark.parametrize("shuffle", [True, False])
def test_lists_become_bags_across_blocks(tmp_path, shuffle):
    bags = [list(range(100 * r, 100 * r + r % 4)) for r in range(50)]
    write(tmp_path / "0.parquet", list(range(50)), 4, a=bags)
    seen = []
    for batch, _ in make(tmp_path, batch_size=15, shuffle=shuffle).read():
        slots = batch.slots
        assert len(slots) == len(batch)
        for i, row in enumerate(batch.dense[:, 0].astype(int)):
            a = slots.keys[slots.offsets[2 * i] : slots.offsets[2 * i + 1]]
            b = slots.keys[slots.offsets[2 * i + 1] : slots.offsets[2 * i + 2]]
            assert a.tolist() == make_keys(np.array(bags[row], np.int64), "a").tolist()
            assert b.tolist() == make_keys([-row], "b").tolist()
            seen.append(row)
    assert sorted(seen) == list(range(50))


@pytest.mark.parametrize("schema", [Schema(dense=("row",), slots=()), Schema(dense=(), slots=("a",))])
def test_a_schema_may_lack_slots_or_dense_columns(folder, schema):
    batch, _ = next(Reader(str(folder), schema, batch_size=10).read())
    assert batch.dense.shape == (10, len(schema.dense))
    assert len(batch.slots.keys) == 10 * len(schema.slots)


@settings(max_examples=40)
@given(batch_size=st.integers(1, NUM_ROWS), epoch=st.integers(0, 3), shuffle=st.booleans())
def test_where_a_batch_starts_is_known_without_decoding(folder, batch_size, epoch, shuffle):
    reader = make(folder, batch_size=batch_size, shuffle=shuffle)
    ends = [position for _, position in reader.read(Position(epoch=epoch))]
    fresh = make(folder, batch_size=batch_size, shuffle=shuffle)
    assert fresh.num_batches == len(ends)
    starts = [fresh.position_of(epoch, number) for number in range(len(ends) + 2)]
    assert starts == [Position(epoch, order=fresh.order), *ends, None]
    assert fresh.counts.num_rows == 0


@settings(max_examples=20)
@given(batch_size=st.integers(1, 40), shuffle=st.booleans())
def test_where_rows_may_be_skipped_an_epoch_read_tells_where_the_batches_of_all_epochs_start(
    gappy, batch_size, shuffle
):
    schema = SCHEMA.model_copy(update={"slot_missing": "skip"})
    reader = Reader(str(gappy), schema, batch_size=batch_size, shuffle=shuffle)
    assert reader.num_batches is None
    assert reader.position_of(0, 0) is None  # perhaps every row is skipped
    ends = [position for _, position in reader.read()]
    assert reader.num_batches == len(ends)
    assert [reader.position_of(0, number + 1) for number in range(len(ends))] == ends
    before = reader.counts.num_rows
    starts = [reader.position_of(1, number + 1) for number in range(len(ends))]
    assert reader.counts.num_rows == before
    assert starts == [position for _, position in reader.read(Position(epoch=1))]


def test_a_batch_is_given_before_the_block_behind_it_is_decoded(tmp_path):
    write(tmp_path / "0.parquet", list(range(40)), 20)
    reader = make(tmp_path, batch_size=20, shuffle=False)
    next(reader.read())
    assert reader.counts.num_rows == 20


@pytest.mark.parametrize(
    ("batch_size", "shuffle", "batches"), [(3, True, 6), (3, False, 3), (1, False, 10), (90, True, 1)]
)
def test_a_block_makes_about_so_many_batches(tmp_path, batch_size, shuffle, batches):
    write(tmp_path / "0.parquet", list(range(100)), 10)  # ten row groups; shuffled, two of them are a block of 20
    assert make(tmp_path, batch_size=batch_size, shuffle=shuffle).batches_per_block == batches


def test_a_batch_may_be_the_whole_data_and_no_larger(folder):
    ((batch, after),) = make(folder, batch_size=NUM_ROWS).read()
    assert len(batch) == NUM_ROWS
    assert after.epoch == 1
    with pytest.raises(DataError, match="between 1 and 100"):
        make(folder, batch_size=NUM_ROWS + 1)


def test_row_groups_are_pooled_until_a_block_has_just_enough_rows(tmp_path):
    write(tmp_path / "0.parquet", list(range(64)), 8)
    blocks = make(tmp_path).epoch(0).blocks
    assert [[group.num_rows for group in block] for block in blocks] == [[8, 8]] * 4


def test_long_rows_are_pooled_only_as_far_as_the_memory_of_a_block_goes(tmp_path, monkeypatch):
    write(tmp_path / "0.parquet", list(range(64)), 4)
    for block_bytes, groups in ((4 * 8, 2), (4 * 8 - 1, 2), (4 * 4, 1), (1, 1), (4 * 1000, 4)):
        monkeypatch.setattr(reader_module, "BLOCK_BYTES", block_bytes)
        assert {len(block) for block in make(tmp_path).epoch(0).blocks} == {groups}


def test_a_position_fits_only_what_decides_the_order(folder, monkeypatch):
    orders = [
        make(folder).order,
        make(folder, seed=1).order,
        make(folder, shuffle=False).order,
        Reader(str(folder), SCHEMA.model_copy(update={"slots": ("a",)}), batch_size=10).order,
    ]
    monkeypatch.setattr(reader_module, "BLOCK_ROWS", 17)
    orders.append(make(folder).order)
    assert len(set(orders)) == len(orders)
    assert make(folder, batch_size=11).order == orders[-1], "the size of batches does not change the order of rows"


def test_every_block_of_every_epoch_is_shuffled_in_its_own_way(folder):
    reader, rows = make(folder), np.arange(50)
    shuffled = [tuple(reader._shuffled(rows, epoch, block).tolist()) for epoch in range(3) for block in range(3)]
    assert len(set(shuffled)) == 9
    assert all(sorted(one) == rows.tolist() for one in shuffled)


def test_of_decoded_blocks_the_one_used_longest_ago_is_let_go(folder, monkeypatch):
    reader, decoded = make(folder), []
    decode = reader.decode
    monkeypatch.setattr(reader, "decode", lambda epoch, block: decoded.append(block) or decode(epoch, block))
    blocks = Blocks(reader, 2)
    for block in (0, 1, 0, 2, 0, 1):
        blocks.rows(0, block)
    assert decoded == [0, 1, 2, 1]
