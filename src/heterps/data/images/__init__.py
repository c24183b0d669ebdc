"""Convert labelled images from local files to a Parquet data set that any job can read.

    cifar10, cifar100   the binary version: .bin files, their folder, or the .tar.gz that holds them
    mnist               idx files in a folder, also .gz; Fashion-MNIST and others of that form
    digits              1,797 digits of 8 x 8 pixels that come with scikit-learn

Each kind has a module (`cifar` reads both); `records` has images as bytes, and `write` writes them as Parquet.
Nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from heterps.data.images.cifar import Cifar
from heterps.data.images.digits import Digits
from heterps.data.images.mnist import Mnist
from heterps.data.images.records import ImageSource
from heterps.data.images.write import ImagesInfo, write_images
from heterps.errors import ConfigError

__all__ = ["KINDS", "ImagesInfo", "open_images", "write_images"]

FROM_FILES: dict[str, Callable[[Path], ImageSource]] = {"cifar10": Cifar.ten, "cifar100": Cifar.hundred, "mnist": Mnist}
KINDS = ("digits", *FROM_FILES)


def open_images(kind: str, source: str | Path | None = None) -> ImageSource:
    """Open the images of one of KINDS at `source`; digits need no source."""
    if kind not in KINDS:
        raise ConfigError(f"there is no kind of images {kind!r}; choose one of: {', '.join(KINDS)}.")
    if kind == "digits":
        if source is not None:
            raise ConfigError(f"digits come with scikit-learn and are not read from {source}: leave that out.")
        return Digits()
    if source is None:
        raise ConfigError(f"{kind} is read from files that you have: name them, or their folder, before OUT.")
    return FROM_FILES[kind](Path(source))
