"""`heterps predict`: score data by a trained model."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.table import Table

from heterps.cli.bar import show_bar
from heterps.cli.output import examples, print_json
from heterps.cli.sources import FORMAT_HELP, STORAGE_HELP, parse_format, parse_storage
from heterps.report.terminal.consoles import make_console

EXAMPLES = examples(
    "heterps predict runs/ctr-1 data/test --out scores.parquet",
    "heterps predict runs/ctr-1/checkpoints/0000001234 today.csv --columns user,item --out scores.csv",
    "heterps predict export/ 's3://bucket/day=*/*.parquet' --out scores.parquet --json",
    "heterps predict runs/ctr-1 data/test --columns C1,C2      shows the first ten rows",
)
SHOWN_ROWS = 10
T = TypeVar("T")


def predict(
    model: Annotated[Path, typer.Argument(metavar="RUN|CHECKPOINT|EXPORT", help="The folder of the trained model.")],
    data: Annotated[str, typer.Argument(metavar="DATA", help="A file, folder, glob or address; no label is needed.")],
    out: Annotated[
        Path | None, typer.Option(help="File for the scores: .parquet, .csv or .arrow; without it, ten rows are shown.")
    ] = None,
    columns: Annotated[
        str, typer.Option(help="Columns of the data to keep beside the scores: their names, or all.")
    ] = "",
    keys: Annotated[
        bool, typer.Option("--keys", help="Write the 64-bit keys of all slots, as tables know them.")
    ] = False,
    format: Annotated[str, typer.Option(help=FORMAT_HELP)] = "",
    storage: Annotated[str, typer.Option(help=STORAGE_HELP)] = "",
    workers: Annotated[int | None, typer.Option(min=1, help="Number of threads.  [default: one a core]")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Number of rows that are scored at once.")] = 4096,
    json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON and nothing else.")] = False,
) -> None:
    """Score the rows of data files by the model of a run, in the order of the rows.

    A score is a probability for a binary label, a list of them for classes, a value or a rate for others; with several
    labels there is a column score_NAME for each but the main one. The model is the best checkpoint of a run that
    validates, else its newest. Ids that were not seen in training read their initial values, and are counted.
    """
    from heterps.serving.predict import Kept, first_rows, predict_groups
    from heterps.serving.results import check_target, write_results
    from heterps.serving.source import open_data, open_predictor

    if out is not None:
        check_target(out)
    start = time.perf_counter()
    with open_predictor(model, batch_size) as predictor:
        dataset = open_data(predictor, data, _given(format, parse_format), _given(storage, parse_storage))
        names = dataset.files[0].schema.names if columns == "all" else [name for name in columns.split(",") if name]
        kept = Kept(tuple(name.strip() for name in names), keys)
        results = predict_groups(predictor, dataset, kept, num_threads=workers or os.cpu_count() or 1)
        if out is None:
            _show(first_rows(results, SHOWN_ROWS), json)
            return
        num_rows = 0
        with show_bar(f"scoring {dataset.num_rows:,} rows", "rows", is_shown=not json) as advance:
            for written in write_results(results, out):
                num_rows += written
                advance("scoring", written, dataset.num_rows)
        _report(predictor, out, num_rows, time.perf_counter() - start, json)


def _given(text: str, parse: Callable[[str], T]) -> T | None:
    return parse(text) if text else None


def _report(predictor: Any, out: Path, num_rows: int, seconds: float, json: bool) -> None:
    counts = predictor.counts()
    asked = sum(found.num or 0 for found in counts.asked.values())
    unknown = sum(found.num_unknown for found in counts.asked.values())
    done = {
        "out": str(out),
        "rows": num_rows,
        "seconds": round(seconds, 3),
        "version": predictor.version,
        "without_score": counts.decoded.num_skipped,
        "missing": counts.decoded.missing,
        "ids": asked or None,
        "unknown_ids": unknown,
        "unknown_ids_by_table": {name: found.num_unknown for name, found in counts.asked.items()},
    }
    if json:
        print_json(done, indent=1)
        return
    console = make_console()
    console.print(
        f"{num_rows:,} rows scored in {seconds:.1f} s ({num_rows / seconds:,.0f} rows/s) by version "
        f"{predictor.version} of the model: {out}",
        soft_wrap=True,
    )
    if unknown:
        share = f" of {asked:,} ids ({unknown / asked:.1%})" if asked else " ids"
        console.print(f"{unknown:,}{share} have no row, and read their initial values.")
    if counts.decoded.num_skipped:
        console.print(f"{counts.decoded.num_skipped:,} rows have no score, since a value is missing.")


def _show(results: Any, json: bool) -> None:
    """Prints rows of results: as JSON a list of objects, else as a table."""
    if json:
        print_json(results.to_pylist(), indent=1)
        return
    table = Table()
    for name in results.column_names:
        table.add_column(name, justify="right" if name == "row" or name.startswith("score") else "left")
    for row in results.to_pylist():
        table.add_row(*map(_shown, row.values()))
    make_console().print(table)


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_shown, value))
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
