"""heterps.load: a trained model in Python, with the rows of its tables."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from torch import nn

from heterps.config import Job
from heterps.data.frames import TableFile, as_tables, join_tables
from heterps.data.sources import Dataset
from heterps.errors import ModelError
from heterps.model.named import Given, name_model
from heterps.serving.predict import BATCH_ROWS, CheckpointPredictor, Kept, PredictCounts, predict_groups
from heterps.serving.saved import Into, load_saved
from heterps.serving.source import Trained, open_data, with_trained
from heterps.serving.vectors import By, Neighbour, Unknown, VectorsById

Scores = NDArray[np.float32]


@overload
def load(path: str | Path, *, into: Into) -> Into: ...
@overload
def load(path: str | Path, *, model: Given | None = None) -> LoadedModel: ...
def load(path: str | Path, *, into: Any = None, model: Given | None = None) -> Any:
    """Load the model of a run or of a checkpoint, ready to predict; or give what was saved to a model of your own.

    into   a model or Trainer, which gets the weights and rows of a run, a checkpoint or a folder that `heterps.save`
           wrote, and is returned
    model  what was given to heterps.train(model=...), where the run has no name for it: an object of the Python process
           that trained it, or a class defined in a notebook
    """
    if into is not None:
        return load_saved(path, into)
    if (Path(path) / "manifest.json").is_file() and not (Path(path).resolve().parent.parent / "job.yaml").is_file():
        raise ModelError(f"{path} has weights and rows, and not the code of the model: give one, as into=Net()")
    return with_trained(path, lambda trained: _load(trained, model))


def _load(trained: Trained, model: Given | None) -> LoadedModel:
    job, checkpoint = trained
    if model is None:
        return LoadedModel(job, checkpoint)
    with name_model(model, in_this_process=True) as factory:
        built = job.model_copy(update={"model": job.model.model_copy(update={"factory": factory})})
        return LoadedModel(built, checkpoint)


class LoadedModel:
    """A trained model in use. Rows of its tables stay in the files of its checkpoint; close it, or use `with`.

    job      the job that trained it
    version  of the model: the clock of its checkpoint
    module   the torch module, in eval mode, whose embeddings read the trained rows
    """

    def __init__(self, job: Job, checkpoint: Path) -> None:
        self.job = job
        self.checkpoint = checkpoint
        self._opened = ExitStack()
        self._predictor = self._opened.enter_context(CheckpointPredictor(job, checkpoint))
        self.version = self._predictor.version

    @property
    def module(self) -> nn.Module:
        return self._predictor.model.model.eval()

    @property
    def counts(self) -> PredictCounts:
        """What all predictions so far have met: missing values, and ids without a row."""
        return self._predictor.counts()

    def predict(self, data: Any, *, batch_size: int = BATCH_ROWS, threads: int = 1) -> Scores | dict[str, Scores]:
        """Return the scores of samples, in their order, as float32.

        data  a DataFrame of pandas or polars, an Arrow table, a dict of columns, a DataLoader of batches with a label,
              or the path of data files. Columns of labels are not needed

        A score is a probability for a binary label [n], one a class for classes [n, classes], a value or a rate for
        others; NaN where the job skips samples with missing values. With several labels it is a dict by column: `score`
        for the main label, `score_NAME` for the others.
        """
        self._predictor.batch_rows = batch_size
        table = self.predict_table(data, threads=threads)
        found = {name: _array(table.column(name)) for name in table.column_names if name != "row"}
        return found["score"] if len(found) == 1 else found

    def predict_table(
        self, data: Any, *, columns: Sequence[str] = (), keys: bool = False, threads: int = 1
    ) -> pa.Table:
        """Return the scores as an Arrow table, with columns of the data that are to be kept, and the keys of slots."""
        return pa.concat_tables(
            predict_groups(self._predictor, self.dataset(data), Kept(tuple(columns), keys), num_threads=threads)
        )

    def vectors(self, slot: str, ids: Any, *, table: str | None = None, unknown: Unknown = "error") -> Scores:
        """Return the vectors of ids of a slot, as they are in the data, as float32 [n, dim].

        table    the embedding table that has them; None: the widest that has rows of the slot
        unknown  what ids without a row give: an "error", "nan", or the "initial" values that the model reads for them
        """
        return self.vectors_by_id(slot, table).vectors(ids, unknown)

    def neighbours(
        self,
        slot: str,
        id: int | str,
        k: int = 10,
        *,
        among: Any,
        by: By = "cosine",
        table: str | None = None,
        column: str | None = None,
    ) -> list[Neighbour]:
        """Return the `k` ids that are nearest to an id of a slot, by cosine or dot product, the nearest first.

        among   a list or array of ids, or data as `predict` takes it (a path, a frame, a table) with a column of ids
        column  that column; None: the one of the slot
        """
        found = self.vectors_by_id(slot, table)
        are_ids = isinstance(among, (list, tuple, np.ndarray, pa.Array, pa.ChunkedArray))
        return found.neighbours(id, k, among if are_ids else found.distinct(self.dataset(among), column), by)

    def vectors_to_parquet(
        self, slot: str, data: Any, path: str | Path, *, table: str | None = None, column: str | None = None
    ) -> int:
        """Write the distinct ids of a column of data that have a row, and their vectors; return how many.

        The file has the column of ids and `vector`, a list of float32; it may also be .arrow or .csv.
        """
        found = self.vectors_by_id(slot, table)
        return found.write(found.distinct(self.dataset(data), column), path)

    def vectors_by_id(self, slot: str, table: str | None = None) -> VectorsById:
        """The vectors of a slot, to ask for several times."""
        return self._predictor.vectors_by_id(slot, table)

    def close(self) -> None:
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def dataset(self, data: Any) -> Dataset:
        """Data as `predict` takes it, opened in the format and from the storage of the training data."""
        if isinstance(data, (str, Path)) or (isinstance(data, Sequence) and data and isinstance(data[0], (str, Path))):
            paths = str(data) if isinstance(data, (str, Path)) else [str(path) for path in data]
            return open_data(self._predictor, paths)
        columns = self.job.data.columns
        tables = as_tables(data, label=columns.label, dense=columns.dense, slots=columns.slots)
        return Dataset((TableFile(join_tables(tables)),))


def _array(column: Any) -> Scores:
    """A column of scores as an array; null is NaN."""
    column = column.combine_chunks()
    if not pa.types.is_fixed_size_list(column.type):
        values: Scores = column.to_numpy(zero_copy_only=False)
        return values
    width = column.type.list_size
    flat = np.array(column.fill_null([np.nan] * width).flatten() if column.null_count else column.flatten())
    return flat.reshape(-1, width)
