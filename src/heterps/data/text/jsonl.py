"""JSON lines: one object in each line, whose fields are the columns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.json as pa_json

from heterps.data.text.rows import BLOCK_BYTES, Misfit, TextRows, wrong_value
from heterps.data.text.types import INTEGER, NUMBER, STRING, join, join_all, type_of_dates


class JsonLines(TextRows):
    """Objects with one field for each column. A field that is absent is null; objects inside are not read."""

    def guess(self, data: bytes) -> dict[str, Any]:
        rows = [row for line in data.splitlines() if line.strip() and isinstance(row := _loads(line), dict)]
        if not rows and data.strip():
            raise ValueError("its first lines hold no JSON object")
        types = join_all({name: _type_of(value) for name, value in row.items()} for row in rows)
        return {name: _dated(kind, [row.get(name) for row in rows]) for name, kind in types.items()}

    def parse(self, data: bytes, types: Mapping[str, Any]) -> Any:
        options = pa_json.ParseOptions(
            explicit_schema=pa.schema(list(types.items())), unexpected_field_behavior="ignore"
        )
        if len(data) > BLOCK_BYTES:
            with suppress(pa.ArrowInvalid):  # a value that does not fit, or a row that is longer than a block
                return self._parse(data, BLOCK_BYTES, options).select(list(types))
        return self._parse(data, len(data) + 1, options).select(list(types))

    @staticmethod
    def _parse(data: bytes, block_bytes: int, parse_options: Any) -> Any:
        read_options = pa_json.ReadOptions(use_threads=False, block_size=block_bytes)
        return pa_json.read_json(pa.BufferReader(data), read_options=read_options, parse_options=parse_options)

    def find_misfit(self, data: bytes, types: Mapping[str, Any]) -> Misfit | None:
        lines = [line for line in data.split(b"\n") if line.strip(b"\r")]
        for row, line in enumerate(lines):
            value = _loads(line)
            if not isinstance(value, dict):
                return Misfit(row, None, f"the line is not a JSON object: {line[:60].decode(errors='replace')!r}")
            try:
                self.parse(line, types)
            except pa.ArrowInvalid:
                for name, kind in types.items():
                    if join(kind, _type_of(value.get(name))) != kind:
                        return wrong_value(row, name, value.get(name), kind)
                return Misfit(row, None, f"the line cannot be read: {line[:60].decode(errors='replace')!r}")
        return None


def _loads(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _type_of(value: Any) -> Any:
    if isinstance(value, list):
        return pa.list_(join_all({"": _type_of(item)} for item in value).get("", pa.null()))
    if isinstance(value, dict):
        return pa.struct([])
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        return INTEGER if -(2**63) <= value < 2**63 else pa.uint64() if 0 <= value < 2**64 else NUMBER
    return {float: NUMBER, str: STRING}.get(type(value), pa.null())


def _dated(kind: Any, values: list[Any]) -> Any:
    """The type of a column of strings that are all dates is that of dates."""
    return (kind == STRING and type_of_dates(pa.array(values, STRING).drop_null())) or kind
