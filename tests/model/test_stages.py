"""Stages run one after another are the model, bit for bit, forward and backward."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from zoo_cases import small_inputs, small_model

from heterps.config import Schema
from heterps.model.stages import StageModule, StageRun, leaves, split
from heterps.model.trace import Trace, trace
from heterps.model.zoo import ZOO, ctr_dnn
from heterps.nn import embeddings


class Skips(nn.Module):
    """Skip connections, a chunk that crosses a border as a tuple, an in-place node, a weight used twice, an integer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(4, 8)
        self.scale = nn.Parameter(torch.rand(8))
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        p = self.a(x)
        rows = p.shape[0]
        q = torch.nn.functional.relu(self.b(p), inplace=True)
        left, right = q.chunk(2, dim=1)
        r = self.c(left * right) * self.scale
        s = torch.cat(p.chunk(2, dim=1)[::-1], dim=1)
        t = self.norm(r + p * self.scale + s).reshape(rows, 2, 4)
        t = t.relu_()
        return t.sum((1, 2)) + y, p.mean()


def run_split(traced: Trace, stages: list[StageModule], inputs: tuple[object, ...]) -> tuple[Tensor, ...]:
    """Forward through all stages, backward through all in reverse; the output's gradients are ones."""
    values = dict(zip(traced.inputs, inputs, strict=True))
    runs = []
    for stage in stages:
        runs.append(StageRun(stage, values))
        values = runs[-1].outputs
    output = traced.output(values)
    outputs = tuple(leaves(output))
    gradients = {name: torch.ones_like(v) for name, v in values.items()}
    for run in reversed(runs):
        gradients = run.backward(gradients)
    return outputs


class Residuals(nn.Module):
    """No value has more than two users, so no sum of gradients can be taken in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        p = self.a(x)
        q = self.relu(self.norm(self.b(p))) + p
        return (self.c(q) * q).sum(1) + y


def assert_same(model: nn.Module, inputs: tuple[object, ...], boundaries: list[int], rtol: float = 0.0) -> None:
    other = copy.deepcopy(model)
    whole_output = model(*inputs)
    wholes = tuple(leaves(whole_output))
    torch.autograd.backward(wholes, [torch.ones_like(o) for o in wholes])
    traced = trace(other)
    outputs = run_split(traced, split(traced, boundaries), inputs)
    assert all(torch.equal(a, b) for a, b in zip(wholes, outputs, strict=True))
    for (name, a), (_, b) in zip(model.named_parameters(), other.named_parameters(), strict=True):
        assert a.grad is not None, name
        assert b.grad is not None, name
        torch.testing.assert_close(a.grad, b.grad, rtol=rtol, atol=rtol, msg=f"gradient of {name} differs")
    for (name, a), (_, b) in zip(model.named_buffers(), other.named_buffers(), strict=True):
        assert torch.equal(a, b), f"buffer {name} differs"
    for (name, e), (_, f) in zip(embeddings(model), embeddings(other), strict=True):
        for use, twin in zip(e._uses.values(), f._uses.values(), strict=True):
            assert use.values.grad is not None
            assert twin.values.grad is not None
            assert torch.equal(use.values.grad, twin.values.grad), f"row gradients of {name} differ"


def test_one_layer_a_stage_equals_the_model_bit_for_bit() -> None:
    torch.manual_seed(0)
    model = Residuals()
    assert_same(model, (torch.randn(6, 8), torch.randn(6)), list(range(1, len(trace(model).layers))))


@settings(max_examples=30)
@given(st.data())
def test_any_boundaries_equal_the_model_whatever_crosses_them(data: st.DataObject) -> None:
    torch.manual_seed(1)
    model = Skips()
    last = len(trace(model).layers) - 1
    boundaries = sorted(data.draw(st.sets(st.integers(1, last))))
    assert_same(model, (torch.randn(5, 8), torch.randn(5)), boundaries, rtol=1e-5)


RTOL = {"mmoe": 1e-4}
"""Experts and gates use one value, whose gradients are summed in another order."""


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("ragged", [False, True])
def test_zoo_models_split_at_every_layer_equal_the_model(name: str, ragged: bool) -> None:
    torch.manual_seed(2)
    model = small_model(name)
    inputs = small_inputs(name, 7, ragged=ragged)
    assert_same(model, inputs, list(range(1, len(trace(model).layers))), RTOL.get(name, 0.0))


@pytest.mark.parametrize("name", ZOO)
def test_zoo_models_cut_in_two_at_any_layer_equal_the_model(name: str) -> None:
    torch.manual_seed(3)
    for boundary in range(1, len(trace(small_model(name)).layers)):
        assert_same(small_model(name), small_inputs(name, 5), [boundary], RTOL.get(name, 0.0))


def test_what_skips_a_stage_travels_through_it() -> None:
    traced = trace(ctr_dnn(Schema(), hidden=(4,)))
    first, second = split(traced, [1])
    assert first.inputs == ("dense", "slots")
    assert first.outputs == second.inputs == ("dense", "flatten")


def test_a_stage_shares_the_parameters_of_the_model() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1))
    stages = split(trace(model), [2])
    assert stages[0].module.get_parameter("0.weight") is model[0].weight
    assert stages[1].module.get_parameter("2.weight") is model[2].weight
    assert {name for name, _ in stages[1].module.named_parameters()} == {"2.weight", "2.bias"}


@pytest.mark.parametrize("boundaries", [[0], [3], [2, 1], [1, 1]])
def test_boundaries_that_make_an_empty_stage_are_refused(boundaries: list[int]) -> None:
    with pytest.raises(ValueError, match="boundaries must rise"):
        split(trace(nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1))), boundaries)


class Sized(nn.Module):
    """Uses the size of its input, as a torch.Size, after a border."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        size = x.size()
        return self.two(self.one(x)) / size.numel()


def test_a_size_is_still_a_size_behind_a_border() -> None:
    model, x = Sized(), torch.randn(4, 3)
    values = {"x": x}
    for stage in split(trace(model), [1]):
        values = StageRun(stage, values).outputs
    assert torch.equal(next(iter(values.values())), model(x))


WITHOUT_SYMPY = """
import sys
import torch
from heterps.model.stages import StageRun, split
from heterps.model.trace import trace

model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
first, last = split(trace(model), [1])
inputs = dict(zip(first.inputs, [torch.ones(4, 3)]))
run = StageRun(first, inputs)
run.backward({name: torch.ones_like(value) for name, value in run.outputs.items()})
assert model[0].weight.grad is not None
print("sympy" in sys.modules)
"""


def test_the_first_backward_of_a_stage_does_not_import_sympy() -> None:
    """Workers of several stages would begin more than a second later."""
    found = subprocess.run([sys.executable, "-c", WITHOUT_SYMPY], capture_output=True, text=True, check=False)
    assert (found.stdout.strip(), found.returncode) == ("False", 0), found.stderr
