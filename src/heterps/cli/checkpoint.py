"""`heterps checkpoint`: see, verify, compare and remove the checkpoints of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heterps.cli.output import examples, print_json
from heterps.errors import RunError
from heterps.report.terminal.consoles import make_console

group = typer.Typer(help="See, verify, compare and remove checkpoints.", no_args_is_help=True)
Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON and nothing else.")]
RUN_OR_ONE = "A run, or one of its checkpoints."


@group.command(epilog=examples("heterps checkpoint ls runs/ctr-1", "heterps checkpoint ls runs/ctr-1 --json"))
def ls(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    json: Json = False,
) -> None:
    """List the checkpoints of a run, the oldest first: clock, samples, size, and what is visibly wrong."""
    from heterps.checkpoint.inspection import listed
    from heterps.report.terminal.checkpoint_tables import list_table

    found = listed(_folder(run))
    if json:
        print_json([each._asdict() for each in found], indent=1)
    elif not found:
        make_console(soft_wrap=True).print(f"{run} has no checkpoint yet.", markup=False)
    else:
        make_console().print(list_table(found))


@group.command(
    epilog=examples(
        "heterps checkpoint verify runs/ctr-1",
        "heterps checkpoint verify runs/ctr-1/checkpoints/0000001234",
        note="Exit code 6: one of them is damaged.",
    )
)
def verify(
    path: Annotated[Path, typer.Argument(metavar="RUN|CHECKPOINT", help=RUN_OR_ONE)],
    json: Json = False,
) -> int:
    """Read every byte of a checkpoint, or of all of a run, and check it against its digest, as a resume does."""
    from heterps.checkpoint.finished import finished
    from heterps.checkpoint.inspection import verify as problem_of

    paths = [each.path for each in finished(_folder(path))] if _is_run(path) else [path]
    if not paths:
        raise RunError(f"{path} has no checkpoint yet: there is nothing to verify.")
    problems = {each: problem_of(each) for each in paths}
    if json:
        print_json([{"name": p.name, "path": str(p), "problem": problem} for p, problem in problems.items()], indent=1)
    else:
        console = make_console(soft_wrap=True)
        for each, problem in problems.items():
            console.print(f"{each.name}  {'good' if problem is None else f'DAMAGED: {problem}'}", markup=False)
    return 0 if not any(problems.values()) else RunError.exit_code


@group.command(
    epilog=examples(
        "heterps checkpoint diff runs/a/checkpoints/0000001234 runs/b/checkpoints/0000001234",
    )
)
def diff(
    first: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="A checkpoint.")],
    second: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="Another, of this run or another one.")],
    json: Json = False,
) -> None:
    """Show how two checkpoints differ: rows that came, went and changed, and dense weights.

    Rows are compared bit by bit, with their optimizer state.
    """
    from heterps.checkpoint.inspection import compare
    from heterps.report.terminal.checkpoint_tables import difference_view

    found = compare(first, second)
    if json:
        tables = {name: table._asdict() for name, table in found.tables.items()}
        print_json({**found._asdict(), "tables": tables, "equal": found.is_none}, indent=1)
    else:
        make_console().print(difference_view(found))


@group.command(
    epilog=examples(
        "heterps checkpoint rm runs/ctr-1/checkpoints/0000001000",
        note="Exit code 6: nothing was removed, and why.",
    )
)
def rm(
    checkpoints: Annotated[list[Path], typer.Argument(metavar="CHECKPOINT", help="Checkpoints of one run.")],
    force: Annotated[bool, typer.Option("--force", help="Remove them even if no good one stays.")] = False,
    json: Json = False,
) -> None:
    """Remove checkpoints of a run that does not run. The only good one stays, unless with --force."""
    from heterps.checkpoint.inspection import discard
    from heterps.training.run.control import refuse_if_running

    paths = [Path(path.parent.resolve(), path.name) for path in checkpoints]
    for path in paths:
        if path.parent.name != "checkpoints" or not (path.parent.parent / "job.yaml").is_file():
            raise RunError(
                f"{path} is not in the folder checkpoints/ of a run: nothing was removed. Name it as in "
                "runs/ctr-1/checkpoints/0000001234."
            )
        refuse_if_running(path.parent.parent)
    discard(paths, force=force)
    if json:
        print_json({"removed": [path.name for path in paths]}, indent=1)
    else:
        make_console(soft_wrap=True).print(f"removed {', '.join(path.name for path in paths)}", markup=False)


def _is_run(path: Path) -> bool:
    return (path / "job.yaml").is_file() or (path / "checkpoints").is_dir()


def _folder(run: Path) -> Path:
    """Return the folder with the checkpoints of a run."""
    if not _is_run(run):
        raise RunError(f"{run} is no run: it has neither job.yaml nor checkpoints/. Check the path.")
    return run / "checkpoints"
