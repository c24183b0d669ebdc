"""Predict with an export: the scores that its own score.py gives, for data of any format."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from heterps.arrays import KeyArray
from heterps.checkpoint.saved_rows import AskedKeys
from heterps.config import Format, Schema, Storage
from heterps.data.decode import DecodeCounts
from heterps.data.sources import Dataset, RowGroup
from heterps.errors import DataError
from heterps.serving.model_columns import kinds_of
from heterps.serving.open_scorer import open_scorer
from heterps.serving.predict import PredictCounts
from heterps.serving.score_inputs import Samples, ScoreError
from heterps.serving.score_rows import Table
from heterps.serving.vectors import Vectors, VectorsById


class _Rows(NamedTuple):
    """A table of an export, as VectorsById needs it."""

    table: Table

    @property
    def dim(self) -> int:
        return self.table.dim

    def pull(self, keys: KeyArray) -> tuple[Vectors, NDArray[np.bool_]]:
        values, unknown = self.table.pull(keys)
        return values, ~unknown


class ExportPredictor:
    """The model of an export, as `Predictor` needs it. The code of the model is not needed."""

    def __init__(self, folder: Path) -> None:
        self.scorer = open_scorer(folder)
        self.version = self.scorer.version
        self._inputs = self.scorer.manifest["inputs"]
        self.format, self.storage = Format.model_validate(self._inputs["csv"]), Storage()
        self.text_columns: Sequence[str] = tuple(
            self._inputs["features"].get(name, {}).get("column") or name
            for name, kind in self._inputs["id_kinds"].items()
            if kind == "string"
        )
        self.columns = tuple(kinds_of(self._inputs))
        self._decoded = DecodeCounts()
        self._lock = threading.Lock()

    def check(self, dataset: Dataset) -> None:
        for file in dataset.files:
            if missing := [name for name in self.columns if name not in file.schema.names]:
                raise DataError(
                    f"{file.address}: the model reads {', '.join(missing)}, but the file has no such column. It has: "
                    f"{', '.join(file.schema.names[:40])}."
                )

    def scores(self, group: RowGroup, table: pa.Table, *, keys: bool) -> dict[str, Any]:
        try:
            found = self.scorer.score(table.select(self.columns))
            of_keys = self._keys(table) if keys else {}
        except (ScoreError, pa.ArrowException) as error:
            raise DataError(f"{group}: {error}") from None
        with self._lock:
            self._decoded.num_rows += table.num_rows
            self._decoded.num_skipped += found.column("score").null_count
        return {**of_keys, **{name: found.column(name) for name in found.column_names}}

    def counts(self) -> PredictCounts:
        return PredictCounts(self._decoded, {"all": AskedKeys(None, self.scorer.num_unknown)})

    def vectors_by_id(self, slot: str, table: str | None = None) -> VectorsById:
        tables = {name: _Rows(self.scorer.table(name)) for name in self._tables_of(slot)}
        return VectorsById(self._schema, tables, slot, table)

    @cached_property
    def _schema(self) -> Schema:
        """The columns of the training data, without labels."""
        dense = self._inputs["dense"]
        return Schema(
            dense=[column["name"] for column in dense],
            widths={column["name"]: column["width"] for column in dense if column["width"] is not None},
            slots=[slot["name"] for slot in self._inputs["slots"]],
            **{name: self._inputs[name] for name in ("features", "same_ids", "id_kinds")},
        )

    def _tables_of(self, slot: str) -> list[str]:
        """The tables that have rows of a slot."""
        found = []
        for embedding in self.scorer.manifest["graphs"]["score"]["embeddings"]:
            of_slots = embedding["tables"] * (len(embedding["slots"]) if len(embedding["tables"]) == 1 else 1)
            found += [name for name, other in zip(of_slots, embedding["slots"], strict=True) if other == slot]
        return list(dict.fromkeys(found))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        pass

    def _keys(self, table: pa.Table) -> dict[str, Any]:
        samples, found = Samples(table, self._inputs), {}
        for slot in self._inputs["slots"]:
            keys, lengths = samples.keys(slot)
            column = pa.array(keys)
            if lengths is not None:
                offsets = np.concatenate([[0], np.cumsum(lengths)])
                column = pa.LargeListArray.from_arrays(pa.array(offsets), column)
            found[f"key_{slot['name']}"] = column
        return found
