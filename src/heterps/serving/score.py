"""Score samples with an exported model. It needs numpy, pyarrow and one runtime: torch or onnxruntime.

    python score.py rows.parquet --out scores.parquet [--increment DIR ...]

    columns --score_inputs.py--> numbers ----------------------------------------+
                            +--> keys --score_rows.py--> rows --pool, pad--------+--> graph --> score, score_NAME

score_files.py reads the columns of files. These four files are copied into every export; manifest.json beside them has
all that they need to know.
A key without a row reads its initial values, a function of the table's seed and the key, as it did in training.

A Scorer has one state at a time: a version, the rows of all tables, and graphs with their weights. States never change.
An increment makes a new state and puts it in the place of the old one, so a score is of one version, never of a mix.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import os
import sys
import threading
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING or __package__:
    from heterps.serving.score_files import read_samples
    from heterps.serving.score_inputs import Array, Samples, ScoreError
    from heterps.serving.score_rows import Table, make_layer, padded_rows, pooled_rows, read_rows
else:  # in an export
    from score_files import read_samples
    from score_inputs import Array, Samples, ScoreError
    from score_rows import Table, make_layer, padded_rows, pooled_rows, read_rows

FORMAT = 1
CHUNK_ROWS = 4096  # samples that go through a graph at once


# --- graphs ----------------------------------------------------------------------------------------------------------

PREFIX = "model."  # of the names of the model's weights in a graph


class TorchGraph:
    """A program of torch.export: arrays in, arrays out."""

    def __init__(self, path: Path) -> None:
        import torch

        self._torch = torch
        self._module = torch.export.load(path).module()

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        with self._torch.no_grad():
            return [output.numpy() for output in self._module(*map(self._torch.from_numpy, inputs))]

    def replaced(self, weights: Mapping[str, Array]) -> TorchGraph:
        """Return a graph with other weights; this one stays as it is."""
        other = copy.copy(self)
        with warnings.catch_warnings():  # torch warns of its own code
            warnings.simplefilter("ignore", FutureWarning)
            other._module = copy.deepcopy(self._module)
        other._module.load_state_dict(
            {PREFIX + name: self._torch.from_numpy(np.array(array)) for name, array in weights.items()}, strict=False
        )
        return other


class OnnxGraph:
    """A graph of ONNX: arrays in, arrays out. Its weights are external, so that they can be replaced by name."""

    def __init__(self, path: Path, weights: Mapping[str, Array] | None = None) -> None:
        import onnxruntime

        self._path, self._weights = path, dict(weights or {})
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        if self._weights:
            arrays = map(onnxruntime.OrtValue.ortvalue_from_numpy, self._weights.values())
            options.add_external_initializers([PREFIX + name for name in self._weights], list(arrays))
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self._names = {item.name for item in self._session.get_inputs()}

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        named = {f"input_{i}": array for i, array in enumerate(inputs)}
        found = self._session.run(None, {name: array for name, array in named.items() if name in self._names})
        return [np.asarray(array) for array in found]

    def replaced(self, weights: Mapping[str, Array]) -> OnnxGraph:
        """Return a graph with other weights; this one stays as it is."""
        return OnnxGraph(self._path, {**self._weights, **weights})


GRAPHS = {".pt2": TorchGraph, ".onnx": OnnxGraph}


def read_weights(path: Path) -> dict[str, Array]:
    """Read weights.parquet: the arrays of an increment, by the names of the model's parameters and buffers."""
    rows = pq.read_table(path).to_pylist()
    return {row["name"]: np.frombuffer(row["data"], row["dtype"]).reshape(row["shape"]) for row in rows}


# --- scorer ----------------------------------------------------------------------------------------------------------


class LoadedVersion(NamedTuple):
    """One version of a model. It never changes."""

    version: str
    digest: str | None  # of all rows and weights; None where nobody worked it out
    tables: Mapping[str, Table]
    graphs: Mapping[str, TorchGraph | OnnxGraph]


class Scored(NamedTuple):
    """Scores of samples in their order, the version that gave them, and how many ids of each sample have no row."""

    scores: pa.Table
    version: str
    unknown: Array  # int64 [n]


