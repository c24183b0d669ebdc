"""The overhead of a launcher: measured once on a machine, and kept for all profiles."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import heterps_here

from heterps.config import Emulation, Job, Servers, load_job
from heterps.launch import overheads
from heterps.launch.by_plan import default_plan, predict
from heterps.launch.overheads import ENGINE, cache_file, engine_digest, overhead, with_overhead
from heterps.planning.plan import load_plan
from heterps.planning.prediction import TERMS
from heterps.planning.trial import Trial, TrialStopped
from heterps.profiling.profile import Cost, LayerProfile, Overhead, Profile, load_profile


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def profile() -> Profile:
    cost = Cost(compute_s=1.0, sync_s=0, input_s=0, alpha=1, beta=1)
    return Profile(model="m", batch_size=1, layers=(LayerProfile(name="one", costs={"cpu": cost}),))


def test_it_is_measured_once_and_then_read(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []

    def measure(launcher: str) -> Overhead:
        measured.append(launcher)
        return Overhead(batch_s=0.25)

    monkeypatch.setattr(overheads, "_measure", measure)
    for launcher in ("local", "local", "inline"):
        found = with_overhead(profile(), launcher).overheads or {}
        assert found[launcher].batch_s == 0.25
    assert measured == ["inline", "local"]
    assert len(json.loads(cache_file().read_text())) == 2
    assert with_overhead(profile(), "ray").overheads is None, "a cluster is not this machine"


def test_a_damaged_cache_is_measured_anew_and_one_that_cannot_be_written_is_done_without(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overheads, "_measure", lambda _: Overhead(batch_s=0.5))
    cache_file().parent.mkdir(parents=True)
    cache_file().write_text("{")
    assert overhead("local").batch_s == 0.5
    assert overhead("local").batch_s == 0.5
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_file()))
    assert overhead("local").batch_s == 0.5


def test_a_change_of_the_code_that_trains_has_it_measured_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "heterps"
    for name in ("training/worker.py", "cli/train.py"):
        (package / name).parent.mkdir(parents=True)
        (package / name).write_text("x = 1\n")
    digests = [engine_digest.__wrapped__(package)]
    for name in ("cli/train.py", "training/worker.py"):
        (package / name).write_text("x = 2\n")
        digests.append(engine_digest.__wrapped__(package))
    (package / "training" / "worker.py").rename(package / "training" / "renamed.py")
    digests.append(engine_digest.__wrapped__(package))
    assert digests[0] == digests[1], "a command of its own trains nothing"
    assert len(set(digests[1:])) == 3
    seconds = iter([0.25, 0.5])
    monkeypatch.setattr(overheads, "_measure", lambda _: Overhead(batch_s=next(seconds)))
    for digest, expected in (("one", 0.25), ("two", 0.5), ("one", 0.25)):
        monkeypatch.setattr(overheads, "engine_digest", lambda digest=digest: digest)
        assert overhead("local").batch_s == expected


def test_the_engine_is_all_packages_that_are_named() -> None:
    assert all((Path(overheads.__file__).parents[1] / name / "__init__.py").exists() for name in ENGINE)


def test_an_empty_job_runs_inline_in_a_fraction_of_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overheads, "SECONDS", 0.0)
    assert 1e-5 < overhead("inline").batch_s < 1.0


@pytest.mark.slow
def test_workers_and_borders_of_the_local_launcher_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overheads, "SECONDS", 0.2)
    found = overhead("local")
    assert 1e-4 < found.batch_s < 5.0
    assert found.worker_s >= 0
    assert found.message_s >= 0


def test_a_profile_with_the_overhead_predicts_a_local_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overheads, "_measure", lambda _: Overhead(batch_s=0.5, worker_s=0.25))
    made = heterps_here("data", "synth", "data", "--rows", 640, "--test-rows", 0, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    (tmp_path / "job.yaml").write_text(
        "model: {factory: ctr_dnn, args: {embedding_dim: 4, hidden: [8]}}\n"
        "data: {train: data/train, batch_size: 64}\nthreads: 1\nlauncher: local\nworkers: {channel: memory}\n"
    )
    words = ["profile", "job.yaml", "--resources", "cpu", "--units", "parts", "--budget", 0, "--launcher", "local"]
    done = heterps_here(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (load_profile(tmp_path / "profile.json").overheads or {})["local"].batch_s == 0.5
    run = heterps_here("train", "job.yaml", "--profile", "profile.json", "--run", "run", "--json", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    summary = json.loads(run.stdout)
    assert summary["predicted_throughput"] == pytest.approx(64 / 0.5, rel=0.1), "nearly all of it is overhead"
    assert summary["predicted_terms"]["overhead_s"] == pytest.approx(0.5, rel=0.05)
    assert "predicted_in_rounds" not in summary
    assert load_plan(tmp_path / "run" / "plan.json").prediction is not None
    refused = heterps_here("profile", "job.yaml", "--launcher", "ray", "--budget", 0, "--units", "parts", cwd=tmp_path)
    assert refused.returncode == 2
    assert "the overhead of inline and local can be measured here" in " ".join(refused.stderr.split())


def test_a_profile_that_is_told_to_stop_ends_with_its_code_and_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> Trial:
        raise TrialStopped("SIGTERM")

    monkeypatch.setattr(overheads, "run_trial", stop)
    words = [
        "profile",
        "--model",
        "nce",
        "--resources",
        "cpu",
        "--units",
        "parts",
        "--budget",
        0,
        "--launcher",
        "local",
    ]
    done = heterps_here(*words, cwd=tmp_path)
    assert done.returncode == 143
    assert "Traceback" not in done.stderr


PLAN = """
{"method": "by hand", "throughput": 9000, "hours": 1, "usd": 0.12, "bottleneck": "", "batch_size": 64, "stages": [
 {"first": 0, "last": 0, "resource": "cpu", "count": 1}, {"first": 1, "last": 4, "resource": "cpu", "count": 1}],
 "servers": {"resource": "cpu", "count": 1}}
