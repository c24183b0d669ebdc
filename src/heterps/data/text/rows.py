"""The contract of a format of text: how pieces of whole lines become rows of typed columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from heterps.config import Format
from heterps.data.text.lines import Syntax
from heterps.data.text.types import words_for

BLOCK_BYTES = 512 * 2**10
"""Arrow parses a piece of text in blocks of this size: they stay in the cache, which makes it twice as fast."""
BOM = b"\xef\xbb\xbf"


class Misfit(NamedTuple):
    """A row of a piece of text that cannot be read: its number, its column if it is one value, and what is wrong."""

    row: int
    column: str | None
    problem: str


class TextRows(ABC):
    """Parses the lines of one file, which begins with the bytes `start`: its first line may say what is in it.

    The constructor raises ValueError if the file has another format.
    """

    head_bytes: int  # number of bytes before the first row
    syntax = Syntax()  # what decides where a row ends

    def __init__(self, options: Format, start: bytes) -> None:
        self.options = options
        self.head_bytes = len(BOM) if start.startswith(BOM) else 0

    @abstractmethod
    def guess(self, data: bytes) -> dict[str, Any]:
        """Return the Arrow type of every column in a piece of text, by its values."""

    @abstractmethod
    def parse(self, data: bytes, types: Mapping[str, Any]) -> Any:
        """Return the named columns of a piece of text, of these types, as an Arrow table; raises ArrowInvalid."""

    @abstractmethod
    def find_misfit(self, data: bytes, types: Mapping[str, Any]) -> Misfit | None:
        """Find why `parse` fails: the first row that cannot be read. It may be slow."""


def wrong_value(row: int, column: str, value: object, kind: Any) -> Misfit:
    """The misfit of a value that is not of its column's type, with advice."""
    shown = str(value) if len(str(value)) <= 40 else str(value)[:40] + "..."
    return Misfit(
        row,
        column,
        f"{shown!r} is not {words_for(kind)}, as the values of a sample of the rows are. Mend it, or name the type of "
        f"the column (string, number or integer) in the job: data.format: {{types: {{{column}: string}}}}",
    )


def names_listed(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
