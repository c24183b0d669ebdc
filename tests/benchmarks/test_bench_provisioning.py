"""The benchmark of the provisioners runs on profile files and without, and prints every column its README explains."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import preloaded

RUN = Path(__file__).parents[2] / "benchmarks" / "provisioning" / "run.py"
PROFILE = """
{"version": 1, "model": "given", "batch_size": 4096, "layers": [
  {"name": "embedding", "kind": "embedding", "server_s": 0.004,
   "costs": {"cpu": {"compute_s": 0.012, "sync_s": 0.020, "input_s": 0.003, "alpha": 0.97, "beta": 0.93},
             "v100": {"compute_s": 0.010, "sync_s": 0.110, "input_s": 0.004, "alpha": 0.90, "beta": 0.80}}},
  {"name": "fc1", "kind": "linear", "server_s": 0.001,
   "costs": {"cpu": {"compute_s": 2.0, "sync_s": 0.002, "input_s": 0.003, "alpha": 0.97, "beta": 0.93},
             "v100": {"compute_s": 0.010, "sync_s": 0.002, "input_s": 0.004, "alpha": 0.90, "beta": 0.80}}}]}
"""


def run(*words: str | Path) -> list[list[str]]:
    """The rows of the tables."""
    done = preloaded.run([sys.executable, RUN, "--quick", *words])
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("|") and not line.startswith("|---")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_bench_provisioning_prints_a_row_a_provisioner_and_draws_the_plot(tmp_path: Path) -> None:
    rows = run("--svg", tmp_path / "cost.svg")
    names = ["provisioner", "exact", "newton", "sta-ratio", "sta-ps-ratio"]
    assert [row[0] for row in rows] == names * 5
    assert rows[1][1:6] == ["0.00 %"] * 5
    assert all(float(cell.replace(",", "")) > 0 for row in rows[21:] for cell in row[1:])
    circles = [node for node in ElementTree.parse(tmp_path / "cost.svg").iter() if node.tag.endswith("circle")]
    assert len(circles) > 0


def test_bench_provisioning_takes_profile_files(tmp_path: Path) -> None:
    (tmp_path / "profile.json").write_text(PROFILE, encoding="utf-8")
    rows = run(tmp_path / "profile.json", "--svg", tmp_path / "cost.svg")
    assert len(rows) == 2 * 5
    assert "given:" in (tmp_path / "cost.svg").read_text(encoding="utf-8")
