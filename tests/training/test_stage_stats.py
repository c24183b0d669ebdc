"""StageStats: shares, speeds, queues, staleness and USD of stages, worked out by hand."""

from __future__ import annotations

from flow_play import make_layout

from heterps.config import BSP, Data, Job
from heterps.data.leases import Leases
from heterps.training.coordinator.flow import Step
from heterps.training.coordinator.round_flow import RoundFlow
from heterps.training.coordinator.stage_stats import StageStats
from heterps.training.protocol.messages import ALL_LANES, Pushed, Usage
from heterps.training.run.progress import RunProgress


def pushed(worker: str, usage: Usage, num_samples: int = 10, lane: int = ALL_LANES) -> Pushed:
    return Pushed(worker, lane, 1, num_samples, usage)


def test_a_stage_s_shares_are_of_the_seconds_of_all_its_workers():
    views = StageStats(make_layout((2, 1), 2))
    views.begin(0.0, 0.0)
    views.pushed(pushed("worker-1.0", Usage(6.0, 1.0, 1.0, 2)))
    views.pushed(pushed("worker-1.1", Usage(2.0, 1.0, 5.0, 1)))
    views.pushed(pushed("worker-2.0", Usage(8.0, 0.0, 0.0, 4, 0.25)))
    first, second = views.interval(2.0, 0.0)["stages"]
    assert (first["compute"], first["communicate"], first["wait"]) == (0.5, 0.125, 0.375)
    assert (first["workers"], first["queue"], first["samples_per_s"]) == (2, 1.5, 5.0)
    assert (second["compute"], second["queue"], second["late_s"]) == (1.0, 4.0, 0.25)
    assert second["samples_per_s"] == 5.0, "in rounds each worker tells of the same batch"


def test_lanes_tell_of_batches_of_their_own():
    views = StageStats(make_layout((2,), 2))
    views.begin(0.0, 0.0)
    views.pushed(pushed("worker-1.0", Usage(), lane=0))
    views.pushed(pushed("worker-1.1", Usage(), lane=1))
    assert views.interval(2.0, 0.0)["stages"][0]["samples_per_s"] == 10.0


def test_an_interval_counts_from_the_one_before():
    views = StageStats(make_layout((1,), 1))
    views.begin(0.0, 0.0)
    views.pushed(pushed("worker-1.0", Usage(1.0, 0.0, 3.0)))
    views.stepped(Step(10, 0.0, (), 4))
    first = views.interval(1.0, 0.0)
    views.pushed(pushed("worker-1.0", Usage(4.0, 1.0, 3.0), num_samples=30))
    views.stepped(Step(30, 0.0, (), 1))
    views.stepped(Step(30, 0.0, (), 2))
    second = views.interval(3.0, 0.0)
    assert (first["stages"][0]["compute"], second["stages"][0]["compute"]) == (0.25, 0.75)
    assert (first["stages"][0]["samples_per_s"], second["stages"][0]["samples_per_s"]) == (10.0, 15.0)
    assert (first["staleness"], second["staleness"]) == (4.0, 1.5)


def test_nothing_told_yet_has_no_shares_and_no_speed():
    views = StageStats(make_layout((1,), 1))
    (stage,) = views.interval(0.0, 1.0)["stages"]
    assert (stage["compute"], stage["samples_per_s"], stage["queue"]) == (None, None, 0.0)


def test_usd_grow_by_the_price_of_the_time_at_which_it_was_asked():
    views = StageStats(make_layout((1,), 1))
    views.begin(1800.0, 5.0)
    assert views.paid(3600.0, 2.0) == 6.0
    assert views.paid(7200.0, 4.0) == 10.0
    assert views.interval(7200.0, 9.0)["usd"] == 10.0


def test_a_worker_that_began_anew_does_not_count_backwards():
    views = StageStats(make_layout((1,), 1))
    views.pushed(pushed("worker-1.0", Usage(100.0, 100.0, 100.0)))
    views.interval(1.0, 0.0)
    views.pushed(pushed("worker-1.0", Usage(1.0, 0.0, 1.0)))
    assert views.interval(2.0, 0.0)["stages"][0]["compute"] is None


def test_workers_of_another_layout_are_the_stage_from_then_on():
    views = StageStats(make_layout((1,), 1))
    views.follow(make_layout((3,), 3, epoch=2))
    views.pushed(pushed("worker-1.2", Usage(1.0, 0.0, 0.0)))
    (stage,) = views.interval(1.0, 0.0)["stages"]
    assert stage["workers"] == 3


def test_the_summary_is_of_the_whole_run_with_the_largest_leads():
    layout = make_layout((1,), 1)
    views = StageStats(layout)
    flow = RoundFlow(layout, [(0,)], BSP(), Leases(1, 2))
    views.begin(0.0, 0.0)
    for seconds in (1.0, 2.0):
        views.pushed(pushed("worker-1.0", Usage(seconds, 0.0, seconds)))
        views.stepped(Step(10, 0.0, (), 0))
        views.interval(seconds, 3600.0)
    summary = views.summary(flow, 2.0)
    assert (summary["max_lead"], summary["usd"], summary["staleness"]) == ({"0": 0}, 2.0, 0)
    assert (summary["stages"][0]["samples_per_s"], summary["stages"][0]["compute"]) == (10.0, 0.5)


def test_the_status_is_of_the_open_interval_and_names_whom_all_wait_for():
    layout = make_layout((1,), 1)
    views = StageStats(layout)
    flow = RoundFlow(layout, [(0,)], BSP(), Leases(1, 2))
    flow.start(0.0)
    progress = RunProgress(Job(data=Data(train="unread.parquet")))
    progress.add(10, [], 2.0, 0.5)
    views.pushed(pushed("worker-1.0", Usage(1.0, 0.0, 1.0)))
    views.stepped(Step(10, 0.0, (), 0))
    status = views.status(progress, flow)
    assert (status["samples"], status["seconds"], status["waits_for"]) == (10, 2.0, ["worker-1.0"])
    assert status["stages"][0]["samples_per_s"] == 5.0
