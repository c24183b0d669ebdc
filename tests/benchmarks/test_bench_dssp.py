"""The benchmark of DSSP runs, and its README shows what is in its figures, where there are any."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import preloaded
import pytest
from bench_file import load_bench

FOLDER = Path(__file__).parents[2] / "benchmarks" / "dssp"


@pytest.mark.slow
def test_bench_dssp_runs_and_prints_every_question() -> None:
    words = [sys.executable, FOLDER / "run.py", "--quick", "--processes", "1"]
    done = preloaded.run(words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("### ") == 6
    rows = [line for line in done.stdout.splitlines() if line.startswith("| bsp")]
    assert len(rows) >= 6


def test_bench_dssp_readme_has_its_figures() -> None:
    figures = FOLDER / "figures.json"
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    if not figures.exists():
        assert "The tables are not filled in yet" in readme
        return
    run = load_bench("dssp/run.py")
    found = json.loads(figures.read_text(encoding="utf-8"))
    assert [q["title"] for q in found["questions"]] == [question.title for question in run.QUESTIONS]
    for question in found["questions"]:
        assert run.show_question(question) in readme
