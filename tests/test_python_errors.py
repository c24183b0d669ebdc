"""What a user of Python gets wrong is answered by a HeterpsError that says how to mend it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import heterps
from heterps.config import Adagrad, Data, Optimizers, Schema
from heterps.errors import ConfigError, HeterpsError, ModelError
from heterps.model.zoo import ctr_dnn

MODEL = ctr_dnn(Schema(dense=["x"], slots=["s"]), embedding_dim=2, hidden=[2])
TORCH = torch.optim.Adam([nn.Parameter(torch.zeros(1))])


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: heterps.Job(data={"train": "x", "batch_size": -1}), r"Job: data.batch_size: must be greater than 0"),
        (lambda: heterps.Job(daat={}), r"Job: daat is not a field. Did you mean 'data'\?"),
        (lambda: heterps.Job(), r"Job: data is missing"),
        (lambda: Data(train="x", epochs="many"), r"Data: epochs: must be a whole number \(got 'many'\)"),
        (lambda: Adagrad(lr=-1), r"Adagrad: lr: must be greater than 0 \(got -1\)"),
        (lambda: Optimizers(dense=TORCH), r"Optimizers: dense"),
        (lambda: heterps.train(data="x", optimizers=TORCH), r"optimizers are named.*got torch's Adam"),
        (lambda: heterps.train(data="x", optimizers={"dense": torch.optim.SGD}), r"'kind': 'adam'.*got torch's SGD"),
        (
            lambda: Data(train="x", validation={"share": 1.5}),
            r"^Data: validation.share: must be less than 1 \(got 1.5\)",
        ),
        (lambda: Data(train="x", validation={"shar": 0.5}), r"validation.shar is not a field. Did you mean 'share'"),
        (lambda: heterps.Job(data=Data(train="x"), sync="sometimes"), r"Job: sync: "),
        (lambda: heterps.Trainer(MODEL, TORCH), r"must be heterps.config.Optimizers.*got one of torch.optim.adam"),
        (lambda: heterps.Trainer(MODEL, Adagrad()), r"must be heterps.config.Optimizers.*got one of heterps.config"),
        (lambda: heterps.ps.SparseTable(2, torch.optim.SGD), r"one of heterps.ps.*got torch.optim.sgd.SGD"),
        (lambda: heterps.nn.SparseEmbedding(["s"], 2, optimizer="adam"), r"one of heterps.ps.*got builtins.str"),
    ],
)
def test_wrong_settings_are_config_errors(make: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make()


@pytest.mark.parametrize(
    ("use", "sentence"),
    [
        (lambda: heterps.ps.SparseTable(0), "dim must be at least 1"),
        (lambda: heterps.ps.SparseTable(2, seed=-1), "seed must be at least 0"),
        (lambda: heterps.ps.SparseTable(2).pull(["ann"]), "keys must be int64 or uint64"),
        (lambda: heterps.ps.SparseTable(2).push([1], [[1.0, 2.0, 3.0]]), r"need gradients \[1, 2\]"),
    ],
)
def test_wrong_arguments_of_a_table_are_errors_of_ours(use: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(HeterpsError, match=sentence):
        use()


@pytest.mark.parametrize("given", [["ann", "bob"], "ann", [[1, 2]], {"s": ["ann"]}])
def test_strings_and_lists_in_an_embedding_lead_to_bags(given: Any) -> None:
    embedding = heterps.nn.SparseEmbedding(["s"], dim=2)
    with pytest.raises(ModelError, match=r"SparseEmbedding s takes Slots, or a tensor.*heterps.bags\(\{'s': ...\}\)"):
        embedding(given)


def test_floats_in_an_embedding_are_refused() -> None:
    with pytest.raises(HeterpsError, match="ids of slot s must be 64-bit integers or strings"):
        heterps.nn.SparseEmbedding(["s"], dim=2)(torch.tensor([0.5]))