"""


@pytest.fixture
def slow_messages(tmp_path: Path) -> Path:
    """A job by a plan of two stages, whose profile says that a message takes a second and a layer nothing."""
    made = heterps_here("data", "synth", "data", "--rows", 640, "--test-rows", 0, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    (tmp_path / "job.yaml").write_text(
        "model: {factory: ctr_dnn, args: {embedding_dim: 4, hidden: [8]}}\n"
        "data: {train: data/train, batch_size: 64}\nthreads: 1\nworkers: {channel: memory, lanes: 4}\n"
        f"plan: {tmp_path}/plan.json\nprofile: {tmp_path}/profile.json\n"
    )
    (tmp_path / "plan.json").write_text(PLAN)
    cost = Cost(compute_s=1e-6, sync_s=0, input_s=0, alpha=1, beta=1)
    names = ("embedding", "cat", "deep.linear1", "deep.relu1", "deep.logit")
    layers = tuple(LayerProfile(name=name, costs={"cpu": cost}) for name in names)
    slow = Profile(model="m", batch_size=64, layers=layers, version=2, overheads={"local": Overhead(message_s=1.0)})
    slow.write(tmp_path / "profile.json")
    return tmp_path


def test_a_run_by_a_plan_of_two_stages_is_predicted_for_this_machine_with_its_terms(slow_messages: Path) -> None:
    done = heterps_here("train", "job.yaml", "--launcher", "local", "--run", "run", cwd=slow_messages)
    assert done.returncode == 0, done.stderr
    summary = json.loads((slow_messages / "run" / "summary.json").read_text())
    assert summary["predicted_throughput"] == pytest.approx(64 / 8, rel=1e-3), "four messages each way, a second each"
    assert summary["predicted_throughput_low"] < 8 < summary["predicted_throughput_high"] < 16
    assert summary["predicted_terms"]["overhead_s"] == pytest.approx(8.0)
    measured, batch_s = summary["measured_terms"], 64 / summary["measured_throughput"]
    assert tuple(measured) == TERMS
    assert sum(measured.values()) == pytest.approx(batch_s, rel=0.02)
    assert measured["servers_s"] == pytest.approx(summary["servers_busy"] * batch_s, rel=0.02)
    assert 0 < summary["servers_busy"] < 1
    assert "predicted_in_rounds" not in summary
    assert summary["plan"]["throughput"] == 9000
    printed = " ".join(done.stdout.split())
    assert "The plan promises 9,000 samples/s" in printed
    assert "predicted from real steps and an empty model" in printed
    page = (slow_messages / "run" / "report.html").read_text()
    assert "predicted from real steps and an empty model" in page
    for title in ("Compute", "Servers", "Network", "Overhead"):
        assert title in printed, "a reader sees which term erred"
        assert f">{title}<" in page


def test_ray_on_this_machine_is_predicted_as_processes_and_units_elsewhere_are_not(slow_messages: Path) -> None:
    job, plan = load_job(slow_messages / "job.yaml"), load_plan(slow_messages / "plan.json")
    found = [
        predict(job.model_copy(update=changed), plan)
        for changed in (
            {"launcher": "ray"}, {"launcher": "ray", "ray_address": "auto"},
            {"launcher": "local", "emulation": Emulation()}, {"launcher": "local", "profile": None},
            {"launcher": "local", "profile": "not-made-yet.json"},
        )
    ]  # fmt: skip
    assert found[0] is not None
    assert found[0].seconds == pytest.approx(8.0, rel=1e-3)
    assert found[1:] == [None] * 4


def hosts_of(slow_messages: Path, ports: str) -> Job:
    """The job, of one stage and whose batches move a megabyte of rows, on a cluster that says so of ports."""
    path, profile = slow_messages / "profile.json", load_profile(slow_messages / "profile.json")
    cost = {"cpu": profile.layers[0].costs["cpu"].model_copy(update={"compute_s": 0.01})}
    layers = tuple(
        layer.model_copy(update={"costs": cost, "row_bytes": 0, "dense_bytes": 0}) for layer in profile.layers
    )
    moved = layers[0].model_copy(update={"row_bytes": 1_000_000})
    profile.model_copy(update={"layers": (moved, *layers[1:]), "overheads": {}}).write(path)
    job = slow_messages / "hosts.yaml"
    resources = f"  resources: {{cpu: {{device: cpu, usd_per_hour: 1, limit: 9{ports}}}}}\n  server_resource: cpu\n"
    job.write_text((slow_messages / "job.yaml").read_text().replace("plan:", "# plan:") + f"cluster:\n{resources}")
    return load_job(job)


def test_hosts_behind_ports_are_predicted_by_what_passes_them(
    slow_messages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(slow_messages)
    far = {"launcher": "ray", "ray_address": "auto"}
    job = hosts_of(slow_messages, ", port_gbps: 0.008").model_copy(update=far)  # 1 MB/s
    for num_workers in (1, 2):
        plan = default_plan(job.model_copy(update={"threads": num_workers}))
        found = predict(job, plan)
        assert found is not None
        assert plan.prediction is not None
        assert plan.prediction.seconds == pytest.approx(found.seconds, rel=1e-3)
        assert plan.bottleneck == "ports"
        assert found.network_s == pytest.approx(1.0, rel=1e-3), "all rows of a batch pass the server's port"
        assert found.seconds == pytest.approx(1.0 + 0.05 / num_workers, rel=1e-3)
    fast = hosts_of(slow_messages, ", port_gbps: 8").model_copy(update=far)
    assert default_plan(fast).bottleneck == "cores of the hosts"
    unknown = default_plan(hosts_of(slow_messages, "").model_copy(update=far))
    assert unknown.prediction is None, "the planner's bill is all that is known of such hosts"
    assert unknown.throughput > 64


@pytest.mark.parametrize(
    ("address", "network_s"),
    [("tcp://10.0.0.9:5555", 1.0), ("tcp://127.0.0.1:5555", 0.0), ("ipc:///tmp/server", 0.0)],
)
def test_servers_on_another_machine_are_behind_its_port_and_those_of_this_one_are_not(
    slow_messages: Path, monkeypatch: pytest.MonkeyPatch, address: str, network_s: float
) -> None:
    monkeypatch.chdir(slow_messages)
    servers = Servers(addresses=(address,), key="job.key" if "tcp" in address else None)
    job = hosts_of(slow_messages, ", port_gbps: 0.008").model_copy(update={"launcher": "local", "servers": servers})
    found = predict(job, default_plan(job))
    assert found is not None
    assert found.network_s == pytest.approx(network_s, rel=1e-3, abs=1e-3)
