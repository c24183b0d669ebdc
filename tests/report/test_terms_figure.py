"""The seconds of a batch as bars: by term where a prediction has terms, and by station where a plan was followed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import heterps.planning as planning
from heterps.config import Cluster, Job
from heterps.planning.api import make_problem
from heterps.planning.explain import stations
from heterps.profiling.profile import Profile
from heterps.report.figures import batch_time
from heterps.report.page.terms import terms_figure
from heterps.report.read_run import read_run

RECORDED = Path(__file__).parent / "run"
CLUSTER = {
    "resources": {
        "cpu": {"device": "cpu", "usd_per_hour": 0.04, "limit": 480},
        "v100": {"device": "cuda", "usd_per_hour": 2.42, "limit": 32},
    },
    "server_resource": "cpu",
}


def layer(name: str, cpu_s: float, v100_s: float) -> dict[str, Any]:
    costs = {
        resource: {"compute_s": seconds, "sync_s": 0.002, "input_s": 0.0, "alpha": 0.97, "beta": 0.93}
        for resource, seconds in {"cpu": cpu_s, "v100": v100_s}.items()
    }
    return {"name": name, "server_s": 0.001, "costs": costs}


def test_terms_are_drawn_as_long_as_they_took() -> None:
    run = read_run(RECORDED)
    terms = {
        "predicted_terms": {"compute_s": 0.010, "servers_s": 0.002},
        "measured_terms": {"compute_s": 0.012, "wait_s": 0},
    }
    drawn = terms_figure(run.job, run.plan, run.summary | terms, None)
    widths = {told: float(width) for width, told in re.findall(r'width="([\d.]+)"[^>]*><title>([^<]*)', drawn)}
    assert widths["a batch, predicted: compute 10.0 ms"] == pytest.approx(530 * 10 / 12, abs=0.1)
    assert widths["a batch, predicted: servers 2.00 ms"] == pytest.approx(530 * 2 / 12, abs=0.1)
    assert widths["a batch, measured: compute 12.0 ms"] == 530.0, "the longest fills the row"
    assert "a batch, measured: wait" not in widths
    assert "a batch, measured compute 12.0 ms, wait 0.00 ms" in drawn, "who cannot see it is told"


def test_stations_are_those_of_the_planner_beside_what_their_workers_did() -> None:
    layers = [layer("embedding", 0.01, 0.2), layer("fc", 2.0, 0.01)]
    profile = Profile.model_validate({"model": "ctr", "batch_size": 1024, "layers": layers})
    cluster = Cluster.model_validate(CLUSTER)
    plan = planning.plan(profile, cluster, throughput=50_000, samples=1e6)
    assert [stage.resource for stage in plan.stages] == ["cpu", "v100"]
    job = Job.model_validate({"data": {"train": "x", "batch_size": 1024}, "cluster": CLUSTER, "launcher": "local"})
    shares = [{"compute": 0.5, "communicate": 0.25, "wait": 0.25}, {"compute": 0.75, "communicate": 0.0, "wait": 0.25}]
    summary = {"launcher": "local", "stages": shares, "measured_throughput": 10_240.0, "samples": 4096}
    drawn = terms_figure(job, plan, summary, profile)
    first, second, servers = stations(make_problem(profile, cluster, plan.throughput, 4096), plan)
    assert f"1 cpu, predicted compute {batch_time(first.compute_s)}" in drawn
    assert "1 cpu, measured compute 50.0 ms, communicate 25.0 ms, wait 25.0 ms" in drawn
    assert f"2 v100, predicted compute {batch_time(second.compute_s)}" in drawn
    assert "2 v100, measured compute 75.0 ms" in drawn
    assert f"servers, predicted compute {batch_time(servers.compute_s)}" in drawn
    assert terms_figure(job, plan, summary | {"launcher": "inline"}, profile) == "", "one process follows no plan"
