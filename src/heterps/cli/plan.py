"""`heterps plan`: the cheapest plan that is fast enough, beside what every other method would do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = """
Examples:

  heterps plan profile.json cluster.yaml --throughput 20000 --samples 1e9

  heterps plan profile.json cluster.yaml --throughput 20000 --samples 1e9 --out plan.json

  heterps plan profile.json cluster.yaml --throughput 20000 --samples 1e9 --method greedy --json

Exit code 3: there is no plan; the error says which constraint binds and what would relax it.
"""


def register(app: typer.Typer) -> None:
    app.command(epilog=EXAMPLES)(plan)


def plan(
    profile: Annotated[Path, typer.Argument(help="The profile, made by `heterps profile`.", show_default=False)],
    cluster: Annotated[Path, typer.Argument(help="The cluster file: resources, prices, limits.", show_default=False)],
    throughput: Annotated[float, typer.Option(help="Least samples a second.", show_default=False)],
    samples: Annotated[float, typer.Option(help="Samples of the data, once through.", show_default=False)],
    epochs: Annotated[float, typer.Option(help="Passes over the data.")] = 1,
    method: Annotated[str, typer.Option(help="exact, brute, greedy, cpu or gpu.")] = "exact",
    seed: Annotated[int, typer.Option(help="Of methods that draw at random.")] = 0,
    seconds: Annotated[float, typer.Option(help="Longest search.")] = 60.0,
    out: Annotated[Path | None, typer.Option(help="Write the plan to this file.", show_default=False)] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON and nothing else.")] = False,
) -> None:
    """Plan which layers run on which resources, and how many units and servers that takes, for the least money."""
    from heterps import planning
    from heterps.config import load_cluster
    from heterps.errors import StorageError
    from heterps.profiling.profile import load_profile

    rented = load_cluster(cluster)
    profiled = load_profile(profile).on(rented)
    if json:
        chosen = planning.plan(
            profiled, rented,
            throughput=throughput, samples=samples, epochs=epochs, method=method, seed=seed, seconds=seconds,
        )  # fmt: skip
        typer.echo(chosen.model_dump_json(exclude_none=True))
    else:
        from rich.console import Console

        from heterps.report.plan_table import show_comparison

        comparison = planning.compare(
            profiled, rented,
            throughput=throughput, samples=samples, epochs=epochs, method=method, seed=seed, seconds=seconds,
        )  # fmt: skip
        chosen = comparison.chosen
        show_comparison(Console(highlight=False), comparison, profiled, throughput)
    if out is not None:
        try:
            chosen.write(out)
        except OSError as error:
            raise StorageError(f"{out}: cannot write the plan: {error.strerror}. Name another file.") from None
