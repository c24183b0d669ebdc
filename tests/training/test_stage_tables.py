"""Which tables a model in stages has, and which stages push to them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from staged import Staged, splits, tied, zoo_model
from torch import nn

from heterps.config import SGD, Adam, Optimizers, StepRate
from heterps.model.trace import trace
from heterps.model.zoo import ZOO
from heterps.nn import DENSE, model_tables


def stages_of(boundaries: list[int]) -> dict[str, tuple[int, ...]]:
    return dict(Staged(tied(), boundaries).tables.stages)


def test_the_layers_of_the_model_that_these_tests_cut_are_where_they_think() -> None:
    names = [layer.name for layer in trace(tied()).layers]
    assert names[:6] == ["first", "act", "shared", "middle", "block", "cat"]
    assert names[6:10] == ["shared#2", "cat_1", "joint", "last"]


def test_one_stage_has_one_dense_table_with_all_parameters_in_order() -> None:
    staged = Staged(tied(), [])
    (names,) = staged.tables.parameters.values()
    assert list(names) == [name for name, p in staged.model.named_parameters() if p.requires_grad]
    assert staged.tables.stages == {"shared": (0,), "block.rows": (0,), "dense": (0,)}
    assert staged.tables.groups == [(0,)]


def test_a_weight_that_two_stages_share_has_a_table_that_both_push_to() -> None:
    tables = Staged(tied(), [3]).tables
    assert tables.parameters == {
        "dense.0": ("first.bias",),
        "dense.1": (
            "spare", "middle.weight", "middle.bias", "block.mix.weight", "block.mix.bias", "joint.weight", "joint.bias",
            "last.bias",
        ),
        "dense.0-1": ("first.weight",),
    }  # fmt: skip
    assert tables.stages["dense.0-1"] == (0, 1)
    sizes = {spec.name: spec.size for spec in tables.tables.dense}
    assert sizes == {"dense.0": 2, "dense.1": 3 + 15 + 28 + 28 + 2, "dense.0-1": 4}


def test_an_embedding_that_is_called_in_two_stages_is_pushed_to_by_both() -> None:
    assert stages_of([3])["shared"] == (0, 1)
    assert stages_of([1, 2, 6])["shared"] == (2, 3)


@pytest.mark.parametrize(("boundaries", "stage"), [([5], 0), ([4], 1), ([1, 4, 5], 2)])
def test_an_embedding_inside_a_module_that_is_kept_whole_is_in_that_modules_stage(
    boundaries: list[int], stage: int
) -> None:
    assert stages_of(boundaries)["block.rows"] == (stage,)


def test_parameters_that_no_layer_uses_are_the_last_stages_and_those_that_are_not_trained_nobodys() -> None:
    parameters = Staged(tied(), [2, 4]).tables.parameters
    assert "spare" in parameters["dense.2"]
    assert all("fixed" not in names for names in parameters.values())


def test_stages_that_push_to_a_table_together_are_one_group() -> None:
    assert Staged(tied(), [3]).tables.groups == [(0, 1)]
    assert Staged(tied(), [2, 4, 6, 9]).tables.groups == [(0, 4), (1, 3), (2,)]


def test_stages_are_joined_into_a_group_over_several_tables() -> None:
    a, b = nn.Linear(2, 2), nn.Linear(2, 2)
    staged = Staged(
        nn.Sequential(a, nn.Tanh(), b, nn.Tanh(), a, nn.Tanh(), b, nn.Tanh(), nn.Linear(2, 1)), [2, 4, 6, 8]
    )
    assert staged.tables.groups == [(0, 2), (1, 3), (4,)]
    staged = Staged(nn.Sequential(a, b, a, b, nn.Linear(2, 1)), [1, 3])
    assert staged.tables.stages["dense.0-1"] == (0, 1)
    assert staged.tables.stages["dense.1-2"] == (1, 2)
    assert staged.tables.groups == [(0, 1, 2)]


def test_a_stage_without_parameters_has_no_tables() -> None:
    tables = Staged(nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1)), [1, 2]).tables
    assert tables.of_stage(1) == []
    assert [tables.of_stage(0), tables.of_stage(2)] == [["dense.0"], ["dense.2"]]


@settings(max_examples=40)
@given(st.sampled_from(sorted(ZOO)), st.data())
def test_every_parameter_of_a_zoo_model_is_in_one_table_of_the_stages_that_use_it(
    name: str, data: st.DataObject
) -> None:
    model, _ = zoo_model(name)
    staged = Staged(model, data.draw(splits(model)))
    sizes = {spec.name: spec.size for spec in staged.tables.tables.dense}
    held = [name for names in staged.tables.parameters.values() for name in names]
    assert sorted(held) == sorted(name for name, p in model.named_parameters() if p.requires_grad)
    for table, names in staged.tables.parameters.items():
        assert sizes[table] == sum(model.get_parameter(name).numel() for name in names)
        for number, stage in enumerate(staged.stages):
            used = {parameter for parameter, _ in stage.module.named_parameters(remove_duplicate=False)}
            if used & {*names}:
                assert table in staged.tables.of_stage(number)
    assert {stage for group in staged.tables.groups for stage in group} <= set(range(len(staged.stages)))


def test_tables_have_the_optimizers_and_seeds_that_those_of_an_inline_run_have() -> None:
    optimizers = Optimizers(dense=Adam(lr=0.5), sparse=SGD(lr=0.1), schedule=StepRate(every=10, factor=0.5))
    staged = Staged(tied(), [3], optimizers)
    inline = model_tables(staged.model, optimizers)
    assert staged.tables.tables.sparse == inline.sparse
    (dense,) = inline.dense
    assert dense.name == DENSE
    assert {(s.optimizer, repr(s.schedule)) for s in staged.tables.tables.dense} == {
        (dense.optimizer, repr(dense.schedule))
    }
    assert np.sum([s.size for s in staged.tables.tables.dense]) == dense.size


def test_equal_models_give_equal_tables_in_every_process() -> None:
    assert Staged(tied(), [3]).tables.tables.digest == Staged(tied(), [3]).tables.tables.digest
    assert Staged(tied(), [3]).tables.tables.digest != Staged(tied(), [5]).tables.tables.digest
