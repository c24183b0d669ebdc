"""A compressed file of text that is read once, from its start to its end, without being unpacked on disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from heterps.config import Format
from heterps.data.text.file import START_BYTES, TextFile, first_rows, open_text, parse_rows, with_named_types
from heterps.data.text.lines import LineBlock, cut
from heterps.data.text.types import join_all

_SAMPLED_BLOCKS = 4


class PackedText:
    """Gives the rows of a compressed file block by block. Types of columns are those of its first 65,536 rows."""

    def __init__(self, address: str, fs: Any, path: str, format: type[TextFile], options: Format) -> None:
        self.address = address
        self._fs, self._path, self._options = fs, path, options
        with open_text(address, fs, path) as stream:
            self._rows = format.rows_type(options, stream.read(START_BYTES))
        samples = (first_rows(block.join(), self._rows.syntax) for block in islice(self._blocks(), _SAMPLED_BLOCKS))
        self.types = with_named_types(join_all(map(self._rows.guess, samples)) or self._rows.guess(b""), options)

    def blocks(self) -> Iterator[tuple[int, LineBlock]]:
        """Iterate over the blocks of the file, each with the number of its first row."""
        first_row = 0
        for block in self._blocks():
            yield first_row, block
            first_row += block.num_rows

    def parse(self, first_row: int, block: LineBlock, types: Mapping[str, Any]) -> Any:
        """Return a block as an Arrow table; raises DataError, which names a value that does not fit. Thread-safe."""
        return parse_rows(self.address, self._rows, block.join(), types, first_row, block.num_rows)

    def _blocks(self) -> Iterator[LineBlock]:
        with open_text(self.address, self._fs, self._path) as stream:
            stream.read(self._rows.head_bytes)
            yield from cut(stream, self._rows.syntax)
