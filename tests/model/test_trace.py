"""Layers of a traced model: their borders, names and kinds, and errors that name the user's line."""

from __future__ import annotations

import inspect
import threading

import pytest
import torch
from torch import Tensor, nn

from heterps.errors import ModelError
from heterps.model import whole
from heterps.model.kinds import KINDS
from heterps.model.trace import trace


def layers(model: nn.Module) -> list[tuple[str, str]]:
    return [(layer.name, layer.kind) for layer in trace(model).layers]


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x).reshape(-1, 4)
        return (torch.relu(y) * self.scale + x).sum(1)


def test_modules_that_other_threads_run_meanwhile_are_not_traced() -> None:
    other, came = Residual(), []

    class Meanwhile(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            thread = threading.Thread(target=lambda: came.append(other(torch.ones(2, 4))))
            thread.start()
            thread.join()
            return self.fc(x)

    assert layers(Meanwhile()) == [("fc", "linear")]
    torch.testing.assert_close(came, [other(torch.ones(2, 4))])


def test_every_compute_node_starts_a_layer() -> None:
    assert layers(Residual()) == [
        ("fc", "linear"),
        ("relu", "activation"),
        ("mul", "elementwise"),
        ("add", "elementwise"),
        ("sum_1", "reduction"),
    ]


def test_shape_nodes_join_the_layer_they_feed_from_and_weights_the_layer_that_uses_them() -> None:
    by_name = {layer.name: layer for layer in trace(Residual()).layers}
    assert by_name["fc"].nodes == ("fc", "reshape")
    assert by_name["mul"].nodes == ("scale", "mul")
    assert by_name["fc"].parameters == ("fc.weight", "fc.bias")
    assert by_name["mul"].parameters == ("scale",)


def test_a_module_used_twice_gives_two_layers_with_the_same_parameters() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.fc(x))

    first, second = trace(Twice()).layers
    assert (first.name, second.name) == ("fc", "fc#2")
    assert first.parameters == second.parameters == ("fc.weight", "fc.bias")


def test_nested_modules_are_looked_into_unless_kept_whole() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Tanh()), Residual_of(2))
    assert [name for name, _ in layers(model)] == ["0.0", "0.1", "1.fc", "add"]
    whole(model[1], kind="interaction")
    assert layers(model) == [("0.0", "linear"), ("0.1", "activation"), ("1", "interaction")]


def Residual_of(width: int) -> nn.Module:  # noqa: N802
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(width, width)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x) + x

    return Block()


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_transformer_encoder_is_cut_into_attention_and_feed_forward(norm_first: bool) -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            one = nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True, norm_first=norm_first)
            self.encoder = nn.TransformerEncoder(one, 2, nn.LayerNorm(8), enable_nested_tensor=False)

        def forward(self, x: Tensor, padding: Tensor) -> Tensor:
            return self.encoder(x, src_key_padding_mask=padding).sum(dim=(1, 2))

    model = Encoder()
    traced = trace(model)
    names = [layer.name for layer in traced.layers]
    order = [names.index(f"encoder.layers.{n}.{part}") for n in (0, 1) for part in ("self_attn", "linear1")]
    assert order == sorted(order)
    assert names[-2:] == ["encoder.norm", "sum_1"]
    x, padding = torch.randn(3, 5, 8, requires_grad=True), torch.zeros(3, 5, dtype=torch.bool)
    padding[0, 3:] = True
    for mode in (True, False):
        both = []
        for one in (model.train(mode), traced.module.train(mode)):
            torch.manual_seed(0)
            scores = one(x, padding)
            both.append((scores, *torch.autograd.grad(scores.sum(), [x, *model.parameters()])))
        torch.testing.assert_close(*both, msg=lambda text: f"train={mode}: {text}")  # noqa: B023


def test_an_encoder_that_is_kept_whole_or_has_a_forward_of_its_own_is_one_layer() -> None:
    class Own(nn.TransformerEncoderLayer):
        def forward(self, src: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(src.relu())

    for encoder in (whole(nn.TransformerEncoderLayer(8, 2), kind="attention"), whole(Own(8, 2), kind="attention")):
        assert layers(nn.Sequential(encoder)) == [("0", "attention")]


def test_whole_on_a_class_keeps_all_of_its_modules() -> None:
    @whole
    class Loop(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            while x.abs().max() > 1:
                x = x / 2
            return x

    assert layers(nn.Sequential(nn.Linear(2, 2), Loop())) == [("0", "linear"), ("1", "other")]


def test_an_unknown_kind_is_refused_with_the_list() -> None:
    with pytest.raises(ValueError, match=f"no kind 'matrix'; there are: {KINDS[0]}"):
        whole(nn.Linear(1, 1), kind="matrix")


def test_optional_arguments_keep_their_defaults() -> None:
    class Masked(nn.Module):
        def forward(self, x: Tensor, mask: Tensor | None = None, factor: float = 2.0) -> Tensor:
            if mask is not None:
                x = x * mask
            return torch.tanh(x * factor)

    traced = trace(Masked())
    assert traced.inputs == ("x",)
    assert [layer.name for layer in traced.layers] == ["mul", "tanh"]
    x = torch.randn(3)
    assert torch.equal(traced.module(x), torch.tanh(x * 2.0))


def test_work_that_nobody_uses_is_no_layer() -> None:
    class Wasteful(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            torch.exp(x)
            return torch.tanh(x)

    assert layers(Wasteful()) == [("tanh", "activation")]


class Branch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:  # the line that the error must name
            return x
        return -x


def test_a_branch_on_data_names_the_line_and_the_way_out() -> None:
    lines, first = inspect.getsourcelines(Branch)
    line = first + next(i for i, text in enumerate(lines) if "x.sum() > 0" in text)
    with pytest.raises(ModelError) as error:
        trace(nn.Sequential(nn.Linear(2, 2), Branch()))
    text = str(error.value)
    assert f"{__file__}:{line}: in forward: `if x.sum() > 0:" in text
    assert "torch.where" in text
    assert "heterps.model.whole" in text


@pytest.mark.parametrize(
    ("body", "recipe"),
    [
        (lambda x: torch.stack([row * 2 for row in x]), "fixed range"),
        (lambda x: x.reshape(len(x), -1), "x.shape[0]"),
        (lambda x: torch.zeros(3) + undefined_name, "undefined_name"),  # type: ignore[name-defined]  # noqa: F821
    ],
)
def test_what_fx_cannot_follow_is_a_model_error_with_a_recipe(body: object, recipe: str) -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return body(x)  # type: ignore[operator]

    with pytest.raises(ModelError) as error:
        trace(Odd())
    assert recipe in str(error.value)
    assert __file__ in str(error.value)


def test_a_model_that_computes_nothing_is_refused() -> None:
    with pytest.raises(ModelError, match="computes nothing"):
        trace(nn.Identity())
