"""Check the columns of a data set against the schema: which Arrow types may be labels, dense columns or slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import pyarrow as pa

from heterps.config import Schema
from heterps.config.features import Date, Feature
from heterps.data.file import DataFile
from heterps.data.sources import Dataset
from heterps.errors import DataError

_NUMBERS = "a number: any integer, float, decimal or bool"
_LISTS = "lists of {width} numbers, as data.columns.widths says"
_IDS = "an id: an integer, string or binary, a float that is a whole number, or a list of them"
_USERS = "one id: an integer, string or binary, or a float that is a whole number"


def is_number(kind: Any) -> bool:
    types = pa.types
    return bool(
        types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_boolean(kind)
    ) or types.is_null(kind)


def id_kind(kind: Any) -> str | None:
    """Kind of the ids of an Arrow type: `integer`, `string`, `null` (all values are null), or None if it has no ids."""
    types = pa.types
    if types.is_dictionary(kind):
        return id_kind(kind.value_type)
    if is_list(kind):
        return None if is_list(kind.value_type) else id_kind(kind.value_type)
    if types.is_integer(kind) or types.is_boolean(kind) or types.is_floating(kind):
        return "integer"  # floats are whole numbers, as pandas writes integers where some are missing; decode.py checks
    if types.is_null(kind):
        return "null"
    texts = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary, types.is_string_view)
    return "string" if any(is_text(kind) for is_text in texts) else None


def is_list(kind: Any) -> bool:
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def list_width(kind: Any) -> int | None:
    """Length of the lists of an Arrow type; None if the type is not a list of fixed size."""
    return int(kind.list_size) if pa.types.is_fixed_size_list(kind) else None


def holds_numbers(kind: Any) -> bool:
    """Tell whether a column of this type can be dense: numbers, or lists of numbers."""
    return is_number(kind) or (is_list(kind) and is_number(kind.value_type))


def check_columns(dataset: Dataset, schema: Schema) -> bool:
    """Raise DataError unless every file has the schema's columns with valid types; return whether slots hold lists."""
    return _check(dataset, schema)[0]


def find_id_kinds(dataset: Dataset, schema: Schema) -> Schema:
    """Return the schema with the kind of the ids of every slot and part of a cross; DataError as in `check_columns`."""
    _, kinds = _check(dataset, schema)
    found = {name: kind for name in schema.id_columns if (kind := kinds.get(name, "null")) != "null"}
    return schema.model_copy(update={"id_kinds": {**found, **schema.id_kinds}})


def _check(dataset: Dataset, schema: Schema) -> tuple[bool, dict[str, str]]:
    """Check all files; return whether slots hold lists, and the kind of the ids of each slot."""
    first_seen: dict[str, tuple[str, str]] = {
        name: (kind, "the training data") for name, kind in schema.id_kinds.items()
    }
    ragged = False
    for file in dataset.files:
        in_file = {field.name: field.type for field in file.schema}
        _check_present(file, schema, list(in_file))
        types = _feature_types(file, schema, in_file)
        for name in schema.target_columns:
            if not is_number(types[name]):
                role = "weight" if name == schema.weight else "labels" if schema.labels else "label"
                raise _wrong_type(file, name, types[name], _NUMBERS, role)
        if schema.user is not None and (is_list(types[schema.user]) or id_kind(types[schema.user]) is None):
            raise _wrong_type(file, schema.user, types[schema.user], _USERS, "user")
        for name in schema.dense:
            _check_dense(file, name, types[name], schema.widths.get(name))
        for name in schema.id_columns:
            kind = id_kind(types[name])
            if kind is None:
                raise _wrong_type(file, name, types[name], _IDS, "slots")
            ragged |= name in schema.slots and is_list(types[name])
            seen, other = first_seen.setdefault(name, (kind, file.address))
            if kind != seen and "null" not in (kind, seen):
                raise DataError(
                    f"{file.address}: column {name} holds {kind} ids, but {seen} ids in {other}: the same id "
                    "would get two keys. Write both files with one type; of text, name it in the job: "
                    f"data.format: {{types: {{{name}: string}}}}."
                )
            if seen == "null":
                first_seen[name] = (kind, file.address)
    return ragged, {name: kind for name, (kind, _) in first_seen.items()}


