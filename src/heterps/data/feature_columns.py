"""Make the columns that a schema names out of the columns that a file has.

    file: price, time, user, ...                     schema: price, hour, user, user_hour
      price --numbers--> log, standardise --------------> price        float32, null where it was null
      time  --seconds since 1970--> hour ---------------> hour         int64
      user  --------------------------------------------> user         as it is
      user, hour --ids--> cross ------------------------> user_hour    int64, null where a part is null

Lists are changed number by number, and stay lists of the same lengths.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from heterps.config import Schema
from heterps.config.features import Date, Feature
from heterps.data.arrow import integer_ids, nulls_of, one_chunk, read_ids, without_dictionary
from heterps.data.columns import is_list, is_number
from heterps.data.features import DAY_S, Ids, Numbers, cross, transform
from heterps.errors import DataError

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_LATEST_S = 253_402_300_800.0  # the end of the year 9999: later dates are given in another unit


class FeatureColumns:
    """Gives columns of a table by the names of the schema: as they are in the table, or made as features say."""

    def __init__(self, schema: Schema) -> None:
        self._features = schema.features
        self._slots = frozenset(schema.slots) | {part for f in schema.features.values() for part in f.cross}

    def column(self, table: Any, name: str, where: str) -> Any:
        """Return a column in one chunk; raises DataError, which names `where` it is from."""
        feature = self._features.get(name)
        if feature is None:
            return one_chunk(table.column(name))
        if feature.cross:
            return _crossed([_whole(self.column(table, part, where), where, part) for part in feature.cross])
        source = one_chunk(table.column(feature.column or name))
        if not feature.steps:
            return source
        if not feature.is_fitted:
            raise DataError(f"{where}: the feature {name} has no numbers yet: fit the schema with `fit_columns` first.")
        try:
            return _each_value(source, lambda values: _changed(values, feature, is_id=name in self._slots))
        except ValueError as error:
            raise DataError(f"{where}, column {feature.column or name}: {error}.") from None


def numbers_of(column: Any, feature: Feature) -> Numbers:
    """Return the values of a column as numbers, with NaN for null: of dates the seconds since 1970. Lists are flat."""
    values = without_dictionary(column.flatten()) if is_list(column.type) else column
    first = feature.steps[0] if feature.steps else None
    return _seconds(values, first) if isinstance(first, Date) else _numbers(values)


def times_of(column: Any) -> Numbers:
    """Return a column of times as numbers that grow with time, NaN for null: seconds since 1970, or its own numbers."""
    return _numbers(column) if is_number(column.type) else _seconds(column, Date(part="hour"))


# --- values ----------------------------------------------------------------------------------------------------------


def _each_value(column: Any, change: Callable[[Any], Any]) -> Any:
    """Change the values of a column, or those in its lists."""
    if not is_list(column.type):
        return change(column)
    column = column.cast(pa.large_list(column.type.value_type))
    values = change(without_dictionary(column.values))
    offsets = pa.array(column.offsets.to_numpy())  # Arrow refuses a mask beside a slice of offsets
    return pa.LargeListArray.from_arrays(offsets, values, mask=pa.array(nulls_of(column)))


def _changed(values: Any, feature: Feature, *, is_id: bool) -> Any:
    made = transform(numbers_of(values, feature), feature.steps)
    missing = np.isnan(made)
    mask = missing if missing.any() else None
    if is_id:
        return pa.array(np.where(missing, 0, made).astype(np.int64), mask=mask)
    with np.errstate(over="ignore"):  # infinity is refused by name where it is decoded
        return pa.array(made.astype(np.float32), mask=mask)


def _numbers(column: Any) -> Numbers:
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), np.float64)


def _seconds(column: Any, date: Date) -> Numbers:
    """Return dates as seconds since 1970."""
    kind, types = column.type, pa.types
    if types.is_date(kind):
        return _numbers(column.cast(pa.date32()).cast(pa.int32())) * DAY_S
    if types.is_timestamp(kind):
        return _numbers(column.cast(pa.int64())) / _PER_SECOND[kind.unit]
    if not is_number(kind):
        return _numbers(_parsed(column).cast(pa.int64())) / _PER_SECOND["us"]
    seconds = _numbers(column) / _PER_SECOND[date.unit]
    if np.any(np.abs(seconds) > _LATEST_S):
        raise ValueError(
            f"{column[int(np.nanargmax(np.abs(seconds)))].as_py()} is no date in the unit {date.unit}, it is after the "
            f"year 9999. Name its unit: {{date: {{part: {date.part}, unit: ms}}}}"
        )
    return seconds


def _parsed(column: Any) -> Any:
    """Parse ISO 8601 text, with or without an offset from UTC; empty text is null."""
    text = column.cast(pa.string())
    text = pc.if_else(pc.equal(pc.utf8_trim_whitespace(text), ""), pa.scalar(None, pa.string()), text)
    try:
        return text.cast(pa.timestamp("us"))
    except pa.ArrowInvalid:
        pass
    try:
        return text.cast(pa.timestamp("us", "UTC"))
    except pa.ArrowInvalid as error:
        raise ValueError(f"a date must be ISO 8601 text such as 2024-05-31T12:30:00 ({error})") from None


def _whole(column: Any, where: str, name: str) -> Any:
    """Return a column of ids in which floats are integers; raises DataError if one is no whole number."""
    values = column.values if is_list(column.type) else column
    if not pa.types.is_floating(values.type):
        return column
    integers, wrong = integer_ids(values)
    if wrong is not None:
        raise DataError(f"{where}, column {name}: only ids can be crossed, and {values[wrong]} is no whole number.")
    return _each_value(column, lambda _: integers)


def _crossed(parts: list[Any]) -> Any:
    """Cross columns of ids, one of which may hold lists; the result is null where one of them is."""
    lists = [part for part in parts if is_list(part.type)]
    if not lists:
        return _crossed_values(parts)
    column = lists[0].cast(pa.large_list(lists[0].type.value_type))
    lengths = np.diff(column.offsets.to_numpy())
    rows = pa.array(np.repeat(np.arange(len(column)), lengths))
    flat = without_dictionary(column.values.slice(column.offsets[0].as_py(), int(lengths.sum())))
    values = _crossed_values([flat if is_list(part.type) else part.take(rows) for part in parts])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return pa.LargeListArray.from_arrays(pa.array(offsets), values, mask=pa.array(nulls_of(column)))


def _crossed_values(parts: list[Any]) -> Any:
    missing = np.logical_or.reduce([nulls_of(part) for part in parts])
    ids: list[Ids] = [read_ids(part)[0] for part in parts]
    mask: NDArray[np.bool_] | None = missing if missing.any() else None
    return pa.array(cross(ids), mask=mask)
