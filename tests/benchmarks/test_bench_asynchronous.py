"""The benchmark of asynchronous training runs, and its table compares with one process on the same data."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from types import ModuleType

import pytest
from bench_file import BENCHMARKS, load_bench
from torch import nn

from heterps.data import synthetic


@pytest.fixture
def bench() -> ModuleType:
    return load_bench("asynchronous/bench.py")


def test_the_table_compares_runs_of_a_seed_with_one_process_and_shows_spreads(
    bench: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone, asp, peer_alone, peer = bench.CASES[:4]
    lines = [
        {
            **case._asdict(),
            "data": "data-7",
            "batch_size": 1024,
            "seed": seed,
            "auc": auc + seed * step,
            "staleness": None if case.launcher == "tensorflow" else 0.98,
            "samples_per_s": 1234.0,
        }
        for case, auc, step in ((alone, 0.70, 0.01), (asp, 0.69, 0.02), (peer_alone, 0.71, 0.0), (peer, 0.70, 0.01))
        for seed in range(3 if case != peer else 1)
    ]
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    bench.main(["table", "--folder", str(tmp_path)])
    out = capsys.readouterr().out
    assert "| data-7 | 1,024 | one process | 0.7100 (0.7000 to 0.7200) |  | 0.98 | 3 |" in out
    assert (
        "| data-7 | 1,024 | asp, 2 workers | 0.7100 (0.6900 to 0.7300) | +0.0000 (-0.0100 to +0.0100) | 0.98 | 3 |"
        in out
    )
    assert "| data-7 | 1,024 | TensorFlow, asynchronous, 2 workers | 0.7000 | -0.0100 |  | 1 |" in out, (
        "against its own"
    )


def test_the_peer_s_tables_are_as_large_as_the_data_s() -> None:
    """It runs where heterps is not installed, so it has sizes of its own."""
    text = ast.parse((BENCHMARKS / "asynchronous/tensorflow_ps.py").read_text())
    (sizes,) = (
        ast.literal_eval(node.value)
        for node in text.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CARDINALITIES"
    )
    assert sizes == synthetic.CARDINALITIES.tolist()


def test_a_run_is_trained_once_and_not_again(bench: ModuleType, tmp_path: Path) -> None:
    words = ["run", "--folder", str(tmp_path), "--rows", "2048", "--rounds", "1", "--data", "data-0-1.3"]
    for _ in range(2):
        bench.main([*words, "--batch-sizes", "256", "--cases", "one process", "TensorFlow, one process"])
    (line,) = map(json.loads, (tmp_path / "results.jsonl").read_text().splitlines())
    assert (line["launcher"], line["data"], line["staleness"]) == ("inline", "data-0-1.3", 0)
    assert json.loads((tmp_path / "data-0-1.3/dataset.json").read_text())["skew"] == 1.3


def test_first_gradients_are_of_the_sample_whatever_the_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = load_bench("asynchronous/first_gradients.py")
    task = str(tmp_path / "match")
    first.heterps(tmp_path, "data", "synth", task, "--task", "match", "--rows", 20_000, "--test-rows", 0)
    first.main(["--folder", str(tmp_path), "--models", "match_net", "--batch-sizes", "500", "1000"])
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[2] for row in rows] == ["user", "item"] * 2
    assert float(rows[1][3]) == pytest.approx(float(rows[3][3]), rel=0.5)
    assert float(rows[0][3]) < float(rows[0][4]), "the gradients of users grow from next to nothing"


@pytest.mark.slow
def test_every_case_of_heterps_is_trained(bench: ModuleType, tmp_path: Path) -> None:
    words = ["--rows", "4096", "--data", "data-0", "--batch-sizes", "256", "--rounds", "1"]
    bench.main(["run", "--folder", str(tmp_path), *words])
    found = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert len(found) == sum(case.launcher != "tensorflow" for case in bench.CASES)
    assert all(0.4 < line["auc"] < 0.9 for line in found)
    assert found[0]["staleness"] == 0 < found[-1]["staleness"]


@pytest.mark.slow
def test_real_gains_stand_beside_what_was_expected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    advice = load_bench("asynchronous/advice.py")
    advice.main(["--folder", str(tmp_path), "--rows", "8000", "--batch-sizes", "256", "--rounds", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("| 256 | ") for line in lines) == 6


def test_dense_layers_start_by_glorot_s_rule_only_where_they_are_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    starts = load_bench("asynchronous/dense_starts.py")
    starts.main(["--folder", str(tmp_path), "--models", "ctr", "--rows", "3000", "--seeds", "1"])
    row = capsys.readouterr().out.splitlines()[-1].split("|")
    assert row[1:3] == [" ctr ", " 0 "]
    assert row[3] != row[4], "another start, another model"
    with starts.glorot():
        assert not nn.Linear(4, 3).bias.any()
    assert nn.Linear(4, 3).bias.any()
