"""`heterps server`: run parameter servers, and look at them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

group = typer.Typer(help="Run parameter servers and look at them.", no_args_is_help=True)

KeyFile = Annotated[
    Path | None,
    typer.Option("--key", help="The job's key file; needed for addresses beyond this machine.", show_default=False),
]


def register(app: typer.Typer) -> None:
    app.add_typer(group, name="server")


@group.command(
    epilog="Example: heterps server start job.yaml --address ipc:///tmp/ps-0 --address ipc:///tmp/ps-1 --shard 0"
)
def start(
    job: Annotated[Path, typer.Argument(help="The job file; its model says which tables.", show_default=False)],
    address: Annotated[
        list[str],
        typer.Option(help="Of every server of the job, in the order of their shards.", show_default=False),
    ],
    shard: Annotated[int, typer.Option(min=0, help="Which of the addresses this server is, from 0.")] = 0,
    key: KeyFile = None,
) -> None:
    """Run one server of a job in this process until SIGTERM or Ctrl-C.

    Addresses are ipc://PATH or tcp://HOST:PORT; beyond loopback they need a key. What the server holds ends with it.
    """
    from heterps.config import load_job
    from heterps.errors import ConfigError
    from heterps.launch.servers import first_roster, job_tables, run_server
    from heterps.ps.server import Server
    from heterps.wire.keys import load_keys

    if shard >= len(address):
        raise ConfigError(f"--shard {shard}: the last of {len(address)} addresses is shard {len(address) - 1}")
    keys = load_keys(key) if key is not None else None
    roster = first_roster(address)
    server = Server(f"server-{shard}", roster, job_tables(load_job(job)))
    run_server(
        server,
        address[shard],
        keys=keys,
        ready=lambda where: typer.echo(f"{server.name} (shard {shard} of {len(address)}) listens at {where}"),
    )


@group.command(epilog="Example: heterps server stats ipc:///tmp/ps-0 --json")
def stats(
    address: Annotated[str, typer.Argument(help="Where the server listens.", show_default=False)],
    key: KeyFile = None,
    json: Annotated[bool, typer.Option("--json", help="Print the statistics as JSON.")] = False,
) -> None:
    """Print what a server holds and has done: rows, bytes, pulls, pushes, rates, latencies, refusals."""
    from msgspec.json import decode, format
    from rich.console import Console

    from heterps.ps.ask import ask, asker_channel
    from heterps.ps.messages import AskStats
    from heterps.ps.stats import ServerStats
    from heterps.report.server_table import server_table
    from heterps.wire.keys import load_keys

    channel = asker_channel({address: address}, load_keys(key) if key is not None else None)
    try:
        _, frames = ask(channel, address, AskStats(1))
    finally:
        channel.close()
    if json:
        typer.echo(format(bytes(frames[0]), indent=1).decode())
    else:
        Console(highlight=False).print(server_table(decode(frames[0], type=ServerStats)))
