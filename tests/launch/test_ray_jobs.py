"""Jobs of users on Ray: frames, models of the script itself, features, sequences, labels, validation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")
from ray_cluster import labelled_cluster, losses

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning:ray")

SCRIPT = """
import sys

import numpy as np
import pandas as pd
import polars as pl
from own_sequences import Feed

import heterps
import heterps.launch.job

CLUSTER = {"resources": {"cpu": {"device": "cpu", "usd_per_hour": 1.0, "limit": 4}}, "server_resource": "cpu"}
FEED = {
    "labels": {
        "click": "binary",
        "stars": {"loss": "mse", "weight": 0.5, "missing": "mask"},
        "kind": {"loss": "classes", "num_classes": 3},
    },
    "weight": "importance", "user": "user", "top_k": [3],
    "dense": ["price", "year"], "slots": ["user", "item", "history"], "same_ids": {"history": "item"},
    "features": {"price": ["log", "standardise"], "year": [{"clip": [1960, 2010]}, "standardise"]},
    "validation": {"share": 0.2, "by": "user"}, "validate": {"patience": 1, "metric": "click/auc"},
    "optimizers": {"clip": {"norm": 1.0}, "accumulate": 2},
}
RATINGS = {
    "labels": {"stars": {"loss": "huber", "missing": "mask"}}, "dense": [], "slots": ["user", "item", "hour", "pair"],
    "features": {"hour": {"column": "time", "steps": [{"date": "hour"}]}, "pair": {"cross": ["user", "hour"]}},
    "validation": {"share": 0.2, "newest": "time"}, "validate": {"every_samples": 300},
}


class Mine(Feed):
    pass


def frame(rows, seed):
    draw = np.random.default_rng(seed)
    item, user = draw.integers(0, 40, rows), draw.integers(0, 30, rows)
    stars = item % 5 + draw.normal(size=rows)
    stars[draw.random(rows) < 0.2] = np.nan
    return pd.DataFrame({
        "user": user, "item": item, "history": [draw.integers(0, 40, n).tolist() for n in draw.integers(0, 9, rows)],
        "price": np.exp(draw.normal(3, 2, rows)), "year": draw.integers(1950, 2020, rows),
        "time": draw.integers(1_600_000_000, 1_700_000_000, rows), "click": (item + user) % 2, "stars": stars,
        "kind": item % 3, "importance": 2 * draw.random(rows),
    })


def run(folder, model, job, data, test, **more):
    quick = {"batch_size": 100, "epochs": 4, "threads": 2, "metrics_every_samples": 100, "cluster": CLUSTER, "seed": 3}
    heterps.train(folder=folder, model=model, data=data, test=test, **quick, **job, **more)


if __name__ == "__main__":
    heterps.launch.job.QUICK_PROFILE_S = 0.0
    train, test = frame(600, 0), frame(200, 1)
    for name, model, job, data in (
        ("feed", Mine, FEED, train),
        ("ratings", "deepfm", RATINGS, pl.from_pandas(train)),
    )[: int(sys.argv[2])]:
        draws_as_workers = {"workers": {"lanes": 2}}
        run(f"inline/{name}", model, job, data, test, **draws_as_workers)
        run(f"ray/{name}", model, job, data, test, launcher="ray", ray_address=sys.argv[1] or None, **draws_as_workers)
"""


def trained(place: Path, address: str, jobs: int) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """The summaries of inline runs and of those on Ray, whose losses are equal, by name."""
    (place / "script.py").write_text(SCRIPT)
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "script.py", address, str(jobs)], cwd=place, env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    summaries = {}
    for folder in (place / "ray").iterdir():
        if folder.name == "data":  # what frames were written to
            continue
        inline = place / "inline" / folder.name
        assert losses(str(folder)) == pytest.approx(losses(str(inline)), rel=1e-5)
        summaries[folder.name] = tuple(json.loads((f / "summary.json").read_text()) for f in (inline, folder))
    return summaries


def assert_equal_figures(inline: dict[str, Any], ray: dict[str, Any], names: list[str]) -> None:
    for name in names:
        assert ray[name] == pytest.approx(inline[name], rel=1e-4), name
        assert ray["validation"]["best"][name] == pytest.approx(inline["validation"]["best"][name], rel=1e-4), name


def test_a_model_of_a_script_with_features_sequences_and_labels_stops_where_one_process_does(tmp_path: Path) -> None:
    """Also with dropout, clipping and accumulation, on a frame of pandas; the Ray is one that heterps starts."""
    ((inline, ray),) = trained(tmp_path, "", jobs=1).values()
    assert ray["status"] == inline["status"] == "stopped early"
    assert ray["validation"]["best"]["samples"] == inline["validation"]["best"]["samples"]
    names = ["click/auc", "click/gauc", "click/ndcg@3", "click/hit_rate@3", "stars/rmse", "kind/accuracy"]
    assert_equal_figures(inline, ray, names)


@pytest.mark.slow
def test_jobs_on_a_cluster_train_as_in_one_process(tmp_path: Path) -> None:
    with labelled_cluster({"cpu": 4}) as (cluster, _):
        summaries = trained(tmp_path, cluster.address, jobs=2)
    assert set(summaries) == {"feed", "ratings"}
    assert_equal_figures(*summaries["ratings"], ["rmse", "mae"])