class Scorer:
    """Scores tables of samples by the export in a folder. Threads may share it.

    num_unknown  number of keys without a row that were asked for so far, each as often as samples have it
    """

    def __init__(self, folder: str | Path, increments: Iterable[str | Path] = ()) -> None:
        folder = Path(folder)
        self.manifest = read_manifest(folder)
        if self.manifest["parent"] is not None:
            raise ScoreError(f"{folder} is an increment: name the full export, and this as --increment.")
        self.num_unknown = 0
        self._lock = threading.Lock()  # of the state
        self._counting = threading.Lock()  # of num_unknown: no score waits for a new version
        empty = {name: Table(spec["dim"], int(spec["seed"], 16), spec["init"])
                 for name, spec in self.manifest["tables"].items()}  # fmt: skip
        rows = read_rows(folder / "rows.parquet", empty)
        paths = {name: folder / graph["file"] for name, graph in self.manifest["graphs"].items()}
        graphs = {name: GRAPHS[path.suffix](path) for name, path in paths.items()}
        tables = {name: table.under(rows[name]) if name in rows else table for name, table in empty.items()}
        self._state = LoadedVersion(self.manifest["version"], self.manifest["digest"], tables, graphs)
        for increment in increments:
            self.apply(increment)

    @property
    def version(self) -> str:
        """The version that scores are of."""
        return self._state.version

    def table(self, name: str) -> Table:
        """Return the rows of a table, of the version that scores are of."""
        return self._state.tables[name]

    def score(self, table: pa.Table) -> pa.Table:
        """Return the columns `score` and `score_NAME` of samples, in their order.

        A score is null where values are missing and the job says that such samples are skipped. Raises ScoreError,
        which names the row and the column, for samples that the model cannot take.
        """
        return self.scored(table).scores

    def scored(self, table: pa.Table) -> Scored:
        """Return the scores of samples, the version that gave them, and how many ids of each sample are unknown."""
        return self._run("score", table)

    def vectors(self, table: pa.Table, side: str) -> pa.Table:
        """Return the column `vector` of users or items, of a model with two towers; `side` is "user" or "item"."""
        if side not in self.manifest["graphs"]:
            raise ScoreError(f"this model has no {side} tower: its graphs are {', '.join(self.manifest['graphs'])}.")
        return self._run(side, table).scores

    def apply(self, folder: str | Path) -> None:
        """Go on to the version of an increment, if it follows this version and its files are whole; else ScoreError."""
        folder = Path(folder)
        manifest = read_manifest(folder)
        with self._lock:
            state, parent = self._state, manifest["parent"]
            if parent is None:
                raise ScoreError(f"{folder} is a full export, not an increment: open it instead.")
            if parent["version"] != state.version or state.digest not in (None, parent["digest"]):
                here = "another" if parent["version"] == state.version else "version"
                raise ScoreError(
                    f"{folder} leads from version {parent['version']} of run {manifest['run']} to "
                    f"{manifest['version']}, but this is {here} {state.version} of run {self.manifest['run']}. Apply "
                    "increments in their order, each once, or begin with a full export."
                )
            weights = self._checked(read_weights(folder / "weights.parquet"))
            tables = dict(state.tables)
            for name, layer in read_rows(folder / "rows.parquet", tables).items():
                tables[name] = tables[name].under(layer)
            self._state = LoadedVersion(manifest["version"], manifest["digest"], tables, self._replaced(weights))

    def update(
        self,
        version: str,
        weights: Mapping[str, Array],
        rows: Mapping[str, tuple[Array, Array]],
        gone: Mapping[str, Array],
        full: bool = False,
    ) -> None:
        """Go on to another version: weights by name, and by table changed rows and deleted keys; `full`: all rows."""
        with self._lock:
            tables = dict(self._state.tables)
            if strange := (rows.keys() | gone.keys()) - tables.keys():
                raise ScoreError(f"the model has no table {', '.join(sorted(strange))}: {', '.join(tables)}.")
            for name in tables if full else rows.keys() | gone.keys():
                dim = tables[name].dim
                keys, values = rows.get(name, (np.empty(0, np.uint64), np.empty((0, dim), np.float32)))
                tables[name] = tables[name].under(make_layer(dim, keys, values, gone.get(name, ())), full=full)
            self._state = LoadedVersion(version, None, tables, self._replaced(self._checked(weights)))

    def _run(self, name: str, table: pa.Table) -> Scored:
        state, graph = self._state, self.manifest["graphs"][name]
        parts, unknown = [], []
        for first in range(0, max(len(table), 1), CHUNK_ROWS):
            samples = Samples(table.slice(first, CHUNK_ROWS), self.manifest["inputs"], first)
            inputs, strange = self._inputs(samples, graph, state.tables)
            outputs = state.graphs[name].run(inputs) if len(table) else _nothing(graph)
            columns = [_column(output, samples.keep) for output in outputs]
            parts.append(pa.table(columns, names=[item["name"] for item in graph["outputs"]]))
            unknown.append(strange)
        found = Scored(pa.concat_tables(parts), state.version, np.concatenate(unknown))
        with self._counting:
            self.num_unknown += int(found.unknown.sum())
        return found

    def _inputs(
        self, samples: Samples, graph: Mapping[str, Any], tables: Mapping[str, Table]
    ) -> tuple[list[Array], Array]:
        """Return the inputs of a graph: dense columns, then those of each embedding; and the unknown ids by sample."""
        num = len(samples.keep)
        inputs = [samples.dense() if graph["dense"] else np.zeros((num, graph["num_dense"]), np.float32)]
        slots = {slot["name"]: slot for slot in self.manifest["inputs"]["slots"]}
        keys = {name: samples.keys(slots[name]) for name in graph["slots"]}
        unknown = np.zeros(num, np.int64)
        for embedding in graph["embeddings"]:
            look_up = padded_rows if embedding["window"] else pooled_rows
            inputs += look_up(embedding, [keys[name] for name in embedding["slots"]], tables, unknown)
        return inputs, unknown

    def _checked(self, weights: Mapping[str, Array]) -> dict[str, Array]:
        shapes = self.manifest["weights"]
        for name, array in weights.items():
            if name not in shapes or list(array.shape) != shapes[name]:
                raise ScoreError(f"the model has no weight {name} of shape {list(array.shape)}.")
        # Not np.ascontiguousarray, which gives a scalar the shape [1].
        return {name: np.asarray(array, order="C") for name, array in weights.items()}

    def _replaced(self, weights: Mapping[str, Array]) -> dict[str, TorchGraph | OnnxGraph]:
        """Return the graphs with other weights, as far as they have them."""
        names = {name: graph["weights"] for name, graph in self.manifest["graphs"].items()}
        mine = {name: {n: weights[n] for n in names[name] if n in weights} for name in names}
        return {name: graph.replaced(mine[name]) if mine[name] else graph for name, graph in self._state.graphs.items()}


