"""The benchmark of learning runs, and its tables have a prediction before and after."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench_file import load_bench


@pytest.mark.slow
def test_runs_and_plans_are_predicted_before_and_after_what_was_learned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = load_bench("predictions/learn.py")
    words = ["--rows", "32768", "--floor", "2000", "--trial-seconds", "0.5"]
    bench.main(["--folder", str(tmp_path), *words])
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert [len(row.split("|")) for row in rows] == 5 * [11] + 4 * [6]
    _, _, _, _, _, measured, _, predicted, *_ = (cell.replace(",", "") for cell in rows[2].split("|"))
    assert float(predicted) == pytest.approx(float(measured), rel=1e-3), "as much as the inline run before it did"
