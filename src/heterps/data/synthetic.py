"""Criteo-like samples as a pure function of (seed, row), and the teacher model that draws their labels.

    (seed, row, column) --> bits --> uniform --+--> dense: standardised, nearly log-normal, a few nulls
                                               +--> id: bounded Zipf by inverting the continuous CDF, some nulls
    (seed, slot, id)    --> bits --> effect and latents of the id: no table anywhere

    score = weights . dense  +  effects of ids  +  products of latents of slot pairs  +  dense x latent
    P(label = 1) = sigmoid(temperature * score + bias)

Rows do not depend on how they are divided into files or threads, so the first n rows of a longer data set are the same.
Temperature and bias are solved for on separate rows, so that every seed has the intended AUC and base rate. The effect
of an id shrinks with its rank: an id that is seen twice cannot be learned, so popular ids carry the signal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit, uint64
from numpy.typing import NDArray

from heterps.arrays import FloatArray
from heterps.data.draws import GOLDEN, SQRT3, bits_of, quarter, to_uniform, zipf_power
from heterps.hashing import mix64

# fmt: off
CARDINALITIES = np.array([
    1_460, 583, 1_200_000, 600_000, 305, 24, 12_517, 633, 3, 93_145, 5_683, 1_000_000, 3_194,
    27, 14_992, 700_000, 10, 5_652, 2_173, 4, 800_000, 18, 15, 120_000, 105, 90_000,
], np.int64)
# fmt: on
"""Number of possible ids of each slot: Criteo's, with the largest scaled down so that all rows fit a laptop."""

NUM_DENSE, NUM_SLOTS = 13, len(CARDINALITIES)
LABEL = "label"
DENSE = tuple(f"I{i + 1}" for i in range(NUM_DENSE))
SLOTS = tuple(f"C{i + 1}" for i in range(NUM_SLOTS))

ZIPF_EXPONENT = 1.13  # about half a million distinct ids in 500,000 rows
DENSE_NULL_RATE = 0.01
SLOT_NULL_RATES = np.where(np.arange(NUM_SLOTS) % 4 == 3, 0.05, 0.0)
PAIRS = np.array([[1, 4], [5, 7], [8, 13], [16, 24], [0, 21], [19, 22], [17, 10], [18, 12]])  # slot x slot
CROSSES = np.array([[0, 5], [3, 8], [6, 16], [9, 22]])  # dense x slot

BASE_RATE = 0.25
TEACHER_AUC = 0.805
TEST_FIRST_ROW = 1 << 40  # test rows and rows to calibrate on lie beyond every training row
CALIBRATION_FIRST_ROW = 1 << 41
CALIBRATION_ROWS = 1 << 16

_FIRST_ID = np.cumsum(CARDINALITIES) - CARDINALITIES


def _moment(t: float) -> float:
    """Mean of exp(t * z), where z is the sum of four uniform values of variance 1/4, which is nearly normal."""
    return float((np.sinh(t * SQRT3 / 2) / (t * SQRT3 / 2)) ** 4)


_SIGMA = 0.6  # dense values are exp(_SIGMA * z), standardised: a long right tail, up to 15 deviations
_MEAN, _DEVIATION = _moment(_SIGMA), (_moment(2 * _SIGMA) - _moment(_SIGMA) ** 2) ** 0.5


@dataclass(frozen=True, eq=False)
class SyntheticRows:
    """n samples by column, with the teacher's scores."""

    dense: FloatArray  # [13, n]
    dense_valid: NDArray[np.bool_]  # [13, n]
    ids: NDArray[np.int64]  # [26, n] ranks: 0 is the most popular id of its slot
    ids_valid: NDArray[np.bool_]  # [26, n]
    score: NDArray[np.float64]  # [n]
    draw: NDArray[np.float64]  # [n] uniform: the label is 1 where it lies below the teacher's probability


def make_rows(
    seed: int, first_row: int, num_rows: int, seen: NDArray[np.bool_] | None = None, skew: float = ZIPF_EXPONENT
) -> SyntheticRows:
    """Make `num_rows` rows of a seed from `first_row`, and mark their ids in `seen` [sum of CARDINALITIES].

    `skew` is the Zipf exponent of the popularity of ids: the larger it is, the fewer ids most rows have.
    """
    rows = SyntheticRows(
        dense=np.empty((NUM_DENSE, num_rows), np.float32),
        dense_valid=np.empty((NUM_DENSE, num_rows), np.bool_),
        ids=np.empty((NUM_SLOTS, num_rows), np.int64),
        ids_valid=np.empty((NUM_SLOTS, num_rows), np.bool_),
        score=np.empty(num_rows, np.float64),
        draw=np.empty(num_rows, np.float64),
    )
    seen = np.empty(int(CARDINALITIES.sum()), np.bool_) if seen is None else seen
    arrays = (rows.dense, rows.dense_valid, rows.ids, rows.ids_valid, rows.score, rows.draw, seen)
    _fill(np.uint64(seed), np.uint64(first_row), zipf_power(skew), *arrays)
    return rows