def _nothing(graph: Mapping[str, Any]) -> list[Array]:
    """Return the outputs of a graph for no samples."""
    widths = [item["width"] for item in graph["outputs"]]
    return [np.empty(0 if width is None else (0, width), np.float32) for width in widths]


def _column(values: Array, keep: Array) -> pa.Array:
    """Return scores [n], or lists of scores [n, width], as a column that is null where samples are skipped."""
    mask = None if keep.all() else ~keep
    if values.ndim == 1:
        return pa.array(values, mask=mask)
    flat = pa.array(values.reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, values.shape[1], mask=None if mask is None else pa.array(mask))


# --- files -----------------------------------------------------------------------------------------------------------


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of an export or increment, and check that all its files are there and whole."""
    path = folder / "manifest.json"
    try:
        if not folder.is_dir():
            raise ScoreError(f"{folder}: there is no such folder. Name that of a whole export or increment.")
        manifest: dict[str, Any] = json.loads(path.read_bytes())
        said = manifest.pop("manifest_digest")
        if said != digest_of(json.dumps(manifest, sort_keys=True).encode()):
            raise ScoreError(f"{path} is damaged. Copy the folder again.")
        if manifest["format"] != FORMAT:
            raise ScoreError(f"{path} has format {manifest['format']}; this score.py reads format {FORMAT}. Use the "
                             "score.py in that folder.")  # fmt: skip
        for name, file in manifest["files"].items():
            if measure(folder / name) != (file["num_bytes"], file["digest"]):
                raise ScoreError(f"{folder / name} is damaged or cut off. Copy the folder again.")
    except OSError as error:
        raise ScoreError(
            f"{error.filename}: {error.strerror}. Name the folder of a whole export or increment."
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, ScoreError):
            raise
        raise ScoreError(f"{path} is damaged: {error}. Copy the folder again.") from None
    return manifest


def digest_of(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def measure(path: Path) -> tuple[int, str]:
    """Return size in bytes and digest of a file."""
    digest, size = hashlib.blake2b(digest_size=16), 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
            size += len(block)
    return size, digest.hexdigest()


def main(words: Sequence[str] | None = None) -> None:
    """Score a file of samples."""
    parser = argparse.ArgumentParser(description="Score samples with the model in this folder.")
    parser.add_argument("rows", type=Path, help="samples: a .parquet, .csv or .tsv file; labels are not needed")
    parser.add_argument("--out", type=Path, required=True, help="Parquet file of scores, in the order of the samples")
    parser.add_argument("--increment", type=Path, action="append", default=[], help="increments, in their order")
    parser.add_argument("--vectors", choices=["user", "item"], help="write vectors of one tower, not scores")
    options = parser.parse_args(words)
    draft = options.out.with_name(f".{options.out.name}.part")
    try:
        scorer = Scorer(Path(__file__).parent, options.increment)
        num_rows, writer = 0, None
        for table in read_samples(options.rows, scorer.manifest["inputs"]):
            scores = scorer.vectors(table, options.vectors) if options.vectors else scorer.score(table)
            writer = writer or pq.ParquetWriter(draft, scores.schema)
            writer.write_table(scores)
            num_rows += len(scores)
        if writer is None:
            raise ScoreError(f"{options.rows} has no rows.")
        writer.close()
        os.replace(draft, options.out)
    except (ScoreError, OSError, pa.ArrowException, ImportError) as error:
        draft.unlink(missing_ok=True)
        sys.exit(f"error: {error}")
    sys.stdout.write(f"{options.out}: {num_rows} rows by version {scorer.version} of {scorer.manifest['run']}; "
                     f"{scorer.num_unknown} ids were unknown\n")  # fmt: skip


if __name__ == "__main__":
    main()
