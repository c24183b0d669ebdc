"""Blocks of a text end where rows end, as Python's csv module sees them, however the text is read and quoted."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

import heterps.data.text.lines as lines
from heterps.data.text.lines import Syntax, cut

VALUES = st.text(alphabet='a",;\n1', max_size=6)
ROWS = st.lists(st.lists(VALUES, min_size=2, max_size=2), max_size=30)


def rows_of(text: str) -> list[list[str]]:
    return [row for row in csv.reader(io.StringIO(text, newline="")) if row]


@given(rows=ROWS, max_rows=st.integers(1, 7), chunk=st.integers(1, 9), ends=st.sampled_from(["\n", "\r\n"]))
def test_blocks_hold_whole_rows_of_csv(rows: list[list[str]], max_rows: int, chunk: int, ends: str) -> None:
    written = io.StringIO(newline="")
    csv.writer(written, lineterminator=ends).writerows(rows)
    text = written.getvalue()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "_CHUNK", chunk)
        blocks = list(cut(io.BytesIO(text.encode()), Syntax(","), max_rows))
    parts = [block.join().decode() for block in blocks]
    assert "".join(parts) == text
    assert [row for part in parts for row in rows_of(part)] == rows_of(text)
    assert [block.num_rows for block in blocks] == [len(rows_of(part)) for part in parts]
    assert all(block.num_rows == max_rows for block in blocks[:-1])


def test_empty_lines_are_no_rows_and_the_last_line_needs_no_end() -> None:
    (block,) = cut(io.BytesIO(b"a\n\n\r\nb\nc"), Syntax())
    assert block.num_rows == 3


def test_a_quote_inside_a_value_is_an_ordinary_character() -> None:
    blocks = list(cut(io.BytesIO(b'5" disk,1\n3" disk,2\n'), Syntax(","), max_rows=1))
    assert [block.join() for block in blocks] == [b'5" disk,1\n', b'3" disk,2\n']


def test_a_block_ends_after_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_CHUNK", 1 << 20)
    line = b"x" * (1 << 20) + b"\n"
    sizes = [block.num_rows for block in cut(io.BytesIO(line * 40), Syntax(), max_rows=1000)]
    assert sizes == [16, 16, 8]


def test_a_quote_that_is_never_closed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"quote is never closed.*data\.format\.quotes"):
        list(cut(io.BytesIO(b'1,"a\n2,b\n'), Syntax(",")))
    monkeypatch.setattr(lines, "MAX_LINE", 100)
    monkeypatch.setattr(lines, "_CHUNK", 10)
    with pytest.raises(ValueError, match="is a quote never closed"):
        list(cut(io.BytesIO(b'1,"a\n' + b"2,b\n" * 100), Syntax(",")))
