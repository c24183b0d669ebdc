"""The benchmark of the schedulers searches with every method, and its tables have a row for each."""

from __future__ import annotations

import sys
from pathlib import Path

import preloaded
import pytest

from heterps.planning.schedulers import METHODS

FOLDER = Path(__file__).parents[2] / "benchmarks" / "schedulers"


def run(script: str, *words: str | Path) -> str:
    done = preloaded.run([sys.executable, FOLDER / script, *words])
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_every_method_is_searched_and_shown(tmp_path: Path) -> None:
    run(
        "run.py",
        "--models",
        "nce",
        "--resources",
        "2,4",
        "--seeds",
        "1",
        "--seconds",
        "1",
        "--out",
        tmp_path / "r.json",
    )
    shown = run("show.py", tmp_path / "r.json", "--svg", tmp_path / "r.svg")
    gaps, effort, bills = (table.splitlines() for table in shown.split("\n\n") if table.startswith("| "))
    assert [line.split()[1] for line in gaps[2:]] == list(METHODS)
    assert gaps[2].split("|")[2:4] == [" 0.0 ", " 0.0 "], "exact is the optimum"
    assert [line.split()[1] for line in effort[2:]] == list(METHODS)
    assert [line.split()[3] for line in bills[2:]] == ["2", "4"]
    assert (tmp_path / "r.svg").read_text(encoding="utf-8").count("<circle") > 0
