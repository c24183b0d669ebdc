"""Kernels counted and rooflines computed, by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from heterps.catalogue import DeviceSpec, Link
from heterps.profiling.estimate import roofline_s
from heterps.profiling.workload import Kernel, count

TOY = DeviceSpec("toy", "toy", "cuda", "toy", 1000.0, 100.0, Link(10.0, 0.5), 0.01, 0.5, 0.8)


def test_a_linear_layer_does_two_flops_a_weight_and_sample_three_times() -> None:
    layer, x = nn.Linear(7, 5), torch.randn(3, 7, requires_grad=True)
    out_grad = torch.ones(3, 5)
    kernels = count(lambda: layer(x).backward(out_grad))
    products = [k for k in kernels if k.name in ("aten::addmm", "aten::mm")]
    assert [k.flops for k in products] == [2 * 3 * 7 * 5] * 3
    forward = 4 * (3 * 7 + 7 * 5 + 5 + 3 * 5)  # input, weights, bias, output
    assert products[0].num_bytes == forward


def test_elementwise_work_is_a_flop_an_element_and_views_are_free() -> None:
    x = torch.randn(4, 6)
    kernels = count(lambda: torch.relu(x.view(6, 4).transpose(0, 1)))
    assert kernels == [Kernel("aten::relu", 24.0, 2 * 24 * 4)]


@pytest.mark.parametrize(("kind", "num_gates"), [(nn.LSTM, 4), (nn.GRU, 3)])
def test_a_recurrent_layer_is_counted_by_its_steps(kind: type[nn.RNNBase], num_gates: int) -> None:
    layer, batch, width, hidden = kind(16, 32, batch_first=True), 8, 16, 32

    def kernels(num_steps: int) -> list[Kernel]:
        x = torch.randn(batch, num_steps, width, requires_grad=True)
        return count(lambda: layer(x)[0].sum().backward())

    short, long = kernels(5), kernels(20)
    assert len(long) > 3.5 * len(short), "one after the other"
    products = 3 * 2 * batch * 20 * (width + hidden) * num_gates * hidden  # forward, and two of each backward
    assert sum(kernel.flops for kernel in long) == pytest.approx(products, rel=0.15)


def test_an_expanded_tensor_moves_its_storage_only() -> None:
    x = torch.randn(1, 1)
    (kernel,) = count(lambda: torch.relu(x.expand(10, 10)))
    assert kernel.num_bytes <= 4 + 400


def test_a_kernel_takes_the_longest_of_compute_memory_and_launch() -> None:
    compute_bound = Kernel("a", 5000.0, 80)  # 5000 / 500 = 10 s, 80 / 80 = 1 s
    memory_bound = Kernel("b", 500.0, 240)  # 1 s, 3 s
    tiny = Kernel("c", 1.0, 0)  # launch: 0.01 s
    assert roofline_s([compute_bound, memory_bound, tiny], TOY) == pytest.approx(13.01)


def test_a_link_pays_its_latency_a_message_and_nothing_for_nothing() -> None:
    assert TOY.link.seconds(20, num_messages=2) == pytest.approx(3.0)
    assert TOY.link.seconds(0, num_messages=2) == 0.0
