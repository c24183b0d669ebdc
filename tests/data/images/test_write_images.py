"""Images as Parquet: normalised by the training set, read back by the ordinary reader, all or nothing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from image_files import cifar, cifar10_files, mnist_files, pixels, write_files

from heterps.config import Schema
from heterps.data.generate import find_dataset_info
from heterps.data.images import open_images, write
from heterps.data.images.write import ImagesInfo, write_images
from heterps.data.reader import Reader
from heterps.errors import ConfigError, DataError

CIFAR = Schema(num_classes=10, dense=("image",), widths={"image": 3072}, slots=())


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(write, "ROWS_PER_GROUP", 10)
    monkeypatch.setattr(write, "ROWS_PER_FILE", 20)
    return write_files(tmp_path / "bin", cifar10_files())


def read(folder: Path, schema: Schema = CIFAR) -> tuple[np.ndarray, np.ndarray]:
    reader = Reader(str(folder), schema, batch_size=1, shuffle=False)
    reader.batch_size = reader.num_rows
    batch, _ = next(reader.read())
    return batch.label, batch.dense


def test_the_reader_gives_back_pixels_normalised_by_the_training_set(tmp_path: Path, source: Path) -> None:
    info = write_images(open_images("cifar10", source), tmp_path / "out")
    train, test = (pixels(70)[part].reshape(-1, 3, 1024).astype(np.float64) for part in (slice(50), slice(50, 70)))
    mean, std = train.mean((0, 2)), train.std((0, 2))
    np.testing.assert_allclose(info.mean, mean)
    np.testing.assert_allclose(info.std, std)
    for name, images in (("train", train), ("test", test)):
        label, dense = read(tmp_path / "out" / name)
        assert label.tolist() == [i % 10 for i in range(len(images))]
        expected = (images - mean[:, None]) / std[:, None]
        np.testing.assert_allclose(dense, expected.reshape(len(images), -1), rtol=1e-5, atol=1e-6)


def test_files_row_groups_and_what_is_known_of_them(tmp_path: Path, source: Path) -> None:
    done: list[tuple[str, int, int | None]] = []
    info = write_images(open_images("cifar10", source), tmp_path / "out", progress=lambda *step: done.append(step))
    assert sorted(path.name for path in (tmp_path / "out/train").iterdir()) == [
        f"part-0000{i}.parquet" for i in range(3)
    ]
    assert (info.train.rows, info.train.files, info.train.class_rows) == (50, 3, (5,) * 10)
    assert info.test is not None
    assert (info.test.rows, info.test.files) == (20, 1)
    assert (info.kind, info.num_classes, info.channels, info.height, info.width) == ("cifar10", 10, 3, 32, 32)
    stored = json.loads((tmp_path / "out/dataset.json").read_text())
    assert ImagesInfo.model_validate(stored) == info
    for what, total in (("checking", None), ("writing", 70)):
        steps = [step for step in done if step[0] == what]
        assert sum(rows for _, rows, _ in steps) == 70
        assert {of for _, _, of in steps} == {total}
    assert max(rows for _, rows, _ in done) <= 10, "never more than a row group at once"


def test_normalised_images_take_hardly_more_room_than_their_bytes(tmp_path: Path) -> None:
    write_files(tmp_path / "bin", cifar10_files(train=400, test=0))
    write_images(open_images("cifar10", tmp_path / "bin"), tmp_path / "out")
    (path,) = (tmp_path / "out/train").iterdir()
    assert path.stat().st_size < 1.4 * 400 * 3072


def test_coarse_labels_are_a_column_of_their_own(tmp_path: Path) -> None:
    write_files(tmp_path / "bin", {"train.bin": cifar(pixels(3), [19, 0, 7], [99, 5, 5])})
    info = write_images(open_images("cifar100", tmp_path / "bin"), tmp_path / "out")
    assert (info.num_classes, info.train.class_rows[5], info.test) == (100, 2, None)
    assert not (tmp_path / "out/test").exists()
    fine = CIFAR.model_copy(update={"num_classes": 100})
    assert read(tmp_path / "out/train", fine)[0].tolist() == [99, 5, 5]
    coarse = CIFAR.model_copy(update={"num_classes": 20, "label": "coarse_label"})
    assert read(tmp_path / "out/train", coarse)[0].tolist() == [19, 0, 7]


def test_a_channel_of_one_value_becomes_zeros(tmp_path: Path) -> None:
    write_files(tmp_path / "bin", {"train.bin": cifar(np.full((2, 3072), 9, np.uint8), [0, 1])})
    info = write_images(open_images("cifar10", tmp_path / "bin"), tmp_path / "out")
    assert info.std == (1.0, 1.0, 1.0)
    assert not read(tmp_path / "out/train")[1].any()


def test_mnist_and_digits_are_written_alike(tmp_path: Path) -> None:
    mnist = write_images(open_images("mnist", write_files(tmp_path / "idx", mnist_files())), tmp_path / "mnist")
    assert (mnist.channels, mnist.height, mnist.num_pixels) == (1, 6, 36)
    digits = write_images(open_images("digits"), tmp_path / "digits")
    assert (digits.train.rows, digits.num_pixels) == (1541, 64)
    schema = Schema(num_classes=10, dense=("image",), widths={"image": 64}, slots=())
    dense = read(tmp_path / "digits/train", schema)[1]
    assert abs(dense.mean()) < 1e-4
    assert abs(dense.std() - 1) < 1e-4


@pytest.mark.parametrize("damaged", ["data_batch_2.bin", "test_batch.bin"])
def test_a_bad_file_is_found_before_anything_is_written(
    tmp_path: Path, source: Path, damaged: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (source / damaged).open("ab") as file:
        file.write(b"!")
    written: list[object] = []
    monkeypatch.setattr(pq.ParquetWriter, "write_table", lambda *_, **__: written.append(1))
    with pytest.raises(DataError, match=rf"{damaged}: byte [\d,]+: a record of cifar10"):
        write_images(open_images("cifar10", source), tmp_path / "out")
    assert not written
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]


def test_a_source_without_training_images_is_refused(tmp_path: Path) -> None:
    write_files(tmp_path / "bin", {"test.bin": cifar(pixels(3), [1, 2, 3])})
    with pytest.raises(DataError, match="no images to train on, only 3 to test"):
        write_images(open_images("cifar10", tmp_path / "bin"), tmp_path / "out")


def test_only_force_replaces_a_data_set(tmp_path: Path, source: Path) -> None:
    images = open_images("cifar10", source)
    write_images(images, tmp_path / "out")
    with pytest.raises(ConfigError, match="--force"):
        write_images(images, tmp_path / "out")
    assert write_images(images, tmp_path / "out", force=True).train.rows == 50


def test_images_have_no_teacher(tmp_path: Path, source: Path) -> None:
    write_images(open_images("cifar10", source), tmp_path / "out")
    assert find_dataset_info(str(tmp_path / "out/train")) is None
