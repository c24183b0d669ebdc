"""What a model takes of a table: numbers and keys, made as they were in training. score.py is where to begin reading.

    columns --features--> numbers float32 [n, D]
                     +--> ids --hash--> keys, and how many of them each sample has

It needs numpy and pyarrow alone, and is copied into every export beside score.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Array = np.ndarray[Any, Any]


class ScoreError(ValueError):
    """Samples cannot be scored, or an export or increment cannot be used; the text says why and what to do."""


# --- hashing: the same keys and initial values as in training --------------------------------------------------------

U64 = np.uint64
GOLDEN = U64(0x9E3779B97F4A7C15)
NUM_QUANTILES = 4096


def mix64(x: Array) -> Array:
    """Hash 64-bit words by splitmix64's finaliser, a bijection."""
    x = (x ^ (x >> U64(30))) * U64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> U64(27))) * U64(0x94D049BB133111EB)
    mixed: Array = x ^ (x >> U64(31))
    return mixed


def hash_texts(column: Any) -> Array:
    """Hash strings: the length of each, then 8 little-endian bytes at a time."""
    if not len(column):
        return np.empty(0, U64)
    column = column.cast(pa.large_binary())
    ends = np.frombuffer(column.buffers()[1], np.int64, len(column) + 1, column.offset * 8)
    text = np.frombuffer(column.buffers()[2] or b"", np.uint8)[ends[0] : ends[-1]]
    text = np.concatenate([text, np.zeros(8, np.uint8)])
    starts, lengths = ends[:-1] - ends[0], np.diff(ends)
    state = mix64(lengths.astype(U64) + GOLDEN)
    for at in range(0, int(lengths.max()), 8):
        longer = np.flatnonzero(lengths > at)
        words = text[(starts[longer] + at)[:, None] + np.arange(8)]
        words[np.arange(8) >= (lengths[longer] - at)[:, None]] = 0
        state[longer] = mix64(state[longer] ^ words.view("<u8")[:, 0])
    return state


@cache
def quantiles() -> Array:
    """Return the upper half of the normal distribution: entry i is exceeded with the chance i / NUM_QUANTILES / 2."""
    chances = np.arange(NUM_QUANTILES + 1) / (2 * NUM_QUANTILES)
    chances[0] = chances[1] / 8
    return np.array([-NormalDist().inv_cdf(chance) for chance in chances], np.float32)


def initial_values(keys: Array, dim: int, seed: int, init: Mapping[str, Any]) -> Array:
    """Return the values [n, dim] of keys that have no row."""
    if init["kind"] in ("zero", "constant"):
        return np.full((len(keys), dim), init.get("value", 0.0), np.float32)
    hashed = mix64(keys ^ mix64(np.array([seed], U64) ^ GOLDEN))
    bits = mix64(hashed[:, None] + np.arange(1, dim + 1, dtype=U64) * GOLDEN) >> U64(40)
    if init["kind"] == "uniform":
        made = bits.astype(np.float32) * np.float32(2.0**-23) - np.float32(1.0)
        return np.asarray(made * init["scale"], np.float32)
    normal, place = quantiles(), ((bits >> U64(11)) & U64(NUM_QUANTILES - 1)).astype(np.int64)
    part = (bits & U64(2047)).astype(np.float32) * np.float32(2.0**-11)
    made = normal[place] + part * (normal[place + 1] - normal[place])
    return np.asarray(np.where(bits >> U64(23), -made, made) * init["std"], np.float32)


# --- samples: columns of a table as the model takes them -------------------------------------------------------------

DAY_S = 86_400
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
LATEST_S = 253_402_300_800.0  # the end of the year 9999


class Ids(NamedTuple):
    """The ids of one slot, sample by sample, as 64-bit words."""

    words: Array
    null: Array  # bool, of each id
    lengths: Array | None  # number of ids of each sample; None: one of each


