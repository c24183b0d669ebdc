"""Plans for servers with little memory run on emulated servers with that memory, which refuse what does not fit."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import yaml
from command import heterps_here
from test_plans_fit import JOB, batch_s
from tiny import write_tiny

SAMPLES = 4000
POLICIES = ("bsp", "asp")


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data in which hardly any id comes twice, and a profile of the job."""
    folder = tmp_path_factory.mktemp("servers")
    ids = np.random.default_rng(0).integers(0, 10**9, (2, SAMPLES))
    write_tiny(folder / "train.parquet", SAMPLES, s=ids[0], t=ids[1])
    profile(folder)
    return folder


def profile(folder: Path, more: str = "") -> None:
    plain = [line for line in JOB.splitlines() if not line.startswith(("launcher", "profile", "plan", "cl", "emul"))]
    (folder / "plain.yaml").write_text("\n".join([*plain, more]))
    words = ("profile", "plain.yaml", "--resources", "cpu", "--out", "profile.json", "--budget", 0.2)
    done = heterps_here(*words, cwd=folder)
    assert done.returncode == 0, done.stderr


def table_bytes(folder: Path) -> float:
    """Bytes of all rows that the data has ids for, and of the weights with what an optimizer keeps of them."""
    profile = json.loads((folder / "profile.json").read_text())
    (table,) = profile["tables"]
    return 2 * SAMPLES * table["row_bytes"] + 3 * sum(layer.get("dense_bytes", 0) for layer in profile["layers"])


def plan(folder: Path, memory: float, limit: int, policy: str, *more: object) -> subprocess.CompletedProcess[str]:
    """Plan for `limit` servers of so many bytes, beside workers with room for everything."""
    resources: dict[str, dict[str, Any]] = {
        "worker": {"device": "cpu", "kind": "cpu", "usd_per_hour": 1.0, "limit": 3},
        "server": {"device": "cpu", "kind": "cpu", "usd_per_hour": 0.1, "limit": limit, "memory_gb": memory / 1e9},
    }
    cluster = {"resources": resources, "server_resource": "server"}
    (folder / "cluster.yaml").write_text(yaml.safe_dump(cluster))
    floor = 64 / batch_s(folder) / 100
    words = ("--throughput", floor, "--samples", SAMPLES, "--sync", policy, "--out", "plan.json", *more)
    return heterps_here("plan", "profile.json", "cluster.yaml", *words, cwd=folder)


def train(folder: Path, policy: str, more: str = "") -> subprocess.CompletedProcess[str]:
    (folder / "job.yaml").write_text(f"{JOB}sync: '{policy}'\n{more}")
    return heterps_here("train", "job.yaml", "--run", f"run-{len(list(folder.glob('run-*')))}", cwd=folder)


def tiers_for(folder: Path, budget: int) -> str:
    """The tiers by which each server has this budget: they are threads of one process, which share it."""
    return f"tiers: {{memory_bytes: {budget * num_servers(folder)}}}\n"


def num_servers(folder: Path) -> int:
    number: int = json.loads((folder / "plan.json").read_text())["servers"]["count"]
    return number


def try_plan(folder: Path, random: Random) -> int:
    """Plan for drawn servers and train by the plan; where it is refused, for as many as the refusal asks for."""
    policy, memory = random.choice(POLICIES), table_bytes(folder) * 2 ** random.uniform(-3, 0.5)
    more = random.choice([(), (), ("--rows", 2 * SAMPLES), ("--rows-in-memory", random.choice([0.7, 0.4]))])
    done = plan(folder, memory, random.randint(1, 4), policy, *more)
    if done.returncode == 3:
        said = " ".join(done.stderr.split())
        assert "the tables take" in said, said
        needed = re.search(r"raise the limit of server to (\d+)", said)
        assert needed is not None, said
        done = plan(folder, memory, int(needed[1]), policy, *more)
        assert num_servers(folder) == int(needed[1])
    assert done.returncode == 0, done.stderr
    tiers = re.search(r"give the job tiers.memory_bytes ([\d,]+)", " ".join(done.stdout.split()))
    assert (tiers is not None) == (more[:1] == ("--rows-in-memory",)), done.stdout
    done = train(folder, policy, tiers_for(folder, int(tiers[1].replace(",", ""))) if tiers else "")
    assert done.returncode == 0, f"{policy} {more}\n{done.stderr}\n{(folder / 'plan.json').read_text()}"
    return num_servers(folder)


