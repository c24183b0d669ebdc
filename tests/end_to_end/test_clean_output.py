"""What commands print, whatever the model does: JSON alone where a program reads it, and no traceback of a library."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import heterps
from tiny import write_tiny

MODEL = """
import os, subprocess
import torch
import heterps

class Net(torch.nn.Module):
    def __init__(self, schema, width=8):
        super().__init__()
        print("a model that prints")
        os.write(1, b"to the descriptor\\n")
        subprocess.run(["echo", "from a process"], check=True)
        self.embedding = heterps.nn.SparseEmbedding(schema.slots, 4)
        self.out = torch.nn.Linear(width, 1)

    def forward(self, dense, slots):
        print("forward")
        return self.out(self.embedding(slots).flatten(1)).squeeze(1)
"""
JOB = """
model: {{factory: "chatty:Net", args: {{width: {width}}}}}
data: {{train: train.parquet, test: test.parquet, columns: {{dense: [a, b], slots: [s, t]}}, batch_size: 16}}
workers: {{channel: memory}}
threads: 1
cluster: {{resources: {{cpu: {{device: cpu, usd_per_hour: 0.04, limit: 9}}}}, server_resource: cpu}}
"""


def write_job(folder: Path, width: int = 8) -> None:
    (folder / "chatty.py").write_text(MODEL)
    write_tiny(folder / "train.parquet", 200)
    write_tiny(folder / "test.parquet", 60)
    (folder / "job.yaml").write_text(JOB.format(width=width))


@pytest.mark.parametrize(
    "words",
    [
        ("profile", "job.yaml", "--budget", "0", "--units", "parts"),
        ("train", "job.yaml", "--run", "run"),
        ("train", "job.yaml", "--run", "run", "--launcher", "local"),
    ],
    ids=["profile", "inline", "local"],
)
def test_a_model_that_prints_does_not_spoil_json(tmp_path: Path, words: tuple[str, ...]) -> None:
    write_job(tmp_path)
    done = heterps(*words, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert isinstance(json.loads(done.stdout), dict)
    for text in ("a model that prints", "to the descriptor", "from a process"):
        assert text in done.stderr


@pytest.mark.parametrize(
    "words", [("profile", "job.yaml", "--budget", "0", "--units", "parts"), ("train", "job.yaml", "--run", "run")]
)
def test_an_error_in_the_models_own_code_comes_without_a_traceback(tmp_path: Path, words: tuple[str, ...]) -> None:
    write_job(tmp_path, width=9)
    done = heterps(*words, cwd=tmp_path)
    assert done.returncode == 5
    assert "error: layer out (linear) cannot run" in done.stderr
    assert "FX-traced" not in done.stderr
    assert "Traceback" not in done.stderr