class Samples:
    """The columns of a table as a model takes them. `keep` says which samples have all values that they need."""

    def __init__(self, table: pa.Table, inputs: Mapping[str, Any], first_row: int = 0) -> None:
        self.keep = np.ones(len(table), np.bool_)
        self._columns = dict(zip(table.column_names, table.columns, strict=True))
        self._inputs, self._first_row = inputs, first_row

    def dense(self) -> Array:
        """Return the dense columns side by side, float32 [n, D]."""
        columns = [self._numbers(item["name"], item["width"]) for item in self._inputs["dense"]]
        return np.concatenate([np.empty((len(self.keep), 0), np.float32), *columns], axis=1)

    def keys(self, slot: Mapping[str, Any]) -> tuple[Array, Array | None]:
        """Return the keys of a slot, and how many each sample has; None: one of each."""
        name = slot["name"]
        words, null, lengths = self._ids(name)
        keys = mix64(words ^ U64(int(slot["seed"], 16)))
        if null.any():
            keys = np.where(null, U64(int(slot["null_key"], 16)), keys)
            rows = per_sample(null, lengths) > 0
            self._missing(name, rows, self._inputs["slot_missing"], "the id is null", "an id")
        return keys, lengths

    def _numbers(self, name: str, width: int | None) -> Array:
        column, steps = self._source(name)
        is_list = _is_list(column.type)
        if is_list != (width is not None):
            raise self._wrong_type(name, column.type, "a number" if width is None else f"lists of {width} numbers")
        flat, lengths = _flattened(column)
        with np.errstate(over="ignore"):
            values = self._transformed(name, flat, steps).astype(np.float32)
        if width is not None and lengths is not None:
            there = ~_nulls(column)
            if (wrong := there & (lengths != width)).any():
                row = int(np.argmax(wrong))
                raise self._wrong(name, row, f"the list has {lengths[row]} numbers, but the model takes {width}")
            flat_values, values = values, np.full((len(column), width), np.nan, np.float32)
            values[there] = flat_values[(np.cumsum(lengths) - lengths)[there, None] + np.arange(width)]
        values = values.reshape(len(column), width or 1)
        if np.isfinite(values).all():
            return values
        if (infinite := np.isinf(values).any(axis=1)).any():
            problem = "it is not finite as a float32; write a finite value or a null"
            raise self._wrong(name, int(np.argmax(infinite)), problem)
        absent = np.isnan(values)
        rows: Array = np.logical_or.reduce(absent, axis=1)
        self._missing(name, rows, self._inputs["dense_missing"], "the value is null or NaN", "a number")
        return np.where(absent, np.float32(self._inputs["dense_fill"]), values)

    def _ids(self, name: str) -> Ids:
        feature = self._inputs["features"].get(name)
        if feature is not None and feature["cross"]:
            parts = {part: self._ids(part) for part in feature["cross"]}
            lists = [part for part, ids in parts.items() if ids.lengths is not None]
            if len(lists) > 1:
                raise ScoreError(f"the model's column {name} is a cross of ids, at most one of them in lists, but "
                                 f"{' and '.join(lists)} all hold lists. Convert a column.")  # fmt: skip
            return _crossed(list(parts.values()))
        column, steps = self._source(name)
        flat, lengths = _flattened(column)
        if steps:
            numbers = self._transformed(name, flat, steps)
            null = np.isnan(numbers)
            return Ids(np.where(null, 0, numbers).astype(np.int64).view(U64), null, lengths)
        kind, types = flat.type, pa.types
        is_text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
        is_text = is_text or types.is_binary(kind) or types.is_large_binary(kind)
        trained_on = self._inputs["id_kinds"].get(name)
        if not (is_text or _is_number(kind)) or types.is_decimal(kind):
            raise self._wrong_type(name, column.type, "an id: an integer or a string, or a list of them")
        if trained_on is not None and not types.is_null(kind) and (trained_on == "string") != is_text:
            raise self._wrong_type(name, column.type, f"{trained_on} ids, as the training data did: others are unknown")
        if is_text:
            return Ids(hash_texts(flat), _nulls(flat), lengths)
        if not types.is_floating(kind):
            integers = flat if types.is_uint64(kind) or types.is_int64(kind) else flat.cast(pa.int64())
            integers = integers.fill_null(0) if flat.null_count else integers
            return Ids(integers.to_numpy(zero_copy_only=False).view(U64), _nulls(flat), lengths)
        values = flat.cast(pa.float64()).fill_null(np.nan).to_numpy(zero_copy_only=False)
        null = np.isnan(values)
        values = np.where(null, 0.0, values)
        if (wrong := (values != np.floor(values)) | (np.abs(values) > 2.0**53)).any():
            at = int(np.argmax(wrong))
            row = at if lengths is None else int(np.searchsorted(np.cumsum(lengths), at, side="right"))
            raise self._wrong(name, row, f"the id {values[at]} is a float that is not a whole number below 2**53")
        return Ids(values.astype(np.int64).view(U64), null, lengths)

    def _source(self, name: str) -> tuple[Any, Sequence[Mapping[str, Any]]]:
        """Return the column that `name` is made from, and the steps by which it is made."""
        feature = self._inputs["features"].get(name, {})
        source = feature.get("column") or name
        if source not in self._columns:
            raise ScoreError(f"there is no column {source}, which the model needs; there are: "
                             f"{', '.join(self._columns) or 'none'}.")  # fmt: skip
        column = self._columns[source]
        whole = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()  # which copies
        return _plain(whole), feature.get("steps", ())

    def _transformed(self, name: str, values: Any, steps: Sequence[Mapping[str, Any]]) -> Array:
        """Return numbers after all steps of a feature, with NaN for null."""
        try:
            if steps and steps[0]["kind"] == "date":
                return transform(_seconds(values, steps[0]), steps)
            if not _is_number(values.type):
                raise self._wrong_type(name, values.type, "a number")
            return transform(_floats(values), steps) if steps else _floats(values, pa.float32())
        except (pa.ArrowException, ArithmeticError) as error:
            raise ScoreError(f"column {name}: {error}") from None

    def _missing(self, name: str, rows: Array, treatment: str, problem: str, needed: str) -> None:
        if treatment == "error":
            raise self._wrong(name, int(np.argmax(rows)), f"{problem}; the model needs {needed}")
        if treatment == "skip":
            self.keep &= ~rows

    def _wrong(self, name: str, row: int, problem: str) -> ScoreError:
        return ScoreError(f"row {self._first_row + row}, column {name}: {problem}.")

    def _wrong_type(self, name: str, found: Any, needed: str) -> ScoreError:
        return ScoreError(f"column {name} has type {found}, but the model needs {needed}. Convert the column.")


