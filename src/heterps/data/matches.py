"""The match task: predict which of two items a user took.

    user --> segment          item, negative --> category          (of Zipf popularity)
      |         |                |                  |
      +---------+--> taste       +------------------+--> nature    hidden features of the ids, nowhere in the data

    P(label = 1: the user took `item`, not `negative`) = sigmoid(TEMPERATURE * taste . (nature - negative's nature))

Both items are drawn alike: neither place nor popularity gives the answer, so a model must learn what each user likes.
"""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from heterps.data.draws import NUM_FEATURES, Floats, Ids, features, group_of, uniforms, zipf_ranks
from heterps.data.task import Drawn

COLUMNS = ("user", "segment", "item", "category", "negative", "negative_category")
NUM_USERS, NUM_SEGMENTS = 50_000, 40
NUM_ITEMS, NUM_CATEGORIES = 20_000, 60
ZIPF_EXPONENT = 1.05
GROUP_SHARE = 0.8  # share of the variance of taste and nature that segment and category decide; ids decide the rest
TEMPERATURE = 2.0

_USER, _SEGMENT, _ITEM, _CATEGORY, _SEGMENT_OF, _CATEGORY_OF = range(6)  # kinds of ids


class Matches:
    """The match task: pairs of items and a user's choice, for match_net."""

    schema = pa.schema([("label", pa.int8()), *((name, pa.int64()) for name in COLUMNS)])
    possible_ids = NUM_USERS + NUM_SEGMENTS + NUM_ITEMS + NUM_CATEGORIES

    def __init__(self, seed: int, skew: float = ZIPF_EXPONENT) -> None:
        self._seed, self._skew = seed, skew

    def draw(self, first_row: int, num_rows: int, seen: NDArray[np.bool_]) -> Drawn:
        of_user, of_item, of_negative, of_label = uniforms(self._seed, first_row, num_rows, 4)
        user = zipf_ranks(of_user, NUM_USERS, self._skew)
        item, negative = (zipf_ranks(u, NUM_ITEMS, self._skew) for u in (of_item, of_negative))
        segment = group_of(self._seed, _SEGMENT_OF, user, NUM_SEGMENTS)
        category, other = (group_of(self._seed, _CATEGORY_OF, i, NUM_CATEGORIES) for i in (item, negative))
        taste = self._character(_SEGMENT, segment, _USER, user)
        nature = self._character(_CATEGORY, category, _ITEM, item)
        difference = nature - self._character(_CATEGORY, other, _ITEM, negative)
        score = (taste * difference).sum(1) / math.sqrt(NUM_FEATURES)
        probability = 1.0 / (1.0 + np.exp(-TEMPERATURE * score))
        label = of_label < probability
        first_id = np.cumsum([0, NUM_USERS, NUM_SEGMENTS, NUM_ITEMS])
        for ids, kind in ((user, 0), (segment, 1), (item, 2), (negative, 2), (category, 3), (other, 3)):
            seen[first_id[kind] + ids] = True
        columns = [label.view(np.int8), user, segment, item, category, negative, other]
        return Drawn(pa.table(columns, schema=self.schema), probability, label)

    def _character(self, group_kind: int, group: Ids, kind: int, ids: Ids) -> Floats:
        shared, own = features(self._seed, group_kind, group), features(self._seed, kind, ids)
        return math.sqrt(GROUP_SHARE) * shared + math.sqrt(1.0 - GROUP_SHARE) * own
