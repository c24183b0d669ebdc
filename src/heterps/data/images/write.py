"""Write images as Parquet in two passes over their source; at most one row group is in memory.

    pass 1   check every record, count pixel values by channel ----> mean and deviation of the training set
    pass 2   (pixel - mean[channel]) / deviation[channel] ---------> train/, test/, dataset.json

    label: uint8    image: float32 [channels * height * width], a fixed-size list, the first channel first

Why normalised float32 and not the bytes themselves: a dense column reaches the model as it is in the file, so there is
no setting in a job that could differ between training and testing, and any other program reads the same numbers. It
costs little space: a channel has at most 256 values, so Parquet's dictionary encoding stores an index of 8 to 10 bits
for each, 1.25 bytes per pixel of CIFAR.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import Field

from heterps.config.base import Record
from heterps.data.folder import INFO_NAME, new_dataset
from heterps.data.images.records import SPLITS, Form, ImageSource, Records, Split
from heterps.errors import DataError

ROWS_PER_GROUP = 2_048
ROWS_PER_FILE = 8 * ROWS_PER_GROUP
LEVELS = 256  # of a pixel

Progress = Callable[[str, int, int | None], object]


class ImageSplit(Record):
    """Statistics of the images in train/ or test/."""

    rows: int
    files: int
    class_rows: tuple[int, ...] = Field(description="Number of rows of each class.")


class ImagesInfo(Record):
    """The file `dataset.json` of a data set of images."""

    version: int = 1
    task: str = "images"
    kind: str
    channels: int
    height: int
    width: int
    num_classes: int
    mean: tuple[float, ...] = Field(description="Mean of the pixels of the training set, by channel.")
    std: tuple[float, ...] = Field(description="Standard deviation of these pixels, by channel; 1 if all are equal.")
    train: ImageSplit
    test: ImageSplit | None

    @property
    def num_pixels(self) -> int:
        return self.channels * self.height * self.width


def write_images(
    source: ImageSource, folder: str | Path, *, force: bool = False, progress: Progress = lambda *_: None
) -> ImagesInfo:
    """Write the images of `source` to `folder`, atomically (see `new_dataset`).

    `progress` is called with the name of the pass, the number of rows just done, and the total once it is known.
    """
    form = source.form
    with new_dataset(folder, f"images of {source.kind}", force=force) as partial:
        counts = {split: _Counts(form) for split in SPLITS}
        for split in SPLITS:
            for records in source.read(split, ROWS_PER_GROUP):
                counts[split].add(records)
                progress("checking", len(records.labels), None)
        if not counts["train"].rows:
            raise DataError(f"{source.kind}: there are no images to train on, only {counts['test'].rows:,} to test.")
        mean, std = counts["train"].mean_and_std()
        total = sum(count.rows for count in counts.values())
        writer = _Writer(form, mean, std, lambda rows: progress("writing", rows, total))
        splits = {
            split: counts[split].info(writer.write(source, split, partial / split))
            for split in SPLITS
            if counts[split].rows
        }
        info = ImagesInfo(
            kind=source.kind,
            channels=form.channels,
            height=form.height,
            width=form.width,
            num_classes=form.classes["label"],
            mean=tuple(mean.tolist()),
            std=tuple(std.tolist()),
            train=splits["train"],
            test=splits.get("test"),
        )
        (partial / INFO_NAME).write_text(info.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return info


class _Counts:
    """Histograms of pixel values by channel and of labels; their size does not depend on the number of images."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self._label = list(form.classes).index("label")
        self._levels = np.zeros((form.channels, LEVELS), np.int64)
        self._classes = np.zeros(form.classes["label"], np.int64)

    def add(self, records: Records) -> None:
        channels = records.pixels.reshape(len(records.pixels), self._form.channels, -1)
        for c in range(self._form.channels):
            self._levels[c] += np.bincount(channels[:, c].reshape(-1), minlength=LEVELS)
        self._classes += np.bincount(records.labels[:, self._label], minlength=len(self._classes))

    @property
    def rows(self) -> int:
        return int(self._classes.sum())

    def info(self, files: int) -> ImageSplit:
        return ImageSplit(rows=self.rows, files=files, class_rows=tuple(self._classes.tolist()))

    def mean_and_std(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        values, share = np.arange(LEVELS), self._levels / self._levels.sum(axis=1, keepdims=True)
        mean = share @ values
        std = np.sqrt((share * (values - mean[:, None]) ** 2).sum(axis=1))
        return mean, np.where(std > 0, std, 1.0)


class _Writer:
    """Writes records as rows. A table maps each byte of a pixel to its normalised value; labels stay as they are."""

    def __init__(
        self, form: Form, mean: NDArray[np.float64], std: NDArray[np.float64], progress: Callable[[int], object]
    ) -> None:
        self._form = form
        self._progress = progress
        self._normalised = ((np.arange(LEVELS) - mean[:, None]) / std[:, None]).astype(np.float32)  # [channels, LEVELS]
        pixel = pa.field("element", pa.float32(), nullable=False)
        image = pa.field("image", pa.list_(pixel, form.num_pixels), nullable=False)
        self._schema = pa.schema([*(pa.field(n, pa.uint8(), nullable=False) for n in form.classes), image])

    def write(self, source: ImageSource, split: Split, folder: Path) -> int:
        """Write a split and return its number of files."""
        folder.mkdir()
        files, rows = 0, ROWS_PER_FILE  # of the open file: none is open yet
        writer: pq.ParquetWriter | None = None
        try:
            for records in source.read(split, ROWS_PER_GROUP):
                if rows >= ROWS_PER_FILE:
                    if writer is not None:
                        writer.close()
                    path = folder / f"part-{files:05d}.parquet"
                    writer = pq.ParquetWriter(
                        path, self._schema, compression="none", use_dictionary=True, write_page_checksum=True
                    )
                    files, rows = files + 1, 0
                assert writer is not None
                writer.write_table(self._table(records), row_group_size=len(records.labels))
                rows += len(records.labels)
                self._progress(len(records.labels))
        finally:
            if writer is not None:
                writer.close()
        return files

    def _table(self, records: Records) -> pa.Table:
        channels = records.pixels.reshape(len(records.pixels), self._form.channels, -1)
        values = np.empty(channels.shape, np.float32)
        for c in range(self._form.channels):
            values[:, c] = self._normalised[c][channels[:, c]]
        images = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), type=self._schema.field("image").type)
        labels = [pa.array(np.ascontiguousarray(column)) for column in records.labels.T]
        return pa.Table.from_arrays([*labels, images], schema=self._schema)
