"""The benchmark of the policies runs, and its README shows what it prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "benchmarks" / "policies"


def test_bench_policies_prints_what_its_readme_shows() -> None:
    done = subprocess.run([sys.executable, FOLDER / "bench.py", "--quick"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    simulated, _, timed = done.stdout.partition("### 50 workers")
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    rows = [line for line in simulated.splitlines() if line.startswith("|")]
    assert len(rows) == 4 * (2 + 8)
    assert [line for line in rows if line not in readme] == []
    assert timed.count("\n| ") == 1 + 4
