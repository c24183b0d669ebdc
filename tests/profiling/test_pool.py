"""Layers that are alike share their measurements, and a disturbed one moves none of them."""

from __future__ import annotations

from typing import Any

import pytest

from heterps.profiling.pool import pooled
from heterps.profiling.profile import Cost, LayerProfile


def layer(name: str, alpha: float, compute_s: float = 1.0, input_s: float = 0.5, **sizes: Any) -> LayerProfile:
    cost = Cost(compute_s=compute_s, sync_s=0.1, input_s=input_s, alpha=alpha, beta=alpha, alpha_error=0.1, error=0.3)
    return LayerProfile(name=name, kind="linear", server_s=compute_s / 10, costs={"cpu": cost}, **sizes)


def test_five_equal_layers_get_the_shares_that_most_of_them_have() -> None:
    shares = (0.96, 0.97, 0.64, 0.98, 0.96)
    found = pooled([layer(f"fc{n}", share, n + 1.0, input_s=n) for n, share in enumerate(shares)])
    assert [one.costs["cpu"].alpha for one in found] == [0.96] * 5
    assert [one.costs["cpu"].compute_s for one in found] == [3.0] * 5
    assert [one.server_s for one in found] == pytest.approx([0.3] * 5)
    assert [one.costs["cpu"].error for one in found] == pytest.approx([0.3 / 5**0.5] * 5), "five measurements of one"
    assert [one.costs["cpu"].alpha_error for one in found] == pytest.approx([0.1 / 5**0.5] * 5)
    assert [one.costs["cpu"].input_s for one in found] == [0, 1, 2, 3, 4], "borders stay where they are"
    assert [one.name for one in found] == ["fc0", "fc1", "fc2", "fc3", "fc4"]


def test_layers_of_other_sizes_stay_as_they_are() -> None:
    layers = [layer("one", 0.9), layer("two", 0.5, weight_bytes=4), layer("three", 0.4, output_bytes=4)]
    assert pooled(layers) == tuple(layers)
