import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps.data.keys import hash_strings, make_keys, null_key, slots_from_ids
from heterps.errors import DataError

INT64 = st.integers(-(2**63), 2**63 - 1)
GOLDEN_INTEGERS = [3728489859469348353, 16972878168106010787, 11629194776675635482]
GOLDEN_STRINGS = [17024696446555883304, 7688862145188978444, 2515957195292599039]
GOLDEN_NULL = 12631938368601040148


def unmix(key: int) -> int:
    """The inverse of splitmix64's finaliser: what makes it a bijection."""
    mask = 2**64 - 1
    for shift, factor in ((31, pow(0x94D049BB133111EB, -1, 2**64)), (27, pow(0xBF58476D1CE4E5B9, -1, 2**64))):
        key = key ^ (key >> shift) ^ (key >> 2 * shift)
        key = key * factor & mask
    return key ^ (key >> 30) ^ (key >> 60)


@given(st.lists(INT64, min_size=1, max_size=20))
def test_every_int64_id_can_be_found_again_from_its_key(ids):
    keys = make_keys(np.array(ids, np.int64), "C1")
    seed = unmix(int(make_keys([0], "C1")[0]))
    assert [unmix(int(key)) ^ seed for key in keys] == [i % 2**64 for i in ids]


@given(st.integers(0, 2**64 - 1))
def test_unsigned_and_signed_ids_of_the_same_bits_share_a_key(value):
    unsigned = np.array([value], np.uint64)
    assert make_keys(unsigned, "a") == make_keys(unsigned.view(np.int64), "a")


def test_narrow_integers_get_the_keys_of_wide_ones():
    ids = np.array([-3, 0, 7], np.int16)
    assert (make_keys(ids, "a") == make_keys(ids.astype(np.int64), "a")).all()


def test_equal_ids_of_different_slots_get_different_keys():
    ids = np.arange(1000)
    assert not np.intersect1d(make_keys(ids, "C1"), make_keys(ids, "C2")).size


def test_keys_stay_what_checkpoints_hold():
    assert make_keys([0, 1, -1], "C1").tolist() == GOLDEN_INTEGERS
    assert make_keys(["", "a", "0123456789"], "C1").tolist() == GOLDEN_STRINGS
    assert null_key("C1") == GOLDEN_NULL


def test_null_has_a_key_of_its_own_in_every_slot():
    keys = make_keys(np.array([5, None, 6], object), "a")
    assert keys[1] == null_key("a") != null_key("b")
    assert (keys[[0, 2]] == make_keys([5, 6], "a")).all()


@given(st.lists(st.text(max_size=30), unique=True, max_size=30))
def test_different_strings_get_different_keys(strings):
    assert len(set(make_keys(np.array(strings, object), "a").tolist())) == len(strings)


def test_strings_that_differ_in_zero_bytes_only_are_told_apart():
    assert len(set(hash_strings([b"", b"\0", b"\0" * 8, b"\0" * 9]).tolist())) == 4


def test_text_and_its_bytes_get_one_key():
    assert make_keys(np.array(["ä"], object), "a") == make_keys(np.array(["ä".encode()], object), "a")


def test_slots_from_ids_interleaves_columns():
    ids = np.array([[1, 2], [3, 4], [5, 6]])
    slots = slots_from_ids(ids, ["a", "b"])
    assert slots.offsets is None
    assert len(slots) == 3
    assert (slots.keys.reshape(3, 2)[:, 1] == make_keys(ids[:, 1], "b")).all()


@pytest.mark.parametrize("ids", [[0.5], np.array([1, "a"], object), np.array([2**64], object)])
def test_ids_that_are_not_64_bit_integers_or_strings_are_refused(ids):
    with pytest.raises(DataError, match="slot a"):
        make_keys(ids, "a")


def test_ids_of_the_wrong_shape_are_refused():
    with pytest.raises(DataError, match=r"\[n, 3\].*\[2, 2\]"):
        slots_from_ids(np.zeros((2, 2), int), ["a", "b", "c"])


def test_slots_with_the_same_ids_share_keys_and_others_do_not():
    ids = np.array([[1, 2, 2], [2, 1, 1]])
    keys = slots_from_ids(ids, ("user", "item", "negative"), {"negative": "item"}).keys.reshape(2, 3)
    assert (keys[:, 1] == keys[:, 2]).all()
    assert not set(keys[:, 0]) & set(keys[:, 1])
