"""The benchmark of workers and servers on one machine runs, and its table compares arms within a round."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import preloaded
import pytest
from bench_file import BENCHMARKS, load_bench

FOLDER = BENCHMARKS / "scaling"


@pytest.fixture
def bench() -> ModuleType:
    return load_bench("scaling/bench.py")


def test_the_table_has_medians_of_ratios_within_rounds(bench: ModuleType) -> None:
    """One slow minute of the machine halves both arms of round 2, and changes no ratio."""
    inline = [bench.Result(100.0 / slow, {"workers": 0.0, "server": 0.0, "coordinator": 30.0}) for slow in (1, 2, 1)]
    local = [bench.Result(90.0 / slow, {"workers": 24.0, "server": 6.0, "coordinator": 3.0}) for slow in (1, 2, 1)]
    *_, first, second = bench.table({"1024": {"inline": inline, "local, bsp": local}})
    assert first == "| 1024 | inline | 100 | 1.00 | 30.0 | 1.00 |  |  |  |"
    assert second == "| 1024 | local, bsp | 90 | 0.90 | 33.0 | 1.10 | 24.0 | 6.0 | 3.0 |"


@pytest.mark.slow
def test_every_role_of_a_run_is_measured(bench: ModuleType, tmp_path: Path) -> None:
    preloaded.run([sys.executable, "-m", "heterps", "data", "synth", tmp_path / "data", "--rows", "20000"])
    words = [sys.executable, FOLDER / "bench.py", "--run", tmp_path / "data" / "train", "small", "local, bsp"]
    done = preloaded.run(words)
    assert done.returncode == 0, done.stderr
    result = bench.Result(*json.loads(done.stdout.splitlines()[-1]))
    assert result.samples_per_s > 0
    assert all(result.cpu_ms[role] > 0 for role in bench.ROLES)


@pytest.mark.slow
def test_plans_on_emulated_units_are_predicted_and_measured() -> None:
    words = [sys.executable, FOLDER / "emulated.py", "--rows", "4000", "--seconds", "0.1", "--batch-size", "256"]
    done = preloaded.run([*words, "--policies", "asp"])
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if " servers" in line]
    assert len(rows) == 7
