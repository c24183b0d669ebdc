"""Export: a folder that scores without heterps, and increments that keep it up to date.

    checkpoint --+--> rows, sorted by key ------------------> rows.parquet
                 +--> model, whose embeddings take rows ----> graph.pt2 or graph.onnx
    job ---------+--> preprocessing, tables, version --------> manifest.json
                                                               score.py and its parts, README.md
    with --since VERSION
                 +--> rows that differ from that version ----> rows.parquet
                 +--> all weights ---------------------------> weights.parquet
                                                               manifest.json with the version it leads from

Every export leaves a record of its rows in the run (row_record.py), from which later increments are found.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from heterps.checkpoint.saved_rows import SavedTable
from heterps.config import Job, Uniform
from heterps.data.keys import null_key, slot_seed
from heterps.errors import ModelError
from heterps.model.build import build_model
from heterps.nn import embeddings, model_tables, weights
from heterps.ps.protocol.specs import TableSpec
from heterps.serving import score
from heterps.serving.export_files import Draft, RowsFile, Values, new_folder, write_weights
from heterps.serving.export_quality import check, quality, round_rows
from heterps.serving.graph import Format, Graph, GraphFiles, record
from heterps.serving.predict import CheckpointPredictor
from heterps.serving.row_record import FOLDER, RowDigests, RowRecord, changes, digest_of_all, read_record, row_digests
from heterps.serving.source import Trained, with_trained
from heterps.serving.towers import forwards, has_towers, require_faiss, write_items

MODULES = ("score.py", "score_files.py", "score_inputs.py", "score_rows.py")
PART_ROWS = 1 << 14
"""Number of rows that are in memory at once, and in a row group."""
CHECK_BYTES = 1 << 30
"""Exports below this size are opened and compared with the trained model before they get their name."""
SMALL_BYTES = 32 << 20
"""The same where the job bounds the memory of its tables, unless they may take more."""
READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)


@dataclass(frozen=True)
class Exported:
    """What an export has written."""

    folder: Path | None  # None: nothing, since an increment from that version would be empty
    version: str
    parent: str | None  # the version that an increment leads from
    num_rows: int  # of all tables; of an increment those that changed
    num_gone: int  # keys that an increment deletes
    num_bytes: int
    full_bytes: int | None = None  # of an increment: about what a full export would take
    num_items: int | None = None  # of two towers: items with a vector
    quality: Mapping[str, Any] | None = None  # of rounded values: what they cost, if there is data to find out
    notes: tuple[str, ...] = ()

    def fields(self) -> dict[str, Any]:
        """The same as JSON."""
        folder = None if self.folder is None else str(self.folder)
        return {**asdict(self), "folder": folder, "notes": list(self.notes)}


def export(
    source: str | Path,
    to: str | Path,
    *,
    format: Format = "torch",
    values: Values = "fp32",
    since: str | None = None,
    items: str | None = None,
    index: bool = False,
) -> Exported:
    """Export the model of a run or of a checkpoint to the folder `to`, which must be new or empty.

    The folder appears whole or not at all. If the run removes its checkpoint meanwhile as too old, the next is taken.

    since  write an increment from that version, which was exported from this run before; nothing is written if the
           model is still of that version
    items  of a model with two towers: a data set with the items that get a vector; None: those of the training data
    index  write an inner-product index of FAISS of the items' vectors
    """
    if index:
        require_faiss()

    def write(trained: Trained) -> Exported:
        with CheckpointPredictor(*trained) as predictor:
            exporter = Exporter(trained.job, predictor, trained.checkpoint, values)
            exporter.check_towers(items, index)
            if since is not None and exporter.is_at(since):
                return Exported(None, since, since, 0, 0, 0)
            with new_folder(Path(to)) as draft:
                if since is not None:
                    return exporter.since(draft, Path(to), since)
                return exporter.full(draft, Path(to), format, items, index)

    return with_trained(source, write)


class Exporter:
    """Writes exports of the model of a checkpoint."""

    def __init__(self, job: Job, predictor: CheckpointPredictor, checkpoint: Path, values: Values) -> None:
        self._job, self._predictor, self._saved = job, predictor, predictor.model
        self._values: Values = values
        self._records = checkpoint.resolve().parent.parent / FOLDER
        self._version = predictor.version
        self._model = build_model(self._job.model, self._job.data.columns, self._job.seed)
        self._model.load_state_dict(weights(self._saved.model))
        self._weights = {name: tensor.numpy() for name, tensor in weights(self._model).items()}
        self._tables = dict(self._saved.rows.tables)

    def check_towers(self, items: str | None, index: bool) -> None:
        """Raise ModelError where vectors of items are asked for of a model that has none."""
        if (items is not None or index) and not has_towers(self._model):
            raise ModelError(
                f"--items and --index are for models with two towers: {type(self._model).__name__} has no methods "
                "user_vector(dense, slots) and item_vector(dense, slots)."
            )

    def is_at(self, version: str) -> bool:
        """Whether the model is of this version, which was exported before: else RunError."""
        return read_record(self._records, version).version == self._version

    def full(self, draft: Draft, folder: Path, format: Format, items: str | None, index: bool) -> Exported:
        """Write everything."""
        graphs = {}
        for name, forward in forwards(self._model, self._job).items():
            graph = record(self._model, self._job.data.columns.num_dense, self._job.data.columns.slots, forward)
            written = graph.files("graph" if name == "score" else name, format)
            for file_name, content in written.files.items():
                draft.write(file_name, content)
            graphs[name] = graph_entry(graph, written, self._model, self._job, all_columns=name == "score")
        with draft.file("rows.parquet") as file:
            found = self._write_rows(RowsFile(file, self._values))
        for name in MODULES:
            draft.write(name, Path(score.__file__).with_name(name).read_bytes())
        draft.write("README.md", README.encode())
        rows = RowRecord(self._version, digest_of_all(found, self._weights), found)
        cost, notes = self._cost_of_rounding()
        manifest = {
            **self._identity(rows.digest),
            "parent": None,
            "inputs": inputs_of(self._job),
            "tables": tables_of(self._model, self._job),
            "weights": {name: list(array.shape) for name, array in self._weights.items()},
            "graphs": graphs,
            "quality": cost,
        }
        num_bytes = draft.finish(manifest)
        num_items = None
        budget = self._job.table_budget_bytes
        if has_towers(self._model) or num_bytes < (CHECK_BYTES if budget is None else max(budget, SMALL_BYTES)):
            scorer = score.Scorer(draft.folder)
            if (problem := check(self._job, self._predictor, scorer)) is not None:
                notes = (*notes, problem)
            if has_towers(self._model):
                num_items = write_items(draft, scorer, self._job, self._predictor, items, index)
                num_bytes = draft.finish(manifest)
        notes = (*notes, *self._remember(rows))
        num_rows = sum(len(table.keys) for table in found.values())
        return Exported(
            folder, self._version, None, num_rows, 0, num_bytes, num_items=num_items, quality=cost, notes=notes
        )

    def _cost_of_rounding(self) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
        """The main figure with whole and with rounded values; from now on the saved model reads rounded ones."""
        if self._values == "fp32":
            return None, ()
        whole = quality(self._job, self._saved)
        round_rows(self._saved, self._values)
        if whole is None:
            return None, (f"What {self._values} costs is not known: the job has neither test nor validation data.",)
        found = quality(self._job, self._saved)
        assert found is not None
        return {"data": whole["data"], "metric": whole["metric"], "fp32": whole["value"],
                self._values: found["value"]}, ()  # fmt: skip

    def since(self, draft: Draft, folder: Path, version: str) -> Exported:
        """Write what is different from a version that was exported before."""
        before = read_record(self._records, version)
        found = {name: self._digests(table) for name, table in self._tables.items()}
        num_changed = num_gone = 0
        with draft.file("rows.parquet") as file:
            rows = RowsFile(file, self._values)
            for name, table in self._tables.items():
                changed, gone = changes(before.tables.get(name), found[name])
                num_changed, num_gone = num_changed + len(changed), num_gone + len(gone)
                keys = np.concatenate([found[name].keys[changed], gone])
                order = np.argsort(keys)
                is_gone = (np.arange(len(keys)) >= len(changed))[order]
                for first in range(0, len(keys), PART_ROWS):
                    part = slice(first, first + PART_ROWS)
                    rows.add(name, keys[order][part], table.pull(keys[order][part])[0], is_gone[part])
            rows.close()
        with draft.file("weights.parquet") as file:
            write_weights(file, self._weights)
        now = RowRecord(self._version, digest_of_all(found, self._weights), found)
        parent = {"version": before.version, "digest": before.digest}
        num_bytes = draft.finish({**self._identity(now.digest), "parent": parent})
        full_bytes = sum(len(table.keys) * (8 + 4 * self._tables[name].dim) for name, table in found.items())
        return Exported(
            folder,
            self._version,
            before.version,
            num_changed,
            num_gone,
            num_bytes,
            full_bytes=full_bytes + sum(array.nbytes for array in self._weights.values()),
            notes=self._remember(now),
        )

    def _write_rows(self, rows: RowsFile) -> dict[str, RowDigests]:
        """Write the rows of all tables in the order of their keys; returns their digests."""
        found = {}
        for name, table in self._tables.items():
            parts = [np.empty(0, np.uint64)]
            for keys, values in table.in_order(PART_ROWS):
                rows.add(name, keys, values)
                parts.append(row_digests(values))
            found[name] = RowDigests(table.keys, np.concatenate(parts))
        rows.close()
        return found

    def _digests(self, table: SavedTable) -> RowDigests:
        parts = [row_digests(values) for _, values in table.in_order(PART_ROWS)]
        return RowDigests(table.keys, np.concatenate([np.empty(0, np.uint64), *parts]))

    def _identity(self, digest: str) -> dict[str, Any]:
        return {
            "format": score.FORMAT,
            "version": self._version,
            "digest": digest,
            "run": self._job.name,
            "model": self._job.model.factory,
            "clock": self._saved.clock,
            "samples": self._saved.samples,
            "values": self._values,
        }

    def _remember(self, rows: RowRecord) -> tuple[str, ...]:
        """Leave the record in the run; a note where the run cannot be written to."""
        try:
            rows.write(self._records)
        except OSError as error:
            if error.errno not in READ_ONLY:
                raise
            return (f"{self._records} cannot be written, so that no increments from this version can be made.",)
        return ()


# --- the manifest ----------------------------------------------------------------------------------------------------


def inputs_of(job: Job) -> dict[str, Any]:
    """What score_inputs.py needs to know of columns: names, widths, seeds, features, and what missing values become."""
    schema = job.data.columns
    owners = {name: schema.ids_of(name) for name in schema.slots}
    return {
        "dense": [{"name": name, "width": schema.widths.get(name)} for name in schema.dense],
        "dense_missing": schema.dense_missing,
        "dense_fill": schema.dense_fill,
        "slots": [
            {"name": name, "seed": f"{slot_seed(owner):#x}", "null_key": f"{null_key(owner):#x}"}
            for name, owner in owners.items()
        ],
        "slot_missing": schema.slot_missing,
        "not_read": list(schema.target_columns),
        "same_ids": dict(schema.same_ids),
        "features": {name: feature.model_dump(mode="json") for name, feature in schema.features.items()},
        "id_kinds": dict(schema.id_kinds),
        "csv": job.data.format.model_dump(mode="json"),
    }


def tables_of(model: nn.Module, job: Job) -> dict[str, Any]:
    """What the rows of keys that are not in a table are made of."""
    return {
        spec.name: {
            "dim": spec.dim,
            "seed": f"{spec.seed:#x}",
            "init": (spec.init or Uniform(scale=spec.init_scale)).model_dump(mode="json"),
        }
        for spec in _specs(model, job)
    }


def graph_entry(graph: Graph, written: GraphFiles, model: nn.Module, job: Job, *, all_columns: bool) -> dict[str, Any]:
    """What the inputs and outputs of a graph are; `all_columns`: also columns that it does not use must be there."""
    schema = job.data.columns
    modules: dict[str, Any] = dict(embeddings(model))
    used = [slot for call in graph.calls for slot in call.slots]
    return {
        "file": next(iter(written.files)),
        "dense": all_columns or graph.uses_dense,
        "num_dense": schema.num_dense,
        "slots": list(schema.slots if all_columns else dict.fromkeys(used)),
        "embeddings": [_embedding_entry(call.embedding, call.slots, modules[call.embedding]) for call in graph.calls],
        "outputs": [{"name": name, "width": width} for name, width in graph.outputs.items()],
        "weights": written.weights,
    }


def _embedding_entry(name: str, slots: tuple[str, ...], module: Any) -> dict[str, Any]:
    window = module.window
    return {
        "name": name,
        "slots": list(slots),
        "tables": module.names_in(name),
        "dim": module.dim,
        "pooling": module.pooling,
        "window": None if window is None else {"max_length": window.max_length, "newest": window.newest},
    }


def _specs(model: nn.Module, job: Job) -> tuple[TableSpec, ...]:
    return model_tables(model, job.optimizers, tables=job.tables, seed=job.seed).sparse


README = """\
# A trained model that scores without heterps

    pip install numpy pyarrow torch          # or onnxruntime in place of torch, if there is a graph.onnx
    python score.py samples.parquet --out scores.parquet

`samples.parquet` (or .csv, .tsv) has the columns that `manifest.json` lists under `inputs`; labels are not needed. The
column `score` is a probability for a binary label, and `score_NAME` is of the label NAME where there are several.

In Python: `from score import Scorer; Scorer("this/folder").score(table)` takes and returns Arrow tables.
Increments bring it up to date: `python score.py ... --increment DIR`, one or more, in their order.
"""
