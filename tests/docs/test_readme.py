"""The README is short, and its figures are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import heterps
from heterps.cli import app

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
METHODS = {
    "exact": "exact, proven optimal",
    "heuristic": "heuristic, after AIBox",
    "cpu": "all layers on CPUs",
    "gpu": "all layers on V100s",
}


def test_it_is_short() -> None:
    lines = README.splitlines()
    assert len(lines) < 150
    assert max(map(len, lines)) < 120


def test_ten_lines_are_ten() -> None:
    code = README.partition("## Ten lines")[2].partition("```python\n")[2].partition("```")[0]
    assert len([line for line in code.splitlines() if line]) == 10


def rows_of_the_table() -> dict[str, list[str]]:
    """The table of bills by its first column."""
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in README.splitlines() if row.startswith("|")]
    return {row[0]: row[1:] for row in rows if len(row) == 5}


@pytest.mark.parametrize("method", METHODS)
def test_bills_of_plans_are_those_of_the_planner(method: str) -> None:
    rows = rows_of_the_table()
    cluster = heterps.load_cluster(ROOT / "examples" / "cluster.yaml")
    for model, told in zip(rows["method"], rows[METHODS[method]], strict=True):
        profile = heterps.load_profile(ROOT / "benchmarks" / "profiles" / f"{model}.json")
        plan = heterps.plan(profile, cluster, throughput=100_000, samples=1e9, method=method, seconds=None)
        assert f"{plan.usd:.2f}" == told, model
        assert method != "exact" or plan.gap == 0


def test_policies_do_what_the_figure_shows() -> None:
    command, shown = re.findall(r"^\$ heterps (simulate .*)\n((?:.+\n)+)```$", README, re.M)[0]
    printed = CliRunner().invoke(app, command.split()).output
    assert [line.rstrip() for line in shown.splitlines()] == [
        line.rstrip() for line in printed.splitlines()[: shown.count("\n")]
    ]
