"""Images are read from every form they come in, and what is wrong with a file is named with its byte."""

from __future__ import annotations

import builtins
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_files import (
    cifar,
    cifar10_files,
    idx_images,
    idx_labels,
    mnist_files,
    pixels,
    write_archive,
    write_files,
)

from heterps.data.images import open_images
from heterps.data.images.records import ImageSource, Split
from heterps.errors import ConfigError, DataError


def read(source: ImageSource, split: Split = "train", most: int = 7) -> tuple[np.ndarray, np.ndarray]:
    """All labels and pixels of a split."""
    pieces = list(source.read(split, most))
    assert all(1 <= len(piece.labels) <= most for piece in pieces)
    return np.concatenate([p.labels for p in pieces]), np.concatenate([p.pixels for p in pieces])


# --- CIFAR -----------------------------------------------------------------------------------------------------------


def in_folder(path: Path) -> Path:
    return write_files(path / "bin", cifar10_files())


def in_folder_above(path: Path) -> Path:
    write_files(path / "above/cifar-10-batches-bin", cifar10_files())
    return path / "above"


def in_archive(path: Path) -> Path:
    files = {"readme.html": b"<p>no images", **cifar10_files()}
    return write_archive(path / "cifar-10-binary.tar.gz", files, "cifar-10-batches-bin")


@pytest.mark.parametrize("place", [in_folder, in_folder_above, in_archive])
def test_cifar10_is_the_same_in_a_folder_and_in_its_archive(tmp_path: Path, place: Callable[[Path], Path]) -> None:
    source = open_images("cifar10", place(tmp_path))
    assert (source.kind, source.form.channels, source.form.num_pixels) == ("cifar10", 3, 3072)
    for _ in range(2):  # every pass reads anew
        labels, images = read(source)
        assert labels[:, 0].tolist() == [i % 10 for i in range(50)]
        assert (images == pixels(70)[:50]).all()
    labels, images = read(source, "test")
    assert labels[:, 0].tolist() == [i % 10 for i in range(20)]
    assert (images == pixels(70)[50:]).all()


def test_one_bin_file_is_for_training(tmp_path: Path) -> None:
    path = write_files(tmp_path, {"mine.bin": cifar(pixels(3), [1, 2, 3])}) / "mine.bin"
    source = open_images("cifar10", path)
    assert read(source)[0].tolist() == [[1], [2], [3]]
    assert not list(source.read("test", 7))


def test_cifar100_has_coarse_labels_beside_the_fine_ones(tmp_path: Path) -> None:
    write_files(tmp_path, {"train.bin": cifar(pixels(2), [19, 0], [99, 5]), "test.bin": cifar(pixels(1), [3], [4])})
    source = open_images("cifar100", tmp_path)
    assert source.form.classes == {"coarse_label": 20, "label": 100}
    assert read(source)[0].tolist() == [[19, 99], [0, 5]]
    assert read(source, "test")[0].tolist() == [[3, 4]]


