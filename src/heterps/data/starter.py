"""Write a job to start from: guess what the columns of a data set are for, and say why in comments.

    Description (describe.py) --> label, dense, slots, left out: each with a reason --> the text of a job file

A guess is by the type of a column, then by its name, then by its number of distinct values:

    string, bool, list of ids             slots          a date                                  slots: weekday, hour
    a number with a fraction              dense          a whole number with the name of an id   slots
    a whole number, up to 20 distinct     slots          any other whole number                  dense
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from heterps.config import Format, Storage
from heterps.data.describe import ColumnDescription, Description
from heterps.errors import ConfigError

LABELS = ("label", "target", "y", "click", "clicked", "is_click", "converted", "conversion", "rating", "score", "stars")
_ID_WORDS = "id|ids|uid|key|hash|code|zip|user|item|movie|product|ad|campaign|category|type|class|device|site|app|genre"
_ID_NAME = re.compile(rf"(^|_)({_ID_WORDS})s?($|_)|id$|Id$|ID$|^C\d+$")
_TIME_NAME = re.compile(r"(^|_)(time|timestamp|ts|date|datetime|day)($|_)")
_MAX_CATEGORIES = 20
_EPOCH_S = (5e8, 5e9)  # seconds since 1970 of the years 1985 to 2128


@dataclass
class _Guess:
    """What the columns of a data set are for. Texts are the reasons."""

    dense: dict[str, str] = field(default_factory=dict)
    slots: dict[str, str] = field(default_factory=dict)
    unused: dict[str, str] = field(default_factory=dict)
    features: dict[str, Any] = field(default_factory=dict)  # as in a job


def guess_label(columns: Sequence[ColumnDescription]) -> str:
    """Return the column that is most probably the label: by its name, else the first with the values 0 and 1."""
    numbers = [column for column in columns if column.min is not None and "list" not in column.type]
    by_name = {column.name.lower(): column.name for column in numbers}
    for name in LABELS:
        if name in by_name:
            return by_name[name]
    for column in numbers:
        if (column.min, column.max, column.distinct) == (0.0, 1.0, 2):
            return column.name
    raise ConfigError(
        f"none of the columns is called {', '.join(LABELS[:4])} or the like, or holds 0 and 1 only: "
        f"{', '.join(column.name for column in columns[:40])}. "
        "Say which one is the label: --label NAME, in Python label="
    )


def starter_job(
    description: Description,
    train: str,
    test: str | None,
    options: Format = Format(),
    storage: Storage = Storage(),
) -> str:
    """Return the text of a job that trains on a described data set, whose label is `description.label`."""
    label, guess = _guess(description)
    if not guess.slots:
        raise ConfigError(
            "no column looks like an id or a category, and the models that come with heterps need one. Name slots in a "
            "job of your own, for example {bucketise: 20} of a number: docs/how-to/features.md"
        )
    return _text(description, label, guess, train, test, {"format": options, "storage": storage})


def guess_columns(description: Description) -> dict[str, Any]:
    """Return the fields of `data.columns` that `starter_job` would write."""
    label, guess = _guess(description)
    target = {"label": label.name} if description.label_kind == "binary" else {"labels": {label.name: "mse"}}
    return {**target, "dense": list(guess.dense), "slots": list(guess.slots), "features": guess.features}


def _guess(description: Description) -> tuple[ColumnDescription, _Guess]:
    label = next((column for column in description.columns if column.name == description.label), None)
    if label is None:
        numbers = [column.name for column in description.columns if column.min is not None]
        raise ConfigError(
            "the label must be a column of numbers, such as 0 and 1. Write its values as numbers, or say which column "
            f"it is: --label NAME, in Python label=. Columns of numbers: {', '.join(numbers[:40]) or 'none'}."
        )
    if description.label_problem is not None:
        raise ConfigError(f"the label {label.name} cannot be trained as it is: {description.label_problem}.")
    guess = _Guess()
    for column in description.columns:
        if column is not label:
            _place(column, guess)
    return label, guess


def _place(column: ColumnDescription, guess: _Guess) -> None:
    """Decide what one column is for."""
    name, distinct = column.name, column.distinct or 0
    about = f"{distinct:,} distinct" if column.distinct_is_exact else f"about {distinct:,} distinct"
    if column.missing_share == 1.0:
        guess.unused[name] = "every value is missing"
    elif column.min is not None and column.min == column.max:
        guess.unused[name] = "every value is the same"
    elif column.type.startswith(("date", "timestamp")) or _is_epoch(column):
        parts = ("weekday",) if column.type.startswith("date") else ("weekday", "hour")
        for part in parts:
            guess.slots[f"{name}_{part}"] = f"{part} of the date {name}"
            guess.features[f"{name}_{part}"] = {"column": name, "steps": [{"date": part}]}
    elif not column.roles or ("list" in column.type and "slots" not in column.roles):
        guess.unused[name] = f"type {column.type}"
    elif "dense" not in column.roles or "list" in column.type or column.type == "bool":
        guess.slots[name] = f"{column.type.replace('item: ', '')}, {about}"
    elif "slots" in column.roles and (_ID_NAME.search(name) or distinct <= _MAX_CATEGORIES):
        by_name = "named as an id" if _ID_NAME.search(name) else "few values"
        guess.slots[name] = f"whole numbers, {about}: {by_name}"
    else:
        guess.dense[name] = f"{_figure(column.min)} to {_figure(column.max)}, mean {_figure(column.mean)}"
        guess.features[name] = ["log", "standardise"] if _is_skewed(column) else ["standardise"]


def _is_epoch(column: ColumnDescription) -> bool:
    """Tell whether whole numbers are seconds since 1970: by the name of the column and the numbers."""
    if not _TIME_NAME.search(column.name.lower()) or column.min is None or column.max is None:
        return False
    return _EPOCH_S[0] <= column.min and column.max <= _EPOCH_S[1]


def _is_skewed(column: ColumnDescription) -> bool:
    low, mean, high = column.min or 0.0, column.mean or 0.0, column.max or 0.0
    return low >= 0 and high > 20 * max(mean, 1e-12)


# --- text ------------------------------------------------------------------------------------------------------------


def _text(
    about: Description,
    label: ColumnDescription,
    guess: _Guess,
    train: str,
    test: str | None,
    said: Mapping[str, Format | Storage],
) -> str:
    rows = about.rows
    batch_size = max(1, min(1024, 1 << max(0, (rows // 50).bit_length() - 1)))
    epochs = max(1, min(5, 200_000 // rows))
    settings = {name: model.model_dump(exclude_unset=True) for name, model in said.items()}
    lines = [
        f"# A job to start from, for the {rows:,} rows of {train}. Every line is a guess: change what is wrong.",
        "# heterps config show FILE shows all fields; docs/how-to/own-data.md and features.md tell more.",
        "name: first",
        f"model: {{factory: {'deepfm' if guess.dense else 'ctr_dnn'}, args: {{embedding_dim: 8, hidden: [64, 32]}}}}",
        "data:",
        f"  train: {_quoted(train)}",
        f"  test: {_quoted(test)}"
        if test
        else "  validation: {share: 0.1}    # held out, to see how good the model is",
        *(f"  {name}: {json.dumps(fields, ensure_ascii=False)}" for name, fields in settings.items() if fields),
        f"  batch_size: {batch_size}",
        f"  epochs: {epochs}" + ("    # few rows are seen several times" if epochs > 1 else ""),
        "  columns:",
        *_label_lines(about, label),
        *_list_lines("dense", guess.dense),
        *_list_lines("slots", guess.slots),
    ]
    if guess.features:
        lines += ["    features:    # fitted on the training data"]
        lines += [f"      {_quoted(name)}: {_flow(steps)}" for name, steps in guess.features.items()]
    if guess.unused:
        lines += ["    # not used:", *(f"    #   {name}: {why}" for name, why in guess.unused.items())]
    lines += ["optimizers:", "  sparse: {kind: adagrad, lr: 0.05}", "  dense: {kind: adam, lr: 0.001}", ""]
    return "\n".join(lines)


def _label_lines(about: Description, label: ColumnDescription) -> list[str]:
    if about.label_kind == "binary":
        return [f"    label: {_quoted(label.name)}    # 0 or 1, mean {_figure(label.mean)}"]
    reason = f"{_figure(label.min)} to {_figure(label.max)}, mean {_figure(label.mean)}: predicted as a number"
    return [f"    labels: {{{_quoted(label.name)}: mse}}    # {reason}"]


def _list_lines(role: str, columns: dict[str, str]) -> list[str]:
    if not columns:
        return [f"    {role}: []"]
    width = max(len(_quoted(name)) for name in columns)
    return [f"    {role}:", *(f"      - {_quoted(name):{width}}    # {why}" for name, why in columns.items())]


def _figure(value: float | None) -> str:
    return "?" if value is None else f"{value:.4g}"


def _flow(value: Any) -> str:
    """A value as YAML on one line."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_quoted(name)}: {_flow(inner)}' for name, inner in value.items())}}}"
    return f"[{', '.join(map(_flow, value))}]" if isinstance(value, list) else _quoted(value)


def _quoted(text: str) -> str:
    """The text as YAML: in quotes unless it is a plain word."""
    return text if re.fullmatch(r"[A-Za-z_./][\w./-]*", text) and text not in _WORDS else json.dumps(text)


_WORDS = ("null", "true", "false", "Null", "True", "False", "y", "n", "NULL", "TRUE", "FALSE")
