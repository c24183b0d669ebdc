"""Torn, flipped, missing and forged files: a damaged checkpoint is never loaded, and nothing outside it is read."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from snapshots import assert_same, make

from heterps.checkpoint import Snapshot, TableRows, load, load_latest, manifest, save, saved_samples
from heterps.errors import CorruptCheckpoint, RunError

FILES = ["manifest.json", "dense.safetensors", "progress.json", "tables/000-user.arrow", "tables/001-item_ads_v2.arrow"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return save(tmp_path, make(1))


def forge(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest and make its digest right again, as an attacker would."""
    body = json.loads((path / "manifest.json").read_text())
    body.pop("xxh3")
    change(body)
    (path / "manifest.json").write_text(json.dumps({**body, "xxh3": manifest._digest(body)}))


def replace(path: Path, name: str, content: bytes) -> None:
    """Put other bytes into a file and make the manifest agree."""
    (path / name).write_bytes(content)
    entry = {"path": name, "num_bytes": len(content), "xxh3": manifest.xxhash.xxh3_128_hexdigest(content)}

    def change(body: dict[str, Any]) -> None:
        kind = {"dense.safetensors": "dense", "progress.json": "progress"}.get(name)
        body.update({kind: entry} if kind else {"tables": body["tables"] | {"user": [entry]}})

    forge(path, change)


@pytest.mark.parametrize("name", FILES)
def test_one_flipped_bit_anywhere_is_found(path: Path, name: str) -> None:
    content = (path / name).read_bytes()
    for at in range(0, len(content), 1 if name == "manifest.json" else 5):
        damaged = bytearray(content)
        damaged[at] ^= 1 << (at % 8)
        (path / name).write_bytes(damaged)
        if name == "manifest.json" and means_the_same(damaged, content):
            assert_same(load(path), make(1))
        else:
            with pytest.raises(CorruptCheckpoint, match=re.escape(str(path / name))):
                load(path)


def means_the_same(left: bytes, right: bytes) -> bool:
    try:
        return bool(json.loads(left) == json.loads(right))
    except ValueError:
        return False


