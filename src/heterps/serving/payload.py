"""Rows of requests and scores of answers, as JSON or as an Arrow stream. Everything here is a function of its input.

    {"rows": [{"user": 4711, "price": 9.5}, ...]}       a field that a row leaves out is null in that row
    {"columns": {"user": [4711, ...], "price": [9.5, ...]}}
    application/vnd.apache.arrow.stream                 record batches in Arrow's IPC stream format

Numbers of JSON become float64; ids become int64, or uint64 where one is larger, or strings, so no bit of an id is lost.
What is wrong is said in a Refusal: which column, which row, what to do. Rows are counted from 0.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

JSON = "application/json"
ARROW = "application/vnd.apache.arrow.stream"
VERSION_HEADER = "X-Heterps-Version"
UNKNOWN_HEADER = "X-Heterps-Unknown-Keys"
MAX_EXPANSION = 20
"""Rows of an Arrow stream may grow to this multiple of the largest body when they are decoded, and not beyond."""
MAX_ROWS = 20_000
"""Number of rows that a request may have, unless the server is told otherwise."""
VALUE_BYTES = 8
"""Bytes that a value of a column takes when it is scored, also where it takes none in a stream."""

Shape = Literal["rows", "columns"]


class RequestRefused(Exception):
    """A request that cannot be answered as it is. `status` is the HTTP status, the text is for its sender."""

    def __init__(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.headers = dict(headers or {})


@dataclass(frozen=True)
class Columns:
    """The columns of a request.

    wanted   the columns that the model reads, and whether each holds numbers (others hold ids or dates)
    ignored  columns that may be there and are not read: labels, weights
    types    Arrow types of columns of ids, as far as they are known. A request whose ids are all null has them too, so
             that it can be scored together with others.
    """

    wanted: Mapping[str, bool]
    ignored: Collection[str] = ()
    types: Mapping[str, Any] = field(default_factory=dict)

    def check(self, names: Sequence[str]) -> None:
        """Raise RequestRefused unless `names` has each wanted column once, and nothing that is not known."""
        counts = Counter(names)
        unknown = [name for name in counts if name not in self.wanted and name not in self.ignored]
        missing = [name for name in self.wanted if name not in counts]
        doubled = [name for name, count in counts.items() if count > 1]
        if doubled:
            raise RequestRefused(422, f"The column {_shown(doubled[0])} is there twice. Send each column once.")
        if unknown:
            near = get_close_matches(unknown[0][:100], [*missing, *self.wanted], n=1)
            hint = f"Did you mean {near[0]!r}? " if near else "Leave it out. "
            raise RequestRefused(
                422, f"The column {_shown(unknown[0])} is unknown. {hint}The model reads: {self._listed()}."
            )
        if missing:
            which = f"column {missing[0]!r} is" if len(missing) == 1 else f"columns {_names(missing)} are"
            raise RequestRefused(
                422, f"The {which} missing. The model reads: {self._listed()}. Send null where a value is not known."
            )

    def _listed(self) -> str:
        return _names(list(self.wanted))


# --- rows of a request -----------------------------------------------------------------------------------------------


def read_json(body: bytes, columns: Columns, max_rows: int = MAX_ROWS) -> tuple[Any, Shape]:
    """Return the rows of a JSON body as an Arrow table, and the shape in which they were sent.

    The number of rows and the names of columns are checked before any column is built.
    """
    try:
        content = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RequestRefused(400, f"The body is not JSON: {reason}.") from None
    if not isinstance(content, dict) or len(content) != 1 or not content.keys() <= {"rows", "columns"}:
        raise RequestRefused(
            400,
            'The body must be {"rows": [{"COLUMN": VALUE, ...}, ...]} or {"columns": {"COLUMN": [VALUE, ...], ...}}.',
        )
    if "rows" in content:
        by_name, shape = _columns_of(content["rows"], columns, max_rows), "rows"
    else:
        by_name, shape = _checked_columns(content["columns"], columns, max_rows), "columns"
    arrays = {name: _array(name, by_name[name], is_number) for name, is_number in columns.wanted.items()}
    for name, kind in columns.types.items():
        arrays[name] = arrays[name].cast(kind) if pa.types.is_null(arrays[name].type) else arrays[name]
    return pa.table(arrays), "rows" if shape == "rows" else "columns"


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value; send null where a value is not known")


def _check_num_rows(num_rows: int, max_rows: int) -> None:
    if num_rows > max_rows:
        raise RequestRefused(
            413, f"A request may have {max_rows:,} rows, and this has {num_rows:,} or more. Send fewer."
        )


def _columns_of(rows: Any, columns: Columns, max_rows: int) -> dict[str, list[Any]]:
    if not isinstance(rows, list) or not rows:
        raise RequestRefused(400, f"`rows` must be a list of at least one object, not {_kind_of(rows)}.")
    _check_num_rows(len(rows), max_rows)
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise RequestRefused(400, f"Row {number} must be an object of columns and values, not {_kind_of(row)}.")
    columns.check(list(dict.fromkeys(name for row in rows for name in row)))
    return {name: [row.get(name) for row in rows] for name in columns.wanted}


def _checked_columns(sent: Any, columns: Columns, max_rows: int) -> dict[str, list[Any]]:
    if not isinstance(sent, dict) or not sent:
        raise RequestRefused(400, f"`columns` must be an object of at least one column, not {_kind_of(sent)}.")
    first = next(iter(sent))
    for name, values in sent.items():
        if not isinstance(values, list) or not values:
            raise RequestRefused(
                400, f"Column {_shown(name)} must be a list of at least one value, not {_kind_of(values)}."
            )
        _check_num_rows(len(values), max_rows)
        if len(values) != len(sent[first]):
            raise RequestRefused(
                400,
                f"Columns must be equally long, but {_shown(first)} has {len(sent[first])} values and "
                f"{_shown(name)} has {len(values)}.",
            )
    columns.check(list(sent))
    return sent


def _array(name: str, values: list[Any], is_number: bool) -> Any:
    """Return a column as an Arrow array. Raises RequestRefused, which names the first row that is wrong."""
    attempts: list[Callable[[], Any]]
    if is_number:
        attempts = [
            lambda: pa.array(values, pa.float64()),
            lambda: pa.array(values, pa.list_(pa.float64())),
            lambda: pa.array(_each(values, _as_float)),  # Arrow refuses whole numbers above 2**53
        ]
    else:
        attempts = [
            lambda: pa.array(values),
            lambda: pa.array(_each(values, _as_whole), pa.uint64()),  # Arrow takes no more than 63 bits by itself
            lambda: pa.array(_each(values, _as_whole), pa.list_(pa.uint64())),
        ]
    for attempt in attempts:
        try:
            array = attempt()
        except (pa.ArrowException, ArithmeticError, ValueError, TypeError):
            continue
        if _is_plain(array.type.value_type if pa.types.is_list(array.type) else array.type):
            return array
    raise _explained(name, values, is_number)


def _explained(name: str, values: list[Any], is_number: bool) -> RequestRefused:
    """Say which is the first row of a column that is wrong, or that does not go with the rows before it."""
    wanted = "a number or a list of numbers" if is_number else "an id (a whole number or text) or a list of ids"
    before = is_list = None  # what the rows before hold
    for row, value in enumerate(values):
        for item in value if isinstance(value, list) else [value]:
            kind = _kind_of(item)
            if problem := _problem(item, is_number):
                return RequestRefused(422, f"Row {row}, column {name!r}: {problem}. Send {wanted}, or null.")
            if item is not None and before not in (None, kind):
                return RequestRefused(
                    422, f"Row {row}, column {name!r}: {kind} after {before}. Send one kind of value."
                )
            before = before if item is None else kind
        if value is not None and is_list not in (None, isinstance(value, list)):
            return RequestRefused(422, f"Row {row}, column {name!r}: a column holds lists or single values, not both.")
        is_list = is_list if value is None else isinstance(value, list)
    return RequestRefused(422, f"Column {name!r}: no type holds all of its values. Send {wanted} in each row, or null.")


def _each(values: list[Any], convert: Callable[[Any], Any]) -> list[Any]:
    return [[convert(item) for item in value] if isinstance(value, list) else convert(value) for value in values]


def _as_float(value: Any) -> float | None:
    if value is None or isinstance(value, (int, float)):
        return None if value is None else float(value)
    raise TypeError


def _as_whole(value: Any) -> int | None:
    if value is None or isinstance(value, int):
        return value
    raise TypeError


def _problem(value: Any, is_number: bool) -> str:
    """Say what is wrong with a single value; an empty string if nothing is."""
    if isinstance(value, list):
        return "it holds a list in a list"
    if value is None or isinstance(value, (bool, float)):
        return ""
    if isinstance(value, int):
        if is_number:
            return "" if abs(value) < 2**1023 else f"the number {_shown(value)} is too large"
        return "" if -(2**63) <= value < 2**64 else f"{_shown(value)} does not fit into 64 bits"
    if isinstance(value, str):
        if is_number:
            return f"{_shown(value)} is text, not a number"
        return "" if _is_unicode(value) else f"{_shown(value)} is not valid Unicode"
    return f"it holds {_kind_of(value)}"


def _is_plain(kind: Any) -> bool:
    """Whether an Arrow type is one of single values that JSON has."""
    types = pa.types
    return bool(
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_string(kind)
        or types.is_boolean(kind)
        or types.is_null(kind)
    )


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def read_arrow(body: bytes, columns: Columns, max_bytes: int, max_rows: int = MAX_ROWS) -> Any:
    """Return the rows of an Arrow stream as a table of the wanted columns. Labels and weights are left out.

    A few bytes can stand for many rows or long lists (nulls take none, dictionaries repeat what they hold): rows, and
    bytes as they will be when decoded, are counted batch by batch.
    """
    try:
        with pa.ipc.open_stream(body) as reader:
            columns.check(reader.schema.names)
            batches, num_rows, num_bytes = [], 0, 0
            for batch in reader:
                num_rows += batch.num_rows
                _check_num_rows(num_rows, max_rows)
                _check_num_bytes(num_bytes + batch.nbytes, max_bytes)
                batch.validate(full=True)
                num_bytes += sum(map(_decoded_bytes, batch.columns))
                _check_num_bytes(num_bytes, max_bytes)
                batches.append(batch)
        table = pa.Table.from_batches(batches, reader.schema)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise RequestRefused(400, f"The body is not an Arrow stream: {str(error).splitlines()[0]}.") from None
    if not table.num_rows:
        raise RequestRefused(400, "The stream has no rows. Send at least one.")
    return table.select(list(columns.wanted))


def _check_num_bytes(num_bytes: int, max_bytes: int) -> None:
    if num_bytes > MAX_EXPANSION * max_bytes:
        raise RequestRefused(413, f"The rows take more than {MAX_EXPANSION * max_bytes:,} bytes. Send fewer.")


def _decoded_bytes(array: Any) -> int:
    """Return about how many bytes an Arrow array takes once its dictionaries, views and nulls are written out."""
    types, kind, least = pa.types, array.type, VALUE_BYTES * len(array)
    if not least:
        return 0
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return least + _decoded_bytes(array.values)
    if types.is_dictionary(kind):
        values = array.dictionary
        if _is_text(values.type):
            return least + (pc.sum(pc.binary_length(values).take(array.indices)).as_py() or 0)
        return max(least, 0 if types.is_primitive(values.type) else len(array) * values.nbytes)
    if types.is_string_view(kind) or types.is_binary_view(kind):
        views = np.frombuffer(array.buffers()[1], np.int32)  # 16 bytes a value, of which the first four are its length
        lengths = views[4 * array.offset : 4 * (array.offset + len(array)) : 4]
        return least + int(np.maximum(lengths, 0).sum(dtype=np.int64))
    return max(least, int(array.nbytes))


def _is_text(kind: Any) -> bool:
    types = pa.types
    return bool(
        types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind)
    )


# --- scores of an answer ---------------------------------------------------------------------------------------------


def write_json(scores: Any, version: str, num_unknown: int, shape: Shape) -> bytes:
    """Return scores as JSON, in the shape of the request: null for a row that the schema says to skip.

    JSON has no NaN and no infinity: such a score is null, too.
    """
    rows = scores.to_pylist() if shape == "rows" else scores.to_pydict()
    answer = {"version": version, "num_unknown": num_unknown, shape: rows}
    try:
        text = json.dumps(answer, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(answer), allow_nan=False)
    return text.encode() + b"\n"


def _finite(value: Any) -> Any:
    """Return the same with null in the place of numbers that JSON does not have."""
    match value:
        case dict():
            return {name: _finite(item) for name, item in value.items()}
        case list():
            return [_finite(item) for item in value]
        case float():
            return value if math.isfinite(value) else None
        case _:
            return value


def write_arrow(scores: Any, version: str, num_unknown: int) -> bytes:
    """Return scores as an Arrow stream, with version and unknown keys in the metadata of its schema."""
    sink = pa.BufferOutputStream()
    described = scores.replace_schema_metadata({"version": version, "num_unknown": str(num_unknown)})
    with pa.ipc.new_stream(sink, described.schema) as writer:
        writer.write_table(described)
    body: bytes = sink.getvalue().to_pybytes()
    return body


# --- words -----------------------------------------------------------------------------------------------------------


def _kind_of(value: Any) -> str:
    if value == [] or value == {}:
        return "an empty one"
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list():
            return "a list"
        case _:
            return "an object"


def _shown(value: Any) -> str:
    text = ascii(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:40]) + (f" and {len(names) - 40} more" if len(names) > 40 else "")
