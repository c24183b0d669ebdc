import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps.data.epoch import Epoch
from heterps.data.sources import RowGroup


def groups_of(lengths):
    """Blocks of one row group each."""
    return [[RowGroup(None, index, 0, length)] for index, length in enumerate(lengths)]


def known(blocks, lengths):
    return {group: length for (group,), length in zip(blocks, lengths, strict=True)}


LENGTHS = st.lists(st.integers(0, 5), min_size=1, max_size=8)


@given(lengths=LENGTHS, data=st.data())
def test_a_row_is_placed_in_the_block_that_holds_it(lengths, data):
    blocks = groups_of(lengths)
    epoch = Epoch(blocks, known(blocks, lengths))
    places = [(block, row) for block, length in enumerate(lengths) for row in range(length)]
    for row in data.draw(st.permutations(range(len(places) + 2))):
        found = epoch.place(row)
        if row >= len(places):
            assert found is None
        elif places[row][1]:
            assert found == places[row]
        else:  # the first row of a block: named by the first block behind the row before it, empty or not
            assert found == ((places[row - 1][0] + 1 if row else 0), 0)
        assert epoch.gap(row) is None
    assert epoch.num_rows == len(places)


@given(lengths=LENGTHS, row=st.integers(0, 40))
def test_decoding_one_gap_after_the_other_finds_a_row_or_the_end(lengths, row):
    blocks, kept = groups_of(lengths), {}
    epoch, decoded = Epoch(blocks, kept), []
    while (gap := epoch.gap(row)) is not None:
        assert epoch.place(row) is None
        kept[blocks[gap][0]] = lengths[gap]
        decoded.append(gap)
    assert decoded == list(range(len(decoded)))
    assert (epoch.place(row) is not None) == (row < sum(lengths))
    if row < sum(lengths):
        assert sum(lengths[: len(decoded) - 1]) <= row < sum(lengths[: len(decoded)])  # no block more than needed


def test_blocks_before_one_that_is_told_need_not_be_known():
    blocks = groups_of([3, 4, 5, 2])
    epoch = Epoch(blocks, {blocks[2][0]: 5, blocks[3][0]: 2})
    epoch.set_first_row(2, 7)
    assert epoch.place(7) == (2, 0)
    assert epoch.place(11) == (2, 4)
    assert epoch.place(6) is None
    assert epoch.gap(6) == 0
    assert epoch.num_rows == 14


@pytest.mark.parametrize("row", [0, 3, 6])
def test_a_block_is_known_when_all_of_its_row_groups_are(row):
    pooled = [[RowGroup(None, 0, 0, 2), RowGroup(None, 1, 0, 2)], [RowGroup(None, 2, 0, 9)]]
    kept = {pooled[0][1]: 2, pooled[1][0]: 9}
    epoch = Epoch(pooled, kept)
    assert epoch.rows_of(0) is None
    assert epoch.gap(row) == 0
    kept[pooled[0][0]] = 2
    assert epoch.rows_of(0) == 4
    assert epoch.gap(row) is None


def test_a_block_is_noted_once_however_often_it_is_found():
    blocks = groups_of([3, 4, 5, 2])
    epoch = Epoch(blocks, known(blocks, [3, 4, 5, 2]))
    for _ in range(3):
        epoch.set_first_row(2, 7)
        assert [epoch.place(row) for row in (0, 3, 7, 13, 14)] == [(0, 0), (1, 0), (2, 0), (3, 1), None]
    assert epoch._known == [0, 1, 2, 3, 4]
    assert epoch._first_rows == [0, 3, 7, 12, 14]
