"""The networks for images: sizes of the papers, any form of image, skip connections, norms with and without state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from zoo_cases import IMAGES, small_batch, small_inputs

from heterps.config import Adam, Optimizers, Schema
from heterps.data.batch import Slots
from heterps.errors import ModelError
from heterps.model.stages import split
from heterps.model.trace import trace
from heterps.model.zoo import COLUMNS, alexnet, resnet
from heterps.model.zoo.images import image_shape
from heterps.training.model.trainer import Trainer

NO_SLOTS = Slots((), np.empty(0, np.uint64))
TEN = COLUMNS["alexnet"]


def columns(num_values: int, num_classes: int = 10) -> Schema:
    return Schema(num_classes=num_classes, dense=("image",), widths={"image": num_values}, slots=())


def num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


# --- sizes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("depth", "millions", "num_layers"),
    [(20, 0.27, 70), (32, 0.46, 112), (44, 0.66, 154), (56, 0.85, 196), (110, 1.73, 385)],
)
def test_residual_networks_have_the_sizes_that_their_paper_gives(depth: int, millions: float, num_layers: int) -> None:
    model = resnet(TEN, depth=depth)
    assert round(num_parameters(model) / 1e6, 2) == millions
    assert sum(isinstance(m, (nn.Conv2d, nn.Linear)) for m in model.modules()) == depth
    assert len(trace(model).layers) == num_layers


def test_fifty_layers_of_bottlenecks_have_those_of_the_network_for_imagenet() -> None:
    model = resnet(TEN, depth=50, bottleneck=True)
    in_blocks = [name for name, m in model.named_modules() if isinstance(m, nn.Conv2d) and "shortcut" not in name]
    assert len(in_blocks) + 1 == 50
    assert num_parameters(model) == 25_557_032 - (2048 * 1000 + 1000) + (2048 * 10 + 10) - 64 * 3 * (7 * 7 - 3 * 3)


def test_most_parameters_of_alexnet_are_in_its_fully_connected_layers() -> None:
    model = alexnet(TEN)
    kinds = [type(m) for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    assert kinds == [nn.Conv2d] * 3 + [nn.Linear] * 2
    assert num_parameters(model.hidden) + num_parameters(model.scores) > 0.8 * num_parameters(model)


# --- forms of images -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_values", "shape"), [(3072, (3, 32, 32)), (784, (1, 28, 28)), (64, (1, 8, 8)), (3, (3, 1, 1))]
)
def test_the_form_of_a_square_image_follows_from_its_size(num_values: int, shape: tuple[int, int, int]) -> None:
    assert image_shape(columns(num_values), "m", None) == shape


@pytest.mark.parametrize("factory", [alexnet, resnet])
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (1, 8, 8), (2, 5, 9), (1, 1, 1)])
def test_images_of_any_form_give_a_score_for_each_class(factory: Any, shape: tuple[int, int, int]) -> None:
    num_values = int(np.prod(shape))
    model = factory(columns(num_values, num_classes=7), image=shape)
    assert model(torch.randn(3, num_values), NO_SLOTS).shape == (3, 7)


@pytest.mark.parametrize("factory", [alexnet, resnet])
def test_the_first_channel_of_an_image_comes_first(factory: Any) -> None:
    """As `heterps data images` writes them: what a model sees in a channel hangs on its own third of the numbers."""
    model = factory(columns(48)).eval()
    seen: list[Tensor] = []
    first = model.conv1 if factory is alexnet else model.conv
    first.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    model(torch.arange(48.0).repeat(2, 1), NO_SLOTS)
    assert torch.equal(seen[0][0], torch.arange(48.0).reshape(3, 4, 4))


@pytest.mark.parametrize("factory", [alexnet, resnet])
def test_two_classes_have_one_logit_as_clicks_do(factory: Any) -> None:
    model = factory(columns(64, num_classes=2))
    output, label = model(torch.randn(4, 64), NO_SLOTS), torch.tensor([0.0, 1, 1, 0])
    assert output.shape == (4, 1)
    expected = functional.binary_cross_entropy_with_logits(output[:, 0], label, reduction="none")
    torch.testing.assert_close(model.losses(output, label), expected)


def test_losses_are_the_cross_entropy_of_each_sample() -> None:
    scores, label = torch.randn(5, 4), torch.tensor([0.0, 3, 1, 2, 2])
    expected = -torch.log_softmax(scores, 1)[torch.arange(5), label.long()]
    torch.testing.assert_close(alexnet(IMAGES).losses(scores, label), expected)


@pytest.mark.parametrize(
    ("factory", "num_values", "args", "message"),
    [
        (alexnet, 50, {}, r"the 50 numbers of data\.columns\.dense make no square one, .*image: \[channels"),
        (resnet, 13, {}, "resnet classifies images, but the 13 numbers"),
        (alexnet, 64, {"image": [1, 8, 9]}, r"of the 64 numbers of .*got \[1, 8, 9\]"),
        (resnet, 64, {"image": [8, 8]}, r"must be \[channels, height, width\]"),
        (resnet, 64, {"image": [1, -8, -8]}, "must be"),
        (alexnet, 64, {"width": 0}, "at least 1, got 0"),
        (alexnet, 64, {"hidden": 0}, "at least 1"),
        (resnet, 64, {"width": 0}, "at least 1, got 0"),
        (resnet, 64, {"depth": 21}, r"6n \+ 2, such as 20.*got 21\.$"),
        (resnet, 64, {"depth": 2}, r"got 2\."),
        (resnet, 64, {"depth": 101}, r"6n \+ 2.*got 101\. With bottleneck: true it can be"),
        (resnet, 64, {"depth": 20, "bottleneck": True}, "one of 50, 101, 152, got 20"),
        (resnet, 64, {"norm": "layer"}, "one of batch, group, none, got 'layer'"),
    ],
)
def test_what_does_not_fit_is_an_error_that_says_what_does(
    factory: Any, num_values: int, args: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        factory(columns(num_values), **args)


# --- blocks ----------------------------------------------------------------------------------------------------------


def test_a_shortcut_halves_the_image_and_has_zeros_for_new_channels() -> None:
    model = resnet(IMAGES, depth=8, width=4, norm="none")  # last convolutions of blocks start at zero
    x = torch.rand(2, 4, 8, 8)
    y = model.blocks[1](x)
    assert torch.equal(y[:, :4], x[:, :, ::2, ::2])
    assert not y[:, 4:].any()


@pytest.mark.parametrize("bottleneck", [False, True])
def test_a_network_without_norms_starts_as_its_shortcuts(bottleneck: bool) -> None:
    model = resnet(IMAGES, depth=50 if bottleneck else 110, width=4, norm="none", bottleneck=bottleneck)
    scores = model(torch.randn(2, 64), NO_SLOTS)
    assert torch.isfinite(scores).all()
    assert scores.abs().max() < 100


@pytest.mark.parametrize(("norm", "has_buffers"), [("batch", True), ("group", False), ("none", False)])
def test_only_batch_norms_have_state_of_their_own(norm: Any, has_buffers: bool) -> None:
    model = resnet(IMAGES, depth=8, norm=norm)
    assert any(True for _ in model.buffers()) is has_buffers
    if not has_buffers:
        dense, _ = small_inputs("resnet", 6)
        torch.testing.assert_close(model(dense, NO_SLOTS)[:2], model(dense[:2], NO_SLOTS))


def test_the_value_of_a_shortcut_crosses_the_borders_inside_its_block() -> None:
    traced = trace(resnet(IMAGES, depth=8, width=4))
    names = [layer.name for layer in traced.layers]
    stages = split(traced, [names.index("blocks.0.conv2")])
    assert stages[0].outputs == stages[1].inputs == ("relu", "blocks_0_relu1")


@pytest.mark.parametrize(
    "args", [{"norm": "batch"}, {"norm": "none"}, {"depth": 50, "bottleneck": True, "norm": "group"}]
)
def test_every_kind_of_residual_network_learns(args: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = resnet(IMAGES, **({"depth": 8} | args), width=4)
    with Trainer(model, Optimizers(dense=Adam(lr=0.01)), columns=columns(64, 4)) as trainer:
        losses = [trainer.step(small_batch("resnet", 64, seed))[0] for seed in range(25)]
        metrics = trainer.evaluate([small_batch("resnet", 200, 99)])
    assert np.mean(losses[-5:]) < 0.7 * losses[0]
    assert metrics["accuracy"] > 0.5
