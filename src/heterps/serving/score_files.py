"""Read files of samples as the training data was read. score.py is where to begin reading.

    .parquet       as it is
    .csv, .tsv     as manifest["inputs"]["csv"] says, which is data.format of the job

It needs pyarrow alone, and is copied into every export beside score.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

FILE_ROWS = 65_536  # rows of Parquet that are read at once
TYPES = {"integer": pa.int64(), "number": pa.float64(), "string": pa.string()}  # by their names in data.format.types
ITEM_TYPES = (pa.int64(), pa.uint64(), pa.float64(), pa.bool_(), pa.string())  # of lists whose type nobody names


def read_samples(path: Path, inputs: Mapping[str, Any]) -> Iterator[pa.Table]:
    """Read a file of samples: Parquet some rows at a time, CSV and TSV whole."""
    if path.suffix in (".csv", ".tsv"):
        yield _read_csv(path, inputs)
        return
    for batch in pq.ParquetFile(path).iter_batches(FILE_ROWS):
        yield pa.Table.from_batches([batch])


def _read_csv(path: Path, inputs: Mapping[str, Any]) -> pa.Table:
    """Read CSV or TSV. Ids that are text in the training data are text, also where all of them look like numbers."""
    options, features = inputs["csv"], inputs["features"]
    texts = (name for name, kind in inputs["id_kinds"].items() if kind == "string")
    types = {features.get(name, {}).get("column") or name: pa.string() for name in texts}
    types |= {name: TYPES[word] for name, word in options["types"].items()}
    usual = "\t" if (options["kind"] or path.suffix[1:]) == "tsv" else ","
    quotes = options["quotes"]
    table = pyarrow.csv.read_csv(
        path,
        pyarrow.csv.ReadOptions(column_names=options["names"]),
        pyarrow.csv.ParseOptions(
            delimiter=options["delimiter"] or usual,
            quote_char='"' if quotes else False,
            double_quote=quotes,
            newlines_in_values=quotes,
        ),
        pyarrow.csv.ConvertOptions(
            column_types={**types, **dict.fromkeys(options["lists"], pa.string())},
            null_values=options["nulls"],
            strings_can_be_null=True,
        ),
    )
    for name, separator in options["lists"].items():
        if name in table.column_names:
            lists = _split(table[name].combine_chunks(), separator, options["nulls"], types.get(name))
            table = table.set_column(table.column_names.index(name), name, lists)
    return table


def _split(texts: Any, separator: str, nulls: Sequence[str], kind: Any) -> Any:
    """Split texts into lists of a type, or of the first one that fits. An item that means no value is null: `1||3`."""
    lists = pc.split_pattern(texts, separator)
    items = pc.if_else(pc.is_in(lists.values, pa.array(nulls, pa.string())), None, lists.values)
    *others, last = ITEM_TYPES if kind is None else (kind,)
    fitting = next((other for other in others if _fits(items, other)), last)
    mask = lists.is_null() if lists.null_count else None
    return pa.ListArray.from_arrays(lists.offsets, items.cast(fitting), mask=mask)


def _fits(items: Any, kind: Any) -> bool:
    try:
        items.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True