@pytest.mark.parametrize(
    ("kind", "data", "message"),
    [
        (
            "cifar10",
            cifar(pixels(9), [*range(9)])[:-1],
            "byte 24,584: a record of cifar10 has 3,073 bytes, but only 3,072",
        ),
        ("cifar10", cifar(pixels(9), [*range(8), 10]), "byte 24,584: label is 10, but cifar10 has 0 to 9"),
        ("cifar100", cifar(pixels(2), [0, 20], [1, 1]), "byte 3,074: coarse_label is 20, but cifar100 has 0 to 19"),
        ("cifar100", cifar(pixels(2), [0, 19], [1, 100]), "byte 3,075: label is 100, but cifar100 has 0 to 99"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_a_bad_record_is_named_with_its_file_and_byte(
    tmp_path: Path, kind: str, data: bytes, message: str, packed: bool
) -> None:
    files = {"train.bin": data}
    place = write_archive(tmp_path / "a.tar.gz", files, "x") if packed else write_files(tmp_path / "x", files)
    with pytest.raises(DataError, match=f"x/train.bin: {message}"):
        read(open_images(kind, place), most=4)


def test_an_archive_cut_short_is_refused(tmp_path: Path) -> None:
    path = in_archive(tmp_path)
    path.write_bytes(path.read_bytes()[:-60_000])
    with pytest.raises(DataError, match=r"cifar-10-binary\.tar\.gz: .*(cut short|cannot read)"):
        read(open_images("cifar10", path))


@pytest.mark.parametrize("data", [b"", b"not an archive at all", gzip.compress(b"neither is this", mtime=0)])
def test_what_is_no_archive_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.tar.gz").write_bytes(data)
    with pytest.raises(DataError, match=r"x\.tar\.gz: "):
        read(open_images("cifar10", tmp_path / "x.tar.gz"))


def test_the_python_version_of_cifar_is_pointed_out(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "cifar-10-python.tar.gz", {"data_batch_1": b"pickle"}, "cifar-10-batches-py")
    for place in (path, write_files(tmp_path / "unpacked", {"data_batch_1": b"pickle"})):
        with pytest.raises(DataError, match=r"no \.bin file in it\. .*for Python holds pickles"):
            read(open_images("cifar10", place))


# --- MNIST -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [False, True])
def test_mnist_is_read_packed_or_not(tmp_path: Path, packed: bool) -> None:
    source = open_images("mnist", write_files(tmp_path, mnist_files(packed=packed)))
    assert (source.form.channels, source.form.height, source.form.width) == (1, 6, 6)
    for split, count in (("train", 30), ("test", 12)):
        labels, images = read(source, split)
        assert labels[:, 0].tolist() == [i % 10 for i in range(count)]
        assert (images == pixels(count, 36, count)).all()


def test_a_file_beside_its_own_gz_is_one_file(tmp_path: Path) -> None:
    write_files(tmp_path, mnist_files())
    write_files(tmp_path, dict.fromkeys(mnist_files(packed=True), b"damaged"))
    assert len(read(open_images("mnist", tmp_path))[0]) == 30


def test_mnist_without_a_test_set_has_none(tmp_path: Path) -> None:
    files = {name: data for name, data in mnist_files().items() if name.startswith("train")}
    assert not list(open_images("mnist", write_files(tmp_path, files)).read("test", 7))


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
GOOD = idx_images(pixels(30, 36, 30), 6, 6)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        (IMAGES, idx_labels([1] * 30), "byte 0: an idx file of images starts with 00000803, this one with 00000801"),
        (LABELS, b"\x1f\x8b\x08\x00", "byte 0: an idx file of labels starts with 00000801, this one with 1f8b0800"),
        (IMAGES, GOOD[:7], "byte 7: the file ends here, 9 bytes before the end of its head"),
        (IMAGES, GOOD[:-1], "byte 1,095: the file ends here, 1 bytes before the end of 30 images"),
        (IMAGES, GOOD + b"!", "byte 1,096: the file goes on after its 30 records"),
        (LABELS, idx_labels([3] * 30)[:-2], "byte 36: the file ends here, 2 bytes before the end of 30 labels"),
        (LABELS, idx_labels([3] * 30) + b"!", "byte 38: the file goes on after its 30 records"),
        (LABELS, idx_labels([3] * 29), "byte 4: 29 labels for the 30 images of .*train-images"),
        (LABELS, idx_labels([3] * 20 + [10] + [3] * 9), "byte 28: the label is 10, but mnist has 0 to 9"),
        (IMAGES, idx_images(pixels(1, 4), 0, 2**31), "byte 8: images of 0 x 2147483648 pixels cannot be"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_a_bad_idx_file_is_named_with_the_byte(
    tmp_path: Path, name: str, data: bytes, message: str, packed: bool
) -> None:
    files = mnist_files() | {name: data}
    if packed:
        files = {f"{name}.gz": gzip.compress(data) for name, data in files.items()}
    with pytest.raises(DataError, match=rf"{name}(\.gz)?: {message}"):
        read(open_images("mnist", write_files(tmp_path, files)))


def test_a_gz_cut_short_is_named_with_the_byte_reached(tmp_path: Path) -> None:
    files = mnist_files(packed=True)
    write_files(tmp_path, files | {f"{IMAGES}.gz": files[f"{IMAGES}.gz"][:-30]})
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz: byte [\d,]+: cannot read on: .*cut short"):
        read(open_images("mnist", tmp_path))


def test_test_images_of_another_size_are_refused(tmp_path: Path) -> None:
    write_files(tmp_path, mnist_files() | {"t10k-images-idx3-ubyte": idx_images(pixels(12, 20), 4, 5)})
    with pytest.raises(DataError, match="byte 8: images of 4 x 5, but those for training have 6 x 6"):
        read(open_images("mnist", tmp_path), "test")


def test_files_that_are_not_there_or_doubled_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no idx files of a training set"):
        open_images("mnist", tmp_path)
    write_files(tmp_path, {IMAGES: GOOD})
    with pytest.raises(DataError, match="there are no labels that go with it"):
        open_images("mnist", tmp_path)
    write_files(tmp_path, {LABELS: idx_labels([1] * 30), "emnist-train-images-idx3-ubyte": GOOD})
    with pytest.raises(DataError, match="are both train images"):
        open_images("mnist", tmp_path)


# --- digits, and what cannot be --------------------------------------------------------------------------------------


def test_digits_are_those_of_scikit_learn_each_once_and_every_class_in_both_splits() -> None:
    from sklearn.datasets import load_digits

    source = open_images("digits")
    (train, train_images), (test, test_images) = read(source, most=500), read(source, "test", most=500)
    expected, labels = load_digits(return_X_y=True)
    assert (len(train), len(test)) == (1541, 256)
    rows = np.vstack([np.hstack([train, train_images]), np.hstack([test, test_images])])
    whole = np.hstack([labels[:, None], expected]).astype(np.uint8)
    assert sorted(map(bytes, rows)) == sorted(map(bytes, whole))
    assert np.bincount(test[:, 0]).min() >= 15


def test_without_scikit_learn_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("sklearn"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match="pip install scikit-learn"):
        open_images("digits")


@pytest.mark.parametrize(
    ("kind", "source", "message"),
    [
        ("imagenet", None, "no kind of images 'imagenet'; choose one of: digits, cifar10, cifar100, mnist"),
        ("digits", "somewhere", "not read from somewhere"),
        ("mnist", None, "name them, or their folder"),
    ],
)
def test_a_kind_that_cannot_be_is_refused(kind: str, source: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_images(kind, source)


@pytest.mark.parametrize("kind", ["cifar10", "cifar100", "mnist"])
def test_a_source_that_is_not_there_is_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(DataError, match="nowhere: there is no such"):
        open_images(kind, tmp_path / "nowhere")
