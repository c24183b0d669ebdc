"""Cut a stream of text into blocks of whole lines, in one pass at the speed of a compiled loop.

    text      | 16,384 rows | 16,384 rows | the rest |      a row ends at a line end that is not inside quotes
    blocks    |<--- 0 ----->|<--- 1 ----->|<-- 2 --->|      lines without a character are not rows

States of the loop, where values may stand in quotes:

    START of a value --"--> QUOTED --"--> CLOSING --"--> QUOTED         ("" inside quotes is a quote)
          '--other--> PLAIN               '-- delimiter, line end --> START
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

MAX_ROWS = 16_384
"""Most rows of a block. Four random ones make up a block of the reader, so that sorted files are mixed well."""
MAX_BYTES = 16 * 2**20
"""A block ends after this many bytes, however few rows they are."""
MAX_LINE = 64 * 2**20
"""A row longer than this is taken for a quote that is not closed."""
_CHUNK = 4 * 2**20

_NEWLINE, _RETURN, _QUOTE = 10, 13, 34
_START, _PLAIN, _QUOTED, _CLOSING = 0, 1, 2, 3
# Places in the state of the scan.
_IN_QUOTES, _LENGTH, _ROWS, _BYTES = 0, 1, 2, 3


@dataclass(frozen=True)
class Syntax:
    """What decides where a row ends. `delimiter` None: values are never quoted, and every line is a row."""

    delimiter: str | None = None


class LineBlock(NamedTuple):
    """Whole rows of a stream, as the pieces in which they were read."""

    pieces: list[memoryview]
    num_rows: int

    @property
    def num_bytes(self) -> int:
        return sum(map(len, self.pieces))

    def join(self) -> bytes:
        return b"".join(self.pieces)


def cut(stream: IO[bytes], syntax: Syntax, max_rows: int = MAX_ROWS) -> Iterator[LineBlock]:
    """Iterate over the blocks of a stream to its end. Raises ValueError where a quote is never closed."""
    delimiter = -1 if syntax.delimiter is None else ord(syntax.delimiter)
    state = np.zeros(4, np.int64)
    pieces: list[memoryview] = []
    while chunk := stream.read(_CHUNK):
        view, data, at = memoryview(chunk), np.frombuffer(chunk, np.uint8), 0
        quotes = delimiter >= 0 and (state[_IN_QUOTES] in (_QUOTED, _CLOSING) or b'"' in chunk)
        while at < len(data):
            end = _scan(data, at, state, delimiter if quotes else -1, max_rows)
            pieces.append(view[at : abs(end)])
            at = abs(end)
            if end > 0:
                yield LineBlock(pieces, int(state[_ROWS]))
                pieces, state[_ROWS], state[_BYTES] = [], 0, 0
            elif state[_LENGTH] > MAX_LINE:
                raise ValueError(
                    f"a row is longer than {MAX_LINE >> 20} MB: is a quote never closed? Set data.format.quotes to "
                    "false where quotes are ordinary characters"
                )
        if not quotes:  # the short scan does not look for delimiters
            state[_IN_QUOTES] = _START if data[-1] in (delimiter, _NEWLINE) else _PLAIN
    if state[_IN_QUOTES] == _QUOTED:
        raise ValueError(
            "a quote is never closed. Set data.format.quotes to false where quotes are ordinary characters"
        )
    if pieces:
        yield LineBlock(pieces, int(state[_ROWS] + (state[_LENGTH] > 0)))


@njit(nogil=True, cache=True)
def _scan(data: NDArray[np.uint8], at: int, state: NDArray[np.int64], delimiter: int, max_rows: int) -> int:
    """Scan from `at`; return the end of the block, or -len(data) if it goes on after the data. `state` is updated."""
    quoted, length, rows, size = state[_IN_QUOTES], state[_LENGTH], state[_ROWS], state[_BYTES]
    for i in range(at, len(data)):
        byte = data[i]
        if byte == _NEWLINE and quoted != _QUOTED:
            quoted = _START
            rows += length > 0
            length = 0
            if rows >= max_rows or size + i + 1 - at >= MAX_BYTES:
                state[_IN_QUOTES], state[_LENGTH], state[_ROWS], state[_BYTES] = quoted, 0, rows, 0
                return i + 1
            continue
        length += byte != _RETURN
        if delimiter < 0:
            continue
        if quoted == _QUOTED:
            if byte == _QUOTE:
                quoted = _CLOSING
        elif byte == delimiter:
            quoted = _START
        elif byte == _QUOTE and quoted != _PLAIN:
            quoted = _QUOTED
        else:
            quoted = _PLAIN
    state[_IN_QUOTES], state[_LENGTH], state[_ROWS], state[_BYTES] = quoted, length, rows, size + len(data) - at
    return -len(data)
