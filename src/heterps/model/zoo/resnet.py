"""resnet: residual networks for small images (He et al., CVPR 2016), of any depth.

                                         +----------------------- shortcut -----------------------+
                                         |                                                        v
    image --> [0 conv] [1 norm] [2 relu] +-> [3 conv1] [4 norm1] [5 relu1] [6 conv2] [7 norm2] [8 add] [9 relu2] --+
                                                                                                                   |
              scores of the classes <-- [69 scores] <-- [68 pool] <-- eight more blocks of the same kind <---------+

    basic        depth = 6n + 2: three groups of n blocks, of 16, 32 and 64 channels; two convolutions of 3 x 3 a block
                 20, 32, 44, 56, 110 are the paper's
    bottleneck   depth = 50, 101 or 152: the blocks of the paper's networks for ImageNet, of 1 x 1, 3 x 3 and 1 x 1, in
                 four groups of 64 to 512 channels (times 4), behind a first convolution that fits small images

Where a group halves the image, the shortcut of a basic block takes every second pixel and has zeros for the channels
that are new ([29 pad] and [51 pad]); that of a bottleneck is a 1 x 1 convolution. Both are the paper's.

    norm     batch   as in the paper. Means and variances of what was seen are buffers of the module: local to a worker,
                     never pushed, and a batch cannot be divided among threads
             group   8 groups of channels (Wu and He, ECCV 2018): no state, and no sample knows of another
             none    no norm; the last convolution of a block starts at zero instead, so that deep ones train at all
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

from torch import Tensor, nn
from torch.nn import functional

from heterps.config import Schema
from heterps.data.batch import Slots
from heterps.errors import ModelError
from heterps.model.zoo.images import Classifier, Shape, image_columns, image_shape, num_scores

COLUMNS = image_columns(num_classes=100)
DEPTH = 20
Norm = Literal["batch", "group", "none"]
NUM_GROUPS = 8
BOTTLENECKS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
EXPANSION = 4  # a bottleneck gives four times the channels that its 3 x 3 convolution has


def resnet(
    schema: Schema,
    depth: int = DEPTH,
    bottleneck: bool = False,
    norm: Norm = "batch",
    width: int | None = None,
    image: Sequence[int] | None = None,
) -> nn.Module:
    """A residual network for small images. Slots are not read.

    depth       number of layers with weights: 6n + 2, or 50, 101 or 152 with bottlenecks
    bottleneck  use blocks of three convolutions instead of two
    norm        batch, group or none
    width       channels of the first group; None: 16, or 64 with bottlenecks
    image       [channels, height, width]; None: a square grey or colour image, by the width of the dense columns
    """
    if norm not in get_args(Norm):
        raise ModelError(f"resnet: norm must be one of {', '.join(get_args(Norm))}, got {norm!r}.")
    if bottleneck and depth not in BOTTLENECKS:
        raise ModelError(
            f"resnet: the depth of a network of bottlenecks is one of {', '.join(map(str, BOTTLENECKS))}, got {depth}."
        )
    if not bottleneck and (depth < 8 or depth % 6 != 2):
        hint = " With bottleneck: true it can be." if depth in BOTTLENECKS else ""
        raise ModelError(f"resnet: depth must be 6n + 2, such as 20, 32, 44, 56 or 110; got {depth}.{hint}")
    if width is not None and width < 1:
        raise ModelError(f"resnet: width must be at least 1, got {width}.")
    groups = BOTTLENECKS[depth] if bottleneck else (depth // 6,) * 3
    shape = image_shape(schema, "resnet", image)
    return ResNet(
        shape, num_scores(schema), groups, Bottleneck if bottleneck else Basic, norm,
        width or (64 if bottleneck else 16),
    )  # fmt: skip


class ResNet(Classifier):
    def __init__(
        self,
        shape: Shape,
        num_outputs: int,
        groups: Sequence[int],
        block: type[Basic] | type[Bottleneck],
        norm: Norm,
        width: int,
    ) -> None:
        super().__init__()
        self.shape = shape
        self.conv = _conv(shape[0], width, 3, norm)
        self.norm = _norm(norm, width)
        self.relu = nn.ReLU()
        blocks, channels = [], width
        for i, count in enumerate(groups):
            for j in range(count):
                blocks.append(block(channels, width * 2**i, 2 if i > 0 and j == 0 else 1, norm))
                channels = width * 2**i * block.expansion
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.scores = nn.Linear(channels, num_outputs)

    def forward(self, dense: Tensor, slots: Slots) -> Tensor:  # noqa: ARG002
        x = self.relu(self.norm(self.conv(dense.view(-1, *self.shape))))
        scores: Tensor = self.scores(self.pool(self.blocks(x)).flatten(1))
        return scores


class Basic(nn.Module):
    """A block of two convolutions, with a shortcut that has no parameters."""

    expansion = 1

    def __init__(self, num_inputs: int, channels: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.stride, self.new_channels = stride, channels - num_inputs
        self.conv1, self.norm1, self.relu1 = (
            _conv(num_inputs, channels, 3, norm, stride),
            _norm(norm, channels),
            nn.ReLU(),
        )
        self.conv2, self.norm2, self.relu2 = _conv(channels, channels, 3, norm), _norm(norm, channels), nn.ReLU()
        if norm == "none":
            nn.init.zeros_(self.conv2.weight)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(self.relu1(self.norm1(self.conv1(x)))))
        if self.stride > 1:
            x = x[:, :, :: self.stride, :: self.stride]
        if self.new_channels:
            x = functional.pad(x, (0, 0, 0, 0, 0, self.new_channels))
        result: Tensor = self.relu2(y + x)
        return result


class Bottleneck(nn.Module):
    """A block of a 3 x 3 convolution between two of 1 x 1; its shortcut is one of 1 x 1 if the shape changes."""

    expansion = EXPANSION

    def __init__(self, num_inputs: int, channels: int, stride: int, norm: Norm) -> None:
        super().__init__()
        wide = channels * EXPANSION
        self.conv1, self.norm1, self.relu1 = _conv(num_inputs, channels, 1, norm), _norm(norm, channels), nn.ReLU()
        self.conv2, self.norm2, self.relu2 = (
            _conv(channels, channels, 3, norm, stride),
            _norm(norm, channels),
            nn.ReLU(),
        )
        self.conv3, self.norm3, self.relu3 = _conv(channels, wide, 1, norm), _norm(norm, wide), nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or num_inputs != wide:
            self.shortcut = nn.Sequential(_conv(num_inputs, wide, 1, norm, stride), _norm(norm, wide))
        if norm == "none":
            nn.init.zeros_(self.conv3.weight)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu1(self.norm1(self.conv1(x)))
        y = self.norm3(self.conv3(self.relu2(self.norm2(self.conv2(y)))))
        result: Tensor = self.relu3(y + self.shortcut(x))
        return result


def _conv(num_inputs: int, num_outputs: int, kernel: int, norm: Norm, stride: int = 1) -> nn.Conv2d:
    """Make a convolution that keeps the size, or divides it by `stride`; it has a bias only if no norm follows."""
    conv = nn.Conv2d(num_inputs, num_outputs, kernel, stride, padding=kernel // 2, bias=norm == "none")
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    if conv.bias is not None:
        nn.init.zeros_(conv.bias)
    return conv


def _norm(norm: Norm, channels: int) -> nn.Module:
    if norm == "none":
        return nn.Identity()
    return nn.BatchNorm2d(channels) if norm == "batch" else nn.GroupNorm(math.gcd(NUM_GROUPS, channels), channels)
