"""Gradients that are not finite, through the real command: the run ends with an error that names table, layer, slot and
key, and neither a table nor a checkpoint has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from command import heterps
from tiny import write_tiny

from heterps.checkpoint import load_latest

MODEL = """
import torch
import heterps

class Spoil(torch.nn.Module):
    '''Passes values on as they are; from batch `at` on the gradient of what it got is NaN.'''
    layer_kind = "elementwise"

    def __init__(self, at):
        super().__init__()
        self.at, self.num_batches = at, 0

    def forward(self, x):
        self.num_batches += torch.is_grad_enabled() and not isinstance(x, torch.fx.Proxy)
        return x + torch.sqrt(x * 0) if self.num_batches >= self.at else x

class Net(torch.nn.Module):
    def __init__(self, schema, rows_at=10**9, dense_at=10**9):
        super().__init__()
        self.embedding = heterps.nn.SparseEmbedding(schema.slots, 4)
        self.after_rows = Spoil(rows_at)
        self.first = torch.nn.Linear(8, 8)
        self.after_first = Spoil(dense_at)
        self.last = torch.nn.Linear(8, 1)

    def forward(self, dense, slots):
        rows = self.embedding(slots)
        rows = torch.cat([rows[:, 0], self.after_rows(rows[:, 1])], 1)
        return self.last(self.after_first(self.first(rows))).squeeze(1)
"""

JOB = """
model: {{factory: "spoilt:Net", args: {{{where}: 8}}}}
data: {{train: train.parquet, test: test.parquet, columns: {{dense: [a, b], slots: [s, t]}}, batch_size: 16}}
launcher: {launcher}
sync: {sync}
threads: 1
checkpoint: {{every_samples: 64}}
cluster: {{resources: {{cpu: {{device: cpu, usd_per_hour: 0.04, limit: 9}}}}, server_resource: cpu}}
"""


@pytest.mark.parametrize(
    ("launcher", "sync", "where", "table", "layer"),
    [
        ("inline", "bsp", "rows_at", "(table embedding)", "of slot t of layer embedding"),
        ("inline", "bsp", "dense_at", "(table dense)", "of layer first"),
        ("local", "bsp", "rows_at", "(table embedding)", "of slot t of layer embedding"),
        ("local", "asp", "dense_at", "(table dense", "of layer first"),
    ],
)
def test_a_gradient_that_is_not_finite_ends_the_run_and_reaches_no_table(
    tmp_path: Path, launcher: str, sync: str, where: str, table: str, layer: str
) -> None:
    (tmp_path / "spoilt.py").write_text(MODEL)
    write_tiny(tmp_path / "train.parquet", 400)
    write_tiny(tmp_path / "test.parquet", 60)
    (tmp_path / "job.yaml").write_text(JOB.format(launcher=launcher, sync=sync, where=where))
    done = heterps("train", "job.yaml", "--run", "run", cwd=tmp_path)
    assert done.returncode == 5, done.stdout + done.stderr
    said = " ".join(done.stderr.split())
    assert "is nan" in said
    assert table in said
    assert layer in said
    assert "on_not_finite: quarantine" in said
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run" / "summary.json").exists()
    kept = load_latest(tmp_path / "run" / "checkpoints")
    assert kept.samples >= 64
    rows = kept.tables["embedding"].whole()
    for values in (rows.values, rows.state, *kept.dense.values()):
        assert np.isfinite(values).all()
