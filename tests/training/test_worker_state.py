"""WorkerState: buffers and reduced parameters go from the coordinator to the workers of their stage, and back."""

from __future__ import annotations

import numpy as np
import torch
from staged import Staged, tied
from torch import Tensor, nn

from heterps.data.batch import Slots
from heterps.training.coordinator.model import CoordinatorModel
from heterps.training.coordinator.worker_state import WorkerState
from heterps.training.model.objectives import Objectives
from heterps.training.protocol.border import pack, unpack


class Normed(nn.Module):
    """Layers: 0 first, 1 norm, 2 last, 3 other (a norm)."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 3)
        self.norm = nn.BatchNorm1d(3)
        self.last = nn.Linear(3, 1)
        self.other = nn.BatchNorm1d(1)

    def forward(self, dense: Tensor, slots: Slots) -> Tensor:
        return self.other(self.last(self.norm(self.first(dense))))


def kept(staged: Staged, is_reduced: bool) -> tuple[WorkerState, CoordinatorModel]:
    state = WorkerState(staged.model, staged.trace, staged.tables, (0, *staged.boundaries), is_reduced)
    whole = CoordinatorModel(staged.model, staged.tables, staged.client(), Objectives(), dense=state.dense)
    whole.fill()
    state.model = whole
    return state, whole


def test_a_stage_begins_with_its_own_buffers_and_no_others():
    state, _ = kept(Staged(Normed(), [2]), is_reduced=False)
    assert state.is_any
    assert set(state.of_stage(0)["buffers"]) >= {"norm.running_mean"}
    assert not any(name.startswith("other") for name in state.of_stage(0)["buffers"])
    assert set(state.of_stage(1)["buffers"]) >= {"other.running_mean"}
    assert state.of_stage(1)["dense"] == {}


def test_what_a_worker_gives_is_the_model_s_and_what_the_next_begins_with():
    state, whole = kept(Staged(Normed(), [2]), is_reduced=False)
    given = state.of_stage(0)
    given["buffers"]["norm.running_mean"] += 7
    state.take(unpack(*pack(given)))
    assert whole.model.norm.running_mean.tolist() == [7.0, 7.0, 7.0]
    assert state.of_stage(0)["buffers"]["norm.running_mean"].tolist() == [7.0, 7.0, 7.0]


def test_models_without_buffers_have_nothing_to_keep_unless_workers_reduce():
    staged = Staged(tied(), [6])
    assert not kept(staged, is_reduced=False)[0].is_any
    assert kept(Staged(tied(), [6]), is_reduced=True)[0].is_any


def test_reduced_parameters_are_kept_with_their_steps_and_the_whole_model_has_them():
    staged = Staged(tied(), [6])
    state, whole = kept(staged, is_reduced=True)
    assert state.dense is not None
    first = state.of_stage(0)["dense"]
    assert set(first) == {name for name in staged.tables.of_stage(0) if name.startswith("dense")}
    assert "dense.0-1" in first
    for part in first.values():
        part["values"] += 1
        part["num_steps"] = 5
    before = {name: values.clone() for name, values in whole.model.state_dict().items()}
    state.take(unpack(*pack({"buffers": {}, "dense": first})))
    whole.refresh()
    for name in staged.tables.parameters["dense.0-1"]:
        assert torch.equal(whole.model.state_dict()[name], before[name] + 1)
    assert state.dense.export_dense("dense.0-1")[2] == 5
    again = state.of_stage(1)["dense"]
    np.testing.assert_array_equal(again["dense.0-1"]["values"].numpy(), first["dense.0-1"]["values"].numpy())
