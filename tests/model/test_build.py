"""Models by zoo name and by import path, and what goes wrong on the way."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from heterps.config import Model, Schema
from heterps.errors import ModelError
from heterps.model import build_model

USER_CODE = """
from torch import nn
import torch

NUMBER = 3

def with_schema(schema, width=2):
    return nn.Linear(len(schema.dense), width)

def plain(width: int):
    return nn.Linear(1, width)

def seeded(seed):
    module = nn.Linear(1, 1)
    module.seed = seed
    return module

def not_a_module():
    return 7

def broken():
    raise ZeroDivisionError("oh no")

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(1, 1)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "my_models.py").write_text(USER_CODE)
    (tmp_path / "needs_more.py").write_text("import no_such_package_at_all\n")
    (tmp_path / "raises.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in ("my_models", "needs_more", "raises"):
        sys.modules.pop(name, None)


def build(factory: str, seed: int = 0, **args: object) -> nn.Module:
    return build_model(Model(factory=factory, args=args), Schema(), seed)


def test_a_factory_of_the_working_directory_is_given_the_schema_and_its_arguments(here: Path) -> None:
    module = build("my_models:with_schema", width=5)
    assert isinstance(module, nn.Linear)
    assert (module.in_features, module.out_features) == (13, 5)


def test_a_class_is_a_factory_too(here: Path) -> None:
    assert type(build("my_models:Net")).__name__ == "Net"


def test_a_factory_that_takes_a_seed_gets_the_jobs(here: Path) -> None:
    assert build("my_models:seeded", seed=11).seed == 11


def test_equal_seeds_give_equal_weights_and_leave_the_random_state(here: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, second, other = (build("ctr_dnn", seed) for seed in (3, 3, 4))
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(next(first.parameters()), next(other.parameters()))


@pytest.mark.parametrize(
    ("factory", "args", "message"),
    [
        ("ctr_dn", {}, "did you mean 'ctr_dnn'"),
        ("ctr_dnn", {"hiden": [1]}, r"unexpected keyword argument 'hiden'.*ctr_dnn\(schema"),
        ("no_such_module_here:f", {}, "there is no module 'no_such_module_here'"),
        ("needs_more:f", {}, "needs 'no_such_package_at_all', which is not installed"),
        ("raises:f", {}, r"importing raises raised ZeroDivisionError.*raises\.py:1"),
        ("my_models:plian", {}, "did you mean my_models:plain"),
        ("my_models:NUMBER", {}, "is a int, which cannot be called"),
        ("my_models:plain", {}, r"missing a required argument: 'width'.*plain\(width: int\)"),
        ("my_models:not_a_module", {}, "returned int, which is not a torch.nn.Module"),
        ("my_models:broken", {}, r"raised ZeroDivisionError: oh no .*my_models\.py:\d+"),
        (".:f", {}, "is not a module name"),
    ],
)
def test_errors_say_what_is_wrong(here: Path, factory: str, args: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        build(factory, **args)
