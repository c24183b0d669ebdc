"""`heterps profile`: the file, the table, the JSON, the errors."""

from __future__ import annotations

import json
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from heterps.cli import main
from heterps.profiling.profile import Cost, LayerProfile, Profile, load_profile
from heterps.ps.table.sparse import SparseTable
from heterps.report.terminal.profile_table import milliseconds, profile_table, size

JOB = """
model: {factory: deepfm, args: {embedding_dim: 4, hidden: [8]}}
data: {train: nowhere.parquet, batch_size: 32, columns: {dense: [a], slots: [s, t]}}
cluster:
  resources:
    core: {device: cpu, usd_per_hour: 0.04, limit: 8}
    v100: {device: cuda, usd_per_hour: 2.42, limit: 2}
  server_resource: core
"""


PLAIN = """
import torch
from torch import nn

def plain():
    return nn.Sequential(nn.Linear(16, 4), nn.ReLU(), nn.Linear(4, 1))

class Own(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(16, 1))
    def example_inputs(self, batch_size):
        return (torch.randn(batch_size, 16),)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "plain_models.py").write_text(PLAIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "plain_models", raising=False)
    return tmp_path


def run(*words: str, units: str = "parts") -> int:
    with pytest.raises(SystemExit) as end:
        main(["profile", *words, "--units", units])
    return int(end.value.code or 0)


def run_line(line: str) -> int:
    return run(*line.split())


@pytest.mark.parametrize("launcher", ["", "launcher: inline\n", "launcher: local\n"])
def test_a_job_with_emulation_is_profiled_whatever_its_launcher(folder: Path, launcher: str) -> None:
    (folder / "job.yaml").write_text(JOB + "emulation: {}\n" + launcher)
    assert run("job.yaml", "--synthetic", "--budget", "0") == 0
    assert (folder / "profile.json").exists()


def test_the_command_fills_no_more_memory_than_the_job_allows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[SparseTable] = []

    class Noted(SparseTable):
        def __init__(self, *words: Any) -> None:
            super().__init__(*words)
            made.append(self)

    monkeypatch.setattr("heterps.profiling.servers.SparseTable", Noted)
    monkeypatch.setattr("heterps.profiling.servers.MOST_ROWS", 1_000_000)
    (folder / "job.yaml").write_text(JOB + "tiers: {memory_bytes: 4000000}\n")
    assert run("job.yaml", "--synthetic", "--budget", "0") == 0
    assert max(table.num_bytes for table in made) > 1_000_000
    assert sum(table.num_bytes for table in made) <= 4_000_000


def test_a_job_is_profiled_for_its_cluster_and_written_by_the_contract(folder: Path) -> None:
    assert run("job.yaml", "--synthetic", "--budget", "0") == 0
    found = json.loads((folder / "profile.json").read_text())
    assert found["version"] == 2
    assert found["model"] == "deepfm"
    assert found["batch_size"] == 32
    assert {"name", "kind", "input_bytes", "weight_bytes", "output_bytes", "server_s", "costs"} <= set(
        found["layers"][0]
    )
    assert set(found["layers"][0]["costs"]) == {"core", "v100"}
    assert {"compute_s", "sync_s", "input_s", "alpha", "beta"} <= set(found["layers"][0]["costs"]["core"])
    assert load_profile(folder / "profile.json").estimated("v100")


def test_options_come_before_what_the_job_says(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "--synthetic --model ctr_dnn --batch-size 16 --resources cpu,fast=v100 --budget 0 --out other.json --json"
    assert run("job.yaml", *words.split()) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((folder / "other.json").read_text())
    assert (printed["model"], printed["batch_size"]) == ("ctr_dnn", 16)
    assert set(printed["layers"][0]["costs"]) == {"cpu", "fast"}


def test_the_jobs_own_data_is_profiled_and_its_reading_timed(folder: Path) -> None:
    samples = 64
    keys = pa.array([5] * samples)
    columns = {"label": pa.array([0, 1] * (samples // 2)), "a": pa.array([0.5] * samples), "s": keys, "t": keys}
    pq.write_table(pa.table(columns), folder / "nowhere.parquet")
    assert run("job.yaml", "--budget", "0") == 0
    embedding = load_profile(folder / "profile.json").layers[0]
    assert embedding.weight_bytes == 2 * (1 + 4) * 4, "one distinct key a slot, a row of five values each"
    assert embedding.costs["core"].input_s == embedding.costs["v100"].input_s, "reading takes what it takes"


def test_data_that_is_not_there_yet_gives_a_random_batch_and_a_note(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("job.yaml", "--budget", "0") == 0
    assert "random batch, because there is no data yet" in capsys.readouterr().err


def test_data_of_other_columns_is_an_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pq.write_table(pa.table({"other": pa.array([1] * 64)}), folder / "nowhere.parquet")
    assert run("job.yaml", "--budget", "0") == 4


def test_the_table_marks_estimates_and_names_the_next_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("job.yaml", "--synthetic", "--budget", "0") == 0
    shown = capsys.readouterr().out
    assert "~ estimated by roofline" in shown
    assert "embedding" in shown
    assert "heterps plan profile.json" in shown


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("", 2, "name a job file or --model"),
        ("missing.yaml", 2, "there is no such job file"),
        ("--model ctr_dn", 5, "did you mean 'ctr_dnn'"),
        ("--merge job.yaml --merge job.yaml", 2, "this is a job file, and a profile is wanted here"),
        ("--model ctr_dnn --inputs 16x", 2, "'16x' is not a shape"),
        ("--model plain_models:plain --budget 0", 5, "the batch has 2 inputs, but the model takes 1"),
        ("--model plain_models:plain --budget 0", 5, "--inputs, or with a method example_inputs(batch_size)"),
        ("job.yaml --synthetic --resources cpu,h1000", 2, "resource 'h1000' is neither here"),
        ("missing.yaml --out no/such/folder.json", 7, "cannot write the profile"),
        ("missing.yaml --out .", 7, "this is a folder"),
    ],
)
def test_errors_have_a_code_and_say_what_to_do(
    words: str, code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words.split()) == code
    assert message in capsys.readouterr().err


def test_alpha_and_beta_come_from_two_processes_unless_told_otherwise(folder: Path) -> None:
    assert run("job.yaml", "--synthetic", "--budget", "0", "--resources", "cpu", units="processes") == 0
    assert set(load_profile(folder / "profile.json").resources) == {"cpu"}


def test_units_of_another_word_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("job.yaml", "--synthetic", units="threads") == 2
    assert "--units must be one of: processes, parts (got 'threads')" in capsys.readouterr().err


def test_a_plain_module_is_profiled_by_import_path_and_shapes(folder: Path) -> None:
    assert run_line("--model plain_models:plain --inputs 16 --batch-size 8 --budget 0 --resources cpu,t4") == 0
    found = load_profile(folder / "profile.json")
    assert (found.model, found.batch_size) == ("plain_models:plain", 8)
    assert [layer.kind for layer in found.layers] == ["linear", "activation", "linear"]
    assert found.layers[0].input_bytes == 8 * 16 * 4


def test_a_module_with_inputs_of_its_own_is_profiled_as_it_says(folder: Path) -> None:
    assert run_line("--model plain_models:Own --batch-size 8 --budget 0 --resources cpu") == 0
    assert load_profile(folder / "profile.json").layers[0].input_bytes == 8 * 16 * 4


def test_profiles_of_two_machines_merge(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = "job.yaml --synthetic --budget 0 --resources cpu --out here.json"
    there = "job.yaml --synthetic --budget 0 --resources there=cpu --out there.json"
    assert run_line(here) == run_line(there) == 0
    assert run_line("--merge here.json --merge there.json --out both.json") == 0
    assert load_profile(folder / "both.json").resources == ("cpu", "there")
    assert run_line("job.yaml --synthetic --budget 0 --resources v100 --merge both.json --out all.json") == 0
    assert set(load_profile(folder / "all.json").resources) == {"v100", "cpu", "there"}
    assert run_line("--merge here.json --merge both.json") == 2
    assert "'cpu' is measured in both profiles" in capsys.readouterr().err
    assert run("--merge", "here.json") == 2
    assert "two profiles or more" in " ".join(capsys.readouterr().err.split())


def wide(num_resources: int) -> Profile:
    cost = Cost(compute_s=0.0123, sync_s=0.001, input_s=0.002, alpha=0.9, beta=0.8, estimated=True)
    costs = {f"resource{i}": cost for i in range(num_resources)}
    layer = LayerProfile(name="a_layer_with_a_very_long_name_indeed", kind="embedding", server_s=0.1, costs=costs)
    return Profile(model="m", batch_size=4096, layers=(layer,))


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("num_resources", [1, 2, 3, 8, 20])
def test_the_table_keeps_within_the_screen_and_shows_every_resource(width: int, num_resources: int) -> None:
    console = Console(width=width, file=StringIO())
    console.print(profile_table(wide(num_resources), width))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, shown.splitlines())) <= width
    assert all(f"resource{i} " in shown for i in range(num_resources))
    assert shown.count("~12.3") >= num_resources, "no figure is cut"


def test_figures_keep_three_digits() -> None:
    assert [milliseconds(s) for s in (0.1234, 0.01234, 0.001234, 0.0001234)] == ["123", "12.3", "1.23", "0.123"]
    assert [size(n) for n in (5, 1500, 256_000_000, 3.2e12)] == ["5 B", "1.5 KB", "256 MB", "3.2 TB"]


def test_the_next_command_is_a_line_of_its_own_with_the_jobs_cluster_file(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    job, _, cluster = JOB.partition("cluster:")
    (folder / "my cluster.yaml").write_text(cluster.replace("\n  ", "\n"))
    (folder / "job.yaml").write_text(f"{job}cluster: my cluster.yaml\n")
    assert run("job.yaml", "--budget", "0", "--resources", "cpu") == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == "heterps plan profile.json 'my cluster.yaml' --throughput 20000 --samples 1e9"


def test_help_tells_what_the_budget_covers_and_what_comes_on_top(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["profile", "--help"])
    told = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "timing layers, units and servers" in told
    assert "On top come the start of processes" in told


def test_without_a_terminal_progress_is_a_line_and_no_empty_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--model", "plain_models:plain", "--inputs", "16", "--budget", "0", "--resources", "cpu") == 0
    captured = capsys.readouterr()
    assert captured.err.splitlines() == ["profiling plain_models:plain"]
    assert captured.out.startswith("plain_models:plain: a batch of")
