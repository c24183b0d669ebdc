"""The benchmark of checkpoints runs, and its arms differ in when rows are written."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench_file import load_bench

from heterps.data.generate import generate


@pytest.mark.parametrize("arm", ["still", "while"])
def test_an_arm_is_measured(tmp_path: Path, arm: str) -> None:
    bench = load_bench("saving/bench.py")
    generate(tmp_path, 20_000, 100)
    speed, seconds = bench.measure(tmp_path, arm, {}, dim=2, every=8192)
    assert speed > 0
    assert seconds > 0
    assert len(list((tmp_path / "run" / "checkpoints").iterdir())) == 2
