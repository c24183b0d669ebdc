"""Labelled images as bytes, and the streams that they are read from."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from heterps.errors import DataError

ByteArray = NDArray[np.uint8]
Split = Literal["train", "test"]
SPLITS: tuple[Split, ...] = ("train", "test")


@dataclass(frozen=True)
class Form:
    """The shape and the classes that all images of a source have."""

    channels: int
    height: int
    width: int
    classes: dict[str, int]  # label columns, each with its number of classes; the one called "label" is the usual one

    @property
    def num_pixels(self) -> int:
        """Number of values per image, stored channel by channel."""
        return self.channels * self.height * self.width


@dataclass(frozen=True, eq=False)
class Records:
    """Some images with their labels."""

    labels: ByteArray  # [n, number of label columns]
    pixels: ByteArray  # [n, Form.num_pixels]


class ImageSource(Protocol):
    """A source of labelled images."""

    @property
    def kind(self) -> str: ...

    @property
    def form(self) -> Form: ...

    def read(self, split: Split, most: int) -> Iterator[Records]:
        """Iterate over the images of a split in order, at most `most` at once; none if there is no such split.

        Every call reads from the start. Raises DataError, which names the file and the byte of the problem.
        """


class ByteReader:
    """A file, or a part of an archive, that counts the bytes read and names them in errors."""

    def __init__(self, name: str, stream: IO[bytes]) -> None:
        self.name = name
        self.offset = 0  # offset of the next byte; in compressed files, of the uncompressed content
        self._stream = stream

    def read(self, size: int) -> bytes:
        """Read `size` bytes, or fewer at the end of the file."""
        try:
            data = self._stream.read(size)
        except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
            raise self.error(self.offset, f"cannot read on: {error}. The file is damaged or cut short") from error
        self.offset += len(data)
        return data

    def read_exactly(self, size: int, what: str) -> bytes:
        """Read exactly `size` bytes; raises DataError, which calls them `what`, if there are fewer."""
        data = self.read(size)
        if len(data) < size:
            raise self.error(
                self.offset, f"the file ends here, {size - len(data):,} bytes before the end of {what}. It is cut short"
            )
        return data

    def error(self, offset: int, problem: str) -> DataError:
        return DataError(f"{self.name}: byte {offset:,}: {problem}. Get the file anew, or check which one it is.")


def open_stream(path: Path, files: ExitStack) -> ByteReader:
    """Open a file, unpacked if it is a .gz, which `files` closes; raises DataError, which names it."""
    unpack = gzip.open if path.suffix == ".gz" else open
    try:
        file = files.enter_context(unpack(path, "rb"))
    except OSError as error:
        raise DataError(f"{path}: cannot read this file: {error.strerror}.") from error
    return ByteReader(str(path), cast(IO[bytes], file))


def as_records(labels: ByteArray, pixels: ByteArray, form: Form) -> tuple[Records, tuple[int, int] | None]:
    """Return the images as records, and row and column of the first label that is out of range, or None."""
    wrong = np.argwhere(labels >= np.array(list(form.classes.values())))
    return Records(labels, pixels), (int(wrong[0][0]), int(wrong[0][1])) if len(wrong) else None