def per_sample(flags: Array, lengths: Array | None) -> Array:
    """Return how many of each sample's ids have a flag [n]; `lengths` are as in Ids."""
    if lengths is None:
        return flags.astype(np.int64)
    return np.bincount(np.repeat(np.arange(len(lengths)), lengths)[flags], minlength=len(lengths))


def transform(values: Array, steps: Iterable[Mapping[str, Any]]) -> Array:
    """Return numbers after all steps of a feature; dates are seconds since 1970, NaN is a missing value."""
    for step in steps:
        match step["kind"]:
            case "log":
                values = np.copysign(np.log1p(np.abs(values)), values)
            case "clip":
                values = np.clip(values, step["low"], step["high"])
            case "standardise":
                values = (values - step["mean"]) / (step["std"] or 1.0)
            case "bucketise":
                found = np.searchsorted(np.asarray(step["borders"]), values, side="right").astype(np.float64)
                values = np.where(np.isnan(values), np.nan, found)
            case "date":
                missing = np.isnan(values)
                made = _date_part(np.where(missing, 0.0, values), step["part"])
                values = np.where(missing, np.nan, made)
    return values


def _date_part(seconds: Array, part: str) -> Array:
    if part == "days":
        return seconds / DAY_S
    whole = np.floor(seconds).astype(np.int64)
    days = whole // DAY_S
    date = days.astype("datetime64[D]")
    month, year = date.astype("datetime64[M]"), date.astype("datetime64[Y]")
    parts: dict[str, Callable[[], Array]] = {
        "minute": lambda: whole // 60 % 60,
        "hour": lambda: whole // 3600 % 24,
        "weekday": lambda: (days + 3) % 7,  # 1970-01-01 was a Thursday; Monday is 0
        "day": lambda: (date - month).astype(np.int64) + 1,
        "day_of_year": lambda: (date - year).astype(np.int64) + 1,
        "month": lambda: month.astype(np.int64) % 12 + 1,
        "year": lambda: year.astype(np.int64) + 1970,
    }
    return parts[part]()


