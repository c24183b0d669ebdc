"""Plans for machines with little memory run on emulated machines with that memory, which refuse what does not fit."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
import yaml
from command import heterps_here
from tiny import write_tiny

JOB = """
name: fits
model: {factory: ctr_dnn, args: {embedding_dim: 8, hidden: [64, 32, 16]}}
data: {train: train.parquet, columns: {dense: [a, b], slots: [s, t]}, batch_size: 64}
threads: 1
launcher: local
profile: profile.json
plan: plan.json
cluster: cluster.yaml
workers: {channel: memory}
servers: {channel: memory}
emulation: {scale: 0.02}
"""
POLICIES = ("bsp", "asp", "ssp:3")


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, and a profile of the job."""
    folder = tmp_path_factory.mktemp("fits")
    write_tiny(folder / "train.parquet", 960)
    plain = [line for line in JOB.splitlines() if not line.startswith(("launcher", "profile", "plan", "cl", "emul"))]
    (folder / "plain.yaml").write_text("\n".join(plain))
    words = ("profile", "plain.yaml", "--resources", "cpu", "--out", "profile.json", "--budget", 0.2)
    done = heterps_here(*words, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def whole_bytes(folder: Path) -> float:
    """Bytes that one unit holds which has all layers and one whole batch."""
    layers = json.loads((folder / "profile.json").read_text())["layers"]
    return sum(2 * layer.get("dense_bytes", 0) + layer.get("activation_bytes", 0) for layer in layers)


def batch_s(folder: Path) -> float:
    layers = json.loads((folder / "profile.json").read_text())["layers"]
    return sum(layer["costs"]["cpu"]["compute_s"] for layer in layers)


def try_plan(folder: Path, random: Random) -> str | None:
    """Plan for drawn machines and train by the plan; the policy, or None where no plan fits."""
    whole, policy = whole_bytes(folder), random.choice(POLICIES)
    resources = {
        name: {
            "device": "cpu", "kind": "cpu", "usd_per_hour": random.choice([0.5, 1.0, 3.0]),
            "limit": random.randint(1, 4), "memory_gb": whole * 2 ** random.uniform(-2, 1.5) / 1e9,
        }
        for name in ("small", "big")
    }  # fmt: skip
    resources["server"] = {"device": "cpu", "kind": "cpu", "usd_per_hour": 0.1, "limit": 2}
    cluster = {"resources": resources, "server_resource": "server"}
    (folder / "cluster.yaml").write_text(yaml.safe_dump(cluster))
    (folder / "job.yaml").write_text(f"{JOB}sync: '{policy}'\n")
    floor = 64 / batch_s(folder) * 2 ** random.uniform(-4, 1)
    words = ("--throughput", floor, "--samples", 960, "--sync", policy, "--out", "plan.json")
    done = heterps_here("plan", "profile.json", "cluster.yaml", *words, cwd=folder)
    if done.returncode == 3:
        return None
    assert done.returncode == 0, done.stderr
    run = f"run-{len(list(folder.glob('run-*')))}"
    done = heterps_here("train", "job.yaml", "--run", run, cwd=folder)
    told = (folder / "plan.json").read_text() + (folder / "cluster.yaml").read_text()
    assert done.returncode == 0, f"{policy}\n{done.stderr}\n{told}"
    return policy


def test_plans_for_little_memory_run_in_it(profiled: Path) -> None:
    """Which draws have a plan depends on the times of the profile, so it draws until every policy had one."""
    tried: list[str | None] = []
    while len(tried) < 8 or not {*tried} >= {*POLICIES}:
        assert len(tried) < 60, f"no plan for some policy in 60 draws: {tried}"
        tried.append(try_plan(profiled, Random(len(tried))))


@pytest.mark.slow
def test_many_plans_for_little_memory_run_in_it(profiled: Path) -> None:
    tried = [try_plan(profiled, Random(seed)) for seed in range(100, 250)]
    assert sum(policy is not None for policy in tried) > 60
