"""Whether a job should go on by another plan: bills for what is left, limits, and what is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from elastic import CLUSTER, make_plan

from heterps.config import Cluster, Data, Job, load_cluster
from heterps.errors import ConfigError, PlanInfeasible, RunError
from heterps.launch.replanning import Wishes, ask_to_follow, new_cluster, propose, write_files
from heterps.planning.plan import load_plan
from heterps.profiling.profile import Cost, LayerProfile, Profile, TableGrowth, load_profile
from heterps.training.run.commands import CommandReply
from heterps.training.run.control import Found
from heterps.training.run.folder import ALWAYS_MEASURED
from heterps.yamlfile import dump_yaml

LAYERS = ("a", "b", "c", "d", "e")


@pytest.fixture
def found(tmp_path):
    """A run of 5 layers on one cpu, of 320 samples/s; big takes a tenth of the time."""
    cluster = Cluster.model_validate(CLUSTER)
    data = Data(train="unread", batch_size=16)
    costs = {
        name: Cost(compute_s=seconds, sync_s=0.0, input_s=0.0, alpha=1.0, beta=1.0)
        for name, seconds in (("cpu", 0.01), ("big", 0.001))
    }
    layers = tuple(LayerProfile(name=name, kind="linear", costs=costs, server_s=0.0001) for name in LAYERS)
    (tmp_path / "there").mkdir()
    Profile(model="tiny", batch_size=16, layers=layers).write(tmp_path / "there" / "profile.json")
    job = Job(data=data, cluster=cluster, launcher="local", profile="profile.json")
    (tmp_path / "job.yaml").write_text(dump_yaml(job))
    make_plan([1], [], layers=LAYERS).write(tmp_path / "plan.json")
    return Found(tmp_path, "ipc:///nowhere", 1, tmp_path / "there")


def status(workers=1, samples=1000, total=33_000):
    return {"samples": samples, "total": total, "stages": [{"workers": workers}]}


def test_what_runs_is_billed_for_what_is_left_with_the_counts_that_it_has(found):
    proposal = propose(found, status(workers=2), Wishes())
    assert (proposal.samples, proposal.throughput) == (32_000, pytest.approx(320)), (
        "the floor is that of the first plan"
    )
    assert proposal.old.stages[0].count == 2
    assert proposal.old.throughput == pytest.approx(640)
    assert proposal.old.usd == pytest.approx(32_000 / 640 / 3600 * 3)  # 2 cpu and a server at 1 USD


def test_servers_hold_the_rows_of_all_samples_and_not_only_of_those_that_are_left(found):
    """A plan for the rest of a job must not have fewer servers than its tables need already."""
    path = found.directory / "profile.json"
    growth = TableGrowth(name="rows", row_bytes=100, coefficient=1.0, exponent=1.0)
    load_profile(path).model_copy(update={"version": 2, "tables": (growth,)}).write(path)
    (found.folder / "memory.yaml").write_text(dump_yaml(with_memory(100 * 10_000 * 1.1)))
    wishes = Wishes(cluster=found.folder / "memory.yaml")
    for left in (32_000, 1000):
        proposal = propose(found, status(samples=33_000 - left), wishes)
        assert proposal.new.servers.count == 4, "for 33,000 rows"
        assert proposal.new.hours == pytest.approx(left / proposal.new.throughput / 3600)


def test_what_the_plan_was_asked_to_have_room_for_counts_again(found):
    (found.folder / "memory.yaml").write_text(dump_yaml(with_memory(1e6)))
    running = load_plan(found.folder / "plan.json")
    wishes = Wishes(cluster=found.folder / "memory.yaml", throughput=100.0)
    counts = []
    for asked in ({}, {"rows": 25_000.0}, {"rows": 25_000.0, "rows_in_memory": 0.3}):
        running.model_copy(update={"sync": "bsp", **asked}).write(found.folder / "plan.json")
        new = propose(found, status(), wishes).new
        assert (new.rows, new.rows_in_memory) == (asked.get("rows"), asked.get("rows_in_memory"))
        counts.append(new.servers.count)
    assert counts[0] < counts[2] < counts[1]
    assert counts[1] >= 25_000 * 160 / 1e6


def with_memory(num_bytes: float) -> Cluster:
    """The cluster, whose cores have so much memory."""
    cluster = Cluster.model_validate(CLUSTER)
    cpu = cluster.resources["cpu"].model_copy(update={"memory_gb": num_bytes / 1e9})
    return cluster.model_copy(update={"resources": {**cluster.resources, "cpu": cpu}})


def test_the_plan_that_runs_stays_where_nothing_is_cheaper(found):
    proposal = propose(found, status(), Wishes(prices={"big": 1000.0}))
    assert not proposal.cannot_stay
    assert proposal.new.stages[0].resource == "cpu"
    assert not proposal.is_better or proposal.new.usd < proposal.old.usd


def at_rate(samples_per_s, compute=1.0, communicate=0.0, **more):
    """The status of one worker that does so many samples a second, with these shares of its time."""
    shares = {"resource": "cpu", "compute": compute, "communicate": communicate, "wait": 1 - compute - communicate}
    return status(**more) | {"stages": [{"workers": 1, "samples_per_s": samples_per_s, **shares}]}


def test_what_runs_is_billed_by_the_measured_rate_beside_the_predicted_one(found):
    told = propose(found, status(), Wishes())
    assert (told.measured, told.by_profile) == (None, None), "nothing is measured yet"
    for rate in (250.0, 10_000.0):  # slower, and faster than a single correction reaches
        proposal = propose(found, at_rate(rate), Wishes())
        assert proposal.measured == rate
        assert proposal.old.throughput == pytest.approx(rate, rel=1e-3)
        assert proposal.old.usd == pytest.approx(32_000 / rate / 3600 * 2, rel=1e-3)
        assert proposal.by_profile is not None
        assert proposal.by_profile[0].throughput == pytest.approx(320), "by the profile alone"
        assert proposal.throughput == pytest.approx(rate, rel=1e-3), "the first plan, as measured"


@pytest.mark.parametrize(("rate", "usd", "told", "measured"), [(3200.0, 3.0, "big", "cpu"), (32.0, 30.0, "cpu", "big")])
def test_a_measurement_decides_against_the_profile(found, rate, usd, told, measured):
    """By the profile big is ten times as fast; what runs on cpu is measured ten times as fast or slow as it says."""
    wishes = Wishes(prices={"big": usd})
    chosen = [propose(found, now, wishes).new.stages[0].resource for now in (status(), at_rate(rate))]
    assert chosen == [told, measured]


def test_time_that_no_stage_accounts_for_slows_both_plans_alike(found):
    waits = propose(found, at_rate(160.0, compute=0.5), Wishes(prices={"big": 0.5}))
    assert waits.by_profile is not None
    for bill, by_profile in zip((waits.old, waits.new), waits.by_profile, strict=True):
        assert bill.throughput == pytest.approx(by_profile.throughput / 2, rel=1e-3)
        assert bill.usd == pytest.approx(by_profile.usd * 2, rel=1e-3)


def test_what_trials_reached_counts_for_both_plans(found, tmp_path):
    path = tmp_path / "there" / "profile.json"
    before = propose(found, status(), Wishes(prices={"big": 0.5}))
    load_profile(path).model_copy(update={"version": 2, "reached": 0.5}).write(path)
    after = propose(found, status(), Wishes(prices={"big": 0.5}))
    assert after.old.throughput == pytest.approx(before.old.throughput / 2)
    assert after.new.throughput == pytest.approx(before.new.throughput / 2)


def test_a_wish_is_held_against_what_is_measured(found):
    wished = Wishes(throughput=400.0, prices={"big": 900.0})
    assert propose(found, status(), wished).cannot_stay
    assert not propose(found, at_rate(500.0), wished).cannot_stay
    assert propose(found, at_rate(300.0), wished).cannot_stay == (
        "it is expected to do 300 samples/s, and 400 are wanted"
    )


def test_the_longer_of_the_open_interval_and_the_last_one_is_measured(found, tmp_path):
    lines = [at_rate(100.0) | dict.fromkeys(ALWAYS_MEASURED, 0) | {"samples": samples} for samples in (400, 900)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert propose(found, at_rate(250.0, samples=1000), Wishes()).measured == 100.0
    assert propose(found, at_rate(250.0, samples=2000), Wishes()).measured == 250.0
    two = at_rate(250.0, samples=1000)
    two["stages"][0]["workers"] = 2
    assert propose(found, two, Wishes()).measured == 250.0, "the last interval had one worker"


def test_a_cheaper_plan_is_better(found):
    proposal = propose(found, status(), Wishes(prices={"big": 0.5}))
    assert [stage.resource for stage in proposal.new.stages] == ["big"]
    assert proposal.is_better
    assert proposal.new.usd < proposal.old.usd


@pytest.mark.parametrize(
    ("wishes", "why"),
    [
        (Wishes(limits={"cpu": 1}), "it has 2 units of 'cpu', and the limit is 1"),
        (Wishes(throughput=1000.0), "it is expected to do 320 samples/s, and 1,000 are wanted"),
    ],
)
def test_what_breaks_a_wish_cannot_stay_though_the_other_is_dearer(found, wishes, why):
    proposal = propose(found, status(), Wishes(**(vars(wishes) | {"prices": {"big": 900.0}})))
    assert proposal.cannot_stay == why
    assert proposal.is_better


def test_a_resource_that_is_gone_leaves_no_bill_of_what_runs(found, tmp_path):
    only_big = {"resources": {"big": CLUSTER["resources"]["big"]}, "server_resource": "big"}
    (tmp_path / "big.yaml").write_text(dump_yaml(Cluster.model_validate(only_big)))
    with pytest.raises(ConfigError, match="say with --throughput how fast to be"):
        propose(found, status(), Wishes(cluster=tmp_path / "big.yaml"))
    proposal = propose(found, status(), Wishes(cluster=tmp_path / "big.yaml", throughput=300.0))
    assert proposal.cannot_stay == "the cluster has no 'cpu' any more"
    assert not proposal.old.is_predicted
    assert proposal.is_better


def test_a_plan_that_is_given_is_taken_though_it_is_dearer_but_not_where_it_runs_already(found, tmp_path):
    make_plan([1, 4], [2]).write(tmp_path / "mine.json")
    proposal = propose(found, status(), Wishes(plan=tmp_path / "mine.json"))
    assert proposal.is_better
    assert proposal.new.usd > proposal.old.usd
    assert not propose(found, status(), Wishes(plan=tmp_path / "plan.json")).is_better


def test_what_cannot_be_planned_says_why(found, tmp_path):
    with pytest.raises(PlanInfeasible):
        propose(found, status(), Wishes(throughput=1e9))
    with pytest.raises(RunError, match="nothing left to plan for"):
        propose(found, status(samples=33_000), Wishes())
    make_plan([1], [], num_layers=4).write(tmp_path / "short.json")
    with pytest.raises(ConfigError, match="4 layers"):
        propose(found, status(), Wishes(plan=tmp_path / "short.json"))
    job = (tmp_path / "job.yaml").read_text().replace("profile: profile.json", "profile: null")
    (tmp_path / "job.yaml").write_text(job)
    with pytest.raises(ConfigError, match=r"names no profile.*heterps profile .*--out profile\.json"):
        propose(found, status(), Wishes())


def test_files_are_numbered_and_the_first_plan_is_kept(found, tmp_path):
    first = load_plan(tmp_path / "plan.json")
    proposal = propose(found, status(), Wishes(prices={"big": 0.5}))
    asked = write_files(tmp_path, proposal)
    assert (asked.plan, asked.cluster) == ("plan-2.json", "cluster-2.yaml")
    assert load_plan(tmp_path / "plan-2.json") == proposal.new
    assert load_cluster(tmp_path / "cluster-2.yaml") == proposal.cluster
    assert load_plan(tmp_path / "plan-1.json") == first
    proposal.new.write(tmp_path / "plan.json")
    again = write_files(tmp_path, proposal)
    assert again.plan == "plan-3.json"
    assert load_plan(tmp_path / "plan-1.json") == first
    assert propose(found, status(), Wishes()).throughput == pytest.approx(320), "still that of the first plan"


def test_a_plan_that_the_job_refuses_leaves_no_file(found, tmp_path, monkeypatch):
    proposal = propose(found, status(), Wishes(prices={"big": 0.5}))
    monkeypatch.setattr(Found, "ask", lambda self, asked: CommandReply(f"{asked.plan} is not for me", is_error=True))
    with pytest.raises(ConfigError, match=r"plan-2\.json is not for me"):
        ask_to_follow(found, proposal)
    assert sorted(path.name for path in Path(tmp_path).glob("*-2.*")) == []
    monkeypatch.setattr(Found, "ask", lambda self, asked: CommandReply("it follows", is_error=False))
    assert ask_to_follow(found, proposal) == (tmp_path / "plan-2.json", "it follows")
    assert load_plan(tmp_path / "plan-2.json") == proposal.new


def test_single_prices_and_limits_change_nothing_else():
    cluster = Cluster.model_validate(CLUSTER)
    changed = new_cluster(cluster, Wishes(prices={"big": 2.5}, limits={"cpu": 64}))
    assert (changed.resources["big"].usd_per_hour, changed.resources["cpu"].limit) == (2.5, 64)
    assert changed.resources["cpu"].usd_per_hour == cluster.resources["cpu"].usd_per_hour
    with pytest.raises(ConfigError, match="no resource 'tpu': it has cpu, big"):
        new_cluster(cluster, Wishes(prices={"tpu": 1.0}))
