"""MNIST and other data in its format: idx files, one of images and one of labels for each split.

    images   00 00 08 03 | number | height | width | a byte a pixel, row by row, image by image
    labels   00 00 08 01 | number | a byte a label                   (numbers are of 4 bytes, the highest first)

Files are found by their names: `images` or `labels`, `train`, or `test` or `t10k`; .gz files are unpacked on the way.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path

import numpy as np

from heterps.data.images.records import ByteReader, Form, Records, Split, as_records, open_stream
from heterps.errors import DataError

CLASSES = 10
LARGEST_SIDE = 4096
"""Largest height or width of an image; a file with more is not an image file."""
IMAGES, LABELS = "images", "labels"
MAGIC = {IMAGES: (0x00000803, 3), LABELS: (0x00000801, 1)}  # with the number of sizes that follow
WORDS: dict[Split, tuple[str, ...]] = {"train": ("train",), "test": ("t10k", "test")}


class Mnist:
    """Reads the images of the idx files in a folder."""

    kind = "mnist"

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise DataError(f"{folder}: there is no such folder. Name the one that holds the idx files of mnist.")
        self._folder = folder
        found: dict[Split, dict[str, Path]] = {split: _find(folder, split) for split in WORDS}
        self._files = {split: files for split, files in found.items() if files}
        if "train" not in self._files:
            raise DataError(
                f"{folder}: there are no idx files of a training set in it: train-images-idx3-ubyte and "
                "train-labels-idx1-ubyte, also as .gz."
            )

    @cached_property
    def form(self) -> Form:
        with ExitStack() as files:
            _, height, width = _sizes(open_stream(self._files["train"][IMAGES], files), IMAGES)
        return Form(1, height, width, {"label": CLASSES})

    def read(self, split: Split, most: int) -> Iterator[Records]:
        if split not in self._files:
            return
        with ExitStack() as files:
            images, labels = (open_stream(self._files[split][what], files) for what in (IMAGES, LABELS))
            count, height, width = _sizes(images, IMAGES)
            if (height, width) != (self.form.height, self.form.width):
                trained = f"{self.form.height} x {self.form.width}"
                raise images.error(8, f"images of {height} x {width}, but those for training have {trained}")
            (num_labels,) = _sizes(labels, LABELS)
            if num_labels != count:
                raise labels.error(4, f"{num_labels:,} labels for the {count:,} images of {images.name}")
            yield from self._records(images, labels, count, most)

    def _records(self, images: ByteReader, labels: ByteReader, count: int, most: int) -> Iterator[Records]:
        for first in range(0, count, most):
            size = min(most, count - first)
            start = labels.offset
            truth = np.frombuffer(labels.read_exactly(size, f"{count:,} labels"), np.uint8).reshape(-1, 1)
            pixels = images.read_exactly(size * self.form.num_pixels, f"{count:,} images")
            records, wrong = as_records(truth, np.frombuffer(pixels, np.uint8).reshape(size, -1), self.form)
            if wrong:
                row, _ = wrong
                raise labels.error(start + row, f"the label is {truth[row, 0]}, but mnist has 0 to {CLASSES - 1}")
            yield records
        for stream in (images, labels):
            if stream.read(1):
                raise stream.error(stream.offset - 1, f"the file goes on after its {count:,} records")


def _find(folder: Path, split: Split) -> dict[str, Path]:
    """Find the files of images and of labels of a split; empty if there is neither."""
    found = {}
    for what in (IMAGES, LABELS):
        named = [path for path in sorted(folder.iterdir()) if what in path.name and "idx" in path.name]
        fitting = [path for path in named if any(word in path.name for word in WORDS[split])]
        plain = {path.name.removesuffix(".gz"): path for path in sorted(fitting, reverse=True)}  # rather than its .gz
        if len(plain) > 1:
            raise DataError(f"{folder}: {' and '.join(sorted(plain))} are both {split} {what}. Keep one of them in it.")
        if plain:
            found[what] = next(iter(plain.values()))
    if len(found) == 1:
        (there,) = found
        raise DataError(f"{found[there]}: there are no {LABELS if there == IMAGES else IMAGES} that go with it.")
    return found


def _sizes(stream: ByteReader, what: str) -> tuple[int, ...]:
    """Read the sizes in the header of an idx file; the first is the number of records."""
    magic, num_sizes = MAGIC[what]
    (found,) = struct.unpack(">I", stream.read_exactly(4, "its head"))
    if found != magic:
        raise stream.error(0, f"an idx file of {what} starts with {magic:08x}, this one with {found:08x}")
    sizes = struct.unpack(f">{num_sizes}I", stream.read_exactly(4 * num_sizes, "its head"))
    if not all(1 <= side <= LARGEST_SIDE for side in sizes[1:]):
        raise stream.error(8, f"images of {' x '.join(map(str, sizes[1:]))} pixels cannot be")
    return sizes
