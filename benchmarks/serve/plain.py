"""The model of the benchmark without heterps: what one writes to serve it with PyTorch or ONNX Runtime.

Ids are found by binary search in the vocabulary of each slot, and their rows in one array. As a program it serves the
model behind the same application as `heterps serve` does, so that the two differ in the model only.

    python plain.py torch|onnx      in the folder of the benchmark
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.numpy import load_file, save_file
from torch import nn

SLOTS = [f"C{i}" for i in range(1, 27)]
DENSE = [f"I{i}" for i in range(1, 14)]
FILE = "plain.safetensors"
NO_ID = -1  # stands for null


class PlainModel:
    """Scores tables by the file that `save_plain` wrote; with "onnx" the layers are those of the export to ONNX."""

    def __init__(self, folder: Path, runtime: str) -> None:
        arrays = load_file(folder / FILE)
        self._ids = [arrays[f"ids.{slot}"] for slot in SLOTS]
        self._firsts = np.cumsum([0, *map(len, self._ids)])
        self._rows = np.concatenate([arrays[f"rows.{slot}"] for slot in SLOTS])
        self._run = self._torch(arrays) if runtime == "torch" else self._onnx(folder / "onnx" / "graph.onnx")

    def score(self, table: Any) -> Any:
        return pa.table({"score": self._run(*self._inputs(table))})

    def _inputs(self, table: Any) -> tuple[Any, Any]:
        dense = np.stack([table[name].cast(pa.float32()).to_numpy() for name in DENSE], axis=1)
        places = np.empty((len(table), len(SLOTS)), np.int64)
        for s, (name, ids) in enumerate(zip(SLOTS, self._ids, strict=True)):
            at = np.minimum(np.searchsorted(ids, asked := _ids(table[name])), len(ids) - 1)
            assert (ids[at] == asked).all(), "all ids of the benchmark are known"
            places[:, s] = self._firsts[s] + at
        return np.nan_to_num(dense), places

    def _torch(self, arrays: dict[str, Any]) -> Any:
        names = [*sorted({name.rsplit(".", 1)[0] for name in arrays if name.startswith("deep.linear")}), "deep.logit"]
        layers: list[nn.Module] = []
        for name in names:
            weight = torch.from_numpy(arrays[f"{name}.weight"])
            layer = nn.Linear(weight.shape[1], weight.shape[0])
            layer.load_state_dict({"weight": weight, "bias": torch.from_numpy(arrays[f"{name}.bias"])})
            layers += [layer, nn.ReLU()]
        model, embedding = nn.Sequential(*layers[:-1]), nn.Embedding.from_pretrained(torch.from_numpy(self._rows))

        def run(dense: Any, places: Any) -> Any:
            with torch.no_grad():
                rows = embedding(torch.from_numpy(places)).flatten(1)
                logits = model(torch.cat([torch.from_numpy(dense), rows], dim=1))
                return torch.sigmoid(logits[:, 0]).numpy()

        return run

    def _onnx(self, path: Path) -> Any:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

        def run(dense: Any, places: Any) -> Any:
            return session.run(None, {"input_0": dense, "input_1": self._rows[places]})[0]

        return run


def save_plain(folder: Path, checkpoint: Path) -> None:
    """Write the weights of a checkpoint, and for each slot the ids of the data and their rows."""
    from heterps.checkpoint import load
    from heterps.config import load_job
    from heterps.data.decode import key_column
    from heterps.training.model.in_use import SavedModel

    arrays = {name.removeprefix("model/"): array for name, array in load(checkpoint).dense.items()}
    arrays = {name: array for name, array in arrays.items() if name.startswith("deep.")}
    parts = [pq.read_table(folder / "data" / part, columns=SLOTS) for part in ("train", "test")]
    with SavedModel(load_job(checkpoint.parent.parent / "job.yaml"), checkpoint) as saved:
        (table,) = saved.rows.tables.values()
        for slot in SLOTS:
            ids = np.unique(np.concatenate([_ids(part[slot]) for part in parts]))
            keys = key_column(pa.array(ids, mask=ids == NO_ID), slot)
            arrays[f"ids.{slot}"] = ids
            arrays[f"rows.{slot}"] = np.ascontiguousarray(table.pull(keys)[0])
    save_file(arrays, folder / FILE)


def _ids(column: Any) -> Any:
    return column.cast(pa.int64()).fill_null(NO_ID).to_numpy()


def main() -> None:
    from heterps.serving.app import Service, make_app
    from heterps.serving.batching import Batcher, RequestQueue
    from heterps.serving.listen import listening, run_app, url_of
    from heterps.serving.payload import Columns
    from heterps.serving.scoring import score_tables
    from heterps.serving.serve_metrics import ServeMetrics
    from heterps.threads import one_torch_thread, quick_switches

    model, metrics = PlainModel(Path(), sys.argv[1]), ServeMetrics()

    def score(table: Any) -> tuple[Any, str, Any]:
        return model.score(table), "1", np.zeros(len(table), np.int64)

    queue = RequestQueue(1024, 0.002, 256)
    batcher = Batcher(lambda tables: score_tables(score, tables, metrics), queue, prepare=one_torch_thread)
    columns = Columns({**dict.fromkeys(DENSE, True), **dict.fromkeys(SLOTS, False)})
    opened = listening("127.0.0.1", 0, None)
    ready = json.dumps({"url": url_of(opened)})
    app = make_app(Service(columns, batcher, metrics, dict, dict))
    with quick_switches():
        run_app(app, opened, lambda: print(ready, flush=True), 10.0)
    batcher.close()


if __name__ == "__main__":
    main()
