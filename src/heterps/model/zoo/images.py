"""Common parts of the zoo's image models: the shape of an image, class scores, and their loss."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

from heterps.config import Schema
from heterps.errors import ModelError

Shape = tuple[int, int, int]  # channels, height, width


class Classifier(nn.Module):
    """Base of models that score every class and train on the cross entropy; two classes have one logit."""

    loss_is_cross_entropy = True  # so log loss and calibration are what it is trained for

    def losses(self, output: Tensor, label: Tensor) -> Tensor:
        """The cross entropy of each sample [B], given the scores of all classes [B, n], or logits [B, 1]."""
        if output.shape[1] == 1:
            return functional.binary_cross_entropy_with_logits(output[:, 0], label, reduction="none")
        return functional.cross_entropy(output, label.long(), reduction="none")


def image_shape(schema: Schema, model: str, image: Sequence[int] | None) -> Shape:
    """Return channels, height and width of the images in the dense columns: `image`, or derived from their size.

    A square grey image has n * n numbers, a square colour image 3 * n * n, which is never a square number.
    """
    num_values = schema.num_dense
    if image is None:
        for channels in (1, 3):
            side = math.isqrt(num_values // channels)
            if num_values == channels * side * side and side:
                return channels, side, side
        raise ModelError(
            f"{model} classifies images, but the {num_values} numbers of data.columns.dense make no square one, grey "
            "or in colour. Name the column of images with its width, which `heterps data images` prints, or give the "
            "shape in model.args: image: [channels, height, width]."
        )
    if len(image) != 3 or min(image) < 1 or math.prod(image) != num_values:
        raise ModelError(
            f"{model}: image must be [channels, height, width] of the {num_values} numbers of data.columns.dense, "
            f"got {list(image)}."
        )
    channels, height, width = image
    return channels, height, width


def image_columns(num_classes: int, num_values: int = 3 * 32 * 32) -> Schema:
    """Return the schema of a data set of `heterps data images`."""
    return Schema(num_classes=num_classes, dense=("image",), widths={"image": num_values}, slots=())


def num_scores(schema: Schema) -> int:
    """Number of outputs of a classifier: one per class, but one logit for two classes."""
    return schema.all_labels[schema.label].num_scores
