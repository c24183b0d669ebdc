"""`heterps server`: run parameter servers, and look at them."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from heterps.cli.output import examples, print_json
from heterps.config import load_job
from heterps.errors import ConfigError
from heterps.report.terminal.consoles import make_console

group = typer.Typer(help="Run parameter servers and look at them.", no_args_is_help=True)

KeyFile = Annotated[
    Path | None,
    typer.Option("--key", help="The job's key file, as `heterps keys create` makes it; tcp addresses need it."),
]


@group.command(
    epilog=examples(
        "heterps server start job.yaml --address ipc://./ps-0 --address ipc://./ps-1 --shard 0",
        "heterps server start job.yaml --address ipc://./ps-0 --plan plan.json",
        "heterps server start job.yaml --address ipc://./ps-2 --join ipc://./ps-0",
        "heterps server start job.yaml --address ipc://./ps-0 --metrics 127.0.0.1:9100",
    )
)
def start(
    job: Annotated[Path, typer.Argument(metavar="JOB", help="The job file; its model says which tables.")],
    address: Annotated[
        list[str],
        typer.Option(
            help="Addresses of all servers of the job, in the order of their shards; with --join, of this one."
        ),
    ],
    shard: Annotated[int, typer.Option(min=0, help="Which of the addresses this server is, from 0.")] = 0,
    join: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="A server of a running job: be one more, empty until `heterps server rebalance`."
        ),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(
            help="The plan that the job is trained by, of which every stage has dense tables of its own; if left out, "
            "that of a job with workers."
        ),
    ] = None,
    key: KeyFile = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Tell Prometheus about this server at http://HOST:PORT/metrics; port 0 takes a free one.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with the token that Prometheus must send, needed beyond loopback; or set HETERPS_TOKEN.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Say where it listens as JSON.")] = False,
) -> None:
    """Run one server of a job in this process until SIGTERM or Ctrl-C.

    Addresses are tcp://HOST:PORT, with the job's key, or ipc://PATH in a folder of your own. What the server holds ends
    with it.
    """
    from heterps.launch.server_metrics import ServerFigures
    from heterps.launch.servers import first_roster, joined_roster, run_server
    from heterps.planning.plan import load_plan
    from heterps.ps.server.server import Server
    from heterps.serving.metrics_socket import open_metrics
    from heterps.training.protocol.stage_tables import job_tables
    from heterps.wire.keys import load_keys

    if join is not None and (len(address) > 1 or shard):
        raise ConfigError("--join: give the one --address of the new server, and no --shard; it becomes the last")
    if shard >= len(address):
        raise ConfigError(f"--shard {shard}: the last of {len(address)} addresses is shard {len(address) - 1}")
    opened = open_metrics(metrics, token_file)
    keys = load_keys(key) if key is not None else None
    roster = first_roster(address) if join is None else joined_roster(join, address[0], keys)
    number = shard if join is None else roster.num_shards - 1
    read = load_job(job)
    by_plan = plan or (read.plan if read.has_workers else None)
    firsts = [stage.first for stage in load_plan(by_plan).stages] if by_plan is not None else [0]
    server = Server(roster.servers[number].name, roster, job_tables(read, firsts), joining=join is not None)

    def listens(where: str) -> None:
        if json:
            told = {"server": server.name, "shard": number, "shards": roster.num_shards, "address": where}
            print_json(told | ({"metrics": opened.url} if opened else {}))
            return
        typer.echo(f"{server.name} (shard {number} of {roster.num_shards}) listens at {where}")
        if opened is not None:
            typer.echo(f"metrics at {opened.url}")

    figures = ServerFigures(server)
    with opened.tell(figures.exposition) if opened is not None else nullcontext():
        run_server(
            server,
            address[shard],
            keys=keys,
            servers=read.servers,
            seed=read.seed,
            ready=listens,
            ticked=figures.note,
        )


@group.command(
    epilog=examples(
        "heterps server rebalance ipc://./ps-2",
        "heterps server rebalance ipc://./ps-0 --drop-last",
    )
)
def rebalance(
    address: Annotated[
        str,
        typer.Argument(metavar="ADDRESS", help="Address of the server that joins; with --drop-last, of any server."),
    ],
    drop_last: Annotated[
        bool, typer.Option("--drop-last", help="Empty the server that joined last, so that it can be stopped.")
    ] = False,
    key: KeyFile = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Move rows to a server that joins, or from one that leaves, while training goes on.

    About 1/n of the rows move, and no gradient is lost or applied twice. If it breaks off, run it again.
    """
    from heterps.launch.servers import rebalance_servers
    from heterps.wire.keys import load_keys

    roster, moved_bytes = rebalance_servers(
        address, drop_last=drop_last, keys=load_keys(key) if key is not None else None
    )
    if json:
        print_json({"epoch": roster.epoch, "shards": roster.num_shards, "moved_bytes": moved_bytes})
        return
    typer.echo(f"epoch {roster.epoch}: {roster.num_shards} servers, {moved_bytes / 2**20:,.1f} MiB moved")


@group.command(epilog="Example: heterps server stats ipc://./ps-0 --json")
def stats(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="Where the server listens.")],
    key: KeyFile = None,
    json: Annotated[bool, typer.Option("--json", help="Print the statistics as JSON.")] = False,
) -> None:
    """Print what a server holds and has done: rows, bytes, pulls, pushes, rates, latencies, refusals."""
    from msgspec.json import decode, format

    from heterps.ps.client.ask import ask, asker_channel
    from heterps.ps.protocol.messages import AskStats
    from heterps.ps.server.stats import ServerStats
    from heterps.report.terminal.server_table import server_table
    from heterps.wire.keys import load_keys

    channel = asker_channel({address: address}, load_keys(key) if key is not None else None)
    try:
        _, frames = ask(channel, address, AskStats(1))
    finally:
        channel.close()
    if json:
        print_json(format(bytes(frames[0]), indent=1).decode())
    else:
        make_console().print(server_table(decode(frames[0], type=ServerStats)))