def _feature_types(file: DataFile, schema: Schema, types: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Arrow types of a file's columns and of the features made from them; DataError where one cannot be."""
    made = dict(types)
    crosses = {name: feature for name, feature in schema.features.items() if feature.cross}
    for name, feature in schema.features.items():
        if name not in crosses:
            source = feature.column or name
            made[name] = _feature_type(file, name, source, feature, types[source], name not in schema.dense)
    for name, feature in crosses.items():
        lists = [part for part in feature.cross if is_list(made[part])]
        wrong = [part for part in feature.cross if id_kind(made[part]) is None]
        if wrong or len(lists) > 1:
            problem = f"{wrong[0]} has type {made[wrong[0]]}" if wrong else f"{' and '.join(lists)} all hold lists"
            raise DataError(
                f"{file.address}: the feature {name} is a cross of ids, at most one of them in lists, but {problem}. "
                f"Change data.columns.features.{name}."
            )
        made[name] = pa.large_list(pa.int64()) if lists else pa.int64()
    return made


def _feature_type(file: DataFile, name: str, source: str, feature: Feature, kind: Any, is_id: bool) -> Any:
    if not feature.steps:
        return kind
    inner = kind.value_type if is_list(kind) else kind
    if pa.types.is_dictionary(inner):
        inner = inner.value_type
    of_dates = isinstance(feature.steps[0], Date)
    if not (_is_date(inner) if of_dates else is_number(inner)):
        wanted = "dates: timestamps, dates, numbers or ISO 8601 text" if of_dates else "numbers"
        raise DataError(
            f"{file.address}: column {source} has type {kind}, but the feature {name} is made of {wanted}. Convert the "
            f"column, or change data.columns.features.{name}."
        )
    made = pa.int64() if is_id else pa.float32()
    return pa.large_list(made) if is_list(kind) else made


def _is_date(kind: Any) -> bool:
    types = pa.types
    return is_number(kind) or any(
        is_kind(kind)
        for is_kind in (types.is_timestamp, types.is_date, types.is_string, types.is_large_string, types.is_string_view)
    )


def _check_dense(file: DataFile, name: str, kind: Any, width: int | None) -> None:
    if width is None:
        if is_list(kind) and is_number(kind.value_type):
            found = list_width(kind)
            raise DataError(
                f"{file.address}: column {name} holds lists of {found or 'any number of'} numbers. Say how many the "
                f"model gets of each, under data.columns: widths: {{{name}: {found or 'N'}}}."
            )
        if not is_number(kind):
            raise _wrong_type(file, name, kind, _NUMBERS, "dense")
    elif not (is_list(kind) and is_number(kind.value_type)) or list_width(kind) not in (None, width):
        raise _wrong_type(file, name, kind, _LISTS.format(width=width), "dense")


def _check_present(file: DataFile, schema: Schema, names: Sequence[str]) -> None:
    wanted = schema.sources(schema.decoded_columns)
    missing = [name for name in wanted if name not in names]
    if not missing:
        return
    folded = {name.lower(): name for name in names}
    hints = []
    for name in missing:
        near = get_close_matches(name.lower(), folded, n=1, cutoff=0.6)
        if near and folded[near[0]] not in wanted:
            hints.append(f"{name} may be {folded[near[0]]!r}")
    raise DataError(
        f"{file.address}: the schema names {_listed(missing)}, but the file has no such column"
        f"{' (' + '; '.join(hints[:3]) + ')' if hints else ''}. It has: {_listed(names)}. "
        "Name the columns under data.columns in the job: label, dense, slots."
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:40]) + (f" and {len(names) - 40} more" if len(names) > 40 else "")


def _wrong_type(file: DataFile, name: str, found: Any, allowed: str, role: str) -> DataError:
    return DataError(
        f"{file.address}: column {name} has type {found}, but data.columns.{role} needs {allowed}. "
        f"Convert the column, or take it out of data.columns.{role}."
    )
