"""Tasks of synthetic data: what their columns mean, and that the teacher knows what it says."""

from __future__ import annotations

import numpy as np
import pytest

from heterps.data import histories, ratings
from heterps.data.generate import TASKS
from heterps.data.matches import NUM_CATEGORIES, NUM_ITEMS, NUM_SEGMENTS, NUM_USERS
from heterps.data.synthetic import TEST_FIRST_ROW
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
    return columns, drawn.expected, drawn.label, seen


def same(one, other) -> bool:
    """Whether two values are equal: numbers, of which NaN equals NaN, or lists of numbers or of words."""
    return np.array_equal(one, other) or bool(np.isscalar(one) and one != one and other != other)


@pytest.mark.parametrize("task", MODEL_OF)
def test_columns_are_those_that_the_model_is_made_for(task: str) -> None:
    schema = COLUMNS[MODEL_OF[task]]
    assert TASKS[task](0).schema.names == [schema.label, *schema.dense, *schema.slots]


@pytest.mark.parametrize("task", TASKS)
def test_rows_do_not_depend_on_the_cut_but_on_the_seed(task: str) -> None:
    whole, part, other = draw(task), draw(task, first_row=700, num_rows=50), draw(task, seed=1)
    for name, column in whole[0].items():
        cut = zip(column[700:750], part[0][name], strict=True)
        assert all(same(a, b) for a, b in cut), name  # of lists, each as a whole
    assert (whole[1][700:750] == part[1]).all()
    assert (whole[2] != other[2]).any()


@pytest.mark.parametrize("task", [task for task in TASKS if task != "ratings"])
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


def test_ratings_are_one_to_five_stars_around_what_the_teacher_expects() -> None:
    columns, expected, rating, seen = draw("ratings")
    assert (columns["rating"] == rating).all()
    assert set(rating) == {1, 2, 3, 4, 5}
    for low in np.arange(1, 5, 0.5):
        inside = (expected >= low) & (expected < low + 0.5)
        if inside.sum() > 500:
            assert rating[inside].mean() == pytest.approx(expected[inside].mean(), abs=0.08)
    binomial = (expected - 1) * (5 - expected) / 4  # the variance of four coins
    assert np.square(rating - expected).mean() == pytest.approx(binomial.mean(), rel=0.02)
    assert seen.sum() == len(np.unique(columns["user"])) + len(np.unique(columns["item"]))


def test_a_film_has_one_year_and_one_list_of_genres_and_a_user_one_age() -> None:
    columns, *_ = draw("ratings")
    of_item = set(zip(columns["item"], columns["year"], map(tuple, columns["genres"]), strict=True))
    assert len(of_item) == len(set(columns["item"]))
    assert len(set(zip(columns["user"], columns["age"], strict=True))) == len(set(columns["user"]))
    assert {len(genres) for genres in columns["genres"]} == {1, 2, 3}
    assert {genre for genres in columns["genres"] for genre in genres} == set(ratings.GENRES)


def test_stars_depend_on_time_age_and_year_and_test_rows_are_newer() -> None:
    columns, expected, *_ = draw("ratings")
    times = columns["time"].astype("datetime64[s]")
    hour = (times - times.astype("datetime64[D]")).astype(int) // 3600
    weekend = ~np.is_busday(times.astype("datetime64[D]"))
    assert expected[hour == 20].mean() > expected[hour == 8].mean() + 0.15
    assert expected[weekend].mean() > expected[~weekend].mean() + 0.15
    old, old_film = columns["age"] > 60, columns["year"] < 1950
    assert expected[old & old_film].mean() > expected[old & ~old_film].mean() + 0.1
    assert expected[~old & ~old_film].mean() > expected[old & ~old_film].mean()
    assert draw("ratings", first_row=TEST_FIRST_ROW, num_rows=100)[0]["time"].min() > columns["time"].max()
