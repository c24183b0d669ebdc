"""`heterps data`: make synthetic data sets, turn images and text into Parquet, and look at any data."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from heterps.cli.bar import show_bar
from heterps.cli.output import examples, print_json
from heterps.cli.sources import FORMAT_HELP, STORAGE_HELP, parse_format, parse_storage
from heterps.errors import ConfigError
from heterps.report.terminal.consoles import make_console

if TYPE_CHECKING:
    from heterps.data.generate import DatasetInfo
    from heterps.data.images import ImagesInfo

group = typer.Typer(help="Make and look at training data.", no_args_is_help=True)


@group.command(
    epilog=examples(
        "heterps data synth data --rows 500000 --test-rows 50000 --seed 0",
        "heterps data synth data/skewed --skew 1.3",
        "heterps data synth data/match --task match",
        "heterps data synth data/ratings --task ratings --files tsv",
    )
)
def synth(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write; new or empty.")],
    task: Annotated[
        str, typer.Option(help="What the rows are about: click, match, words, feed, history or ratings.")
    ] = "click",
    rows: Annotated[int, typer.Option(min=1, max=1 << 40, help="Rows to train on.")] = 500_000,
    test_rows: Annotated[int, typer.Option(min=0, max=1 << 40, help="Rows to test on.")] = 50_000,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Another seed, another data set.")] = 0,
    skew: Annotated[
        float | None,
        typer.Option(
            min=0.0, max=4.0, help="Zipf exponent of the popularity of ids.  [default: the task's own; 1.13 for click]"
        ),
    ] = None,
    files: Annotated[str, typer.Option(help="parquet, or tsv, which is text with tabs.")] = "parquet",
    force: Annotated[bool, typer.Option("--force", help="Replace a data set of this command that is in DIR.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print dataset.json instead of a summary.")] = False,
) -> None:
    """Write data with labels of a planted teacher, by default Criteo-like.

    click: 13 dense columns and 26 slots with millions of ids, for ctr_dnn, deepfm and two_emb. match: a user, an item
    and a negative item, for match_net. words: a word, a context and five negatives, for nce. feed: clicks, and ratings
    of what was clicked, for mmoe. history: an item and a list of the items before it, for din and bst. ratings: stars
    for films, with genres, ages, years and times, as in MovieLens.

    --skew says how much more often popular ids come than rare ones: 0 is all alike. Of ratings it is that of films.

    The teacher's own AUC or RMSE, the best that any model can reach, is printed and kept in DIR/dataset.json.
    """
    from heterps.data.generate import generate

    start = time.perf_counter()
    total = rows + test_rows
    with show_bar(f"writing {total:,} rows", "rows", is_shown=not json) as advance:
        info = generate(
            folder, rows, test_rows, seed, skew=skew, task=task, files=files, force=force,
            progress=lambda done: advance("writing", done, total),
        )  # fmt: skip
    if json:
        print_json(info.model_dump_json(indent=2))
    else:
        _show_info(folder, info, time.perf_counter() - start)


@group.command(
    epilog=examples(
        "heterps data images digits data/digits",
        "heterps data images cifar10 cifar-10-binary.tar.gz data/cifar10",
        "heterps data images mnist downloads/mnist data/mnist",
    )
)
def images(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="digits, cifar10, cifar100 or mnist.")],
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="[SOURCE] OUT",
            help="What to read: a folder, a .bin file or a .tar.gz; digits need none. Then the folder to write; new or "
            "empty.",
        ),
    ],
    force: Annotated[bool, typer.Option("--force", help="Replace a data set of this command that is in OUT.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print dataset.json instead of a summary.")] = False,
) -> None:
    """Turn labelled images that you have into Parquet data; nothing is downloaded.

    digits: 8 x 8 pixels, built into scikit-learn. cifar10, cifar100: the binary version, .bin files. mnist: idx files,
    also .gz. Pixels are normalised by mean and deviation of the training set, which OUT/dataset.json keeps.
    """
    from heterps.data.images import open_images, write_images

    if len(paths) > 2:
        raise ConfigError(f"name one SOURCE and one OUT; got {len(paths)} paths: {', '.join(map(str, paths))}.")
    start = time.perf_counter()
    source = open_images(kind, paths[0] if len(paths) == 2 else None)
    with show_bar(f"reading images of {kind}", "images", is_shown=not json) as advance:
        info = write_images(source, paths[-1], force=force, progress=advance)
    if json:
        print_json(info.model_dump_json(indent=2))
    else:
        _show_images(paths[-1], info, time.perf_counter() - start)


@group.command(
    epilog=examples(
        "heterps data describe data/train",
        "heterps data describe ratings.csv --label rating",
        "heterps data describe 's3://bucket/day=*/*.parquet' --rows 1000000 --json",
    )
)
def describe(
    path: Annotated[str, typer.Argument(metavar="PATH", help="A file, folder, glob or address.")],
    label: Annotated[str, typer.Option(help="Name of the label column.")] = "label",
    format: Annotated[str, typer.Option(help=FORMAT_HELP)] = "",
    storage: Annotated[str, typer.Option(help=STORAGE_HELP)] = "",
    rows: Annotated[int | None, typer.Option(min=1, help="Read about this number of rows, not all.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the columns of data: types, missing values, distinct ids, min, mean and max, and what the label is good for.

    Distinct values are counted exactly up to 50,000, above by a sketch that is off by about 0.8 %.
    """
    from heterps.data.describe import describe as describe_data
    from heterps.report.terminal.description_table import show_description

    with show_bar(f"reading {path}", "rows", is_shown=not json) as advance:
        description = describe_data(
            path,
            label,
            options=parse_format(format),
            storage=parse_storage(storage),
            max_rows=rows,
            progress=lambda done, total: advance("reading", done, total),
        )
    if json:
        print_json(description.model_dump_json(indent=2))
    else:
        show_description(path, description)


