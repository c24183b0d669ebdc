import zlib

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from heterps.config import Schema
from heterps.data.synthetic import (
    BASE_RATE,
    CARDINALITIES,
    DENSE,
    LABEL,
    SLOT_NULL_RATES,
    SLOTS,
    TEACHER_AUC,
    TEST_FIRST_ROW,
    ZIPF_EXPONENT,
    Teacher,
    make_rows,
)

NUM_ROWS = 100_000
DIGESTS = [3901849530, 3760760063]


@pytest.fixture(scope="module")
def rows():
    return make_rows(0, 0, NUM_ROWS)


def test_columns_are_those_of_the_default_schema():
    assert (Schema().label, Schema().dense, Schema().slots) == (LABEL, DENSE, SLOTS)


def test_a_row_depends_on_seed_and_number_only(rows):
    part = make_rows(0, 777, 100)
    for name in ("dense", "dense_valid", "ids", "ids_valid", "score", "draw"):
        assert (getattr(part, name) == getattr(rows, name)[..., 777:877]).all()
    assert (make_rows(1, 777, 100).ids != part.ids).any()


def test_rows_of_a_seed_stay_what_they_were_when_skews_were_not_yet_to_be_chosen():
    """A digest of ids and scores from before, so that figures on data of a seed stay comparable."""
    rows = make_rows(0, 0, 1000)
    assert [zlib.crc32(array.tobytes()) for array in (rows.ids, rows.dense.round(3))] == DIGESTS


def test_seen_marks_the_ids_that_occur():
    seen = np.zeros(CARDINALITIES.sum(), bool)
    rows = make_rows(3, 0, 1000, seen)
    assert seen.sum() == sum(len(np.unique(rows.ids[s][rows.ids_valid[s]])) for s in range(len(SLOTS)))


def test_ids_stay_in_their_ranges(rows):
    assert rows.ids.min() == 0
    assert (rows.ids.max(axis=1) < CARDINALITIES).all()
    assert (rows.ids.max(axis=1)[CARDINALITIES < 1000] == CARDINALITIES[CARDINALITIES < 1000] - 1).all()


@pytest.mark.parametrize("skew", [0.0, 1.0, ZIPF_EXPONENT, 1.5])
@pytest.mark.parametrize("slot", [0, 2, 5, 10])
def test_popularity_follows_the_bounded_zipf_law(slot, skew):
    """The share of the first k ranks is the continuous law's, within five standard deviations."""
    rows = make_rows(0, 0, NUM_ROWS, skew=skew)
    power, size = 1 - skew, CARDINALITIES[slot]
    for k in (1, 2, 5, 10, 20):
        share = ((k + 1.0) ** power - 1) / ((size + 1.0) ** power - 1) if power else np.log(k + 1) / np.log(size + 1)
        assert (rows.ids[slot] < k).mean() == pytest.approx(
            share, abs=5 * (share * (1 - share) / NUM_ROWS) ** 0.5 + 1e-12
        )


def test_nulls_come_at_their_rates(rows):
    assert 1 - rows.ids_valid.mean(axis=1) == pytest.approx(SLOT_NULL_RATES, abs=0.005)
    assert 1 - rows.dense_valid.mean() == pytest.approx(0.01, abs=0.001)


def test_dense_columns_are_standardised_with_a_long_tail(rows):
    assert rows.dense.mean(axis=1) == pytest.approx(np.zeros(13), abs=0.02)
    assert rows.dense.std(axis=1) == pytest.approx(np.ones(13), abs=0.03)
    assert (rows.dense.max(axis=1) > 6).all()
    assert rows.dense.min() > -2


@pytest.mark.parametrize(("seed", "skew"), [(0, 1.13), (1, 1.13), (2**63 - 1, 1.13), (0, 0.0), (0, 2.0)])
def test_the_teacher_of_every_seed_and_skew_has_the_auc_and_base_rate_aimed_at(seed, skew):
    rows = make_rows(seed, TEST_FIRST_ROW, NUM_ROWS, skew=skew)
    probability = Teacher.of(seed, skew).probability(rows.score)
    label = rows.draw < probability
    assert label.mean() == pytest.approx(BASE_RATE, abs=0.01)
    assert roc_auc_score(label, probability) == pytest.approx(TEACHER_AUC, abs=0.008)


def test_ids_tell_more_about_the_label_than_dense_columns(rows):
    """Fitted on half of the rows, log-odds counted for each id rank the other half better than a linear model of the
    dense columns does, and neither comes near the teacher."""
    label = (rows.draw < Teacher.of(0).probability(rows.score)).astype(float)
    half = NUM_ROWS // 2
    weights, *_ = np.linalg.lstsq(rows.dense.T[:half], label[:half] - BASE_RATE, rcond=None)
    by_dense = roc_auc_score(label[half:], rows.dense.T[half:] @ weights)
    log_odds = np.zeros(half)
    for s in range(len(SLOTS)):
        ids = np.where(rows.ids_valid[s], rows.ids[s] + 1, 0)
        size = CARDINALITIES[s] + 1
        ones = np.bincount(ids[:half], label[:half], size) + 20 * BASE_RATE
        rate = ones / (np.bincount(ids[:half], minlength=size) + 20)
        log_odds += np.log(rate / (1 - rate))[ids[half:]]
    by_ids = roc_auc_score(label[half:], log_odds)
    assert 0.55 < by_dense < by_ids - 0.03 < TEACHER_AUC - 0.05
