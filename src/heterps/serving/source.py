"""Find the model that a path stands for: a run, one of its checkpoints, or an export.

RUN         job.yaml, checkpoints/      the best checkpoint, where validation kept one, else the newest
CHECKPOINT  RUN/checkpoints/0000001234  that one
EXPORT      manifest.json, score.py     what it was exported from
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from heterps.config import Format, Job, Storage, load_job
from heterps.data.sources import Dataset, open_dataset
from heterps.errors import HeterpsError, RunError
from heterps.serving.predict import BATCH_ROWS, CheckpointPredictor, Predictor
from heterps.serving.predict_export import ExportPredictor
from heterps.training.run.trained import find_checkpoint

T = TypeVar("T")


class Trained(NamedTuple):
    """A trained model on disk: the job that describes it, and the checkpoint that holds it."""

    job: Job
    checkpoint: Path


def is_export(path: Path) -> bool:
    return (path / "score.py").is_file()


def find_trained(path: str | Path) -> Trained:
    """Return the checkpoint that a run, or a checkpoint itself, stands for; raises RunError if there is none."""
    path = Path(path)
    if (path / "job.yaml").is_file():
        return Trained(load_job(path / "job.yaml"), find_checkpoint(path))
    run = path.resolve().parent.parent
    if (path / "manifest.json").is_file() and (run / "job.yaml").is_file():
        return Trained(load_job(run / "job.yaml"), path)
    if not path.exists():
        raise RunError(f"{path}: there is no such folder. Name a run, such as runs/ctr-1, a checkpoint or an export.")
    raise RunError(
        f"{path} is neither a run (there is no job.yaml in it), nor a checkpoint of one, nor an export. Name the "
        "folder that `heterps train` or `heterps export` has written."
    )


def with_trained(path: str | Path, use: Callable[[Trained], T]) -> T:
    """Use the checkpoint that a path stands for; or the next one, if the run removes it meanwhile as too old."""
    while True:
        trained = find_trained(path)
        try:
            return use(trained)
        except (HeterpsError, OSError):
            if trained.checkpoint.exists() or trained.checkpoint == Path(path):
                raise


def open_predictor(path: str | Path, batch_rows: int = BATCH_ROWS) -> CheckpointPredictor | ExportPredictor:
    """Open the model that a path stands for, ready to score data."""
    if is_export(Path(path)):
        return ExportPredictor(Path(path))
    return with_trained(path, lambda trained: CheckpointPredictor(*trained, batch_rows))


def open_data(
    predictor: Predictor,
    source: str | Sequence[str],
    options: Format | None = None,
    storage: Storage | None = None,
) -> Dataset:
    """Open data to be scored: in the format and from the storage of the training data, where nothing else is said.

    Ids that are text stay text: a small file may have none that does not look like a number.
    """
    chosen = options or predictor.format
    texts = dict.fromkeys(predictor.text_columns, "string")
    typed = chosen.model_copy(update={"types": {**texts, **chosen.types}})
    return open_dataset(source, typed, storage or predictor.storage)
