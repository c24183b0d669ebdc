"""The words task: predict whether a context was seen with a word, or sampled at random.

    word = topic + NUM_TOPICS * rank        a topic is drawn evenly, a rank within it with Zipf popularity

    label 1 (half of the rows)   the context is of the word's topic with chance ON_TOPIC, else any word
    label 0                      the context is any word, as the negatives are

So a seen context is (1 - ON_TOPIC) + ON_TOPIC * NUM_TOPICS times as likely as a sampled one where it shares the topic,
and 1 - ON_TOPIC times where it does not: the teacher's probability is that ratio over one more.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from heterps.data.draws import Floats, Ids, uniforms, zipf_ranks
from heterps.data.task import Drawn

NUM_TOPICS, WORDS_PER_TOPIC = 50, 400
NUM_NEGATIVES = 5
COLUMNS = ("word", "context", *(f"negative{i + 1}" for i in range(NUM_NEGATIVES)))
ON_TOPIC = 0.8
ZIPF_EXPONENT = 1.05


class Words:
    """The words task: pairs of words with sampled negatives, for nce."""

    schema = pa.schema([("label", pa.int8()), *((name, pa.int64()) for name in COLUMNS)])
    possible_ids = NUM_TOPICS * WORDS_PER_TOPIC

    def __init__(self, seed: int, skew: float = ZIPF_EXPONENT) -> None:
        self._seed, self._skew = seed, skew

    def draw(self, first_row: int, num_rows: int, seen: NDArray[np.bool_]) -> Drawn:
        of_label, of_topic, *of_words = uniforms(self._seed, first_row, num_rows, 2 + 2 * len(COLUMNS))
        label = of_label < 0.5
        topics = [(u * NUM_TOPICS).astype(np.int64) for u in of_words[::2]]
        topics[1] = np.where(label & (of_topic < ON_TOPIC), topics[0], topics[1])
        words = [self._word(topic, u) for topic, u in zip(topics, of_words[1::2], strict=True)]
        for ids in words:
            seen[ids] = True
        ratio = 1.0 - ON_TOPIC + ON_TOPIC * NUM_TOPICS * (topics[0] == topics[1])
        columns = [label.view(np.int8), *words]
        return Drawn(pa.table(columns, schema=self.schema), ratio / (1.0 + ratio), label)

    def _word(self, topic: Ids, uniform: Floats) -> Ids:
        return topic + NUM_TOPICS * zipf_ranks(uniform, WORDS_PER_TOPIC, self._skew)