def _seconds(column: Any, date: Mapping[str, Any]) -> Array:
    """Return dates as seconds since 1970: timestamps, dates, numbers or ISO 8601 text."""
    kind, types = column.type, pa.types
    if types.is_date(kind):
        return _floats(column.cast(pa.date32()).cast(pa.int32())) * DAY_S
    if types.is_timestamp(kind):
        return _floats(column.cast(pa.int64())) / PER_SECOND[kind.unit]
    if _is_number(kind):
        seconds = _floats(column) / PER_SECOND[date["unit"]]
        if np.any(np.abs(seconds) > LATEST_S):
            raise ArithmeticError(f"dates are numbers of {date['unit']} since 1970, and one is after the year 9999.")
        return seconds
    text = column.cast(pa.string())
    text = pc.if_else(pc.equal(pc.utf8_trim_whitespace(text), ""), pa.scalar(None, pa.string()), text)
    try:
        parsed = text.cast(pa.timestamp("us"))
    except pa.ArrowInvalid:
        parsed = text.cast(pa.timestamp("us", "UTC"))
    return _floats(parsed.cast(pa.int64())) / PER_SECOND["us"]


def _crossed(parts: Sequence[Ids]) -> Ids:
    """Return one id for each combination; one of the parts may have lists, each id of which is combined."""
    lengths = next((part.lengths for part in parts if part.lengths is not None), None)
    rows = slice(None) if lengths is None else np.repeat(np.arange(len(lengths)), lengths)
    spread = [part if part.lengths is not None else Ids(part.words[rows], part.null[rows], None) for part in parts]
    words = spread[0].words
    for part in spread[1:]:
        words = mix64(mix64(words) ^ part.words)
    return Ids(words, np.logical_or.reduce([part.null for part in spread]), lengths)


def _flattened(column: Any) -> tuple[Any, Array | None]:
    """Return the values of a column, and of lists their lengths; a null list counts as a list of one null."""
    if not _is_list(column.type):
        return column, None
    column = column.cast(pa.large_list(column.type.value_type))
    ends, null, values = column.offsets.to_numpy(), _nulls(column), _plain(column.values)
    lengths = np.where(null, 1, np.diff(ends))
    if not null.any():
        return values.slice(int(ends[0]), int(ends[-1] - ends[0])), lengths
    at = np.arange(lengths.sum()) + np.repeat(ends[:-1] - (np.cumsum(lengths) - lengths), lengths)
    hidden = np.repeat(null, lengths)
    return values.take(pa.array(np.where(hidden, 0, at), mask=hidden)), lengths


def _floats(column: Any, kind: Any = pa.float64()) -> Array:
    column = column if column.type == kind else column.cast(kind, safe=False)
    return np.asarray(column.to_numpy(zero_copy_only=False), kind.to_pandas_dtype())


def _nulls(column: Any) -> Array:
    if not column.null_count:
        return np.zeros(len(column), np.bool_)
    return np.asarray(column.is_null().to_numpy(zero_copy_only=False))


def _plain(column: Any) -> Any:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_number(kind: Any) -> bool:
    types = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean, pa.types.is_null)
    return any(is_kind(kind) for is_kind in types)
