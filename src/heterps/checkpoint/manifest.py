"""The manifest: which files belong to a checkpoint, how long they are and what their digests are.

It is written last, and it digests itself: `xxh3` is over everything else in it as canonical JSON. That rule and the
`version` field hold for all versions, so a damaged manifest is told from one that a newer heterps wrote.
"""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import Any

import xxhash
from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveInt, ValidationError

from heterps.errors import CorruptCheckpoint, RunError

VERSION = 6
FIRST_WITH_SHARDS = 4
NAME = "manifest.json"


class Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class File(Value):
    """One file: its path inside the checkpoint, and what must be found there."""

    path: str
    num_bytes: NonNegativeInt
    xxh3: str

    def locate(self, folder: Path) -> Path:
        """Return where the file is; a path that leaves `folder`, by `..`, a root or a link, is refused."""
        path = PurePosixPath(self.path)
        try:
            inside = ".." not in path.parts and (folder / path).resolve().is_relative_to(folder.resolve())
        except ValueError:  # a null byte or a half character: no path at all
            inside = False
        if not inside or path.is_absolute():
            raise CorruptCheckpoint(
                f"{folder / NAME} names the file {self.path!r}, which is outside the checkpoint. "
                "Nothing was read from there; do not use this checkpoint unless you know who made it."
            )
        return folder / path


class Manifest(Value):
    version: PositiveInt
    clock: NonNegativeInt
    samples: NonNegativeInt
    dense: File
    progress: File
    tables: dict[str, list[File]]  # the files of each, written by the processes that held a part; one up to version 3
    meta: dict[str, dict[str, Any]] = {}  # by table: what it is; up to version 3 in the file of its rows
    upkeep: dict[str, File] = {}  # by table, for those that know something besides their rows; since version 3
    parent: str | None = None  # the folder of the version that this one builds on, if it has changes only; version 5
    parent_xxh3: str | None = None  # of a checkpoint with a parent: the digest of the parent's manifest; version 6

    @property
    def files(self) -> list[File]:
        rows = [file for files in self.tables.values() for file in files]
        return [self.dense, self.progress, *rows, *self.upkeep.values()]

    @property
    def num_bytes(self) -> int:
        """What the files take on disk."""
        return sum(file.num_bytes for file in self.files)

    @property
    def xxh3(self) -> str:
        """The digest of everything that the manifest says."""
        return _digest(self.model_dump())

    def encode(self) -> bytes:
        return json.dumps({**self.model_dump(), "xxh3": self.xxh3}, indent=1).encode() + b"\n"


def decode(text: bytes, path: Path) -> Manifest:
    """Read the manifest `text` of the file `path`; CorruptCheckpoint if it is damaged, RunError if it is too new."""
    try:
        body = json.loads(text)
        expected = body.pop("xxh3")
    except (ValueError, AttributeError, TypeError, KeyError, RecursionError) as error:
        raise CorruptCheckpoint(f"{path} is damaged: it is not a manifest ({error}).") from None
    if (found := _digest(body)) != expected:
        raise CorruptCheckpoint(f"{path} is damaged: its digest should be {expected}, it is {found}.")
    if isinstance(version := body.get("version"), int) and version > VERSION:
        raise RunError(
            f"{path.parent} was written in version {version} of the checkpoint format; this heterps reads up to "
            f"version {VERSION}. Resume with the heterps that wrote it, or a newer one."
        )
    if isinstance(version, int) and version < FIRST_WITH_SHARDS and isinstance(tables := body.get("tables"), dict):
        body["tables"] = {name: [file] for name, file in tables.items()}
    try:
        return Manifest.model_validate(body)
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(map(str, problem["loc"]))
        raise CorruptCheckpoint(f"{path} is damaged: {field}: {problem['msg']}.") from None


def _digest(body: dict[str, Any]) -> str:
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return xxhash.xxh3_128_hexdigest(canonical.encode())
