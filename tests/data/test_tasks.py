"""The match, words and history tasks: what their columns mean, and that the teacher knows what it says."""

from __future__ import annotations

import numpy as np
import pytest

from heterps.data import histories
from heterps.data.generate import TASKS
from heterps.data.matches import NUM_CATEGORIES, NUM_ITEMS, NUM_SEGMENTS, NUM_USERS
from heterps.data.words import NUM_NEGATIVES, NUM_TOPICS, ON_TOPIC
from heterps.model.zoo import COLUMNS

NUM_ROWS = 40_000
MODEL_OF = {"match": "match_net", "words": "nce", "history": "din"}
EVEN = ("match", "words")  # half of the labels are 1


def draw(task: str, seed: int = 0, first_row: int = 0, num_rows: int = NUM_ROWS):
    """Columns by name, the teacher's probability, the label, and which ids were seen."""
    made = TASKS[task](seed)
    seen = np.zeros(made.possible_ids, bool)
    drawn = made.draw(first_row, num_rows, seen)
    columns = {name: drawn.table[name].to_numpy() for name in drawn.table.column_names}
    return columns, drawn.probability, drawn.label, seen


@pytest.mark.parametrize("task", MODEL_OF)
def test_columns_are_those_that_the_model_is_made_for(task: str) -> None:
    schema = COLUMNS[MODEL_OF[task]]
    assert TASKS[task](0).schema.names == [schema.label, *schema.dense, *schema.slots]


@pytest.mark.parametrize("task", TASKS)
def test_rows_do_not_depend_on_the_cut_but_on_the_seed(task: str) -> None:
    whole, part, other = draw(task), draw(task, first_row=700, num_rows=50), draw(task, seed=1)
    for name, column in whole[0].items():
        cut = zip(column[700:750], part[0][name], strict=True)
        assert all(np.array_equal(a, b, equal_nan=True) for a, b in cut), name  # of lists, each as a whole
    assert (whole[1][700:750] == part[1]).all()
    assert (whole[2] != other[2]).any()


@pytest.mark.parametrize("task", TASKS)
def test_labels_come_as_often_as_the_teacher_says(task: str) -> None:
    columns, probability, label, _ = draw(task)
    assert (columns["click" if task == "feed" else "label"] == label).all()
    for low in np.arange(0, 1, 0.2):
        inside = (probability >= low) & (probability < low + 0.2)
        if inside.sum() > 500:
            assert label[inside].mean() == pytest.approx(probability[inside].mean(), abs=0.03)


@pytest.mark.parametrize("task", EVEN)
def test_about_half_of_the_labels_are_1_and_ids_are_counted(task: str) -> None:
    columns, _, label, seen = draw(task)
    assert label.mean() == pytest.approx(0.5, abs=0.02)
    schema = COLUMNS[MODEL_OF[task]]
    distinct = {(schema.ids_of(slot) if task == "match" else "word", i) for slot in schema.slots for i in columns[slot]}
    assert seen.sum() == len(distinct)


def test_a_rating_follows_a_click_and_what_clicks_depend_on() -> None:
    columns, probability, click, seen = draw("feed")
    rating = columns["rating"]
    assert (np.isnan(rating) == ~click).all()
    assert ((rating[click] >= 1) & (rating[click] <= 5)).all()
    assert np.corrcoef(rating[click], np.log(probability / (1 - probability))[click])[0, 1] > 0.5
    assert 0.25 < click.mean() < 0.45
    slots = COLUMNS["mmoe"].slots
    assert TASKS["feed"](0).schema.names == [*COLUMNS["mmoe"].all_labels, *slots]
    assert seen.sum() == sum(len(np.unique(columns[slot])) for slot in slots)


def test_an_item_has_one_category_whichever_side_it_is_on_and_a_user_one_segment() -> None:
    columns, *_ = draw("match")
    items = np.concatenate([columns["item"], columns["negative"]])
    categories = np.concatenate([columns["category"], columns["negative_category"]])
    assert len(set(zip(items, categories, strict=True))) == len(set(items))
    assert len(set(zip(columns["user"], columns["segment"], strict=True))) == len(set(columns["user"]))
    limits = {"user": NUM_USERS, "segment": NUM_SEGMENTS, "item": NUM_ITEMS, "category": NUM_CATEGORIES}
    assert all(0 <= columns[name].min() <= columns[name].max() < limit for name, limit in limits.items())


def test_the_more_popular_item_is_not_the_answer_over_many_worlds() -> None:
    shares = []
    for seed in range(12):
        columns, _, label, _ = draw("match", seed, num_rows=5000)
        shares.append(label[columns["item"] < columns["negative"]].mean())
    assert np.mean(shares) == pytest.approx(0.5, abs=0.03)


def test_seen_contexts_share_the_topic_and_sampled_ones_do_by_chance() -> None:
    columns, _, label, _ = draw("words")
    on_topic = columns["word"] % NUM_TOPICS == columns["context"] % NUM_TOPICS
    assert on_topic[label].mean() == pytest.approx(ON_TOPIC + (1 - ON_TOPIC) / NUM_TOPICS, abs=0.02)
    assert on_topic[~label].mean() == pytest.approx(1 / NUM_TOPICS, abs=0.01)
    for i in range(1, NUM_NEGATIVES + 1):
        negative = columns[f"negative{i}"] % NUM_TOPICS == columns["word"] % NUM_TOPICS
        assert negative.mean() == pytest.approx(1 / NUM_TOPICS, abs=0.01)


def test_what_was_taken_lately_decides_and_the_user_says_nothing() -> None:
    columns, probability, _, seen = draw("history", num_rows=20_000)
    topics = columns["item"] % histories.NUM_TOPICS
    lists = [history % histories.NUM_TOPICS for history in columns["history"]]
    assert {len(history) for history in lists} == set(range(histories.MAX_HISTORY + 1))
    newest, oldest = (
        np.array([len(h) > 9 and h[place] == topic for h, topic in zip(lists, topics, strict=True)])
        for place in (-1, 0)
    )
    assert probability[newest].mean() > probability[oldest].mean() + 0.2
    score = [sum(0.8**a for a, t in enumerate(h[::-1]) if t == topics[i]) for i, h in enumerate(lists)]
    assert np.corrcoef(score, np.log(probability / (1 - probability)))[0, 1] > 0.9
    by_user = np.bincount(columns["user"], probability) / np.maximum(np.bincount(columns["user"]), 1)
    assert by_user.std() < 0.1
    ids = set(columns["user"]) | {histories.NUM_USERS + i for h in columns["history"] for i in h}
    assert seen.sum() == len(ids | {histories.NUM_USERS + i for i in columns["item"]})
