"""The feed task: predict whether a user clicks on an item, and how the user rates it after a click.

    user --> segment      item --> category          (of Zipf popularity)
      |         |           |         |
      +---------+--> taste  +---------+--> nature    hidden features of the ids, nowhere in the data

    affinity = taste . nature           P(click) = sigmoid(TEMPERATURE * affinity + BIAS)
    rating   = 3 + affinity + what the item is worth + noise, from 1 to 5; null without a click

Both labels depend on the affinity, so that what is learned for one helps the other; the worth of an item is in ratings
alone. Only clicked items are rated, as in life.
"""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from heterps.data.draws import NUM_FEATURES, SQRT3, Floats, Ids, features, group_of, uniforms, zipf_ranks
from heterps.data.task import Drawn

COLUMNS = ("user", "segment", "item", "category")
NUM_USERS, NUM_SEGMENTS = 20_000, 40
NUM_ITEMS, NUM_CATEGORIES = 5_000, 60
ZIPF_EXPONENT = 1.05
GROUP_SHARE = 0.8  # share of the variance of taste and nature that segment and category decide; ids decide the rest
TEMPERATURE, BIAS = 2.0, -0.8
NOISE = 0.5  # standard deviation of a rating

_USER, _SEGMENT, _ITEM, _CATEGORY, _SEGMENT_OF, _CATEGORY_OF, _WORTH = range(7)  # kinds of ids


class FeedTask:
    """The feed task: a click, and a rating after it, for mmoe."""

    schema = pa.schema(
        [("click", pa.int8()), ("rating", pa.float32()), *((name, pa.int64()) for name in COLUMNS)],
    )
    possible_ids = NUM_USERS + NUM_SEGMENTS + NUM_ITEMS + NUM_CATEGORIES

    def __init__(self, seed: int, skew: float = ZIPF_EXPONENT) -> None:
        self._seed, self._skew = seed, skew

    def draw(self, first_row: int, num_rows: int, seen: NDArray[np.bool_]) -> Drawn:
        of_user, of_item, of_click, of_noise = uniforms(self._seed, first_row, num_rows, 4)
        user = zipf_ranks(of_user, NUM_USERS, self._skew)
        item = zipf_ranks(of_item, NUM_ITEMS, self._skew)
        segment = group_of(self._seed, _SEGMENT_OF, user, NUM_SEGMENTS)
        category = group_of(self._seed, _CATEGORY_OF, item, NUM_CATEGORIES)
        taste = self._character(_SEGMENT, segment, _USER, user)
        nature = self._character(_CATEGORY, category, _ITEM, item)
        affinity = (taste * nature).sum(1) / math.sqrt(NUM_FEATURES)
        probability = 1.0 / (1.0 + np.exp(-TEMPERATURE * affinity - BIAS))
        click = of_click < probability
        worth = 0.5 * features(self._seed, _WORTH, item)[:, 0]
        noise = NOISE * SQRT3 * (2 * of_noise - 1)
        rating = np.clip(3 + affinity + worth + noise, 1, 5).astype(np.float32)
        first_id = np.cumsum([0, NUM_USERS, NUM_SEGMENTS, NUM_ITEMS])
        for ids, start in zip((user, segment, item, category), first_id, strict=True):
            seen[start + ids] = True
        columns = [click.view(np.int8), pa.array(rating, mask=~click), user, segment, item, category]
        return Drawn(pa.table(columns, schema=self.schema), probability, click)

    def _character(self, group_kind: int, group: Ids, kind: int, ids: Ids) -> Floats:
        shared, own = features(self._seed, group_kind, group), features(self._seed, kind, ids)
        return math.sqrt(GROUP_SHARE) * shared + math.sqrt(1.0 - GROUP_SHARE) * own
