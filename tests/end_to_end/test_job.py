"""A whole job on one machine, by the command line: what it writes, learns, and how it stops and goes on."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path

import pytest
import yaml
from command import group_is_gone, heterps, started, wait_for

import heterps as library
from heterps.profiling.profile import Cost, LayerProfile, Profile

JOB = """
name: ctr
model: {{factory: ctr_dnn, args: {{embedding_dim: 8, hidden: [32, 16]}}}}
data: {{train: {data}/train, test: {data}/test, batch_size: 256, epochs: 3}}
optimizers: {{sparse: {{kind: adagrad, lr: 0.05}}, dense: {{kind: adam, lr: 0.002}}}}
checkpoint: {{every_samples: 20000}}
threads: 1
metrics_every_samples: 512
"""
NUM_SAMPLES = 3 * 40_000
TIMES = ("seconds", "samples_per_s", "table_bytes", "stages", "usd")


@pytest.fixture(scope="module")
def place(criteo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with the job, and the same job with a profile, which saves the time to make one."""
    place = tmp_path_factory.mktemp("place")
    (place / "job.yaml").write_text(JOB.format(data=criteo))
    (place / "profiled.yaml").write_text(JOB.format(data=criteo) + f"profile: {place}/profile.json\n")
    cost = Cost(compute_s=0.002, sync_s=0.0, input_s=0.001, alpha=0.9, beta=0.9)
    Profile(model="ctr_dnn", batch_size=256, layers=(LayerProfile(name="all", costs={"cpu": cost}),)).write(
        place / "profile.json"
    )
    return place


@pytest.fixture(scope="module")
def whole(place: Path) -> Path:
    """The folder of a run that was never stopped."""
    done = heterps("train", "job.yaml", "--run", "whole", cwd=place)
    assert done.returncode == 0, done.stderr
    return place / "whole"


def summary_of(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())


def metrics_of(folder: Path) -> list[dict]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [{name: value for name, value in line.items() if name not in TIMES} for line in lines]


def test_the_run_folder_holds_everything(whole: Path) -> None:
    assert {path.name for path in whole.iterdir()} == {
        "job.yaml", "plan.json", "metrics.jsonl", "checkpoints", "profile.json", "summary.json", "report.html",
        "traces",
    }  # fmt: skip
    job = yaml.safe_load((whole / "job.yaml").read_text())
    assert job["data"]["prefetch"] == 4, "defaults are written out"
    assert len(list((whole / "checkpoints").iterdir())) == 2
    plan = json.loads((whole / "plan.json").read_text())
    assert plan["stages"][0]["count"] == 1
    assert plan["throughput"] > 0


def test_metrics_come_an_interval_a_line(whole: Path) -> None:
    samples = [line["samples"] for line in metrics_of(whole)]
    assert samples == sorted(set(samples))
    assert samples[0] == 512
    assert samples[-1] == NUM_SAMPLES
    assert len(samples) == pytest.approx(NUM_SAMPLES / 512, abs=3)


def test_the_summary_keeps_its_contract(whole: Path) -> None:
    summary = summary_of(whole)
    assert summary["status"] == "completed"
    assert summary["samples"] == NUM_SAMPLES
    assert summary["samples_per_s"] == pytest.approx(NUM_SAMPLES / summary["seconds"], rel=0.01)
    assert summary["measured_throughput"] == summary["samples_per_s"]
    assert summary["predicted_throughput"] > 0
    assert summary["measured_usd"] == pytest.approx(summary["seconds"] / 3600 * 0.04, rel=0.01)
    assert summary["predicted_usd"] == pytest.approx(
        NUM_SAMPLES / summary["predicted_throughput"] / 3600 * 0.04, rel=1e-3
    )
    assert (summary["staleness"], summary["restarts"], summary["metrics_of"]) == (0, 0, "test")
    assert summary["data"]["num_skipped"] == 0
    assert 0 < summary["log_loss"] < 1
    assert summary["calibration"] == pytest.approx(1, abs=0.3)


def test_it_learns_but_not_more_than_the_teacher_knows(whole: Path, criteo: Path) -> None:
    teacher = json.loads((criteo / "dataset.json").read_text())["test"]["teacher_auc"]
    assert 0.6 < summary_of(whole)["auc"] < teacher


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_resuming_ends_as_if_it_had_never_come(
    place: Path, whole: Path, number: signal.Signals, code: int
) -> None:
    folder = place / number.name
    with started("train", "profiled.yaml", "--run", folder.name, cwd=place) as process:
        wait_for(process, "samples ")  # the first line of metrics; all of them are more than the pipe holds
        process.send_signal(number)
        printed = process.stdout.read() if process.stdout else ""
        assert process.wait() == code, printed
        assert group_is_gone(process)
    assert "Traceback" not in printed
    stopped = summary_of(folder)
    assert stopped["status"] == f"stopped by {number.name}"
    assert stopped["metrics_of"] == "train"
    assert 0 < stopped["samples"] < NUM_SAMPLES
    assert list((folder / "checkpoints").iterdir())

    before = set(threading.enumerate())
    resumed = library.train(place / "profiled.yaml", folder, resume=True)
    assert set(threading.enumerate()) <= before, "no thread is left"
    summary, expected = resumed.summary, summary_of(whole)
    assert (summary["status"], summary["restarts"]) == ("completed", 1)
    for name in ("samples", "auc", "log_loss", "calibration", "train", "rows"):
        assert summary[name] == expected[name], name
    assert metrics_of(folder) == metrics_of(whole)


def test_a_model_of_ones_own_trains_from_its_folder(place: Path, criteo: Path, tmp_path: Path) -> None:
    (tmp_path / "my_model.py").write_text(
        "import torch, heterps\n"
        "class Wide(torch.nn.Module):\n"
        "    def __init__(self, schema):\n"
        "        super().__init__()\n"
        "        self.weights = heterps.nn.SparseEmbedding(schema.slots, 1)\n"
        "        self.dense = torch.nn.Linear(len(schema.dense), 1)\n"
        "    def forward(self, dense, slots):\n"
        "        return self.weights(slots).sum(dim=(1, 2)) + self.dense(torch.log1p(dense.relu())).squeeze(1)\n"
    )
    (tmp_path / "job.yaml").write_text(
        f"model: {{factory: 'my_model:Wide'}}\nthreads: 1\ndata: {{train: {criteo}/train, test: {criteo}/test}}\n"
    )
    done = heterps("train", "job.yaml", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == summary_of(tmp_path / "runs" / "job-1")
    assert json.loads(done.stdout)["auc"] > 0.55
