"""The command line: one file a command. Heavy imports (torch, numba) stay inside the commands that need them.

make inputs    init, data, profile, keys             plan         plan (measure, plan_variants), prices
run            train, server                         running      status, scale, replan, ui
look back      report, trace, checkpoint, config     use          predict, export, serve, vectors
simulate       simulate, with the parts measured, simulated, spot and virtual
shared         output (JSON and files), usage (errors of usage), sources (--format, --storage), bar (progress)

Read first: this file, then train.py.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Annotated, Any

import typer

from heterps import __version__
from heterps.cli import (
    checkpoint,
    config,
    data,
    export,
    init,
    keys,
    plan,
    predict,
    prices,
    profile,
    replan,
    report,
    scale,
    serve,
    server,
    simulate,
    status,
    trace,
    train,
    ui,
    vectors,
)
from heterps.cli.output import examples, json_alone, unwrapped
from heterps.cli.usage import explain_usage
from heterps.errors import HeterpsError
from heterps.report.terminal.consoles import make_console

UsageError: Any = typer.BadParameter.__base__  # click's, or that of the copy of click inside newer typers

app = typer.Typer(
    name="heterps",
    help="Train large sparse models on the cheapest mix of machines that is fast enough.",
    epilog=examples(
        "heterps data synth data --rows 100000",
        "heterps init data",
        "heterps train job.yaml",
        "heterps ui",
        note="Put --debug anywhere to see the traceback of an error. Exit codes: 0 done, 2 bad input, "
        "3 no feasible plan, 4 bad data, 5 bad model, 6 bad run or checkpoint, 7 storage, "
        "8 a process failed, 130 interrupted, 143 told to stop.",
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command, epilog in (
    (init.init, init.EXAMPLES),
    (profile.profile, profile.EXAMPLES),
    (prices.prices, prices.EXAMPLES),
    (plan.plan, plan.EXAMPLES),
    (simulate.simulate, simulate.EXAMPLES),
    (train.train, train.EXAMPLES),
    (predict.predict, predict.EXAMPLES),
    (vectors.vectors, vectors.EXAMPLES),
    (status.status, status.EXAMPLES),
    (scale.scale, scale.EXAMPLES),
    (replan.replan, replan.EXAMPLES),
    (report.report, report.EXAMPLES),
    (export.export, export.EXAMPLES),
    (serve.serve, serve.EXAMPLES),
    (ui.ui, ui.EXAMPLES),
    (trace.trace, trace.EXAMPLES),
):
    app.command(epilog=epilog)(command)
GROUPS = (data, checkpoint, server, config, keys)
for module in GROUPS:
    app.add_typer(module.group, name=module.__name__.rpartition(".")[2])
for registered in (*app.registered_commands, *(one for module in GROUPS for one in module.group.registered_commands)):
    registered.help = unwrapped(registered.callback.__doc__ if registered.callback else "")


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"heterps {__version__}")
        raise typer.Exit


@app.callback()
def heterps(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits with its code; errors that a user can fix are shown without a traceback."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        with json_alone() if "--json" in words else nullcontext():
            code = app(words, prog_name="heterps", standalone_mode=False)
    except UsageError as error:
        _show_error(explain_usage(error))
        sys.exit(2)
    except typer.Abort:
        sys.exit(130)
    except HeterpsError as error:
        if debug:
            raise
        _show_error(str(error))
        sys.exit(error.exit_code)
    sys.exit(code if isinstance(code, int) else 0)


def _show_error(text: str) -> None:
    stderr = make_console(stderr=True, soft_wrap=True)
    stderr.print("[bold red]error:[/] ", end="")
    stderr.print(text, markup=False)
