"""The benchmark of real plans runs, and its lines have what its README explains."""

from __future__ import annotations

import sys
from pathlib import Path

import preloaded

RUN = Path(__file__).parents[2] / "benchmarks" / "real_plans" / "run.py"


def test_it_bills_the_old_plan_and_the_new_one() -> None:
    done = preloaded.run([sys.executable, RUN, "--quick", "--sync", "asp"])
    assert done.returncode == 0, done.stderr
    lines = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ctr_dnn")]
    assert [line[1] for line in lines] == ["AWS-like", "the paper's"]
    assert lines[0][5] == "tables do not fit"
    told, real, new = (float(lines[1][column]) for column in (4, 5, 8))
    assert told < new < real, "the paper's plan was told to be cheaper than anything is, and a better one is found"
