"""CIFAR-10 and CIFAR-100 in their binary version.

    a record        CIFAR-10   [ label ]            [ 1024 red ][ 1024 green ][ 1024 blue ]
                    CIFAR-100  [ coarse ][ label ]  [ 1024 red ][ 1024 green ][ 1024 blue ]

A file is records and nothing else. Those with `test` in their names are the test set, all others are for training.
Files of a folder are taken by name, those of an archive, which is read as a stream, in its own order.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import numpy as np

from heterps.data.images.records import ByteReader, Form, Records, Split, as_records, open_stream
from heterps.errors import DataError

CHANNELS, SIDE = 3, 32
SUFFIX = ".bin"
FOLDERS = {"cifar10": "cifar-10-batches-bin", "cifar100": "cifar-100-binary"}
"""Folders to which the published archives unpack."""


class Cifar:
    """Reads the records of a .bin file, of all .bin files in a folder, or of those in a .tar.gz."""

    def __init__(self, kind: str, classes: dict[str, int], path: Path) -> None:
        self.kind = kind
        self.form = Form(CHANNELS, SIDE, SIDE, classes)
        self._path = path
        if not path.exists():
            raise DataError(f"{path}: there is no such file or folder. Name what holds the {SUFFIX} files of {kind}.")

    @classmethod
    def ten(cls, path: Path) -> Self:
        return cls("cifar10", {"label": 10}, path)

    @classmethod
    def hundred(cls, path: Path) -> Self:
        """Open CIFAR-100, which has a second label column for its 20 superclasses."""
        return cls("cifar100", {"coarse_label": 20, "label": 100}, path)

    def read(self, split: Split, most: int) -> Iterator[Records]:
        found = False
        for stream in self._streams():
            found = True
            if ("test" in Path(stream.name).name) == (split == "test"):
                yield from self._records(stream, most)
        if not found:
            raise DataError(
                f"{self._path}: there is no {SUFFIX} file in it. Name the binary version of {self.kind}: the version "
                "for Python holds pickles, which are not read."
            )

    def _records(self, stream: ByteReader, most: int) -> Iterator[Records]:
        num_labels = len(self.form.classes)
        size = num_labels + self.form.num_pixels
        while data := stream.read(most * size):
            start = stream.offset - len(data)
            if len(data) % size:
                raise stream.error(
                    start + len(data) - len(data) % size,
                    f"a record of {self.kind} has {size:,} bytes, but only {len(data) % size:,} are left here",
                )
            rows = np.frombuffer(data, np.uint8).reshape(-1, size)
            records, wrong = as_records(rows[:, :num_labels], rows[:, num_labels:], self.form)
            if wrong:
                row, column = wrong
                name, count = list(self.form.classes.items())[column]
                raise stream.error(
                    start + row * size + column, f"{name} is {rows[row, column]}, but {self.kind} has 0 to {count - 1}"
                )
            yield records

    def _streams(self) -> Iterator[ByteReader]:
        if self._path.is_dir():
            files = sorted(self._path.glob(f"*{SUFFIX}"))
            files = files or sorted((self._path / FOLDERS[self.kind]).glob(f"*{SUFFIX}"))
        elif self._path.suffix == SUFFIX:
            files = [self._path]
        else:
            yield from self._unpacked()
            return
        for path in files:
            with ExitStack() as opened:
                yield open_stream(path, opened)

    def _unpacked(self) -> Iterator[ByteReader]:
        """Iterate over the .bin files of the archive. Read each before taking the next; nothing is written to disk."""
        try:
            with tarfile.open(self._path, "r|*") as archive:
                for member in archive:
                    if member.isfile() and member.name.endswith(SUFFIX):
                        part = archive.extractfile(member)
                        assert part is not None, "it is a file"
                        yield ByteReader(f"{self._path}: {member.name}", part)
        except (tarfile.TarError, OSError, EOFError) as error:
            raise DataError(
                f"{self._path}: cannot read this as an archive: {error}. Name a .tar.gz, a folder or a {SUFFIX} file; "
                "a download that was cut short must be fetched anew."
            ) from error
