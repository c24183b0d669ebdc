"""Views of stages by interval, over the run, and for who watches, from pushes made by hand."""

from types import SimpleNamespace

import pytest

from heterps.training.coordinator.flow import Step
from heterps.training.coordinator.stage_stats import VIEWS, StageStats
from heterps.training.protocol.layout import Layout, StageLayout
from heterps.training.protocol.messages import ALL_LANES, Pushed, Usage

LAYOUT = Layout(
    (StageLayout(0, 0, "cpu", ("worker-1.0", "worker-1.1")), StageLayout(1, 2, "v100", ("worker-2.0",))), num_lanes=2
)


@pytest.fixture
def views():
    views = StageStats(LAYOUT)
    views.begin(0.0, 0.0)
    return views


def push(views, worker, usage, *, lane=ALL_LANES, samples=100):
    views.pushed(Pushed(worker, lane, 1, samples, Usage(*usage)))


def a_round(views, number):
    """Round `number`: stage 1 computes a quarter of its time, stage 2 all of it, half of that late."""
    push(views, "worker-1.0", (1.0 * number, 1.0 * number, 2.0 * number, 1))
    push(views, "worker-1.1", (1.0 * number, 1.0 * number, 2.0 * number, 2))
    push(views, "worker-2.0", (4.0 * number, 0.0, 0.0, 0, 2.0 * number))
    views.stepped(Step(100, 0.5, (), staleness=number))


def test_shares_are_of_the_time_of_all_workers_of_a_stage(views):
    a_round(views, 1)
    first, second = views.interval(4.0, 36.0)["stages"]
    assert (first["resource"], first["workers"], first["queue"]) == ("cpu", 2, 1.5)
    assert (first["compute"], first["communicate"], first["wait"]) == (0.25, 0.25, 0.5)
    assert (second["compute"], second["late"], second["late_s"]) == (1.0, 0.5, 2.0)
    assert first["samples_per_s"] == second["samples_per_s"] == 25.0, "workers of a round push the same samples"


def test_without_rounds_each_push_is_of_samples_of_its_own(views):
    push(views, "worker-1.0", (1.0, 0.0, 0.0), lane=0)
    push(views, "worker-1.1", (1.0, 0.0, 0.0), lane=1)
    assert views.interval(4.0, 36.0)["stages"][0]["samples_per_s"] == 50.0


def test_an_interval_counts_what_came_in_it_and_the_summary_everything(views):
    a_round(views, 1)
    views.interval(4.0, 36.0)
    push(views, "worker-1.0", (5.0, 1.0, 2.0))
    push(views, "worker-1.1", (5.0, 1.0, 2.0))
    views.stepped(Step(100, 0.5, (), staleness=3))
    line = views.interval(6.0, 36.0)
    assert (line["stages"][0]["compute"], line["stages"][0]["samples_per_s"]) == (1.0, 50.0)
    assert line["stages"][1]["compute"] is None, "it has told nothing in this interval"
    assert line["staleness"] == 3.0
    assert line["usd"] == pytest.approx(6.0 * 36.0 / 3600)

    whole = views.summary(SimpleNamespace(leads={"0": 1, "1": 2}), 6.0)
    assert whole["staleness"] == 2.0
    assert whole["stages"][0]["compute"] == pytest.approx(10 / 16)
    assert (whole["max_lead"], whole["usd"]) == ({"0": 1, "1": 2}, pytest.approx(0.06))


def test_who_watches_sees_the_last_seconds_and_not_the_whole_interval(views):
    for number in range(1, 2 * VIEWS):
        a_round(views, number)
        views.live(4.0 * number, 36.0)
    push(views, "worker-2.0", (4.0 * (2 * VIEWS - 1), 40.0 * VIEWS, 0.0))
    views.stepped(Step(100, 0.5, (), staleness=0))
    seconds = 4.0 * (2 * VIEWS - 1) + 40.0 * VIEWS
    view = views.live(seconds, 36.0)
    assert view["seconds"] == seconds
    assert view["usd"] == pytest.approx(seconds * 36.0 / 3600)
    recent_s = 4.0 * (VIEWS - 1)
    assert view["stages"][1]["compute"] == pytest.approx(recent_s / (recent_s + 40.0 * VIEWS), abs=1e-3)


def test_where_batches_are_slow_a_view_is_of_longer(views):
    a_round(views, 1)
    for tick in range(3 * VIEWS):
        view = views.live(4.0 + tick, 36.0)
    assert view["stages"][0]["compute"] == 0.25
    views.interval(4.0 + 3 * VIEWS, 36.0)
    assert views.live(5.0 + 3 * VIEWS, 36.0)["stages"][0]["compute"] == 0.25, "nothing in this interval: of the run"


def test_watching_changes_nothing_that_is_written(views):
    other = StageStats(LAYOUT)
    other.begin(0.0, 0.0)
    for number in (1, 2):
        for each in (views, other):
            a_round(each, number)
        views.live(4.0 * number + 0.5, 36.0)
    watched, unwatched = views.interval(8.0, 36.0), other.interval(8.0, 36.0)
    assert watched.pop("usd") == pytest.approx(unwatched.pop("usd"))
    assert watched == unwatched


def test_a_resumed_run_counts_from_where_it_was():
    views = StageStats(LAYOUT)
    views.begin(100.0, 1.0)
    a_round(views, 1)
    line = views.interval(104.0, 36.0)
    assert line["stages"][0]["samples_per_s"] == 25.0
    assert line["usd"] == pytest.approx(1.04)


def test_workers_that_joined_count_from_their_start(views):
    a_round(views, 1)
    more = (*LAYOUT.stages[0].workers, "worker-1.2")
    views.follow(Layout((StageLayout(0, 0, "cpu", more), LAYOUT.stages[1]), num_lanes=3, epoch=2))
    push(views, "worker-1.2", (4.0, 0.0, 0.0))
    (first, _) = views.interval(8.0, 36.0)["stages"]
    assert first["workers"] == 3
    assert first["compute"] == pytest.approx(6 / 12)