@dataclass(frozen=True)
class Teacher:
    """Turns scores into probabilities of the label 1."""

    temperature: float
    bias: float

    @classmethod
    def of(cls, seed: int, skew: float = ZIPF_EXPONENT) -> Teacher:
        """Find the teacher of a seed and a skew, whose temperature has TEACHER_AUC and whose bias has BASE_RATE."""
        score = np.sort(make_rows(seed, CALIBRATION_FIRST_ROW, CALIBRATION_ROWS, skew=skew).score)
        score = score.reshape(-1, 16).mean(axis=1)  # quantiles do: a sixteenth of the work
        low, high = 0.0, 16.0
        while high - low > 1e-6:
            middle = cls._balanced((low + high) / 2, score)
            too_low = _expected_auc(middle.probability(score)) < TEACHER_AUC
            low, high = (middle.temperature, high) if too_low else (low, middle.temperature)
        return cls._balanced(low, score)

    @classmethod
    def _balanced(cls, temperature: float, score: NDArray[np.float64]) -> Teacher:
        low, high = -50.0, 50.0
        while high - low > 1e-6:
            middle = cls(temperature, (low + high) / 2)
            too_low = middle.probability(score).mean() < BASE_RATE
            low, high = (middle.bias, high) if too_low else (low, middle.bias)
        return cls(temperature, low)

    def probability(self, score: NDArray[np.float64]) -> NDArray[np.float64]:
        return 1.0 / (1.0 + np.exp(-(self.temperature * score + self.bias)))


def _expected_auc(probability: NDArray[np.float64]) -> float:
    """Expected AUC of ascending probabilities against labels that are drawn from them."""
    negatives_below = np.cumsum(1.0 - probability) - (1.0 - probability)
    return float((probability * negatives_below).sum() / (probability.sum() * (1.0 - probability).sum()))


# --- kernel ----------------------------------------------------------------------------------------------------------


@njit(nogil=True, cache=True, error_model="numpy")
def _fill(
    seed: np.uint64,
    first_row: np.uint64,
    power: float,
    dense: FloatArray,
    dense_valid: NDArray[np.bool_],
    ids: NDArray[np.int64],
    ids_valid: NDArray[np.bool_],
    score: NDArray[np.float64],
    draw: NDArray[np.float64],
    seen: NDArray[np.bool_],
) -> None:
    world = mix64(seed + uint64(GOLDEN))
    reach = (CARDINALITIES + 1.0) ** power - 1.0
    bits = np.empty(NUM_SLOTS, np.uint64)
    x = np.empty(NUM_DENSE, np.float64)
    for i in range(len(score)):
        row = mix64(world ^ mix64(first_row + uint64(i)))
        draw[i] = to_uniform(bits_of(row, 0))
        total = 0.0
        for d in range(NUM_DENSE):
            b = bits_of(row, 100 + d)
            z = 0.5 * (quarter(b, 0) + quarter(b, 1) + quarter(b, 2) + quarter(b, 3))
            valid = to_uniform(bits_of(row, 200 + d)) >= DENSE_NULL_RATE
            x[d] = (np.exp(_SIGMA * z) - _MEAN) / _DEVIATION if valid else 0.0
            dense[d, i] = x[d]
            dense_valid[d, i] = valid
            total += 0.2 * x[d] * quarter(bits_of(world, d), 0)
        for s in range(NUM_SLOTS):
            u = to_uniform(bits_of(row, 300 + s))
            valid = u >= SLOT_NULL_RATES[s]
            rank = 0
            if valid:
                u = (u - SLOT_NULL_RATES[s]) / (1.0 - SLOT_NULL_RATES[s])
                rank = min(int(np.exp(np.log(1.0 + u * reach[s]) / power)) - 1, CARDINALITIES[s] - 1)
                seen[_FIRST_ID[s] + rank] = True
            ids[s, i] = rank
            ids_valid[s, i] = valid
            bits[s] = mix64(world ^ mix64(uint64(rank + 1 if valid else 0) * uint64(64) + uint64(s)))
            total += 0.3 * quarter(bits[s], 0) / np.sqrt(1.0 + rank / 300.0)
        for p in range(len(PAIRS)):
            one, other = bits[PAIRS[p, 0]], bits[PAIRS[p, 1]]
            total += 0.12 * (quarter(one, 1) * quarter(other, 1) + quarter(one, 2) * quarter(other, 2))
        for c in range(len(CROSSES)):
            total += 0.12 * x[CROSSES[c, 0]] * quarter(bits[CROSSES[c, 1]], 3)
        score[i] = total
