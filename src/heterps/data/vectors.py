"""Vectors by id in files of data: a column of ids, whose keys are those of a slot, and one of lists of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from heterps.arrays import FloatArray, KeyArray
from heterps.data.arrow import floats_of, nulls_of
from heterps.data.columns import id_kind, is_list, is_number
from heterps.data.decode import key_column
from heterps.data.sources import Dataset, RowGroup
from heterps.errors import DataError


def read_vectors(
    dataset: Dataset, id_column: str, vector_column: str, slot: str, kind: str | None = None
) -> tuple[KeyArray, FloatArray]:
    """Return the keys [n] of ids as the slot has them, and their vectors [n, width].

    `kind` is that of the slot's ids, integer or string: the same id of another kind has another key. Raises DataError
    for ids that are missing, twice there or of another kind, and for vectors that differ in length or are not finite.
    """
    keys, vectors, groups = [], [], []
    for group in dataset.row_groups:
        _check_types(group, id_column, vector_column, kind)
        table = group.file.read(group.index, [id_column, vector_column]).combine_chunks()
        ids, lists = (table.column(name).combine_chunks() for name in (id_column, vector_column))
        if (missing := nulls_of(ids)).any():
            raise group.error(int(np.argmax(missing)), id_column, "the id is null")
        keys.append(key_column(ids, slot))
        vectors.append(_matrix(group, vector_column, lists))
        groups.append(group)
        if vectors[-1].shape[1] != vectors[0].shape[1]:
            raise group.error(0, vector_column, f"the vector is not of {vectors[0].shape[1]} numbers, as others are")
    found = np.concatenate(keys)
    order = np.argsort(found, kind="stable")
    if (twice := found[order][1:] == found[order][:-1]).any():
        row = int(order[1:][np.argmax(twice)])
        group = groups[int(np.searchsorted(np.cumsum([len(part) for part in keys]), row, side="right"))]
        raise DataError(
            f"{group.file.address}: an id of column {id_column} is there twice. Keep one vector of each id."
        )
    return found, np.concatenate(vectors)


def _check_types(group: RowGroup, id_column: str, vector_column: str, kind: str | None) -> None:
    types = {field.name: field.type for field in group.file.schema}
    for name in (id_column, vector_column):
        if name not in types:
            raise DataError(f"{group.file.address}: there is no column {name}. It has: {', '.join(types)}.")
    found = None if is_list(types[id_column]) else id_kind(types[id_column])
    if found is None or (kind is not None and found != kind):
        raise DataError(
            f"{group.file.address}: column {id_column} has type {types[id_column]}, but the ids of the training data "
            f"are of kind {kind or 'integer or string'}: the same id would get another key. Convert the column."
        )
    if not (is_list(types[vector_column]) and is_number(types[vector_column].value_type)):
        raise DataError(f"{group.file.address}: column {vector_column} has type {types[vector_column]}, not lists.")


def _matrix(group: RowGroup, name: str, lists: Any) -> FloatArray:
    """The lists of a column as a matrix; DataError where one is missing, of another length or not finite."""
    if (missing := nulls_of(lists)).any():
        raise group.error(int(np.argmax(missing)), name, "the vector is null")
    lengths = lists.value_lengths().to_numpy(zero_copy_only=False)
    if (wrong := lengths != lengths[0]).any():
        row = int(np.argmax(wrong))
        raise group.error(row, name, f"the vector has {lengths[row]} numbers, the first one {lengths[0]}")
    matrix = np.array(floats_of(lists.flatten())).reshape(len(lists), int(lengths[0]))
    if not (finite := np.isfinite(matrix).all(axis=1)).all():
        raise group.error(int(np.argmin(finite)), name, "the vector has a number that is missing or not finite")
    return matrix
