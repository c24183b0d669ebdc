"""The memory of an emulated unit: parameters, gradients and what forward keeps, counted against a limit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from heterps.errors import ConfigError
from heterps.training.worker.memory import UnitMemory

ROWS, WIDTH = 50, 20
WEIGHTS = 2 * 4 * WIDTH * WIDTH  # with gradients
KEPT = 4 * ROWS * WIDTH  # the input of a linear layer, or the output of a ReLU


def make(limit_bytes: float | None) -> tuple[UnitMemory, nn.Module]:
    layer = nn.Linear(WIDTH, WIDTH, bias=False)
    memory = UnitMemory("worker-2.1", limit_bytes)
    memory.hold_values([layer.weight.data])
    return memory, nn.Sequential(layer, nn.ReLU())


def forward(memory: UnitMemory, layers: nn.Module, lane: int) -> torch.Tensor:
    with memory.forward((0, lane)):
        return layers(torch.ones(ROWS, WIDTH))


def test_micro_batches_under_way_fit_up_to_the_limit_and_leave_room_after_backward() -> None:
    memory, layers = make(WEIGHTS + 4 * KEPT)
    outputs = [forward(memory, layers, lane) for lane in range(2)]
    expected = rf"worker-2\.1 is out of memory: .* take {WEIGHTS:,} bytes and 3 micro-batches under way {5 * KEPT:,},"
    with pytest.raises(ConfigError, match=expected):
        forward(memory, layers, 2)
    with memory.backward((0, 0)):
        outputs[0].sum().backward()
    memory.backward((0, 2))  # the one that did not fit
    forward(memory, layers, 3)


def test_a_fused_step_holds_one_micro_batch_at_a_time() -> None:
    memory, layers = make(WEIGHTS + 2 * KEPT)
    for lane in range(3):
        with memory.fused((0, lane)):
            layers(torch.ones(ROWS, WIDTH)).sum().backward()


def test_parameters_that_do_not_fit_are_refused_at_once_and_without_a_limit_nothing_is() -> None:
    with pytest.raises(ConfigError, match=rf"parameters with their gradients take {WEIGHTS:,} bytes"):
        make(WEIGHTS - 1)
    memory, layers = make(None)
    forward(memory, layers, 0)
