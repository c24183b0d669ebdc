"""Vectors by original id: rows of a trained model's tables, and which of them are nearest to each other.

    ids of a slot --key_column--> keys --table--> vectors [n, dim]

Tables know keys, which are hashes: ids cannot be made from them. So a caller who wants the vectors of all ids, or the
nearest of them, says which ids there are: a list, or data with a column of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from heterps.arrays import KeyArray
from heterps.config import Schema
from heterps.data.arrow import integer_ids, without_dictionary
from heterps.data.columns import id_kind, is_list
from heterps.data.decode import key_column
from heterps.data.sources import Dataset
from heterps.errors import ConfigError, DataError
from heterps.serving.results import write_results

Vectors = NDArray[np.float32]
Unknown = Literal["error", "nan", "initial"]
By = Literal["cosine", "dot"]
PART_IDS = 1 << 16


class Neighbour(NamedTuple):
    """An id, and how near it is: the cosine of the angle or the dot product."""

    id: int | str
    score: float


class RowTable(Protocol):
    """The rows of a table by their keys."""

    @property
    def dim(self) -> int: ...

    def pull(self, keys: KeyArray) -> tuple[Vectors, NDArray[np.bool_]]:
        """Return the values [n, dim] of keys, initial ones for those without a row, and which have one [n]."""


class VectorsById:
    """The vectors of a slot's ids in one table: by default the widest of `tables`, which have rows of the slot."""

    def __init__(self, columns: Schema, tables: Mapping[str, RowTable], slot: str, table: str | None = None) -> None:
        if slot not in columns.slots:
            raise ConfigError(f"{slot} is no slot of the model. Its slots: {', '.join(columns.slots)}.")
        feature = columns.features.get(slot)
        if feature is not None and (feature.steps or feature.cross):
            raise ConfigError(f"{slot} has no original ids: they are made by its feature in data.columns.features.")
        self.column = slot if feature is None else feature.column or slot
        self._slot, self._kind = slot, columns.id_kinds.get(slot)
        self._owner = columns.same_ids.get(slot, slot)
        self._table = tables[_choose(tables, slot, table)]

    @property
    def dim(self) -> int:
        return self._table.dim

    def find(self, ids: Any) -> tuple[Vectors, NDArray[np.bool_]]:
        """Return the vectors [n, dim] of ids, initial values for those without a row, and which have one [n]."""
        return self._table.pull(key_column(self.as_ids(ids), self._owner))

    def check(self, ids: Any, advice: str) -> None:
        """Raise DataError, which ends with this advice, where some ids have no row."""
        ids = self.as_ids(ids)
        self._check(ids, self.find(ids)[1], advice)

    def _check(self, ids: pa.Array, is_known: NDArray[np.bool_], advice: str) -> None:
        if is_known.all():
            return
        missing = ids.filter(pa.array(~is_known)).to_pylist()
        shown = ", ".join(map(str, missing[:5])) + (" ..." if len(missing) > 5 else "")
        raise DataError(
            f"{len(missing):,} of {len(ids):,} ids of {self._slot} have no row: {shown}. They were not in the training "
            f"data, or their rows were evicted. {advice}"
        )

    def vectors(self, ids: Any, unknown: Unknown = "error") -> Vectors:
        """Return the vectors of ids; of those without a row an error, NaN, or the initial values that the model has."""
        if unknown not in ("error", "nan", "initial"):
            raise ConfigError(f"unknown is error, nan or initial, not {unknown!r}.")
        ids = self.as_ids(ids)
        found, is_known = self.find(ids)
        if unknown == "error":
            self._check(ids, is_known, "Ask for unknown='nan', or 'initial' for what the model has.")
        if unknown == "nan":
            found[~is_known] = np.nan
        return found

    def neighbours(self, id: int | str, k: int, among: Any, by: By = "cosine") -> list[Neighbour]:
        """Return the `k` ids among these that are nearest to an id, the nearest first; those without a row are not."""
        if by not in ("cosine", "dot"):
            raise ConfigError(f"neighbours are by cosine or dot, not {by!r}.")
        (target,) = self.vectors([id])
        ids = self.as_ids(among)
        vectors, is_known = self.find(ids)
        scores = vectors @ target
        if by == "cosine":
            lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(target)
            scores = scores / np.maximum(lengths, np.finfo(np.float32).tiny)
        keys = key_column(ids, self._owner)
        scores[~is_known | (keys == key_column(self.as_ids([id]), self._owner))] = -np.inf
        nearest = np.argsort(-scores, kind="stable")[:k]
        nearest = nearest[np.isfinite(scores[nearest])]
        return [Neighbour(ids[int(at)].as_py(), float(scores[at])) for at in nearest]

    def tables(self, ids: Any) -> Iterator[pa.Table]:
        """Yield the ids that have a row, with their vectors, a part at a time."""
        ids = self.as_ids(ids)
        for first in range(0, max(len(ids), 1), PART_IDS):
            part = ids.slice(first, PART_IDS)
            found, is_known = self.find(part)
            flat = pa.array(found[is_known].reshape(-1), pa.float32())
            vectors = pa.FixedSizeListArray.from_arrays(flat, self.dim)
            yield pa.table({self.column: part.filter(pa.array(is_known)), "vector": vectors})

    def write(self, ids: Any, path: str | Path) -> int:
        """Write ids that have a row and their vectors to a file; return how many."""
        return sum(write_results(self.tables(ids), Path(path)))

    def distinct(self, dataset: Dataset, column: str | None = None) -> pa.Array:
        """Return the distinct ids in a column of data, by default that of the slot, in the order in which they come."""
        name = column or self.column
        found: list[pa.Array] = []
        for group in dataset.row_groups:
            kinds = {field.name: field.type for field in group.file.schema}
            if name not in kinds:
                raise DataError(f"{group.file.address}: there is no column {name}. It has: {', '.join(kinds)}.")
            self._check_kind(kinds[name], f"{group.file.address}: column {name}")
            ids = group.file.read(group.index, [name]).column(name).combine_chunks()
            ids = without_dictionary(ids.flatten() if is_list(ids.type) else ids)
            found.append(pc.unique(integer_ids(ids)[0].drop_null()))
        return pc.unique(pa.chunked_array(found))

    def as_ids(self, ids: Any) -> pa.Array:
        """The ids as an Arrow array of the kind that they have in the training data: 4711 may be given as "4711"."""
        if isinstance(ids, pa.ChunkedArray):
            ids = ids.combine_chunks()
        if not isinstance(ids, pa.Array):
            plain = [ids] if isinstance(ids, (str, int)) else np.asarray(ids, dtype=object).tolist()
            try:
                if self._kind == "integer":
                    plain = [int(one) for one in plain]
                elif self._kind == "string":
                    plain = [one if isinstance(one, (str, bytes)) else str(one) for one in plain]
                ids = pa.array(plain) if plain else pa.array([], pa.int64())
            except (ValueError, TypeError, OverflowError, pa.ArrowException) as error:
                raise DataError(
                    f"ids of {self._slot} are of kind {self._kind or 'integer or string'}: {error}."
                ) from None
        self._check_kind(ids.type, f"ids of {self._slot}")
        if ids.null_count:
            raise DataError(f"an id of {self._slot} is null, which has no vector of its own.")
        return ids

    def _check_kind(self, kind: Any, what: str) -> None:
        found = id_kind(kind)
        if found is None or (self._kind is not None and found not in (self._kind, "null")):
            raise DataError(
                f"{what} has type {kind}, but ids of {self._slot} are of kind {self._kind} in the training data."
            )


def _choose(tables: Mapping[str, RowTable], slot: str, table: str | None) -> str:
    """The table that has the vectors of a slot."""
    if table is not None:
        if table not in tables:
            raise ConfigError(f"{slot} has no rows in table {table}, but in {', '.join(tables) or 'none'}.")
        return table
    widest = max((found.dim for found in tables.values()), default=0)
    chosen = [name for name, found in tables.items() if found.dim == widest]
    if len(chosen) != 1:
        raise ConfigError(f"{slot} has rows in {' and '.join(chosen) or 'no table'}: say which table is meant.")
    return chosen[0]
