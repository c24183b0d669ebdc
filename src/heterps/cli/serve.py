"""`heterps serve`: score rows over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heterps.cli.output import examples, print_json
from heterps.errors import ConfigError
from heterps.report.terminal.consoles import make_console

EXIT_CODES = {2: 130, 15: 143}
EXAMPLES = examples(
    "heterps serve exports/ctr",
    "heterps serve exports/ctr --follow runs/ctr-1",
    "heterps serve exports/ctr --increments exports/changes --port 9000",
    "heterps serve exports/ctr --host 0.0.0.0 --token-file token",
    note="POST /score takes rows; GET /model, /health and /metrics describe the model and the server.",
)


def serve(
    export: Annotated[Path, typer.Argument(metavar="EXPORT", help="The folder that `heterps export` wrote.")],
    follow: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Run folder of a job whose newest versions are to be served.")
    ] = None,
    increments: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder to which `heterps export --since` adds increments; each is applied."),
    ] = None,
    every_s: Annotated[
        float, typer.Option(min=0.1, max=3600.0, help="Seconds between two versions that a followed job is asked for.")
    ] = 1.0,
    host: Annotated[str, typer.Option(help="Address to listen at; beyond loopback a token is needed.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 takes a free one.")] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File with the token that requests must carry; or set HETERPS_TOKEN."),
    ] = None,
    max_batch: Annotated[int, typer.Option(min=1, help="Rows that are scored at once, of several requests.")] = 1024,
    max_wait_ms: Annotated[
        float, typer.Option(min=0.0, help="Milliseconds that a request may wait for others to join it.")
    ] = 2.0,
    queue: Annotated[int, typer.Option(min=1, help="Requests that may wait; more are refused with 503.")] = 256,
    deadline_s: Annotated[
        float, typer.Option(min=0.001, help="Seconds in which a request is answered, or refused with 503.")
    ] = 10.0,
    max_body_mb: Annotated[
        float, typer.Option(min=0.001, help="Size of the largest body in MiB; larger ones are refused with 413.")
    ] = 16.0,
    max_rows: Annotated[
        int, typer.Option(min=1, help="Rows that a request may have; more are refused with 413.")
    ] = 20_000,
    json: Annotated[bool, typer.Option("--json", help="Print a line of JSON once requests are taken.")] = False,
) -> int:
    """Score rows over HTTP with an exported model, and follow the job that trains it.

    With --follow, versions of a running job are put in place as it writes them, without a pause; each request is scored
    by one version. SIGTERM and Ctrl-C end it after the requests under way.
    """
    from heterps.serving.serve import ServeSettings, serve_export

    if follow is not None and increments is not None:
        raise ConfigError("--follow and --increments: versions come from one place. Give one of the two.")
    settings = ServeSettings(
        host=host,
        port=port,
        token_file=token_file,
        max_batch=max_batch,
        max_wait_s=max_wait_ms / 1000,
        queue=queue,
        deadline_s=deadline_s,
        max_body_mb=max_body_mb,
        max_rows=max_rows,
        every_s=every_s,
    )
    console = make_console(stderr=json, soft_wrap=True)

    def ready(url: str, version: str) -> None:
        if json:
            print_json({"url": url, "version": version})
        else:
            console.print(f"version {version} of {export} at {url}   POST /score   Ctrl-C stops", markup=False)

    number = serve_export(
        export,
        settings,
        follow=follow,
        increments=increments,
        ready=ready,
        tell=lambda text: console.print(text, markup=False),
    )
    return EXIT_CODES.get(number, 0)
