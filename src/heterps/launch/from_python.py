"""Make the job of `heterps.train(model=..., data=...)`: a model, data and keyword arguments become one validated Job.

    model                name_model -----------> model.factory         (nothing is pickled)
    data, test, ...      in memory? write once -> data.train, ...      (runs/data/<digest>.parquet)
    label, dense, slots  guessed where not said -> data.columns        (as `heterps init` guesses)
    batch_size, epochs   fields of Data --------> data
    launcher, seed, ...  fields of Job

After that a run from Python is a run as any other: resumed, planned and launched in the same ways.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from torch import nn

from heterps.config import Format, Job, Schema, Split, Storage
from heterps.config.data import Data
from heterps.config.launchers import has_workers
from heterps.data.describe import describe
from heterps.data.frames import as_tables, is_loader, write_tables
from heterps.data.starter import guess_columns, guess_label
from heterps.errors import ConfigError, ModelError
from heterps.model.named import Given, name_model
from heterps.nn import embeddings

SAMPLE_ROWS = 500_000
"""Number of rows from which the roles of columns are guessed."""

OF_JOB = {*Job.model_fields} - {"model", "data", "validation"}
OF_DATA = {*Data.model_fields} - {"train", "columns"}
OF_COLUMNS = {*Schema.model_fields}


@contextmanager
def job_from_python(model: Given | None, data: Any, folder: Path | None, fields: Mapping[str, Any]) -> Iterator[Job]:
    """Yield the job of `heterps.train(model=model, data=data, **fields)`, which is good until the end.

    Data in memory is written to the folder `data` beside the run's `folder`. Raises ConfigError for a keyword argument
    that no part of a job has.
    """
    known = {*OF_JOB, *OF_DATA, *OF_COLUMNS, "model_args", "validate"}
    for name in fields:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise ConfigError(f"train() has no argument {name!r}.{hint} Arguments: {', '.join(sorted(known))}.")
    _refuse_torch(fields.get("optimizers"))
    if data is None:
        raise ConfigError("train() needs data: a path, a DataFrame, a table, a dict of columns or a DataLoader.")
    columns = {name: value for name, value in fields.items() if name in OF_COLUMNS}
    of_data = {name: value for name, value in fields.items() if name in OF_DATA}
    if is_loader(data) and getattr(data, "batch_size", None):
        of_data.setdefault("batch_size", data.batch_size)
    frames = (folder.parent if folder is not None else Path("runs")) / "data"
    of_data["train"] = _paths(data, columns, frames)
    for name in ("test", "validation"):
        if of_data.get(name) is not None and not _is_split(of_data[name]):
            of_data[name] = _paths(of_data[name], columns, frames)
    columns = _with_guesses(columns, of_data)
    if isinstance(model, nn.Module) and "start" not in fields:
        _refuse_rows(model)
    model = model if model is not None else "deepfm" if columns["dense"] else "ctr_dnn"
    of_job = {name: value for name, value in fields.items() if name in OF_JOB}
    if fields.get("validate") is not None:
        of_job["validation"] = fields["validate"]
    with name_model(model, in_this_process=not has_workers(of_job.get("launcher", "inline"))) as factory:
        of_job.setdefault("name", factory.rpartition(":")[2])
        chosen = {"factory": factory, "args": fields.get("model_args") or {}}
        yield Job(**of_job, model=chosen, data={**of_data, "columns": columns})


def _refuse_torch(optimizers: Any) -> None:
    """ConfigError where an optimizer is an object, or a class, of torch."""
    for given in optimizers.values() if isinstance(optimizers, Mapping) else [optimizers]:
        kind = given if isinstance(given, type) else type(given)
        if kind.__module__.startswith("torch."):
            raise ConfigError(
                "optimizers are named, since they step where the parameters are: optimizers={'sparse': {'kind': "
                f"'adagrad', 'lr': 0.05}}, 'dense': {{'kind': 'adam', 'lr': 0.001}}}}; got torch's {kind.__name__}."
            )


def _refuse_rows(model: nn.Module) -> None:
    """ModelError where a model has rows of its own, which training would not begin with."""
    if trained := [name for name, module in embeddings(model) if module.has_rows]:
        raise ModelError(
            f"{type(model).__name__} has rows in {', '.join(trained)}, but train() copies a model without its rows. "
            "Save it with heterps.save(model, folder), and give start=folder; or give a model that is new."
        )


def _is_split(value: Any) -> bool:
    """Tell whether this is a share of the training data, and no data of its own."""
    return isinstance(value, Split) or (isinstance(value, Mapping) and value.keys() <= Split.model_fields.keys())


def _paths(data: Any, columns: Mapping[str, Any], frames: Path) -> str | list[str]:
    """Paths as they are; data in memory is written to the folder `frames`."""
    if isinstance(data, (str, Path)):
        return str(data)
    if isinstance(data, Sequence) and all(isinstance(path, (str, Path)) for path in data):
        return [str(path) for path in data]
    label = columns.get("label") or next(iter(columns.get("labels") or ["label"]))
    tables = as_tables(data, label=label, dense=columns.get("dense", ()), slots=columns.get("slots", ()))
    return str(write_tables(tables, frames))


def _with_guesses(columns: Mapping[str, Any], of_data: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `data.columns`, guessed where they are not given.

    Who names dense columns or slots has named all of them. A label of unknown kind is looked at.
    """
    named = {"dense": [], "slots": [], **columns} if "dense" in columns or "slots" in columns else None
    if named is not None and ("labels" in columns or "num_classes" in columns):
        return named
    train, options = of_data["train"], _valid(Format, of_data.get("format"))
    settings: dict[str, Any] = {
        "options": options,
        "storage": _valid(Storage, of_data.get("storage")),
        "max_rows": SAMPLE_ROWS,
    }
    label = columns.get("label") or next(iter(columns.get("labels") or []), None)
    if label is None:
        label = guess_label(describe(train, "", **settings).columns)
    guessed = guess_columns(describe(train, label, **settings))
    if "labels" in columns or "num_classes" in columns:  # the kind of the label is said
        guessed = {name: value for name, value in guessed.items() if name not in ("label", "labels")}
    if named is not None:
        return {**named, **{name: value for name, value in guessed.items() if name in ("label", "labels")}}
    taken = {label, columns.get("weight"), *(columns.get("labels") or [])}
    for role in ("dense", "slots"):
        guessed[role] = [name for name in guessed[role] if name not in taken]
    features = {name: steps for name, steps in guessed["features"].items() if name not in taken}
    return {**guessed, **columns, "features": {**features, **(columns.get("features") or {})}}


def _valid(kind: type[Any], value: Any) -> Any:
    return value if isinstance(value, kind) else kind(**(value or {}))
