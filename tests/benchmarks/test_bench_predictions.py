"""The benchmark of predictions runs, and its table says how far off they were."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest
from bench_file import load_bench


@pytest.fixture
def bench() -> ModuleType:
    return load_bench("predictions/bench.py")


def test_the_table_says_how_far_off_predictions_were(
    bench: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        {
            "model": "small", "launcher": "local", "count": 2, "sync": sync, "predicted_throughput": predicted,
            "predicted_throughput_low": predicted / 2, "predicted_throughput_high": predicted * 1.1,
            "measured_throughput": 1000.0,
        }
        for sync, predicted in (("bsp", 1200.0), ("asp", 900.0), ("ssp:3", 1000.0))
    ]  # fmt: skip
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    bench.main(["table", "--folder", str(tmp_path)])
    out = capsys.readouterr().out
    assert "| small | local | 2 | bsp | 1,200 | 600-1,320 | 1,000 | +20.0% | yes |" in out
    assert "| small | local | 2 | asp | 900 | 450-990 | 1,000 | -10.0% | no |" in out
    assert "Median error 10.0%, worst 20.0%; 2 of 3 runs (67%) inside their interval." in out


@pytest.mark.slow
def test_a_case_is_profiled_and_run(bench: ModuleType, tmp_path: Path) -> None:
    bench.main(["run", "--folder", str(tmp_path), "--rows", "8192", "--models", "small", "demo",
                "--cases", "inline-2-bsp", "local-1-bsp"])  # fmt: skip
    found = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [line["launcher"] for line in found] == ["inline", "local", "inline"]
    assert found[-1]["model"] == "demo"
    assert all(line["predicted_throughput_low"] > 0 and line["measured_throughput"] > 0 for line in found)
