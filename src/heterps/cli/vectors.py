"""`heterps vectors`: the vectors of ids, and the ids nearest to one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from heterps.cli.output import examples, print_json
from heterps.errors import ConfigError
from heterps.report.terminal.consoles import make_console

EXAMPLES = examples(
    "heterps vectors runs/ctr-1 --slot item --ids 4711,4712",
    "heterps vectors runs/ctr-1 --slot item --ids 4711 --neighbours 10 --among data/train",
    "heterps vectors export/ --slot item --among items.parquet --column item_id --out vectors.parquet",
)
SHOWN_VALUES = 6


def vectors(
    model: Annotated[Path, typer.Argument(metavar="RUN|CHECKPOINT|EXPORT", help="The folder of the trained model.")],
    slot: Annotated[str, typer.Option(help="The slot whose ids are meant.")],
    ids: Annotated[str, typer.Option(help="Ids as they are in the data, with commas between them.")] = "",
    neighbours: Annotated[
        int | None, typer.Option(min=1, help="Show this number of ids that are nearest to each of --ids.")
    ] = None,
    among: Annotated[
        str | None, typer.Option(help="Data files with ids: those among which neighbours are, or all that are written.")
    ] = None,
    column: Annotated[str | None, typer.Option(help="Column of ids in --among; by default the slot's.")] = None,
    by: Annotated[str, typer.Option(help="What neighbours are near by: cosine or dot.")] = "cosine",
    table: Annotated[
        str | None, typer.Option(help="Embedding table that has the vectors; by default the widest of the slot.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="File for the vectors: .parquet, .csv or .arrow; without it, they are shown."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON and nothing else.")] = False,
) -> None:
    """Show or write the vectors of ids: the rows that a model has learned for them.

    Ids without a row are refused where they are named, and left out where they come from --among.
    """
    from heterps.serving.results import check_target
    from heterps.serving.source import open_data, open_predictor

    if not ids and (among is None or out is None):
        raise ConfigError("name ids with --ids, or write those of data with --among and --out.")
    if neighbours is not None and (not ids or among is None):
        raise ConfigError("neighbours are of --ids, and among the ids of data: give both --ids and --among.")
    if among is not None and neighbours is None and ids:
        raise ConfigError("--among is for --neighbours, or for --out without --ids.")
    if out is not None:
        check_target(out)
    named = [one.strip() for one in ids.split(",") if one.strip()]
    with open_predictor(model) as trained:
        found = trained.vectors_by_id(slot, table)
        if named:
            found.check(named, "Leave them out of --ids.")
        candidates = [] if among is None else found.distinct(open_data(trained, among), column)
        if neighbours is not None:
            near = {one: found.neighbours(one, neighbours, candidates, by) for one in named}  # type: ignore[arg-type]
            _show_neighbours({one: [tuple(each) for each in each_of] for one, each_of in near.items()}, by, json)
        elif out is not None:
            wanted = named or candidates
            num = found.write(wanted, out)
            _tell(out, num, len(wanted), found.dim, json)
        else:
            _show(dict(zip(named, found.vectors(named).tolist(), strict=True)), json)


def _tell(out: Path, num: int, asked: int, dim: int, json: bool) -> None:
    if json:
        print_json({"out": str(out), "ids": asked, "written": num, "dim": dim}, indent=1)
        return
    left_out = f"; {asked - num:,} ids have no row, and are left out" if asked > num else ""
    make_console().print(f"{num:,} vectors of {dim} values: {out}{left_out}", soft_wrap=True)


def _show(found: dict[str, list[float]], json: bool) -> None:
    if json:
        print_json(found, indent=1)
        return
    table = Table("id", "vector")
    for one, values in found.items():
        more = f" ... ({len(values)} values)" if len(values) > SHOWN_VALUES else ""
        table.add_row(one, " ".join(f"{value:.4g}" for value in values[:SHOWN_VALUES]) + more)
    make_console().print(table)


def _show_neighbours(found: dict[str, list[Any]], by: str, json: bool) -> None:
    if json:
        plain = {one: [{"id": near, by: score} for near, score in each] for one, each in found.items()}
        print_json(plain, indent=1)
        return
    for one, each in found.items():
        table = Table(f"near {one}", by)
        for near, score in each:
            table.add_row(str(near), f"{score:.4f}")
        make_console().print(table)
