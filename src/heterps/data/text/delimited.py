"""Lines of values with a character between them: CSV, TSV, and the TSV of Criteo's click logs."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from contextlib import suppress
from csv import QUOTE_MINIMAL, QUOTE_NONE
from csv import reader as line_reader
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

from heterps.config import Format
from heterps.data.text.lines import Syntax, cut
from heterps.data.text.rows import BLOCK_BYTES, BOM, Misfit, TextRows, names_listed, wrong_value
from heterps.data.text.types import INTEGER, STRING, first_misfit, type_of_texts

CRITEO_DENSE = tuple(f"I{i}" for i in range(1, 14))
CRITEO_SLOTS = tuple(f"C{i}" for i in range(1, 27))
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_OTHER_DELIMITERS = ("\t", ";", "|", ",", " ")


class Delimited(TextRows):
    """Values with a delimiter between them. The first line names the columns, unless the job does."""

    delimiter = ","

    def __init__(self, options: Format, start: bytes) -> None:
        super().__init__(options, start)
        self.delimiter = options.delimiter or self.delimiter
        self.syntax = Syntax(self.delimiter if options.quotes else None)
        if options.names is not None:
            self.names = options.names
        else:
            self.names, self.head_bytes = self._header(start)
        if strange := sorted(options.lists.keys() - set(self.names)):
            raise ValueError(f"data.format.lists names {', '.join(strange)}, but has only {names_listed(self.names)}")

    def guess(self, data: bytes) -> dict[str, Any]:
        texts = self._read(data, dict.fromkeys(self.names, STRING), skip_misfits=True)
        return {name: self._type_of(name, texts.column(name).combine_chunks()) for name in self.names}

    def parse(self, data: bytes, types: Mapping[str, Any]) -> Any:
        return self._with_lists(self._read(data, {name: _single(kind) for name, kind in types.items()}), types)

    def find_misfit(self, data: bytes, types: Mapping[str, Any]) -> Misfit | None:
        short: list[Misfit] = []

        def note(row: Any) -> str:
            problem = f"the line has {row.actual_columns} values, but there are {row.expected_columns} columns"
            short.append(Misfit(row.number - 1, None, f"{problem}: {str(row.text)[:60]!r}"))
            return "skip"

        texts = self._read(data, dict.fromkeys(types, STRING), note=note)
        if short:
            return short[0]
        found = []
        for name, kind in types.items():
            column = texts.column(name).combine_chunks()
            rows = self._items(column, self.options.lists[name]) if pa.types.is_list(kind) else column
            values = rows.flatten() if pa.types.is_list(kind) else rows
            if (at := first_misfit(values, _item(kind))) is not None:
                row = int(pc.list_parent_indices(rows)[at].as_py()) if pa.types.is_list(kind) else at
                found.append(wrong_value(row, name, values[at].as_py(), kind))
        return min(found, key=lambda misfit: misfit.row, default=None)

    # --- the header --------------------------------------------------------------------------------------------------

    def _header(self, start: bytes) -> tuple[tuple[str, ...], int]:
        """Return the names in the first line, and its number of bytes."""
        first = next(iter(cut(io.BytesIO(start), self.syntax, max_rows=1)), None)
        if first is None:
            raise ValueError("it is empty: not even a header names its columns")
        line = first.join()
        text = io.StringIO(line.removeprefix(BOM).decode(), newline="")
        quoting: Any = QUOTE_MINIMAL if self.options.quotes else QUOTE_NONE
        names = tuple(name.strip() for name in next(line_reader(text, delimiter=self.delimiter, quoting=quoting)))
        self._check_header(names)
        return names, len(line)

    def _check_header(self, names: tuple[str, ...]) -> None:
        if len(names) == 1 and (other := next((d for d in _OTHER_DELIMITERS if d in names[0]), None)):
            raise ValueError(
                f"its first line has no {self.delimiter!r}, but {other!r}: if that is between the values, set "
                f"data.format: {{delimiter: {other!r}}}"
            )
        empty = [name for name in names if not name]
        if empty or len(set(names)) < len(names) or any(_NUMBER.fullmatch(name) for name in names):
            criteo = " If these are Criteo's click logs, set data.format: {kind: criteo}." if len(names) == 40 else ""
            raise ValueError(
                f"its first line is no header: {names_listed(names)}. Name its {len(names)} columns in the job: "
                f"data.format: {{names: [...]}}.{criteo}"
            )

    # --- Arrow's reader ----------------------------------------------------------------------------------------------

    def _read(self, data: bytes, types: Mapping[str, Any], *, note: Any = None, skip_misfits: bool = False) -> Any:
        if not data:
            return pa.table({name: pa.array([], kind) for name, kind in types.items()})
        convert = csv.ConvertOptions(
            column_types=dict(types),
            include_columns=list(types),
            null_values=list(self.options.nulls),
            strings_can_be_null=True,
        )
        parse = self._parse_options(data, (lambda _: "skip") if skip_misfits else note)
        if note is None and len(data) > BLOCK_BYTES:
            with suppress(pa.ArrowInvalid):  # a value that does not fit, or a row that is longer than a block
                return self._parse(data, BLOCK_BYTES, parse, convert)
        return self._parse(data, len(data) + 1, parse, convert)

    def _parse(self, data: bytes, block_bytes: int, parse_options: Any, convert_options: Any) -> Any:
        return csv.read_csv(
            pa.BufferReader(data),
            read_options=csv.ReadOptions(use_threads=False, block_size=block_bytes, column_names=list(self.names)),
            parse_options=parse_options,
            convert_options=convert_options,
        )

    def _parse_options(self, data: bytes, invalid_row_handler: Any = None) -> Any:
        quoted = self.options.quotes and b'"' in data
        return csv.ParseOptions(
            delimiter=self.delimiter,
            quote_char='"' if quoted else False,
            double_quote=quoted,
            newlines_in_values=quoted,
            invalid_row_handler=invalid_row_handler,
        )

    # --- lists -------------------------------------------------------------------------------------------------------

    def _type_of(self, name: str, texts: Any) -> Any:
        if (separator := self.options.lists.get(name)) is None:
            return type_of_texts(texts)
        return pa.list_(type_of_texts(self._items(texts, separator).flatten()))

    def _items(self, texts: Any, separator: str) -> Any:
        """Split texts into lists of texts. An empty item, as in `a||b`, is null."""
        lists = pc.split_pattern(texts, separator)
        items = pc.if_else(pc.is_in(lists.values, pa.array(self.options.nulls, STRING)), None, lists.values)
        return pa.ListArray.from_arrays(lists.offsets, items, mask=lists.is_null() if lists.null_count else None)

    def _with_lists(self, table: Any, types: Mapping[str, Any]) -> Any:
        for i, (name, kind) in enumerate(types.items()):
            if pa.types.is_list(kind):
                lists = self._items(table.column(name).combine_chunks(), self.options.lists[name])
                table = table.set_column(i, name, lists.cast(kind))
        return table


class Tabbed(Delimited):
    """Values with tabs between them."""

    delimiter = "\t"


class Criteo(Tabbed):
    """Criteo's click logs: a label, 13 whole numbers and 26 hexadecimal ids, which are strings. There is no header."""

    def __init__(self, options: Format, start: bytes) -> None:
        names = ("label", *CRITEO_DENSE, *CRITEO_SLOTS)
        super().__init__(options.model_copy(update={"names": names, "quotes": False}), start)
        num_values = start.split(b"\n", 1)[0].count(b"\t") + 1
        if start and num_values != len(names):
            raise ValueError(f"a line of Criteo's has {len(names)} values, its first line has {num_values}")

    def guess(self, data: bytes) -> dict[str, Any]:  # noqa: ARG002
        return {name: STRING if name in CRITEO_SLOTS else INTEGER for name in self.names}


def _single(kind: Any) -> Any:
    """The type as which Arrow's reader reads a column: lists are split afterwards."""
    return STRING if pa.types.is_list(kind) else kind


def _item(kind: Any) -> Any:
    return kind.value_type if pa.types.is_list(kind) else kind
