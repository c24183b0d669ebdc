"""Trials on threads, of a tiny job on units that are not here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from heterps.cli import main
from heterps.config import ASP, Cluster, Emulation, Job, Resource, load_job
from heterps.errors import ConfigError
from heterps.launch import trials
from heterps.launch.trials import INTERVAL, STEP, TrialRunner, interval_of, run_trial, trial_job
from heterps.model import build_model
from heterps.model.trace import trace
from heterps.planning.plan import Plan, PlannedServers, Stage, load_plan
from heterps.planning.trial import StageSeconds, Trial, TrialStopped
from heterps.profiling.profile import Cost, LayerProfile, Profile, load_profile
from heterps.training.metrics.metrics import Metrics

CLUSTER = Cluster(
    resources={
        "cpu": Resource(device="cpu", usd_per_hour=0.04, limit=3),
        "v100": Resource(device="cuda", usd_per_hour=2.42, limit=1),
    },
    server_resource="cpu",
)
SCALE = 20.0  # real seconds of an emulated one: this machine is not in the way


def profile_of(job: Job, slow: float = 1.0) -> Profile:
    """Everything takes `slow` times as long on a V100."""
    traced = trace(build_model(job.model, job.data.columns, job.seed))
    layers = []
    for number, layer in enumerate(traced.layers):
        cpu = Cost(compute_s=0.004, sync_s=0.0, input_s=0.0, alpha=1.0, beta=1.0)
        v100 = Cost(
            compute_s=(0.004 if number == 0 else 0.0005) * slow,
            sync_s=0.0, input_s=0.0, alpha=1.0, beta=1.0, estimated=True,
        )  # fmt: skip
        layers.append(LayerProfile(name=layer.name, server_s=1e-5, costs={"cpu": cpu, "v100": v100}))
    return Profile(model="tiny", batch_size=16, layers=tuple(layers))


@pytest.fixture
def job(tiny_job: Path) -> Job:
    given = load_job(tiny_job).model_copy(update={"cluster": CLUSTER, "profile": "profile.json"})
    profile_of(given).write("profile.json")
    return given


def plan_of(job: Job, *counts: int) -> Plan:
    """The embedding on CPUs, the rest on V100s; or all on CPUs."""
    last = len(trace(build_model(job.model, job.data.columns, job.seed)).layers) - 1
    stages = [Stage(first=0, last=last, resource="cpu", count=counts[0])]
    if len(counts) > 1:
        stages = [
            Stage(first=0, last=0, resource="cpu", count=counts[0]),
            Stage(first=1, last=last, resource="v100", count=counts[1]),
        ]
    servers = PlannedServers(resource="cpu", count=1)
    return Plan(method="x", stages=tuple(stages), servers=servers, throughput=4000, hours=0, usd=0, bottleneck="")


def at_scale(job: Job, scale: float) -> Job:
    return job.model_copy(update={"emulation": Emulation(scale=scale)})


def test_a_trial_measures_the_pace_of_emulated_units_and_leaves_nothing_behind(job: Job) -> None:
    before = sorted(Path().iterdir())
    plan = plan_of(job, 1, 1)
    trial = run_trial(at_scale(trial_job(job, emulate=True), SCALE), plan, seconds=60.0, num_batches=4)
    assert sorted(Path().iterdir()) == before
    assert trial.is_emulated
    assert trial.num_batches == 4
    assert trial.throughput == pytest.approx(4 * 16 / trial.seconds)
    assert trial.throughput <= 4000 * 1.05  # 4 ms for 16 samples; a machine with other work may well take longer
    assert trial.stages[0].busy_s >= 0.004 * 0.9
    assert trial.stages[1].busy_s >= 0.002 * 0.9
    whole_s = [stage.busy_s + stage.wait_s for stage in trial.stages]
    assert whole_s == pytest.approx([16 / trial.throughput] * 2, rel=0.01)


def test_without_rounds_a_trial_counts_whole_batches(job: Job) -> None:
    asp = job.model_copy(update={"sync": ASP()})
    trial = run_trial(at_scale(trial_job(asp, emulate=True), SCALE), plan_of(job, 2), seconds=0.0)
    assert trial.num_batches >= 4
    assert trial.stages[0].busy_s >= 0.010 * 0.9  # five layers of 4 ms on two units


@pytest.mark.parametrize(
    ("batch_s", "every", "expected"),
    [(0.01, 65_536, 25), (0.001, 1600, 100), (1.0, 65_536, INTERVAL), (0.01, 16, INTERVAL)],
)
def test_lines_of_a_trial_are_a_quarter_of_a_second_apart_but_no_rarer_than_those_of_the_job(
    job: Job, batch_s: float, every: int, expected: int
) -> None:
    assert interval_of(job.model_copy(update={"metrics_every_samples": every}), batch_s) == expected


def test_a_run_that_is_told_to_stop_is_no_trial(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    class CommandReply:
        stopped_by = "SIGTERM"

    def stopped(*_: object, **__: object) -> tuple[None, None, CommandReply]:
        return None, None, CommandReply()

    monkeypatch.setattr("heterps.launch.trials.run_by_plan", stopped)
    with pytest.raises(TrialStopped, match="SIGTERM"):
        run_trial(trial_job(job, emulate=True), plan_of(job, 1))


def test_absent_devices_are_refused_without_emulation(job: Job) -> None:
    with pytest.raises(ConfigError, match="this machine has no such device"):
        run_trial(trial_job(job), plan_of(job, 1, 1))


def test_a_trial_job_evaluates_nothing_saves_nothing_and_has_its_own_servers(job: Job) -> None:
    given = Job.model_validate({**job.model_dump(), "servers": {"addresses": ["tcp://a:1"], "key": "k"}})
    tried = trial_job(given)
    assert tried.data.test is None
    assert (tried.checkpoint.every_samples, tried.checkpoint.every_minutes) == (None, None)
    assert tried.servers is not None
    assert (tried.servers.addresses, tried.servers.count, tried.servers.key) == ((), None, None)
    assert tried.launcher == "local"
    with pytest.raises(ConfigError, match="--launcher cloud"):
        trial_job(given, launcher="cloud")


@pytest.mark.parametrize(
    ("emulate", "workers", "channel"),
    [
        (True, {}, "memory"),
        (True, {"channel": "ipc"}, "ipc"),
        (False, {}, "ipc"),
        (False, {"channel": "memory"}, "memory"),
    ],
)
def test_emulated_workers_of_a_small_model_are_threads_unless_the_job_says_otherwise(
    emulate: bool, workers: dict[str, str], channel: str, job: Job
) -> None:
    given = Job.model_validate({**job.model_dump(exclude={"workers"}), "workers": workers})
    assert trial_job(given, emulate=emulate).workers.channel == channel


class Machine:
    """Stands for run_trial: overhead of so many real seconds a batch and worker, whatever the scale."""

    def __init__(self, overhead_s: float) -> None:
        self.overhead_s = overhead_s
        self.scales: list[float] = []

    def __call__(self, job: Job, plan: Plan, *, seconds: float) -> Trial:
        assert job.emulation is not None
        assert job.emulation.scale is not None
        self.scales.append(job.emulation.scale)
        batch_s = 16 / plan.throughput + self.overhead_s / job.emulation.scale
        return Trial(plan, 16 / batch_s, (StageSeconds(batch_s, 0.0),), 4, seconds, is_emulated=True)


def test_the_scale_grows_until_this_machine_is_not_in_the_way(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heterps.launch.by_plan.choose_scale", lambda *_: 1.0)
    plan, machine = plan_of(job, 1), Machine(overhead_s=0.002)  # half of a batch at scale 1, 3 % at 16
    runner = TrialRunner(trial_job(job, emulate=True), 1.0, machine)
    trial = runner(plan)
    assert machine.scales == [1.0, STEP, STEP**2, STEP**3]  # the last is not much faster
    assert trial.throughput == pytest.approx(plan.throughput, rel=0.01)
    runner(plan.model_copy(update={"throughput": 2 * plan.throughput}))
    assert machine.scales[4:] == [2 * STEP**2]  # at once, with as many real seconds for a batch
    two = plan.model_copy(update={"stages": (plan.stages[0].model_copy(update={"count": 2}),)})
    runner(two)
    assert machine.scales[5:] == [2 * STEP**2]


def test_a_scale_that_the_job_names_is_kept(job: Job) -> None:
    machine = Machine(overhead_s=1.0)
    runner = TrialRunner(at_scale(trial_job(job, emulate=True), 3.0), 1.0, machine)
    runner(plan_of(job, 1))
    assert machine.scales == [3.0]


def command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["plan", *words])
    captured = capsys.readouterr()
    assert isinstance(stop.value.code, int)
    return stop.value.code, captured.out, captured.err


JOB_PARTS = """
profile: profile.json
launcher: local
emulation: {scale: 10}
cluster:
  resources:
    cpu: {device: cpu, usd_per_hour: 0.04, limit: 3}
    v100: {device: cuda, usd_per_hour: 2.42, limit: 1}
  server_resource: cpu