@group.command(
    epilog=examples(
        "heterps data convert ratings.csv data/ratings",
        "heterps data convert 'logs/day_*.gz' data/criteo --format 'kind: criteo'",
    )
)
def convert(
    source: Annotated[str, typer.Argument(metavar="SRC", help="A file, folder, glob or address.")],
    folder: Annotated[Path, typer.Argument(metavar="DST", help="Folder to write; new or empty.")],
    format: Annotated[str, typer.Option(help=FORMAT_HELP)] = "",
    storage: Annotated[str, typer.Option(help=STORAGE_HELP)] = "",
    threads: Annotated[int | None, typer.Option(min=1, help="Number of threads.  [default: one a core]")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a data set of this command that is in DST.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print _dataset.json instead of a summary.")] = False,
) -> None:
    """Convert data to Parquet, in row groups of 65,536 rows and in the order of the rows.

    Parquet is quicker to read than text, and only the columns that are needed are read. Compressed text is read as a
    stream, however large it is.
    """
    from heterps.data.convert import convert as convert_data

    start = time.perf_counter()
    with show_bar(f"converting {source}", "rows", is_shown=not json) as advance:
        info = convert_data(
            source, folder, options=parse_format(format), storage=parse_storage(storage), force=force,
            num_threads=threads,
            progress=lambda rows: advance("converting", rows, None),
        )  # fmt: skip
    if json:
        print_json(info.model_dump_json(indent=2))
        return
    seconds = time.perf_counter() - start
    make_console().print(
        f"{info.rows:,} rows with {len(info.columns)} columns in {seconds:.1f} s ({info.rows / seconds:,.0f} rows/s). "
        f"A job reads them with data.train: {folder}"
    )


def _show_info(folder: Path, info: DatasetInfo, seconds: float) -> None:
    table = Table(title=f"{folder}: synthetic data ({info.task}) of seed {info.seed}", title_justify="left")
    is_number = info.train.teacher_rmse is not None
    judged = ("mean label", "teacher RMSE") if is_number else ("base rate", "teacher AUC", "log loss")
    for heading in ("split", "rows", "files", *judged, "ids"):
        table.add_column(heading, justify="left" if heading == "split" else "right")
    for name, split in (("train", info.train), ("test", info.test)):
        if split:
            figures = (split.base_rate, split.teacher_auc, split.teacher_log_loss, split.teacher_rmse)
            known = [f"{figure:.4f}" for figure in figures if figure is not None]
            table.add_row(name, f"{split.rows:,}", f"{split.files:,}", *known, f"{split.distinct_ids:,}")
    console = make_console()
    console.print(table)
    rows = info.train.rows + (info.test.rows if info.test else 0)
    console.print(
        f"{rows:,} rows in {seconds:.1f} s ({rows / seconds:,.0f} rows/s); {info.possible_ids:,} ids are possible.\n"
        f"The teacher drew the labels: no model can have a better {'RMSE' if is_number else 'AUC'} than its own."
    )


def _show_images(folder: Path, info: ImagesInfo, seconds: float) -> None:
    table = Table(title=f"{folder}: {info.kind}", title_justify="left")
    for heading in ("split", "rows", "files", "rows of a class"):
        table.add_column(heading, justify="left" if heading == "split" else "right")
    for name, split in (("train", info.train), ("test", info.test)):
        if split:
            fewest, most = min(split.class_rows), max(split.class_rows)
            of_class = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"
            table.add_row(name, f"{split.rows:,}", f"{split.files:,}", of_class)
    console = make_console()
    console.print(table)
    rows = info.train.rows + (info.test.rows if info.test else 0)
    form = f"{info.height} x {info.width} pixels in {'colour' if info.channels == 3 else 'grey'}"
    console.print(f"{rows:,} images of {form}, {info.num_classes} classes, in {seconds:.1f} s. A job reads them with")
    columns = f"num_classes: {info.num_classes}, dense: [image], widths: {{image: {info.num_pixels}}}, slots: []"
    console.print(f"  columns: {{{columns}}}", markup=False, soft_wrap=True)
