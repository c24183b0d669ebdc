"""The click task as Arrow tables: a label, 13 dense columns, 26 slots, some of them null. See synthetic.py."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from heterps.data.synthetic import CARDINALITIES, DENSE, LABEL, SLOTS, ZIPF_EXPONENT, SyntheticRows, Teacher, make_rows
from heterps.data.task import Drawn


class Clicks:
    """The click task: Criteo-like samples for ctr_dnn, deepfm and two_emb."""

    schema = pa.schema(
        [(LABEL, pa.int8()), *((name, pa.float32()) for name in DENSE), *((name, pa.int64()) for name in SLOTS)]
    )
    possible_ids = int(CARDINALITIES.sum())

    def __init__(self, seed: int, skew: float = ZIPF_EXPONENT) -> None:
        self._seed, self._skew = seed, skew
        self._teacher = Teacher.of(seed, skew)

    def draw(self, first_row: int, num_rows: int, seen: NDArray[np.bool_]) -> Drawn:
        rows = make_rows(self._seed, first_row, num_rows, seen, self._skew)
        probability = self._teacher.probability(rows.score)
        label = rows.draw < probability
        return Drawn(_as_table(rows, label, self.schema), probability, label)


def _as_table(rows: SyntheticRows, label: NDArray[np.bool_], schema: pa.Schema) -> pa.Table:
    columns = [pa.array(label.view(np.int8))]
    columns += [_column(pa.float32(), *pair) for pair in zip(rows.dense, rows.dense_valid, strict=True)]
    columns += [_column(pa.int64(), *pair) for pair in zip(rows.ids, rows.ids_valid, strict=True)]
    return pa.Table.from_arrays(columns, schema=schema)


def _column(kind: pa.DataType, values: NDArray[np.generic], valid: NDArray[np.bool_]) -> pa.Array:
    bitmap = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [bitmap, pa.py_buffer(values)])