@pytest.mark.parametrize("name", FILES)
def test_a_torn_or_grown_file_is_found(path: Path, name: str) -> None:
    content = (path / name).read_bytes()
    for torn in (b"", content[:1], content[: len(content) // 2], content[:-3], content + b"\0"):
        (path / name).write_bytes(torn)
        with pytest.raises(CorruptCheckpoint, match="damaged"):
            load(path)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_found(path: Path, name: str) -> None:
    (path / name).unlink()
    with pytest.raises(CorruptCheckpoint, match=f"{name} is missing"):
        load(path)
    (path / name).mkdir()
    with pytest.raises(CorruptCheckpoint, match=f"{name} is missing"):
        load(path)


@pytest.mark.parametrize("content", [b"[]", b"1", b"null", b"{}", b'{"xxh3": 1}', b"[" * 100_000, b"\xff"])
def test_a_manifest_that_is_something_else_is_damaged(path: Path, content: bytes) -> None:
    (path / "manifest.json").write_bytes(content)
    with pytest.raises(CorruptCheckpoint, match=r"manifest.json is damaged"):
        load(path)


@pytest.mark.parametrize("where", ["dense", "progress", "table"])
@pytest.mark.parametrize("target", ["../secret", "/etc/hostname", "tables/../../secret", "link", "a\0b", "\ud800"])
def test_a_path_that_leaves_the_folder_is_refused(path: Path, where: str, target: str) -> None:
    (path.parent / "secret").write_text("secret")
    (path / "link").symlink_to(path.parent / "secret")

    def change(body: dict[str, Any]) -> None:
        (body["tables"]["user"][0] if where == "table" else body[where])["path"] = target

    forge(path, change)
    with pytest.raises(CorruptCheckpoint, match="outside the checkpoint"):
        load(path)


def test_a_newer_version_is_refused_and_not_passed_over(path: Path) -> None:
    newer = path.parent / "0000000002"
    shutil.copytree(path, newer)
    forge(newer, lambda body: body.update(version=7, clock="a thing of the future"))
    for attempt in (lambda: load(newer), lambda: load_latest(path.parent)):
        with pytest.raises(RunError, match=r"version 7 .* reads up to version 6\. Resume with the heterps") as error:
            attempt()
        assert not isinstance(error.value, CorruptCheckpoint)


def test_fields_of_the_same_version_that_we_do_not_know_are_passed_over(path: Path) -> None:
    forge(path, lambda body: body.update(comment="made on a Monday"))
    assert_same(load(path), make(1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda body: body.pop("clock"), "clock: Field required"),
        (lambda body: body.update(version=0), "version: Input should be greater than 0"),
        (lambda body: body.update(samples=-1), "samples: Input should be greater"),
        (lambda body: body["dense"].update(num_bytes="1"), "dense.num_bytes: Input should be a valid integer"),
    ],
)
def test_a_manifest_with_wrong_fields_names_the_field(path: Path, change: Any, message: str) -> None:
    forge(path, change)
    with pytest.raises(CorruptCheckpoint, match=message):
        load(path)


@pytest.mark.parametrize("name", FILES[1:4])
@pytest.mark.parametrize("content", [b"", b"nonsense", b"\xff" * 64, b"ARROW1\0\0" * 9])
def test_forged_files_are_refused_and_named(path: Path, name: str, content: bytes) -> None:
    replace(path, name, content)
    with pytest.raises(CorruptCheckpoint, match="right digest but cannot be decoded") as error:
        load(path)
    assert name in str(error.value)


def arrow(header: dict[str, Any], columns: list[tuple[pa.Field, Any]]) -> bytes:
    schema = pa.schema([field for field, _ in columns], metadata={b"heterps": json.dumps(header).encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.record_batch([pa.array(c, f.type) for f, c in columns], schema=schema))
    return sink.getvalue().to_pybytes()


KEYS = (pa.field("keys", pa.uint64(), nullable=False), [1, 2])
VALUES = (pa.field("values", pa.list_(pa.float32(), 1), nullable=False), [[1.0], [2.0]])


@pytest.mark.parametrize(
    ("shape", "columns", "message"),
    [
        ((10**15, 1, 0), [KEYS, VALUES], "claims 1000000000000000 rows"),
        ((2, 10**12, 0), [KEYS, VALUES], "claims 2 rows of 1000000000000"),
        ((3, 1, 0), [KEYS, VALUES], "claims 3 rows and holds 2"),
        ((1, 1, 0), [KEYS, VALUES], "claims 1 rows and holds 2"),
        ((-2, 1, 0), [KEYS, VALUES], "claims -2 rows and holds 2"),
        (("2", 1, 0), [KEYS, VALUES], "cannot be decoded"),
        ((2, 2, 0), [KEYS, VALUES], "its columns are keys: uint64, values: fixed_size_list"),
        ((2, 1, 0), [KEYS], "its columns are keys"),
        ((2, 1, 0), [VALUES, KEYS], "its columns are values"),
        ((2, 1, 0), [(pa.field("keys", pa.int64(), nullable=False), [1, 2]), VALUES], "its columns are keys: int64"),
        ((2, 1, 0), [(KEYS[0], [1, None]), VALUES], "null"),
        ((2, 1, 0), [KEYS, (VALUES[0], [[1.0], None])], "shape"),
        ((2, 1, 0), [KEYS, (VALUES[0], [[1.0], [None]])], "null"),
    ],
)
def test_an_arrow_file_that_lies_about_its_rows_is_refused(path: Path, shape: Any, columns: Any, message: str) -> None:
    header = {"shape": dict(zip(("rows", "values", "state"), shape, strict=True)), "meta": {}}
    replace(path, FILES[3], arrow(header, columns))
    with pytest.raises(CorruptCheckpoint, match=message):
        load(path)


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5])
def test_a_checkpoint_of_an_earlier_version_is_read_forever(version: int) -> None:
    """The files in golden/ were written once, by the first heterps of each version; do not write them again."""
    use = (np.float32([1.5, 1, 3]), np.uint32([7, 0, 2**32 - 1])) if version > 1 else ()
    metadata = {"hand": np.array([3, 2**32 - 1]), "sketch": np.uint8([[0, 1], [255, 2]])} if version > 2 else {}
    expected = Snapshot(
        clock=7,
        samples=700,
        dense={"w": np.arange(6, dtype=np.float32).reshape(2, 3), "step": np.array(7, np.int64)},
        tables={
            "user.id": TableRows(
                np.array([0, 5, 2**64 - 1], np.uint64),
                np.arange(6, dtype=np.float32).reshape(3, 2),
                np.full((3, 1), 0.5, np.float32),
                {"dim": 2},
                *use,
                metadata=metadata,
            )
        },
        progress={"epoch": 1},
    )
    assert_same(load(Path(__file__).parent / "golden" / f"version-{version}"), expected)


def test_samples_are_those_of_the_newest_checkpoint_that_says_how_many(tmp_path: Path) -> None:
    assert saved_samples(tmp_path) is None
    for clock, samples in ((1, 10), (2, 20)):
        path = save(tmp_path, Snapshot(clock, samples, {}, {}, {}))
    assert saved_samples(tmp_path) == 20
    (path / "manifest.json").write_bytes(b"torn")
    assert saved_samples(tmp_path) == 10
