"""Save a model with its rows to a folder, and load it into a model of the same class.

    heterps.save(model, "model/")                 heterps.load("model/", into=Net())

    model/
      dense.safetensors     weights and buffers by name; of a Trainer also the state of its dense optimizer
      tables/*.arrow        rows of each table: keys, values, optimizer state
      progress.json         the name of the class, and what each table is: dim, optimizer, seed of initial values, ...
      manifest.json         sizes and digests of all others

The folder is a checkpoint (see checkpoint/store.py), so it appears whole or not at all, and damage is found.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from torch import nn

from heterps.checkpoint import Snapshot, TableRows, TableStream, save_as
from heterps.checkpoint import load as load_snapshot
from heterps.config import Start, load_job
from heterps.errors import CorruptCheckpoint, ModelError
from heterps.nn import bind_tables, embeddings, model_tables, weights
from heterps.nn.embedding import ALONE
from heterps.ps.client.local import LocalClient
from heterps.ps.protocol.specs import TableSpec
from heterps.training.model.errors import another_model
from heterps.training.model.in_use import load_weights
from heterps.training.model.start import starting_snapshot
from heterps.training.model.table_snapshots import load_table, save_table
from heterps.training.model.tabled import fresh_snapshot
from heterps.training.model.trainer import Trainer
from heterps.training.run.trained import find_checkpoint

Into = TypeVar("Into", nn.Module, Trainer)
SAVED = "saved"
"""What progress.json of a saved model has and that of a run's checkpoint has not."""

_SPEC = TypeAdapter(TableSpec)


def save(model: nn.Module | Trainer, folder: str | Path) -> Path:
    """Write the weights, buffers and rows of a model to `folder`, in the place of an older one, and return its path.

    The model may have its tables from a Trainer or `bind_tables`, or have made them itself. Of a Trainer everything is
    saved that it needs to go on as if nothing had happened.
    """
    if isinstance(model, Trainer):
        described = _described(model.model, model.tables.sparse)
        return save_as(folder, model.snapshot(model.samples, described, in_place=True))
    if not isinstance(model, nn.Module):
        raise ModelError(f"a torch.nn.Module or a heterps.Trainer can be saved, not a {type(model).__name__}.")
    specs, tables = [], {}
    for spec, rows in _tables(model):
        specs.append(spec)
        tables[spec.name] = rows
    dense = {f"model/{name}": tensor.detach().cpu().numpy() for name, tensor in weights(model).items()}
    return save_as(folder, Snapshot(0, 0, dense, tables, _described(model, specs)))


def load_saved(folder: str | Path, into: Into) -> Into:
    """Give `into`, a model or a Trainer, the weights, buffers and rows of a saved model, a run or a checkpoint.

    A model gets tables of its own in this process. A Trainer must not have trained yet; if a Trainer was saved, it
    goes on from there. Returns `into`; raises ModelError where its names or sizes are not those of the saved model.
    """
    folder = find_checkpoint(folder)
    snapshot = load_snapshot(folder)
    if isinstance(into, Trainer):
        _fill_trainer(into, snapshot)
        return into
    specs = {spec.name: spec for spec in _specs(folder, snapshot, into)}
    dims: dict[str, int] = {table: module.dim for name, module in embeddings(into) for table in module.names_in(name)}
    if dims != {name: spec.dim for name, spec in specs.items()}:
        raise another_model(f"its tables are {_listed(specs)}, those of {type(into).__name__} are {_listed(dims)}")
    client = LocalClient(list(specs.values()), {})
    for name, spec in specs.items():
        load_table(client, spec, snapshot.tables[name])
    load_weights(into, snapshot)
    bind_tables(into, client)
    return into


def _fill_trainer(trainer: Trainer, snapshot: Snapshot) -> None:
    if trainer.num_rows:
        raise ModelError(f"this Trainer has {trainer.num_rows:,} rows of its own. Load into a Trainer that is new.")
    if "optimizer/state" not in snapshot.dense:  # a model was saved, without a Trainer
        specs = {spec.name: spec for spec in trainer.tables.sparse}
        fresh = fresh_snapshot(trainer.model, trainer.tables, {})
        snapshot, _ = starting_snapshot(fresh, specs, Start(model="what was saved"), snapshot, {})
    trainer.restore(snapshot)


def _tables(model: nn.Module) -> Iterable[tuple[TableSpec, TableRows | TableStream]]:
    """The tables of a model, each once, under the names that they have in it."""
    found = set()
    for name, module in embeddings(model):
        client, held = module.held
        if client is None:
            specs = module.table_specs("embedding", ALONE)  # as it would make them itself
            client, held = LocalClient(specs, {}), [spec.name for spec in specs]
        if not isinstance(client, LocalClient):
            raise ModelError(
                f"the rows of table {held[0]} are not in this process. Save the Trainer that trains the model: "
                "heterps.save(trainer, folder). The model of a run is in its checkpoints already."
            )
        for own, table in zip(module.names_in(name), held, strict=True):
            if own not in found:
                found.add(own)
                spec = client.specs[table]
                yield replace(spec, name=own), save_table(client, spec, in_place=True)


def _described(model: nn.Module, specs: Iterable[TableSpec]) -> dict[str, Any]:
    plain = [_SPEC.dump_python(replace(spec, tiers=None), mode="json") for spec in specs]
    return {SAVED: {"class": type(model).__name__, "tables": plain}}


def _specs(folder: Path, snapshot: Snapshot, model: nn.Module) -> list[TableSpec]:
    """What the tables of a snapshot are, by the folder itself or, for a run's checkpoint, by its job."""
    if (saved := snapshot.progress.get(SAVED)) is not None:
        try:
            return [_SPEC.validate_python(spec) for spec in saved["tables"]]
        except (ValidationError, KeyError, TypeError) as error:
            raise CorruptCheckpoint(f"{folder}: progress.json does not say what its tables are: {error}.") from None
    job = load_job(folder.parent.parent / "job.yaml")
    return list(model_tables(model, job.optimizers, tables=job.tables, seed=job.seed).sparse)


def _listed(tables: Iterable[str]) -> str:
    return ", ".join(tables) or "none"
