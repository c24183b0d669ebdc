"""`heterps export`: a folder that scores without heterps."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from heterps.cli.output import examples, print_json
from heterps.errors import ConfigError
from heterps.report.terminal.consoles import make_console

if TYPE_CHECKING:
    from heterps.serving.export import Exported

EXAMPLES = examples(
    "heterps export runs/ctr-1 --to model",
    "heterps export runs/ctr-1 --to model --format onnx --values fp16",
    "heterps export runs/ctr-1 --to increment-1 --since 1234",
    "heterps export runs/ctr-1/checkpoints/0000001234 --to model",
    note="Score with it: python model/score.py samples.parquet --out scores.parquet",
)


def export(
    source: Annotated[Path, typer.Argument(metavar="RUN|CHECKPOINT", help="A run, or one of its checkpoints.")],
    to: Annotated[Path, typer.Option(help="The folder to write, which must be new or empty.")],
    format: Annotated[str, typer.Option(help="What runs the graph: torch, or onnx for onnxruntime.")] = "torch",
    values: Annotated[str, typer.Option(help="How the values of rows are stored: fp32, fp16 or int8.")] = "fp32",
    since: Annotated[
        str | None, typer.Option(metavar="VERSION", help="Write an increment from this version, exported before.")
    ] = None,
    items: Annotated[
        str | None,
        typer.Option(metavar="DATA", help="Two towers: the items that get a vector.  [default: of the training data]"),
    ] = None,
    index: Annotated[bool, typer.Option("--index", help="Two towers: write a FAISS index of the items.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON and nothing else.")] = False,
) -> None:
    """Export a trained model: a folder with its graph, rows and preprocessing, and a score.py that needs no heterps.

    With --since it writes an increment: changed rows, deleted keys and all weights, for an export of that version. If
    the model is still of that version, nothing is written, and the exit code is 0.
    """
    from heterps.serving.export import export as write
    from heterps.serving.export_files import Values
    from heterps.serving.graph import Format

    done = write(
        source,
        to,
        format=one_of("--format", format, get_args(Format)),
        values=one_of("--values", values, get_args(Values)),
        since=since,
        items=items,
        index=index,
    )
    if json:
        print_json(done.fields(), indent=1)
    else:
        _show(done)


def one_of(option: str, value: str, allowed: tuple[Any, ...]) -> Any:
    """The value of an option, if it is allowed; else a ConfigError."""
    if value not in allowed:
        raise ConfigError(f"{option} {value}: it must be one of {', '.join(allowed)}.")
    return value


def _show(done: Exported) -> None:
    console = make_console(soft_wrap=True)
    size = f"{done.num_bytes / 1e6:,.1f} MB"
    if done.folder is None:
        console.print(f"nothing is new since version {done.version}: no increment was written")
    elif done.parent is None:
        console.print(f"{done.folder}: version {done.version}, {done.num_rows:,} rows, {size}")
        console.print(f"Score with it: python {done.folder / 'score.py'} samples.parquet --out scores.parquet")
    else:
        share = f", {done.num_bytes / done.full_bytes:.1%} of a full export" if done.full_bytes else ""
        console.print(f"{done.folder}: from version {done.parent} to {done.version}, {size}{share}")
        console.print(f"{done.num_rows:,} rows changed or new, {done.num_gone:,} deleted")
    if done.num_items is not None:
        console.print(f"two towers: user and item graphs, {done.num_items:,} items with their vectors")
    if done.quality is not None:
        found = dict(done.quality)
        data, metric, (whole, stored) = found.pop("data"), found.pop("metric"), found.items()
        console.print(f"{metric} on {data} data: {stored[1]:.6f} with {stored[0]}, {whole[1]:.6f} with {whole[0]}")
    for note in done.notes:
        console.print(note, markup=False)
