"""RowRecord: which rows a version of a model has, and a digest of each; what increments are found by.

    RUN/exports/1234.arrow      key: uint64 | digest: uint64      sixteen bytes a row, table by table

An increment from version A to B holds rows that are new or have another digest in B, and keys that B no longer has. It
does not matter what happened in between: eviction, other servers, going back to an earlier checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from heterps.arrays import KeyArray
from heterps.checkpoint import disk
from heterps.errors import RunError
from heterps.serving.score_inputs import GOLDEN, mix64

FOLDER = "exports"


class RowDigests(NamedTuple):
    """The keys of a table, sorted, and the digest of each row."""

    keys: KeyArray
    digests: KeyArray


class RowChanges(NamedTuple):
    """What became of a table: places of new and changed rows among the new keys, and keys that are gone."""

    changed: NDArray[np.int64]
    gone: KeyArray


@dataclass(frozen=True)
class RowRecord:
    """The rows of one version. `digest` is of all rows and weights: it tells two models of the same version apart."""

    version: str
    digest: str
    tables: Mapping[str, RowDigests]

    def write(self, folder: Path) -> None:
        """Write the record into the folder of records; the old one or the new is there, never half."""
        disk.make_folder(folder)
        path, draft = folder / f"{self.version}.arrow", folder / f".{self.version}.part"
        rows = {name: len(found.keys) for name, found in self.tables.items()}
        told = {"version": self.version, "digest": self.digest, "tables": rows}
        schema = pa.schema([("key", pa.uint64()), ("digest", pa.uint64())], metadata={"heterps": json.dumps(told)})
        with suppress(FileNotFoundError):
            disk.remove(draft)
        try:
            with disk.new_file(draft) as file, pa.ipc.new_file(pa.PythonFile(file, mode="w"), schema) as writer:
                for found in self.tables.values():
                    writer.write_batch(pa.record_batch([pa.array(column) for column in found], schema=schema))
            os.replace(draft, path)
        except BaseException:
            with suppress(OSError):
                disk.remove(draft)
            raise
        disk.sync_folder(folder)


def read_record(folder: Path, version: str) -> RowRecord:
    """Read the record of a version; RunError if there is none."""
    path = folder / f"{version}.arrow"
    if not path.is_file():
        known = sorted((found.stem for found in folder.glob("*.arrow")), key=_clock)
        there = f"exported so far: {', '.join(known)}" if known else "nothing was exported yet"
        raise RunError(
            f"{folder.parent}: version {version} was not exported from this run ({there}). Leave out --since."
        )
    try:
        with pa.OSFile(str(path)) as source, pa.ipc.open_file(source) as reader:
            told = json.loads(reader.schema.metadata[b"heterps"])
            table = reader.read_all()
            keys, digests = (table.column(name).to_numpy() for name in ("key", "digest"))
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} is damaged ({error}). Leave out --since, to export everything.") from None
    ends = np.cumsum(list(told["tables"].values()), dtype=np.int64)
    parts = zip(np.split(keys, ends[:-1]), np.split(digests, ends[:-1]), strict=True)
    return RowRecord(
        told["version"], told["digest"], {n: RowDigests(*part) for n, part in zip(told["tables"], parts, strict=True)}
    )


def row_digests(values: NDArray[np.float32]) -> KeyArray:
    """Return a 64-bit digest of the bits of each row."""
    words = np.ascontiguousarray(values).view(np.uint32).astype(np.uint64)
    state = np.full(len(words), GOLDEN)
    for column in words.T:
        state = mix64(state ^ column) + GOLDEN
    return state


def changes(before: RowDigests | None, now: RowDigests) -> RowChanges:
    """Return what is different `now`; everything is new if there was nothing before."""
    if before is None or not len(before.keys):
        return RowChanges(np.arange(len(now.keys)), np.empty(0, np.uint64))
    at = np.minimum(np.searchsorted(before.keys, now.keys), len(before.keys) - 1)
    same = (before.keys[at] == now.keys) & (before.digests[at] == now.digests)
    return RowChanges(np.flatnonzero(~same), np.setdiff1d(before.keys, now.keys, assume_unique=True))


def digest_of_all(tables: Mapping[str, RowDigests], weights: Mapping[str, NDArray[Any]]) -> str:
    """Return a digest of all rows and weights of a model."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(tables):
        _add(digest, name, tables[name])
    for name in sorted(weights):
        _add(digest, name, [weights[name]])
    return digest.hexdigest()


def _add(digest: Any, name: str, arrays: Iterable[NDArray[Any]]) -> None:
    digest.update(name.encode() + b"\0")
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")


def _clock(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("-") if part.isdigit())
