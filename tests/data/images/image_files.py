"""Small files in the forms that images come in."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


def pixels(count: int, size: int = 3072, seed: int = 0) -> Bytes:
    """Random bytes, darker in the first channel than in the last."""
    values = np.random.default_rng(seed).integers(0, 200, (count, size))
    return (values + np.linspace(0, 50, size)).astype(np.uint8)


def cifar(images: Bytes, *labels: list[int]) -> bytes:
    """The records of a .bin file."""
    return np.hstack([np.array(labels, np.uint8).T, images]).tobytes()


def cifar10_files(train: int = 50, test: int = 20) -> dict[str, bytes]:
    """By name: two batches for training and one for testing, labels counting up."""
    images = pixels(train + test)
    labels = [i % 10 for i in range(train + test)]
    half = train // 2
    parts = {"data_batch_1.bin": (0, half), "data_batch_2.bin": (half, train), "test_batch.bin": (train, train + test)}
    return {name: cifar(images[first:last], labels[first:last]) for name, (first, last) in parts.items()}


def write_files(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def write_archive(path: Path, files: dict[str, bytes], folder: str) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def idx_images(images: Bytes, height: int, width: int) -> bytes:
    return struct.pack(">IIII", 0x803, len(images), height, width) + images.tobytes()


def idx_labels(labels: list[int]) -> bytes:
    return struct.pack(">II", 0x801, len(labels)) + bytes(labels)


def mnist_files(train: int = 30, test: int = 12, side: int = 6, packed: bool = False) -> dict[str, bytes]:
    files = {}
    for prefix, count in (("train", train), ("t10k", test)):
        files[f"{prefix}-images-idx3-ubyte"] = idx_images(pixels(count, side * side, count), side, side)
        files[f"{prefix}-labels-idx1-ubyte"] = idx_labels([i % 10 for i in range(count)])
    return {f"{name}.gz": gzip.compress(data) for name, data in files.items()} if packed else files