"""


def test_the_command_learns_from_trials_that_units_are_slower_than_the_profile_says(
    tiny_job: Path, job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_job.write_text(tiny_job.read_text() + JOB_PARTS)
    profile_of(job, slow=3.0).write("profile.json")  # what the emulation goes by
    profile_of(job).write("guess.json")
    code, out, err = command(
        capsys, "guess.json", "--measure", "job.yaml", "--throughput", "900", "--trials", "3", "--trial-seconds", "0.2",
        "--evaluations", "64", "--out", "plan.json", "--profile-out", "corrected.json", "--json",
    )  # fmt: skip
    assert code == 0
    shown: dict[str, Any] = json.loads(out)
    assert shown["emulated"]
    assert 1 <= len(shown["trials"]) <= 3
    assert all(trial["measured"]["emulated"] for trial in shown["trials"])
    assert shown["error_after"] < shown["error_before"]
    assert "trial 1 of 3: " in err
    plan, corrected = load_plan("plan.json"), load_profile("corrected.json")
    assert plan.measured == "emulated trial"
    assert plan.throughput == shown["chosen"]["throughput"]
    used = {stage["resource"] for trial in shown["trials"] for stage in trial["plan"]["stages"]}
    assert {name for layer in corrected.layers for name, cost in layer.costs.items() if cost.corrected} == used
    assert all(cost.estimated for layer in corrected.layers for name, cost in layer.costs.items() if name == "v100")


def test_trials_are_by_the_policy_asked_for_and_paid_as_the_market_says(
    tiny_job: Path, job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    started = JOB_PARTS.replace("limit: 3}", "limit: 3, startup_s: 3600}").replace("limit: 1}", "limit: 0}")
    tiny_job.write_text(tiny_job.read_text() + started)
    profile_of(job).write("profile.json")
    code, out, err = command(
        capsys, "--measure", "job.yaml", "--deadline", "1", "--sync", "asp", "--rows", "1e3", "--trials", "1",
        "--trial-seconds", "0.2", "--evaluations", "8", "--json",
    )  # fmt: skip
    assert code == 0, err
    (trial,) = json.loads(out)["trials"]
    plan, measured = trial["plan"], trial["measured"]
    assert plan["sync"] == "asp"
    units = sum(stage["count"] for stage in plan["stages"]) + plan["servers"]["count"]
    hours = measured["hours"]
    assert hours > 1, "the hour until units work is part of it"
    assert measured["usd"] == pytest.approx(hours * units * 0.04)
    code, _, err = command(capsys, "--measure", "job.yaml", "--throughput", "9", "--sync", "asp", "--lanes", "4")
    assert code == 2
    assert "--lanes is for --sync bsp" in err


def test_the_command_refuses_what_is_not_here_before_any_trial(
    tiny_job: Path, job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_job.write_text(tiny_job.read_text() + JOB_PARTS.replace("emulation: {scale: 10}", ""))
    code, _, err = command(capsys, "--measure", "job.yaml", "--throughput", "900")
    assert code == 2
    assert "plans may run on v100, and this machine has no such device" in " ".join(err.split())
    assert "trial" not in err.partition("error")[0]


def test_the_command_says_what_a_job_without_a_profile_needs(
    tiny_job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = command(capsys, "--measure", "job.yaml", "--throughput", "900")
    assert code == 2
    assert "the job names none. Make one with `heterps profile job.yaml" in " ".join(err.split())


def test_a_profile_of_another_model_is_refused(tiny_job: Path, job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_job.write_text(tiny_job.read_text() + JOB_PARTS)
    whole = profile_of(job)
    whole.model_copy(update={"layers": whole.layers[1:]}).write("profile.json")
    code, _, err = command(capsys, "--measure", "job.yaml", "--throughput", "900")
    assert code == 2
    assert "a profile of another model" in err


def test_what_the_first_batches_take_more_than_the_others_is_the_start(job: Job) -> None:
    plan, nothing = plan_of(job, 1), Metrics({}, "")
    watch = trials._TrialWatch(most_s=0.0, most_batches=None, num_stages=1)
    line = {"stages": [{"compute": 1.0, "communicate": 0.0, "wait": 0.0, "workers": 1}]}
    watch.stepped(100, 3.0, 0.0, nothing)  # ten batches of ten samples, of which a batch takes 0.1 s later on
    watch.measured(line)
    watch.stepped(200, 4.0, 0.0, nothing)
    with pytest.raises(trials.Enough):
        watch.measured(line)
    trial = watch.trial(plan, 10, is_emulated=False)
    assert (trial.throughput, trial.start_s) == (100.0, 2.0)
    assert watch.trial(plan, 10, is_emulated=True).start_s == 0.0, "emulated seconds have no start of this machine"
