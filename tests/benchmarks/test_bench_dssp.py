"""The benchmark of DSSP runs, and its README shows what is in its figures, where there are any."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "dssp"


@pytest.mark.slow
def test_bench_dssp_runs_and_prints_every_question() -> None:
    words = [sys.executable, FOLDER / "run.py", "--quick", "--processes", "1"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("### ") == 5
    rows = [line for line in done.stdout.splitlines() if line.startswith("| bsp")]
    assert len(rows) >= 5


def test_bench_dssp_readme_has_its_figures() -> None:
    figures = FOLDER / "figures.json"
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    if not figures.exists():
        assert "The tables are not filled in yet" in readme
        return
    spec = importlib.util.spec_from_file_location("dssp_run", FOLDER / "run.py")
    assert spec is not None
    assert spec.loader is not None
    run = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(run)
    found = json.loads(figures.read_text(encoding="utf-8"))
    assert [q["title"] for q in found["questions"]] == [question.title for question in run.QUESTIONS]
    for question in found["questions"]:
        assert run.show_question(question) in readme
