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


def test_what_a_save_costs_is_told_by_arm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench = load_bench("saving/changes.py")
    bench.main(["--rows", "40000", "--every", "8192", "--dim", "2"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "checkpoints a run: full 5, changes 5"
    sizes = {cells[1].strip(): float(cells[3]) for line in lines if len(cells := line.split("|")) == 5 and "." in line}
    assert sizes["full"] == 1.0
    assert sizes["changes"] > sizes["changes, all rows in 1 of 32"] > sizes["changes, all rows in 1 of 8"] > 1.0
    assert sum("| pull | full |" in line or "| push | changes |" in line for line in lines) == 4


def test_what_met_a_save_is_told_apart() -> None:
    bench = load_bench("saving/changes.py")
    spans = [(0.0, 1.0), (2.0, 2.5), (3.0, 3.2), (4.0, 4.1), (3.9, 5.0)]
    alone, met = bench.split(spans, [(2.2, 3.1), (4.2, 6.0)], 1.5)
    assert alone == pytest.approx([100.0])
    assert met == pytest.approx([500.0, 200.0, 1100.0])
