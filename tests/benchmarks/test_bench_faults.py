"""The benchmark of deaths: what it makes of the moments that it saw, and its table."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest
from bench_file import load_bench


@pytest.fixture
def bench() -> ModuleType:
    return load_bench("faults/bench.py")


def test_pause_and_full_speed_are_read_off_the_steps(bench: ModuleType) -> None:
    """A step takes 0.1 s. One worker goes on at half the speed for 3 s, then the new one takes 0.7 s to its place."""
    seen = bench.Watched(bench.Case("worker", "asp"))
    before = [0.1 * number for number in range(101)]
    alone = [10.0 + 0.2 * number for number in range(1, 16)]
    both = [13.7 + 0.1 * number for number in range(30)]
    seen.steps, seen.killed, seen.warned_at, seen.back_at = before + alone + both, 10.0, 10.3, 13.5
    found = bench.figures(seen)
    assert found["detected_s"] == pytest.approx(0.3)
    assert found["pause_s"] == pytest.approx(0.7)
    assert found["full_speed_s"] == pytest.approx(4.6, abs=0.21)


def test_the_table_has_medians_the_worst_pause_and_all_losses(
    bench: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        {
            **bench.Case("worker", "bsp", "STOP", reserve=True, stages=2)._asdict(),
            "detected_s": 0.2,
            "pause_s": pause_s,
            "full_speed_s": 1 + pause_s,
            "repeated": 512,
            "lost": 1,
            "doubled": 0,
        }
        for pause_s in (0.5, 0.6, 2.0)
    ]
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    bench.main(["table", "--folder", str(tmp_path)])
    assert "| worker | STOP | bsp | 2 | yes | 3 | 0.20 | 0.60 | 2.00 | 1.60 | 512 | 3 | 0 |" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", ["worker:bsp:KILL:1:reserve", "worker:asp:TERM:1", "worker:asp:KILL:2", "server+mirror:bsp:STOP"]
)
def test_a_real_process_is_hit_and_nothing_is_lost(bench: ModuleType, tmp_path: Path, case: str) -> None:
    bench.main(["run", "--folder", str(tmp_path), "--tries", "1", "--rows", "150000", "--only", case])
    (line,) = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert bench.Case(*(line[field] for field in bench.Case._fields)).name.startswith(case)
    assert (line["lost"], line["doubled"], line["restarts"]) == (0, 0, 0)
    assert line["detected_s"] > 0