def test_plans_for_servers_with_little_memory_run_in_it(profiled: Path) -> None:
    tried = [try_plan(profiled, Random(seed)) for seed in range(8)]
    assert {1, 2} < {*tried}, "one, two and more servers"


@pytest.mark.slow
def test_many_plans_for_servers_with_little_memory_run_in_it(profiled: Path) -> None:
    tried = [try_plan(profiled, Random(seed)) for seed in range(100, 220)]
    assert len({*tried}) > 4


@pytest.mark.parametrize("limit", [1, 3])
def test_a_plan_that_is_just_too_large_is_refused_in_bytes_and_runs_in_what_the_refusal_asks_for(
    profiled: Path, limit: int
) -> None:
    done = plan(profiled, table_bytes(profiled) / limit / 2, limit, "bsp")
    asked = re.search(r"or its memory_gb to ([\d.e-]+)", " ".join(done.stderr.split()))
    assert asked is not None, done.stderr
    enough = float(asked[1]) * 1e9
    done = plan(profiled, enough * 0.99, limit, "bsp")
    said = " ".join(done.stderr.split())
    told = re.search(r"the largest part on .*? ([\d.]+) MB, and it has ([\d.]+) MB", said)
    assert (done.returncode, told is not None) == (3, True), said
    assert told is not None
    assert float(told[2]) < float(told[1]) <= enough / 1e6
    done = plan(profiled, enough, limit, "bsp")
    assert (done.returncode, num_servers(profiled)) == (0, limit), done.stderr
    done = train(profiled, "bsp")
    assert done.returncode == 0, done.stderr


def test_a_plan_with_too_few_servers_runs_out_of_memory(profiled: Path) -> None:
    """Else the others would show nothing."""
    done = plan(profiled, table_bytes(profiled) / 3, 9, "bsp")
    assert done.returncode == 0, done.stderr
    path = profiled / "plan.json"
    made = json.loads(path.read_text())
    assert made["servers"]["count"] >= 3
    path.write_text(json.dumps(made | {"servers": made["servers"] | {"count": 2}}))
    done = train(profiled, "bsp")
    assert done.returncode != 0
    assert re.search(r"server-[01] is out of memory: its tables take [\d,]+ bytes", " ".join(done.stderr.split()))


def test_servers_of_a_job_with_tiers_need_memory_for_what_these_keep_there(profiled: Path) -> None:
    """By the job that was profiled, without an option."""
    memory = table_bytes(profiled) / 3
    assert plan(profiled, memory, 9, "asp").returncode == 0
    without = num_servers(profiled)
    try:
        profile(profiled, f"tiers: {{memory_bytes: {int(memory * 0.8)}}}")
        done = plan(profiled, memory, 9, "asp")
        assert (done.returncode, num_servers(profiled)) == (0, 1), done.stderr
        assert without > 3
        done = train(profiled, "asp", tiers_for(profiled, int(memory * 0.8)))
        assert done.returncode == 0, done.stderr
        profile(profiled, f"tiers: {{memory_bytes: {10 * SAMPLES}}}")
        done = plan(profiled, memory, 1, "asp")
        said = " ".join(done.stderr.split())
        assert (done.returncode, "of which tiers.memory_bytes of the job gives 0.04 MB" in said) == (3, True), said
    finally:
        profile(profiled)
