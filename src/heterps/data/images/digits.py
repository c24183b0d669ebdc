"""1,797 handwritten digits of 8 x 8 pixels (UCI, Alpaydin and Kaynak 1998), which scikit-learn has built in.

Every seventh digit is for testing: the digits come in runs from 0 to 9, from which a step of five would always take the
same ones. They are ordered by writer, so that the test set has no writers that the training set lacks.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from heterps.data.images.records import ByteArray, Form, Records, Split
from heterps.errors import ConfigError

SIDE, CLASSES = 8, 10
TEST_EVERY = 7


class Digits:
    """Reads the digits, with pixels from 0 to 16."""

    kind = "digits"
    form = Form(1, SIDE, SIDE, {"label": CLASSES})

    def __init__(self) -> None:
        try:
            from sklearn.datasets import load_digits
        except ImportError:
            raise ConfigError(
                "the digits come with scikit-learn, which is not installed here: pip install scikit-learn"
            ) from None
        self._load = load_digits

    def read(self, split: Split, most: int) -> Iterator[Records]:
        labels, pixels = self._all
        is_test = np.arange(len(labels)) % TEST_EVERY == TEST_EVERY - 1
        rows = np.flatnonzero(is_test == (split == "test"))
        for first in range(0, len(rows), most):
            some = rows[first : first + most]
            yield Records(labels[some], pixels[some])

    @cached_property
    def _all(self) -> tuple[ByteArray, ByteArray]:
        pixels, labels = self._load(return_X_y=True)
        return labels.astype(np.uint8).reshape(-1, 1), pixels.astype(np.uint8)
