"""`heterps prices`: what can be rented, and for how much."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heterps.cli.output import examples, print_json
from heterps.config import load_cluster
from heterps.report.terminal.consoles import make_console

EXAMPLES = examples(
    "heterps prices",
    "heterps prices --cluster cluster.yaml",
    "heterps prices --json",
)


def prices(
    cluster: Annotated[
        Path | None, typer.Option(help="A cluster file: show its prices and limits beside list prices.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the list as JSON instead of a table.")] = False,
) -> None:
    """List the resources of the catalogue with their list prices, on demand and spot, and what they can do.

    A cluster file may name them (`v100-spot: {limit: 8}`, or `kind: v100-spot`) and leave device and price out.
    """
    from heterps.report.terminal.price_table import cluster_table, price_list, price_table, rented_list

    rented = load_cluster(cluster) if cluster is not None else None
    if json:
        print_json(price_list() if rented is None else rented_list(rented), indent=1)
        return

    console = make_console()
    console.print(price_table(console.width) if rented is None else cluster_table(rented))
