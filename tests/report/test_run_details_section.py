"""What the page of a run shows of its details, and that it shows nothing where there are none."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

import pytest
from plans import make_plan
from staged_run import staged, staged_line

from heterps.config import load_job
from heterps.errors import ConfigError
from heterps.planning.frontier import Frontier
from heterps.profiling.profile import Cost, LayerProfile, Profile
from heterps.report import run_details
from heterps.report.figures import usd
from heterps.report.observed import ObservedPolicy, observe
from heterps.report.page.run import render_run
from heterps.report.run_details import RunDetails, with_frontier, with_quick_frontier
from heterps.report.worker_times import WorkersOverTime, WorkerTimes
from heterps.sim.result import Segment
from heterps.sync import make_policy
from heterps.sync.policy import Event
from heterps.sync.trace import TraceHeader

RUN = Path(__file__).parent / "run"
JOB = load_job(RUN / "job.yaml")
NAMES = ("embedding", "fc1", "fc2")
PLAN = make_plan(("cpu", 1, 3), ("cpu", 2, 1), servers=1).model_copy(update={"layers": NAMES})
SUMMARY = staged(json.loads((RUN / "summary.json").read_text()))
METRICS = [staged_line(json.loads(line)) for line in (RUN / "metrics.jsonl").read_text().splitlines()]
TITLES = ("Workers over time", "What travelled", "Faults, recoveries and changes")


def observed(num_steps: int, num_lanes: int = 2, words: str = "ssp") -> list[ObservedPolicy]:
    """A policy whose lanes push in turn, once a second."""
    events: list[Event] = []
    lanes = [f"lane-{i}" for i in range(num_lanes)]
    policy = make_policy(words, workers=lanes, on_event=events.append)
    for i in range(num_steps):
        policy.on_push(lanes[i % num_lanes], now=i + 1.0)
    return observe([("Stage 1", TraceHeader(policy=policy.config, workers=tuple(lanes), now=0.0), events, True)])


def profile(names=NAMES) -> Profile:
    costs = dict.fromkeys(("cpu", "v100"), Cost(compute_s=0.002, sync_s=0.001, input_s=0.0, alpha=0.5, beta=0.5))
    layers = tuple(LayerProfile(name=name, kind="linear", costs=costs, weight_bytes=4000) for name in names)
    return Profile(model="ctr", batch_size=JOB.data.batch_size, layers=layers)


def page(details: RunDetails = RunDetails(), metrics=METRICS, plan=PLAN) -> tuple[str, str]:
    html = render_run(JOB, plan, SUMMARY, metrics, details)
    return html, unescape(" ".join(re.sub(r"<style>.*?</style>|<[^>]+>", " ", html, flags=re.S).split()))


def test_a_run_without_details_has_no_empty_section():
    _, text = page()
    assert not [title for title in TITLES if title in text]
    assert "A detail is left out" not in text


def test_layers_have_their_names_and_the_times_of_a_profile_that_is_of_them():
    html, text = page(RunDetails(profile=profile()))
    assert "Stage 1: 3 × cpu embedding 2.00 ms" in text
    assert "Stage 2: 1 × cpu fc1 2.00 ms fc2 2.00 ms" in text
    assert "Times are those of the profile" in text
    assert "moves parameters 1.00 ms, 4.0 KB of weights" in html
    _, text = page(RunDetails(profile=profile(("other", "fc1", "fc2"))))
    assert "Stage 1: 3 × cpu embedding Stage 2" in text
    assert "Times are those of the profile" not in text
    assert 'class="chain"' not in page(plan=PLAN.model_copy(update={"layers": None}))[0]


def test_workers_have_a_timeline_a_histogram_and_the_same_in_words():
    html, text = page(RunDetails(policies=observed(20)))
    assert "Workers over time Stage 1 (ssp:3)" in text
    assert "20 steps; workers waited for others" in text
    assert "of the gradients missed no update of others; the stalest missed 1." in text
    assert "lane-0 works on a batch from 0.00 to 1.00 s (1.00 s)" in text
    assert "Staleness of gradients" in text
    assert 'id="zoom-1-0-16"' in html
    assert "<script" not in html
    rounds = page(RunDetails(policies=observed(20, words="bsp")))[1]
    assert "Staleness of gradients" not in rounds
    assert "none is stale" in rounds


@pytest.mark.parametrize(("num_steps", "num_lanes"), [(5000, 2), (6000, 300)])
def test_a_page_stays_small_however_much_was_done(num_steps, num_lanes):
    html, text = page(RunDetails(policies=observed(num_steps, num_lanes, "asp") * 3))
    assert len(html) < 1_000_000
    assert "In all" in text
    assert re.search(r"The last [\w ]+, step by step", text)
    assert len(set(re.findall(r'id="(zoom[^"]*)"', html))) == 3 * 2 * 3


def over_time(num_steps: int, num_workers: int = 2, *, is_whole: bool = True) -> WorkersOverTime:
    """Workers that compute for 3 ms, communicate for 1 ms and wait for 1 ms in every step."""
    doings = (("compute", 0.0, 0.003), ("communicate", 0.003, 0.004), ("wait", 0.004, 0.005))
    segments = tuple(
        Segment(0.005 * step + start, 0.005 * step + end, doing)
        for step in range(num_steps)
        for doing, start, end in doings
    )
    return WorkersOverTime(tuple(WorkerTimes(f"worker-1.{i}", segments) for i in range(num_workers)), is_whole)


def test_workers_have_a_timeline_of_computing_communicating_and_waiting():
    html, text = page(RunDetails(workers=over_time(10)))
    assert "What workers did The 2 workers computed 60.0% of the time, communicated 20.0% and waited 20.0%." in text
    assert "worker-1.1 communicates at 0.0030 s (1.00 ms)" in text
    assert "worker-1.0 60.0% 20.0% 20.0%" in text
    assert {f'id="zoom-workers-0-{zoom}"' for zoom in (1, 4, 16)} <= {*re.findall(r'id="zoom-[^"]*"', html)}
    assert "by which" not in text
    many, text = page(RunDetails(workers=over_time(2000, is_whole=False), policies=observed(20)))
    assert "In all" in text
    assert "The last" in text
    assert "worker-1.0, 0.00 s: computes 60%" in text, "cells of a long time show shares"
    assert "in the last 10.0 s that were written down" in text
    assert len(many) < 1_000_000


def test_traffic_is_told_by_kind_with_what_was_saved():
    counts = {"bytes_sent": 1000, "retries": 2, "dropped": 0, "rows_bytes": 500, "row_gradients_bytes": 250}
    counts |= {"deduplication_saved_bytes": 9_000, "caching_saved_bytes": 3_000, "calls": 60, "requests": 20}
    lines = [{**line, "traffic": {**counts, "keys_bytes": 10_000 * (i + 1)}} for i, line in enumerate(METRICS)]
    lines[-1] |= {"cache": {"num_hits": 75, "num_misses": 25, "hit_rate": 0.75}}
    _, text = page(metrics=lines)
    text = text.replace(".0 KB", " KB")
    whole = 10 * len(lines) + 0.75
    assert f"{whole:.1f} KB travelled, in 20 requests to servers. Without" in text
    assert f"it would have been {whole + 12:.1f} KB, {(whole + 12) / whole:.1f} times as much." in text
    assert f"Keys {len(lines) * 10} KB" in text
    assert "Dense parameters" not in text, "none travelled"
    assert "De-duplication 9 KB" in text
    assert "75 of 100 rows (75.0%) were not pulled" in text
    assert "servers.coding is exact" in text
    assert "Merging 40 messages 60 calls went in 20 requests" in text
    assert "Requests sent again 2" in text
    assert "Messages lost" not in text
    assert "Bytes a sample" in text
    none = [{**line, "traffic": dict.fromkeys(counts, 0)} for line in METRICS]
    assert "What travelled" not in page(metrics=none)[1]


def test_faults_and_recoveries_have_their_moments_and_are_text():
    event = {"at": 1_700_000_000.0, "samples": 4096, "seconds": 12.0, "event": "warned", "text": "worker <b> died"}
    html, text = page(RunDetails(events=[event, event | {"event": "changed", "text": "it is back"}]))
    assert "4,096 12.0 s Warning Worker <b> died" in text
    assert "4,096 12.0 s Changed It is back" in text
    assert "worker <b> died" not in html.lower()


def test_what_cannot_be_read_is_told():
    assert (
        "A detail is left out: stage-1.jsonl is damaged." in page(RunDetails(problems=["stage-1.jsonl is damaged."]))[1]
    )


def test_the_run_is_drawn_among_other_plans_where_that_was_asked_for():
    assert "against throughput" not in page()[1]
    plans = tuple(make_plan(("cpu", 3, n), throughput=1000.0 * n, usd=float(n)) for n in (1, 2, 3))
    plan = PLAN.model_copy(update={"samples": float(SUMMARY["samples"])})
    html, text = page(RunDetails(frontier=Frontier(plans, complete=True)), plan=plan)
    assert f"the run, as measured: {usd(SUMMARY['measured_usd'])} at" in text
    assert f"the plan: {usd(plan.usd)} at" in text
    assert "3,000 3.00 USD cheapest for its throughput" in text
    assert 'class="mark series-1"' in html


def test_a_frontier_needs_a_profile_and_is_of_the_runs_cluster_and_samples():
    with pytest.raises(ConfigError, match="this run has none"):
        with_frontier(RunDetails(), JOB, PLAN)
    plan = PLAN.model_copy(update={"samples": 1e6})
    found = with_frontier(RunDetails(profile=profile()), JOB, plan).frontier
    assert found is not None
    assert all(one.samples == 1e6 for one in found.plans)
    assert {name for one in found.plans for name in one.units} <= set(JOB.cluster.resources)


def test_a_frontier_has_only_units_whose_costs_the_profile_of_the_run_has():
    whole = profile()
    layers = tuple(layer.model_copy(update={"costs": {"cpu": layer.costs["cpu"]}}) for layer in whole.layers)
    details = RunDetails(profile=whole.model_copy(update={"layers": layers}))
    assert "v100" in JOB.cluster.resources
    found = with_frontier(details, JOB, PLAN.model_copy(update={"samples": 1e6})).frontier
    assert found is not None
    assert {name for one in found.plans for name in one.units} == {"cpu"}


def test_a_report_has_the_frontier_of_a_job_with_a_profile_unless_it_takes_long(monkeypatch):
    plan, details = PLAN.model_copy(update={"samples": 1e6}), RunDetails(profile=profile())
    named = JOB.model_copy(update={"profile": "profile.json"})
    assert with_quick_frontier(details, named, plan).frontier is not None
    assert with_quick_frontier(details, JOB, plan) is details, "its job names none"
    assert with_quick_frontier(RunDetails(), named, plan).frontier is None, "it is not there any more"
    monkeypatch.setattr(run_details, "QUICK_S", -1.0)
    assert with_quick_frontier(details, named, plan) is details
