"""A package outside heterps extends it: the one that docs/how-to/extend.md shows, found by its metadata alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import preloaded
import pyarrow as pa
import pytest
from pyarrow import feather

from heterps.errors import ConfigError
from heterps.plugins import Registry

ROOT = Path(__file__).parent.parent
SHOWN_FILE = re.compile(r"<!-- file: (\S+) -->\n```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
CLUSTER = """
resources:
  cpu:  {device: cpu,  usd_per_hour: 0.04, limit: 480}
  v100: {device: cuda, usd_per_hour: 2.42, limit: 32}
server_resource: cpu
"""
COST = {"compute_s": 0.02, "sync_s": 0.02, "input_s": 0.003, "alpha": 0.9, "beta": 0.9}
PROFILE = {
    "version": 1,
    "model": "two",
    "batch_size": 4096,
    "layers": [
        {"name": name, "kind": kind, "server_s": 0.001, "costs": {"cpu": COST, "v100": COST}}
        for name, kind in (("embedding", "embedding"), ("fc", "linear"))
    ],
}
JOB = """
model: {factory: ctr_dnn, args: {embedding_dim: 4, hidden: [8]}}
data:
  train: train.feather
  columns: {dense: [a], slots: [s]}
  batch_size: 16
threads: 1
sync: settling:3:100
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder on the path of Python, as an installer would leave it: modules, and the metadata of a distribution."""
    site = tmp_path / "site"
    metadata = site / "my_plugin-1.0.dist-info"
    metadata.mkdir(parents=True)
    for name, code in SHOWN_FILE.findall((ROOT / "docs/how-to/extend.md").read_text(encoding="utf-8")):
        (site / name).write_text(code, encoding="utf-8")
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-plugin\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[heterps.plugins]\nmine = my_plugin:register\n")
    return site


def heterps(package: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(package), *filter(None, sys.path)])
    environment = os.environ | {"PYTHONPATH": path}
    return preloaded.run([sys.executable, "-m", "heterps", *words], cwd=package.parent, env=environment, timeout=300)


def test_a_scheduler_from_outside_plans_by_the_command(package: Path) -> None:
    (package.parent / "profile.json").write_text(json.dumps(PROFILE))
    (package.parent / "cluster.yaml").write_text(CLUSTER)
    asked = ("plan", "profile.json", "cluster.yaml", "--throughput", "20000", "--samples", "1e9", "--json")
    done = heterps(package, *asked, "--method", "one-border")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["method"] == "one-border"
    assert plan["gap"] == pytest.approx(0.0, abs=1e-9)  # two layers have no schedule with more borders
    wrong = heterps(package, *asked, "--method", "one-boarder")
    assert wrong.returncode == 2
    assert "Did you mean 'one-border'?" in " ".join(wrong.stderr.split())


@pytest.mark.parametrize("launcher", [(), ("--launcher", "local", "--workers", "2")])
def test_a_job_trains_from_a_format_with_a_policy_from_outside(package: Path, launcher: tuple[str, ...]) -> None:
    rows = [{"label": i % 2, "a": i / 64, "s": i // 2} for i in range(64)]
    feather.write_feather(pa.Table.from_pylist(rows), package.parent / "train.feather", chunksize=20)
    (package.parent / "job.yaml").write_text(JOB)
    done = heterps(package, "train", "job.yaml", "--run", "run", *launcher)
    assert done.returncode == 0, done.stderr
    assert json.loads((package.parent / "run/summary.json").read_text())["samples"] == 64
    assert "kind: settling" in (package.parent / "run/job.yaml").read_text()
    (package.parent / "train.feather").write_bytes((package.parent / "train.feather").read_bytes()[:-9])
    cut = heterps(package, "data", "describe", "train.feather")
    assert cut.returncode == 4
    assert "train.feather: this is not a Feather file that can be read" in " ".join(cut.stderr.split())


def test_a_plugin_that_cannot_be_loaded_is_named_and_not_loaded_for_names_that_are_known(package: Path) -> None:
    (package / "my_plugin.py").write_text("raise OSError('gone')\n")
    simulate = ("simulate", "--workers", "1.0,2.3", "--horizon", "20", "--json", "--mode")
    assert heterps(package, *simulate, "ssp:3").returncode == 0
    done = heterps(package, *simulate, "settling:3:5")
    assert done.returncode == 2
    assert "the plugin mine (my_plugin:register) cannot be loaded: OSError: gone" in " ".join(done.stderr.split())


def test_a_policy_from_outside_is_simulated(package: Path) -> None:
    simulate = ("simulate", "--workers", "1.0,2.3", "--horizon", "100", "--json", "--mode")
    done = heterps(package, *simulate, "settling:3:5")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["max_lead"] > 10  # it settles after 5 iterations; ssp:3 never does
    wrong = heterps(package, *simulate, "settling:3:5+often")
    assert "settling has no option 'often'" in " ".join(wrong.stderr.split())
    wrong = heterps(package, *simulate, "settled:3:5")
    assert "no policy 'settled' among bsp, asp, ssp, dssp, settling" in " ".join(wrong.stderr.split())


def test_a_name_is_registered_once() -> None:
    registry: Registry[int] = Registry("number", {"one": 1})
    registry.add("two", 2)
    registry.add("two", 2)
    assert dict(registry) == {"one": 1, "two": 2}
    with pytest.raises(ConfigError, match="there is already a number 'one'"):
        registry.add("one", 3)
