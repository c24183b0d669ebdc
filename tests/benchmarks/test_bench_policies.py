"""The benchmark of the policies runs, and its README shows what it prints."""

from __future__ import annotations

import sys
from pathlib import Path

import preloaded

FOLDER = Path(__file__).parents[2] / "benchmarks" / "policies"


def test_bench_policies_prints_what_its_readme_shows() -> None:
    done = preloaded.run([sys.executable, FOLDER / "bench.py", "--quick"])
    assert done.returncode == 0, done.stderr
    simulated, _, timed = done.stdout.partition("### 50 workers")
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    rows = [line for line in simulated.splitlines() if line.startswith("|")]
    assert len(rows) == 4 * (2 + 9) + 2 + 4
    assert [line for line in rows if line not in readme] == []
    assert timed.count("\n| ") == 1 + 4
