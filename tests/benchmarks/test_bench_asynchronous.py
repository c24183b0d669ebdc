"""The benchmark of asynchronous training runs, and its table compares with one process on the same data."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest
from bench_file import load_bench


@pytest.fixture
def bench() -> ModuleType:
    return load_bench("asynchronous/bench.py")


def test_the_table_compares_medians_with_one_process_of_the_same_start(
    bench: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone, asp = bench.CASES[0], bench.CASES[2]
    cases = [alone, asp, alone._replace(start="0.3"), asp._replace(start="0.3")]
    lines = [
        {
            **case._asdict(),
            "data": 7,
            "batch_size": 1024,
            "seed": seed,
            "auc": auc + seed / 100,
            "staleness": 0.98,
            "samples_per_s": 1234.0,
        }
        for case, auc in zip(cases, (0.70, 0.69, 0.60, 0.61), strict=True)
        for seed in range(3)
    ]
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    bench.main(["table", "--folder", str(tmp_path)])
    out = capsys.readouterr().out
    assert "| 7 | 1,024 | one process | 0 | 0.7100 |  | 0.98 | 1,234 | 3 |" in out
    assert "| 7 | 1,024 | asp, 2 workers | 0 | 0.7000 | -0.0100 | 0.98 | 1,234 | 3 |" in out
    assert "| 7 | 1,024 | asp, 2 workers | 0.3 | 0.6200 | +0.0100 | 0.98 | 1,234 | 3 |" in out


@pytest.mark.slow
def test_every_case_is_trained(bench: ModuleType, tmp_path: Path) -> None:
    bench.main(["run", "--folder", str(tmp_path), "--rows", "4096", "--seeds", "0", "--batch-sizes", "256"])
    found = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert len(found) == len(bench.CASES)
    assert all(0.4 < line["auc"] < 0.9 for line in found)
    assert found[0]["staleness"] == 0 < found[5]["staleness"]
