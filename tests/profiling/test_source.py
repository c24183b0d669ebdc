"""Where the profiled model and batch come from, and that another process can make the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from heterps.config import Data, Job, Model
from heterps.errors import ConfigError, ModelError
from heterps.profiling.source import ModelSource, shaped_inputs

MODELS = """
import torch
from torch import nn

def plain():
    return nn.Sequential(nn.Linear(16, 4), nn.ReLU(), nn.Linear(4, 1))

class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(100, 8)
        self.out = nn.Linear(8 + 3, 1)
    def forward(self, ids, x):
        return self.out(torch.cat([self.words(ids), x], 1))
    def example_inputs(self, batch_size):
        return torch.randint(100, (batch_size,)), torch.randn(batch_size, 3)

class Bare(Pair):
    def example_inputs(self, batch_size):
        return torch.zeros(batch_size)

class Broken(Pair):
    def example_inputs(self, batch_size):
        raise KeyError("vocabulary")
"""


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "source_models.py").write_text(MODELS)
    monkeypatch.syspath_prepend(str(tmp_path))


def source(factory: str, inputs: str | None = None, synthetic: bool = True) -> ModelSource:
    job = Job(model=Model(factory=factory), data=Data(train="none", batch_size=6))
    return ModelSource(job, synthetic, inputs)


def test_shapes_are_those_of_one_sample_with_a_comma_between_inputs() -> None:
    one, two = shaped_inputs("16, 3x2x2", 5)
    assert (one.shape, two.shape) == ((5, 16), (5, 3, 2, 2))
    assert torch.equal(one, shaped_inputs("16", 5)[0])


@pytest.mark.parametrize("shapes", ["", "16,", "a", "0", "3x", "-1", "3.5"])
def test_what_is_not_a_shape_is_named_with_the_rule(shapes: str) -> None:
    with pytest.raises(ConfigError, match=r"is not a shape\. Write the sizes of one sample"):
        shaped_inputs(shapes, 5)


def test_a_model_brings_its_own_inputs_and_given_shapes_come_first() -> None:
    ids, x = source("source_models:Pair").build()[1]
    assert (ids.shape, ids.dtype, x.shape) == ((6,), torch.int64, (6, 3))
    (given,) = source("source_models:plain", "16").build()[1]
    assert given.shape == (6, 16)


def test_without_either_the_columns_of_the_job_are_drawn() -> None:
    dense, slots = source("ctr_dnn").build()[1]
    assert dense.shape == (6, 13)
    assert len(slots) == 6


@pytest.mark.parametrize(
    ("factory", "message"),
    [("Bare", r"returned Tensor; it returns a tuple"), ("Broken", "raised KeyError: 'vocabulary'")],
)
def test_example_inputs_of_another_form_are_explained(factory: str, message: str) -> None:
    with pytest.raises(ModelError, match=rf"source_models:{factory}: example_inputs\(6\) {message}"):
        source(f"source_models:{factory}").build()


def test_a_source_read_back_makes_the_same_model_and_batch() -> None:
    made = source("source_models:Pair")
    again = ModelSource.from_json(made.to_json())
    assert again == made
    (one, inputs), (two, same) = made.build(), again.build()
    assert all(torch.equal(a, b) for a, b in zip(inputs, same, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_only_the_jobs_data_is_read() -> None:
    assert source("ctr_dnn", synthetic=False).reads_data
    assert not source("ctr_dnn").reads_data
    assert not source("ctr_dnn", "16", synthetic=False).reads_data
