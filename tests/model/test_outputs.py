"""What the outputs of models end in."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from heterps.model.outputs import ends_of
from heterps.model.trace import one_layer, trace


class Ends(nn.Module):
    def __init__(self, end) -> None:
        super().__init__()
        self.linear, self.sigmoid, self.softmax = nn.Linear(3, 3), nn.Sigmoid(), nn.Softmax(dim=1)
        self.end = end

    def forward(self, dense: Tensor, slots: Tensor):
        return self.end(self, self.linear(dense))


@pytest.mark.parametrize(
    ("end", "found"),
    [
        (lambda m, x: m.sigmoid(x), {"": "sigmoid"}),
        (lambda m, x: torch.sigmoid(x)[:, 0], {"": "sigmoid"}),
        (lambda m, x: x.sigmoid().flatten(), {"": "sigmoid"}),
        (lambda m, x: m.softmax(x), {"": "softmax"}),
        (lambda m, x: nn.functional.softmax(x, dim=1), {"": "softmax"}),
        (lambda m, x: x, {}),
        (lambda m, x: 4 * m.sigmoid(x) - 2, {}),
        (lambda m, x: x * m.sigmoid(x), {}),
        (lambda m, x: {"a": m.sigmoid(x), "b": x, "c": x.softmax(1)[:, 1]}, {"a": "sigmoid", "c": "softmax"}),
    ],
)
def test_a_sigmoid_or_softmax_at_the_end_is_found(end, found: dict[str, str]) -> None:
    assert ends_of(trace(Ends(end))) == found


def test_a_model_of_one_layer_tells_nothing() -> None:
    assert ends_of(one_layer(Ends(lambda m, x: m.sigmoid(x)))) == {}
