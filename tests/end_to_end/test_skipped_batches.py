"""Batches whose loss or gradients are not finite, through the real command: by `on_not_finite` they end the run, or are
skipped as if they had never been in the data, or their rows are named besides."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import heterps, heterps_here
from elastic import CLUSTER, make_plan

from heterps.checkpoint import Snapshot, load_latest

MODEL = """
import torch
import heterps

class Net(torch.nn.Module):
    '''Squares a dense value: 1e38, which the reader admits, has no finite loss. Of a row in which it is 777 the loss is
    finite, and the gradient of the first layer is not.'''

    def __init__(self, schema, norm=False):
        super().__init__()
        self.embedding = heterps.nn.SparseEmbedding(schema.slots, 4)
        self.first = torch.nn.Linear(10, 8)
        self.norm = torch.nn.BatchNorm1d(8) if norm else torch.nn.Identity()
        self.last = torch.nn.Linear(8, 1)

    def forward(self, dense, slots):
        is_good = (dense[:, 1:] != 777).float()
        x = self.first(torch.cat([dense * dense * is_good, self.embedding(slots).flatten(1)], 1))
        return self.last(self.norm(x + torch.sqrt(x * x * is_good))).squeeze(1)
"""

JOB = """
model: {factory: "squares:Net"}
data: {train: train.parquet, columns: {dense: [a, b], slots: [s, t]}, batch_size: 16, shuffle: false}
metrics_every_samples: 64
plan: plan.json
"""
INLINE = JOB.replace("plan: plan.json\n", "threads: 1\n")
LOCAL = JOB + "launcher: local\nworkers: {channel: memory}\nservers: {channel: memory}\n"
CLIP = "optimizers: {clip: {norm: 0.05}}\n"
BATCH = 16
NUM_LAYERS = 11


def prepare(
    folder: Path,
    job: str,
    bad: Any = (),
    without: Any = (),
    num_rows: int = 320,
    counts: Sequence[int] = (1,),
    value: float = 1e38,
) -> None:
    """A job whose rows `bad` have no finite loss or gradient, by a dense `value`, whose data has no batches `without`,
    and whose plan has `counts` workers in its stages."""
    folder.mkdir(exist_ok=True)
    (folder / "squares.py").write_text(MODEL)
    (folder / "job.yaml").write_text(job + f"cluster: {json.dumps(CLUSTER)}\n")
    num_layers = NUM_LAYERS + ("norm: true" in job)
    make_plan(list(counts), [num_layers - 1] if len(counts) > 1 else [], num_layers).write(folder / "plan.json")
    random = np.random.default_rng(num_rows)
    ids = random.integers(0, 8, (num_rows, 2))
    dense = random.normal(size=(num_rows, 2))
    dense[list(bad), 1] = value
    rows = [row for row in range(num_rows) if row // BATCH not in without]
    table = {"label": ids[:, 0] % 2, "a": dense[:, 0], "b": dense[:, 1], "s": ids[:, 0], "t": ids[:, 1]}
    pq.write_table(pa.table({n: v[rows] for n, v in table.items()}), folder / "train.parquet", row_group_size=50)


def run(folder: Path, *words: str) -> dict[str, Any]:
    done = heterps_here("train", "job.yaml", "--run", "run", *words, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    summary: dict[str, Any] = json.loads((folder / "run" / "summary.json").read_text())
    return summary | {"said": " ".join((done.stdout + done.stderr).split())}


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def model_of(folder: Path) -> Snapshot:
    return load_latest(folder / "run" / "checkpoints")


def assert_same_model(one: Snapshot, other: Snapshot) -> None:
    assert one.dense.keys() == other.dense.keys()
    for name in one.dense.keys() - {"random/torch"}:
        assert np.array_equal(one.dense[name], other.dense[name]), name
    for name, table in one.tables.items():
        mine, others = table.whole(), other.tables[name].whole()
        by_key, other_by_key = np.argsort(mine.keys), np.argsort(others.keys)
        assert np.array_equal(mine.keys[by_key], others.keys[other_by_key])
        assert np.array_equal(mine.values[by_key], others.values[other_by_key])
        assert np.array_equal(mine.state[by_key], others.state[other_by_key])


@pytest.mark.parametrize(
    ("job", "counts"),
    [
        (INLINE, (1,)),
        (INLINE + "servers: {channel: memory}\n", (1,)),
        (INLINE + "optimizers: {accumulate: 4}\n", (1,)),
        (INLINE + 'sync: asp\n', (1,)),
        (LOCAL, (1,)),
        (LOCAL, (2,)),
        (LOCAL + CLIP, (2,)),
        (LOCAL, (1, 1)),
        (LOCAL, (2, 1)),
        (LOCAL + "sync: asp\n", (1,)),
    ],
    ids=[
        "inline", "inline-served", "accumulated", "inline-asp", "local", "two-workers", "clipped-by-servers",
        "two-stages", "three-workers-two-stages", "local-asp",
    ],
)  # fmt: skip
def test_a_skipped_batch_leaves_the_tables_as_if_it_had_never_been(
    tmp_path: Path, job: str, counts: tuple[int, ...]
) -> None:
    skipping, clean = tmp_path / "skipping", tmp_path / "clean"
    prepare(skipping, job + "on_not_finite: skip\n", bad=(70, 72, 200), counts=counts)
    prepare(clean, job, without=(4, 12), counts=counts)
    summary, other = run(skipping), run(clean)
    assert (summary["skipped_batches"], summary["skipped_samples"]) == (2, 2 * BATCH)
    assert (other["skipped_batches"], other["skipped_samples"]) == (0, 0)
    assert summary["samples"] == 320
    assert other["samples"] == 320 - 2 * BATCH
    assert summary["train"]["log_loss"] == other["train"]["log_loss"]
    assert_same_model(model_of(skipping), model_of(clean))


@pytest.mark.parametrize(
    ("job", "counts"), [(INLINE, (1,)), (LOCAL, (2,)), (LOCAL, (1, 1))], ids=["inline", "two-workers", "two-stages"]
)
def test_a_batch_with_a_finite_loss_is_skipped_for_a_gradient_that_is_not_finite(
    tmp_path: Path, job: str, counts: tuple[int, ...]
) -> None:
    skipping, clean = tmp_path / "skipping", tmp_path / "clean"
    prepare(skipping, job + "on_not_finite: skip\n", bad=(200,), counts=counts, value=777)
    prepare(clean, job, without=(12,), counts=counts)
    summary = run(skipping)
    run(clean)
    assert summary["skipped_batches"] == 1
    assert "batch 12 of epoch 0 was skipped: the gradient" in summary["said"]
    assert "of layer first" in summary["said"]
    assert_same_model(model_of(skipping), model_of(clean))


def test_without_rounds_each_worker_skips_its_batches_alone(tmp_path: Path) -> None:
    prepare(tmp_path, LOCAL + "sync: asp\non_not_finite: skip\n", bad=(70, 72, 200), counts=(2,))
    summary = run(tmp_path)
    assert (summary["skipped_batches"], summary["skipped_samples"], summary["samples"]) == (2, 32, 320)
    assert "batch 4 of epoch 0 was skipped: the loss of step" in summary["said"]
    for values in model_of(tmp_path).dense.values():
        assert np.isfinite(values).all()


@pytest.mark.parametrize("job", [INLINE, LOCAL], ids=["inline", "local"])
def test_running_means_forget_a_skipped_batch(tmp_path: Path, job: str) -> None:
    job = job.replace('"squares:Net"', '"squares:Net", args: {norm: true}')
    skipping, clean = tmp_path / "skipping", tmp_path / "clean"
    prepare(skipping, job + "on_not_finite: skip\n", bad=(70, 200))
    prepare(clean, job, without=(4, 12))
    run(skipping)
    run(clean)
    assert any("running_mean" in name for name in model_of(skipping).dense)
    assert_same_model(model_of(skipping), model_of(clean))


def test_skipped_batches_are_told_in_metrics_report_and_a_bounded_number_of_warnings(tmp_path: Path) -> None:
    bad = [BATCH * batch for batch in range(0, 16, 2)]
    prepare(tmp_path, INLINE + "on_not_finite: skip\n", bad=bad)
    summary = run(tmp_path)
    lines = lines_of(tmp_path / "run" / "metrics.jsonl")
    assert [line.get("skipped_batches") for line in lines] == [2, 2, 2, 2, None]
    assert [line.get("skipped_samples") for line in lines] == [32, 32, 32, 32, None]
    assert "8 batches were skipped, with 128 samples" in summary["said"]
    assert "8 batches were skipped, with 128 samples" in (tmp_path / "run" / "report.html").read_text()
    warnings = [event for event in lines_of(tmp_path / "run" / "events.jsonl") if "was skipped" in event["text"]]
    assert len(warnings) == 5
    assert "Further ones are counted only" in warnings[-1]["text"]
    assert not (tmp_path / "run" / "quarantine.jsonl").exists()


@pytest.mark.parametrize("launcher", ["inline", "local"])
def test_quarantine_names_the_bad_rows_alone(tmp_path: Path, launcher: str) -> None:
    job = (INLINE if launcher == "inline" else LOCAL).replace("shuffle: false", "shuffle: true")
    prepare(tmp_path, job + "on_not_finite: quarantine\n", bad=(70, 200, 319), counts=(2,))
    summary = run(tmp_path)
    assert summary["skipped_batches"] == 3
    lines = lines_of(tmp_path / "run" / "quarantine.jsonl")
    assert sorted(line["row_of_file"] for line in lines) == [70, 200, 319]
    for line in lines:
        assert line["file"].endswith("train.parquet")
        assert 50 * line["row_group"] + line["row"] == line["row_of_file"]
        assert pq.ParquetFile(line["file"]).read_row_group(line["row_group"])["b"][line["row"]].as_py() == 1e38
        assert line["epoch"] == 0
        assert line["value"] in ("the output is inf", "the output is -inf", "the output is nan")
        assert "the loss of" in line["why"]


def test_quarantine_names_all_rows_where_no_single_one_can_be_told(tmp_path: Path) -> None:
    prepare(tmp_path, INLINE + "on_not_finite: quarantine\n", bad=(200,), value=777)
    run(tmp_path)
    lines = lines_of(tmp_path / "run" / "quarantine.jsonl")
    assert [line["row_of_file"] for line in lines] == list(range(192, 208))
    assert {line["value"] for line in lines} == {None}


@pytest.mark.parametrize("launcher", ["local", pytest.param("ray", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("policy", "counts"), [("quarantine", (2,)), ("skip", (2, 1))])
def test_worker_processes_skip_a_batch_as_threads_do(
    tmp_path: Path, launcher: str, policy: str, counts: tuple[int, ...]
) -> None:
    skipping, clean = tmp_path / "skipping", tmp_path / "clean"
    prepare(skipping, JOB + f"launcher: {launcher}\non_not_finite: {policy}\n", bad=(70, 72, 200), counts=counts)
    prepare(clean, LOCAL, without=(4, 12), counts=counts)
    done = heterps("train", "job.yaml", "--run", "run", cwd=skipping)
    assert done.returncode == 0, done.stdout + done.stderr
    run(clean)
    summary = json.loads((skipping / "run" / "summary.json").read_text())
    assert (summary["skipped_batches"], summary["skipped_samples"], summary["samples"]) == (2, 2 * BATCH, 320)
    assert_same_model(model_of(skipping), model_of(clean))
    if policy == "quarantine":
        rows = [line["row_of_file"] for line in lines_of(skipping / "run" / "quarantine.jsonl")]
        assert sorted(rows) == [70, 72, 200]


@pytest.mark.parametrize(
    ("num_batches", "bad", "says"),
    [
        (40, range(5, 15), "the last 10 batches were all skipped"),
        (130, [*range(2, 20, 9), 110], "3 of 111 batches were skipped, more than 1%"),
    ],
)
def test_too_many_skipped_batches_end_the_run(tmp_path: Path, num_batches: int, bad: Sequence[int], says: str) -> None:
    job = INLINE + "on_not_finite: skip\n"
    prepare(tmp_path, job, bad=[BATCH * batch for batch in bad], num_rows=BATCH * num_batches)
    done = heterps_here("train", "job.yaml", "--run", "run", cwd=tmp_path)
    assert done.returncode == 5, done.stdout + done.stderr
    assert says in " ".join(done.stderr.split())
    assert "this is not a matter of single rows. The last one: the loss of step" in " ".join(done.stderr.split())
    assert not (tmp_path / "run" / "summary.json").exists()


def test_a_resumed_run_keeps_its_counts_and_names_no_row_twice(tmp_path: Path) -> None:
    job = INLINE + "on_not_finite: quarantine\ncheckpoint: {every_samples: 96}\n"
    prepare(tmp_path, job, bad=(20, 110, *range(208, 304, BATCH), *range(160, 208, BATCH)))
    assert heterps_here("train", "job.yaml", "--run", "run", cwd=tmp_path).returncode == 0
    first = json.loads((tmp_path / "run" / "summary.json").read_text())
    before = lines_of(tmp_path / "run" / "quarantine.jsonl")
    checkpoints = sorted((tmp_path / "run" / "checkpoints").iterdir())
    again = run(tmp_path, "--resume", "--from", str(checkpoints[0]))
    assert again["restarts"] == 1
    for name in ("skipped_batches", "skipped_samples", "samples"):
        assert again[name] == first[name]
    assert lines_of(tmp_path / "run" / "quarantine.jsonl") == before


@pytest.mark.parametrize(
    ("job", "counts", "says"),
    [
        (
            LOCAL.replace("channel: memory}\nserv", "dense: all_reduce}\nserv"),
            (2,),
            "needs servers that can drop a round",
        ),
        (LOCAL + "sync: asp\n", (1, 1), "the last of 2 stages has pushed a batch before the first"),
        (LOCAL.replace('"squares:Net"', '"squares:Net", args: {norm: true}'), (2,), "keep statistics of batches"),
    ],
    ids=["all-reduce", "stages-without-rounds", "running-means-of-several"],
)
def test_what_could_leave_a_part_of_a_skipped_batch_is_refused(
    tmp_path: Path, job: str, counts: tuple[int, ...], says: str
) -> None:
    prepare(tmp_path, job + "on_not_finite: skip\n", counts=counts)
    done = heterps_here("train", "job.yaml", "--run", "run", cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert says in " ".join(done.stderr.split())
