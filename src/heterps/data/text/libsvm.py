"""Lines of libsvm: a label, and pairs of index and value, which become two lists.

    1 3:1 17:0.5 # comment    -->    label 1.0, ids [3, 17], values [1.0, 0.5]

A query id (`qid:7`), as in ranking data, becomes the column `qid`. Columns: label, ids, values, and qid where the first
row has one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from heterps.config import Format
from heterps.data.text.rows import Misfit, TextRows
from heterps.data.text.types import INTEGER, NUMBER

_LINE = re.compile(rb"\s*[+-]?[0-9.eE+-]+(\s+qid:\d+)?(\s+\d+:[0-9.eE+-]+)*\s*(#.*)?")


class Libsvm(TextRows):
    """A label and pairs of index and value in each line."""

    def __init__(self, options: Format, start: bytes) -> None:
        super().__init__(options, start)
        first = start[self.head_bytes :].split(b"\n", 1)[0]
        if start and not _LINE.fullmatch(first.strip(b"\r")):
            raise ValueError(f"its first line is not a label with pairs of index:value: {first[:60]!r}")
        self._has_queries = b" qid:" in first

    def guess(self, data: bytes) -> dict[str, Any]:  # noqa: ARG002
        types = {"label": NUMBER, "ids": pa.list_(INTEGER), "values": pa.list_(pa.float32())}
        return types | ({"qid": INTEGER} if self._has_queries else {})

    def parse(self, data: bytes, types: Mapping[str, Any]) -> Any:
        text = data.decode("utf-8", errors="replace")
        lines = pa.array([line.split("#", 1)[0].strip() for line in text.split("\n") if line.strip("\r")], pa.string())
        words = pc.utf8_split_whitespace(lines)
        queries = 1 if self._has_queries else 0
        columns = {"label": pc.list_element(words, 0)}
        if queries:
            columns["qid"] = pc.utf8_replace_slice(pc.list_element(words, 1), 0, 4, "")
        pairs = pc.list_slice(words, 1 + queries)
        parts = pc.split_pattern(pairs.flatten(), ":", max_splits=1)
        offsets = pairs.offsets if pairs.offsets[0].as_py() == 0 else pc.subtract(pairs.offsets, pairs.offsets[0])
        for name, place in (("ids", 0), ("values", 1)):
            columns[name] = pa.ListArray.from_arrays(offsets, pc.list_element(parts, place))
        return pa.table({name: columns[name].cast(kind) for name, kind in types.items()})

    def find_misfit(self, data: bytes, types: Mapping[str, Any]) -> Misfit | None:
        rows = [line for line in data.split(b"\n") if line.strip(b"\r")]
        for row, line in enumerate(rows):
            try:
                self.parse(line, types)
            except pa.ArrowInvalid:
                shown = line[:60].decode(errors="replace")
                return Misfit(row, None, f"the line is not a label with pairs of index:value: {shown!r}")
        return None
