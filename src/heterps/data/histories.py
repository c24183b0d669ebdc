"""The history task: predict whether an item is taken, from the items that were taken before it.

    item = topic + NUM_TOPICS * rank            a topic is drawn evenly, a rank within it with Zipf popularity

    history, oldest first: 0 to MAX_HISTORY items. A visitor has an older interest and a newer one, two topics:
        [ older half: the older topic with chance ON_TOPIC, else any | newer half: the newer topic, or any ]
    item: of the newer topic, of the older, or (half of the rows) of any

    score = sum over the history of FADING ** age * [same topic as the item]  +  a hidden effect of the item
    P(label = 1) = sigmoid(SLOPE * score + BIAS)            age 0 is the newest

The user's id says nothing, so a model without the history can learn only the effect of the item; one that sees the
history in its order can learn that what was taken lately matters most.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from heterps.data.draws import Ids, features, uniforms, zipf_ranks
from heterps.data.task import Drawn

NUM_TOPICS, ITEMS_PER_TOPIC = 10, 20
NUM_USERS = 1_000
MAX_HISTORY = 30
ON_TOPIC = 0.7
FADING = 0.8
SLOPE, BIAS = 2.0, -3.0
ITEM_EFFECT = 0.3
ZIPF_EXPONENT = 1.05

_ITEM = 0  # kind of ids with a hidden effect


class Histories:
    """The history task: an item after a list of items, for din and bst."""

    schema = pa.schema(
        [("label", pa.int8()), ("user", pa.int64()), ("item", pa.int64()), ("history", pa.list_(pa.int64()))]
    )
    possible_ids = NUM_USERS + NUM_TOPICS * ITEMS_PER_TOPIC

    def __init__(self, seed: int, skew: float = ZIPF_EXPONENT) -> None:
        self._seed, self._skew = seed, skew

    def draw(self, first_row: int, num_rows: int, seen: NDArray[np.bool_]) -> Drawn:
        of_row = uniforms(self._seed, first_row, num_rows, 8 + 3 * MAX_HISTORY)
        of_user, of_label, of_length, of_older, of_newer, of_kind, of_any, of_rank = of_row[:8]
        user = (of_user * NUM_USERS).astype(np.int64)
        older, newer, anything = (_topic(u) for u in (of_older, of_newer, of_any))
        topic = np.where(of_kind < 0.25, newer, np.where(of_kind < 0.5, older, anything))
        item = topic + NUM_TOPICS * zipf_ranks(of_rank, ITEMS_PER_TOPIC, self._skew)
        lengths = (of_length * (MAX_HISTORY + 1)).astype(np.int64)
        age = np.arange(MAX_HISTORY)[:, None]  # place `age` of each row is that many before the newest
        on, kinds, ranks = of_row[8:].reshape(3, MAX_HISTORY, num_rows)
        interest = np.where(2 * age < lengths, newer, older)
        topics = np.where(on < ON_TOPIC, interest, _topic(kinds))
        taken = age < lengths
        score = (FADING**age * ((topics == topic) & taken)).sum(0)
        score += ITEM_EFFECT * features(self._seed, _ITEM, item)[:, 0]
        probability = 1.0 / (1.0 + np.exp(-SLOPE * score - BIAS))
        label = of_label < probability
        items = topics + NUM_TOPICS * zipf_ranks(ranks, ITEMS_PER_TOPIC, self._skew)
        history = items[::-1].T[taken[::-1].T]  # row by row, oldest first
        seen[user] = True
        for ids in (item, history):
            seen[NUM_USERS + ids] = True
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(history))
        table = pa.table([pa.array(label.view(np.int8)), user, item, lists], schema=self.schema)
        return Drawn(table, probability, label)


def _topic(uniform: NDArray[np.float64]) -> Ids:
    return (uniform * NUM_TOPICS).astype(np.int64)
