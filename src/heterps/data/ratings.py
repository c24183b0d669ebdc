"""The ratings task: predict how many stars a user gives an item, from a log of the shape of MovieLens.

    user --> age, mood, taste          item --> year, worth, one to three genres --> nature
                         \\                       /
    score = mood + worth + taste . nature - (old users, new items) + (evenings and weekends are kinder)
    rating = 1 + the number of heads of 4 coins, each with P(head) = sigmoid(SLOPE * score + BIAS)

So a rating is 1, 2, 3, 4 or 5, and 1 + 4 P(head) is its expectation: the teacher's prediction, whose RMSE no model can
beat. Mood, worth, taste and nature are hidden; age, year, genres and time are in the log as they are: ages and years
far from unit scale, times in seconds since 1970, genres as words. Test rows are newer than all others.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from heterps.data.draws import Floats, Ids, features, group_of, uniforms, zipf_ranks
from heterps.data.synthetic import TEST_FIRST_ROW
from heterps.data.task import Drawn

NUM_USERS, NUM_ITEMS = 6_000, 4_000
GENRES = (
    "Action", "Adventure", "Animation", "Children", "Comedy", "Crime", "Documentary", "Drama", "Fantasy",
    "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western",
)  # fmt: skip
MAX_GENRES = 3
AGES, YEARS = (16, 76), (1930, 2000)
USER_EXPONENT, ITEM_EXPONENT = 0.5, 0.8  # of Zipf popularity
FIRST_TIME = 946_684_800  # 2000-01-01 in UTC, a Saturday
TRAIN_S, TEST_S = 360 * 86_400, 40 * 86_400  # seconds of the log
SLOPE, BIAS = 0.8, 0.6

_USER, _ITEM, _GENRE, _AGE_OF, _YEAR_OF, _LENGTH_OF, *_GENRES_OF = range(6 + MAX_GENRES)  # kinds of ids


class Ratings:
    """The ratings task: stars of users for items, with what is known about both and the time, for ctr_dnn."""

    schema = pa.schema(
        [
            ("user", pa.int64()),
            ("item", pa.int64()),
            ("rating", pa.int8()),
            ("time", pa.int64()),
            ("age", pa.int64()),
            ("year", pa.int64()),
            ("genres", pa.list_(pa.string())),
        ]
    )
    possible_ids = NUM_USERS + NUM_ITEMS

    def __init__(self, seed: int, skew: float = ITEM_EXPONENT) -> None:
        self._seed, self._skew = seed, skew

    def draw(self, first_row: int, num_rows: int, seen: NDArray[np.bool_]) -> Drawn:
        of_user, of_item, of_time, *of_coins = uniforms(self._seed, first_row, num_rows, 7)
        user = zipf_ranks(of_user, NUM_USERS, USER_EXPONENT)
        item = zipf_ranks(of_item, NUM_ITEMS, self._skew)
        time = FIRST_TIME + (TRAIN_S + of_time * TEST_S if first_row >= TEST_FIRST_ROW else of_time * TRAIN_S)
        time = time.astype(np.int64)
        age, year = self._between(AGES, _AGE_OF, user), self._between(YEARS, _YEAR_OF, item)
        genres = np.stack([group_of(self._seed, kind, item, len(GENRES)) for kind in _GENRES_OF])
        lengths = 1 + group_of(self._seed, _LENGTH_OF, item, MAX_GENRES)
        taken = np.arange(MAX_GENRES)[:, None] < lengths
        score = self._affinity(user, item, genres, taken) - _unit(AGES, age) * _unit(YEARS, year) + _kindness(time)
        head = 1.0 / (1.0 + np.exp(-SLOPE * score - BIAS))
        rating = 1 + (np.array(of_coins) < head).sum(0)
        seen[user] = True
        seen[NUM_USERS + item] = True
        columns = [user + 1, item + 1, rating.astype(np.int8), time, age, year, _lists(genres.T[taken.T], lengths)]
        return Drawn(pa.table(columns, schema=self.schema), 1 + 4 * head, rating.astype(np.float64))

    def _between(self, limits: tuple[int, int], kind: int, ids: Ids) -> Ids:
        return limits[0] + group_of(self._seed, kind, ids, limits[1] - limits[0])

    def _affinity(self, user: Ids, item: Ids, genres: Ids, taken: NDArray[np.bool_]) -> Floats:
        """Mood and worth, and how well the user's taste fits the mean of the item's genres."""
        of_user, of_item = features(self._seed, _USER, user), features(self._seed, _ITEM, item)
        of_genres = [features(self._seed, _GENRE, genre)[:, :2] for genre in genres]
        nature = (np.stack(of_genres) * taken[:, :, None]).sum(0) / taken.sum(0)[:, None]
        fit: Floats = (of_user[:, :2] * nature).sum(1) / 2
        return 0.6 * of_user[:, 3] + 0.9 * of_item[:, 3] + fit


def _unit(limits: tuple[int, int], values: Ids) -> Floats:
    """Scale values between the limits to numbers from -1 to 1."""
    return 2 * (values - limits[0]) / (limits[1] - limits[0]) - 1


def _kindness(time: Ids) -> Floats:
    """0.5 more at eight in the evening than at eight in the morning, and 0.4 more on Saturdays and Sundays."""
    hour, day = time % 86_400 / 3600, (time - FIRST_TIME) // 86_400 % 7
    return 0.25 * np.cos((hour - 20) / 24 * 2 * np.pi) + 0.4 * (day < 2)


def _lists(genres: Ids, lengths: Ids) -> pa.ListArray:
    """The names of the genres, row by row, as lists of these lengths."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(GENRES).take(pa.array(genres)))
