"""`heterps init`: write a job file to start from."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from heterps.cli.output import examples, print_json, write_file
from heterps.cli.sources import FORMAT_HELP, STORAGE_HELP, parse_format, parse_storage
from heterps.errors import ConfigError
from heterps.report.terminal.consoles import make_console

EXAMPLES = examples(
    "heterps init ratings.csv",
    "heterps init data/criteo --out criteo.yaml",
    "heterps init u.data --label rating --format 'kind: tsv, names: [user, item, rating, time]'",
)
SAMPLE_ROWS = 500_000


def init(
    data: Annotated[str, typer.Argument(metavar="DATA", help="A file, folder, glob or address.")],
    out: Annotated[Path, typer.Option(help="The job file to write.")] = Path("job.yaml"),
    label: Annotated[str | None, typer.Option(help="Name of the label column.  [default: guessed]")] = None,
    format: Annotated[str, typer.Option(help=FORMAT_HELP)] = "",
    storage: Annotated[str, typer.Option(help=STORAGE_HELP)] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace the job file.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Write a job for data that you have: it guesses label, dense columns and slots, and says why in comments.

    The job trains as it is. A folder with the folders train and test becomes both. Guesses are from 500,000 rows.
    """
    from heterps.config import parse_job
    from heterps.data.describe import describe
    from heterps.data.starter import guess_label, starter_job

    if out.exists() and not force:
        raise ConfigError(f"{out}: this file exists. Name another with --out, or replace it with --force.")
    options, place = parse_format(format), parse_storage(storage)
    train, test = data, None
    if (Path(data) / "train").is_dir():
        train = str(Path(data) / "train")
        test = str(Path(data) / "test") if (Path(data) / "test").is_dir() else None
    look = partial(describe, train, options=options, storage=place, max_rows=SAMPLE_ROWS)
    chosen = guess_label(look("").columns) if label is None else label
    text = starter_job(look(chosen), train, test, options, place)
    parse_job(text, where=str(out))
    write_file(out, "job", partial(_write, text))
    if json:
        print_json({"job": str(out), "train": train, "test": test, "label": chosen})
    else:
        said = f"{out}: a job for {train}. Look at its guesses, then: heterps train {out}"
        make_console().print(said, soft_wrap=True)


def _write(text: str, path: Path) -> None:
    path.write_text(text, encoding="utf-8")
