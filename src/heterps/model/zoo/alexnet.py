"""alexnet: a downsized AlexNet for small images, three convolutions and two fully connected layers.

                 5 x 5                 half the size         5 x 5                       5 x 5, twice as many
    image --> [0 conv1] [1 relu1] [2 pool1] --> [3 conv2] [4 relu2] [5 pool2] --> [6 conv3] [7 relu3] [8 pool3]
                                                                                                |
                       scores of the classes <-- [11 scores] <-- [10 relu4] <-- [9 hidden] <----+

The network of the DSSP paper for CIFAR-10, which gives the numbers of layers and no sizes. Those here are of the same
family (cuda-convnet's "quick" CIFAR-10 network: 32, 32 and 64 channels) with a wider fully connected layer: most of its
parameters are there, as in AlexNet, so it moves many bytes for its compute, which is what makes it worth comparing.

Pools overlap (3 x 3, every second pixel), as AlexNet's do, and round up: images of any size pass.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from heterps.config import Schema
from heterps.data.batch import Slots
from heterps.errors import ModelError
from heterps.model.zoo.images import Classifier, Shape, image_columns, image_shape, num_scores

COLUMNS = image_columns(num_classes=10)
KERNEL = 5
NUM_POOLS = 3


def alexnet(
    schema: Schema, image: Sequence[int] | None = None, width: int = 32, hidden: int | None = None
) -> nn.Module:
    """Three convolutions and two fully connected layers, for images of any size. Slots are not read.

    image   [channels, height, width]; None: a square grey or colour image, by the width of the dense columns
    width   channels of the first two convolutions; the third has twice as many
    hidden  width of the first fully connected layer; None: 16 times `width`
    """
    if width < 1 or (hidden is not None and hidden < 1):
        raise ModelError(f"alexnet: width and hidden must be at least 1, got {width} and {hidden}.")
    shape = image_shape(schema, "alexnet", image)
    return AlexNet(shape, num_scores(schema), width, hidden or 16 * width)


class AlexNet(Classifier):
    def __init__(self, shape: Shape, num_outputs: int, width: int, hidden: int) -> None:
        super().__init__()
        self.shape = shape
        channels, *sides = shape
        self.conv1, self.relu1, self.pool1 = _convolution(channels, width)
        self.conv2, self.relu2, self.pool2 = _convolution(width, width)
        self.conv3, self.relu3, self.pool3 = _convolution(width, 2 * width)
        height, breadth = (-(-side // 2**NUM_POOLS) for side in sides)
        self.hidden = nn.Linear(2 * width * height * breadth, hidden)
        self.relu4 = nn.ReLU()
        self.scores = nn.Linear(hidden, num_outputs)
        for layer in (self.conv1, self.conv2, self.conv3, self.hidden):  # all with a ReLU behind
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)

    def forward(self, dense: Tensor, slots: Slots) -> Tensor:  # noqa: ARG002
        x = dense.view(-1, *self.shape)
        x = self.pool1(self.relu1(self.conv1(x)))
        x = self.pool2(self.relu2(self.conv2(x)))
        x = self.pool3(self.relu3(self.conv3(x)))
        scores: Tensor = self.scores(self.relu4(self.hidden(x.flatten(1))))
        return scores


def _convolution(num_inputs: int, num_outputs: int) -> tuple[nn.Conv2d, nn.Module, nn.Module]:
    return (
        nn.Conv2d(num_inputs, num_outputs, KERNEL, padding=KERNEL // 2),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
    )
