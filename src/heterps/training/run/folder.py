"""Run: the folder of one execution, in which everything about it can be found again.

job.yaml        the job, defaults included          metrics.jsonl   a line an interval
plan.json       the plan it follows                 checkpoints/    state to go on from
summary.json    what came of it                     report.html     the same for people
start.json      what it started from, if the job has a `start`
profile.json    what its plan was predicted by, if it was   events.jsonl    faults, recoveries and changes of workers
quarantine.jsonl  rows of batches that were skipped, if the job says so
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from heterps.checkpoint import Snapshot, begin_save, find, latest, load, load_latest, saved_samples
from heterps.config import Job, Split, load_job
from heterps.config.features import keep_fitted
from heterps.errors import RunError, StorageError
from heterps.yamlfile import dump_yaml

MAY_CHANGE = {
    "name",
    "checkpoint",
    "profile",
    "plan",
    "cluster",
    "launcher",
    "threads",
    "servers",
    "workers",
    "emulation",
    "ray_address",
    "tiers",
    "report_to",
    "data.train",
    "data.test",
    "validation",
    "on_divergence",
    "on_not_finite",
    "data.epochs",
    "data.prefetch",
    "data.columns.id_kinds",
}
"""Fields of a job that may differ when a run is resumed: they decide where, how long and how often, not what. Kinds of
ids may be found or not yet; ids of another kind are other data. Other training data is for a run that is done with its
own: a position in files belongs to them."""

PROFILE = "profile.json"
ALWAYS_MEASURED = {"samples", "seconds", "rows", "table_bytes"}
"""Fields that no line of metrics.jsonl is without, and that are never null."""


class Run:
    """One run folder. Files appear whole or not at all, but for metrics.jsonl, which grows by whole lines."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        self._restarts = 0
        self._goes_back_to: Path | None = None

    def create(self, job: Job) -> None:
        """Start a new run in an empty or missing folder."""
        try:
            if self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
                raise RunError(
                    f"{self.folder} is there already and not empty. Go on with that run by --resume, "
                    "or name another folder with --run."
                )
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _storage_error(error, self.folder) from error
        self.write("job.yaml", dump_yaml(job))

    def with_fitted(self, job: Job) -> Job:
        """The job with what this run has found on its data, numbers and kinds of ids, so that none is found anew."""
        if not (self.folder / "job.yaml").is_file():
            return job
        before, data = load_job(self.folder / "job.yaml").data, job.data
        columns = data.columns.with_features(keep_fitted(data.columns.features, before.columns.features))
        kinds = {name: kind for name, kind in before.columns.id_kinds.items() if name in columns.id_columns}
        columns = columns.model_copy(update={"id_kinds": {**kinds, **columns.id_kinds}})
        validation = data.validation
        if isinstance(validation, Split) and isinstance(before.validation, Split) and validation.since is None:
            validation = validation.model_copy(update={"since": before.validation.since})
        return job.model_copy(update={"data": data.model_copy(update={"columns": columns, "validation": validation})})

    def resume(self, job: Job) -> None:
        """Go on in the folder of a run of the same job."""
        if not (self.folder / "job.yaml").exists():
            raise RunError(f"{self.folder} holds no run to resume (there is no job.yaml in it). Leave out --resume.")
        differing = _differences(
            load_job(self.folder / "job.yaml").model_dump(mode="json"), job.model_dump(mode="json")
        )
        fixed = [field for field in differing if not any(f"{field}.".startswith(f"{may}.") for may in MAY_CHANGE)]
        if fixed:
            raise RunError(
                f"{self.folder} is a run of another job: {', '.join(fixed)} differ. Start a new run with --run, "
                f"or give the job as it was ({self.folder / 'job.yaml'})."
            )
        self.write("job.yaml", dump_yaml(job))

    def go_back_to(self, checkpoint: str | Path) -> None:
        """Go on from this checkpoint of the run, by its path, name or clock, and not from the newest.

        Later ones stay until the run has made its next checkpoint: until then nothing is given up.
        """
        found = find(self.checkpoints, checkpoint)
        if found is None:
            raise RunError(
                f"{checkpoint} is no checkpoint of {self.folder}. `heterps checkpoint ls {self.folder}` shows them; a "
                "new run starts from that of another one by `start` in the job."
            )
        self._goes_back_to = found

    @property
    def goes_on(self) -> bool:
        """Whether the run goes on from where it is, and not from a checkpoint that was named."""
        return self._goes_back_to is None

    def load_checkpoint(self) -> Snapshot | None:
        """Read the checkpoint from which the run goes on; None where it has none yet."""
        if self._goes_back_to is not None:
            return load(self._goes_back_to)
        return None if latest(self.checkpoints) is None else load_latest(self.checkpoints)

    def save_checkpoint(self, snapshot: Snapshot, keep: int, spare: int | None = None) -> Path:
        """Write a checkpoint, from which the run goes on from now on."""
        return self.begin_checkpoint(snapshot, keep, spare)()

    def begin_checkpoint(self, snapshot: Snapshot, keep: int, spare: int | None = None) -> Callable[[], Path]:
        """Begin to write a checkpoint, and return a function that ends it while training goes on."""
        finish = begin_save(self.checkpoints, snapshot, keep, spare)

        def end() -> Path:
            path = finish()
            self._goes_back_to = None
            return path

        return end

    @property
    def saved_samples(self) -> int | None:
        """The samples of the checkpoint from which the run would go on; None where it has none."""
        if self._goes_back_to is not None:
            return load(self._goes_back_to).samples
        return saved_samples(self.checkpoints)

    def begun_again(self, before: int) -> int:
        """Return the number of restarts, for a run that goes on from a checkpoint made after so many.

        The number grows by more than one if there were restarts meanwhile that made no checkpoint.
        """
        self._restarts = max(self._restarts, before) + 1
        return self._restarts

    def write(self, name: str, text: str) -> None:
        """Write a file of the run: it has the old text or the new, never half."""
        path, draft = self.folder / name, self.folder / f".{name}.part"
        try:
            draft.write_text(text, encoding="utf-8")
            os.replace(draft, path)
        except OSError as error:
            with suppress(OSError):  # a read-only file system refuses this too
                draft.unlink()
            raise _storage_error(error, path) from error

    def write_json(self, name: str, value: dict[str, Any]) -> None:
        self.write(name, json.dumps(value, indent=1) + "\n")

    @property
    def start(self) -> dict[str, Any] | None:
        """What the run started from; None where that was nothing but initial values."""
        path = self.folder / "start.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    def add_metrics(self, line: dict[str, Any]) -> None:
        self.add_line("metrics.jsonl", line)

    def add_line(self, name: str, line: dict[str, Any]) -> None:
        """Add a line to a file of the run that grows by whole lines."""
        path = self.folder / name
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise _storage_error(error, path) from error

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl; a last one that a crash cut off before its end is left out."""
        path = self.folder / "metrics.jsonl"
        return [_metrics_line(line, f"{path}:{number}") for number, line in enumerate(_whole_lines(path), 1)]

    def mend_metrics(self) -> str | None:
        """Take damaged lines out of metrics.jsonl, so that the run can go on; the file as it was is kept beside it.

        Returns a sentence about them; None where all lines are good.
        """
        path, kept = self.folder / "metrics.jsonl", self.folder / "metrics.damaged.jsonl"
        good, bad = [], []
        for number, line in enumerate(_whole_lines(path), 1):
            try:
                good.append(json.dumps(_metrics_line(line, "")) + "\n")
            except RunError:
                bad.append(str(number))
        if not bad:
            return None
        try:
            kept.write_bytes(path.read_bytes())
        except OSError as error:
            raise _storage_error(error, kept) from error
        self.write("metrics.jsonl", "".join(good))
        lines = f"line {bad[0]} is" if len(bad) == 1 else f"lines {', '.join(bad[:5])}{' ...' * (len(bad) > 5)} are"
        return f"{path}: {lines} damaged and left out of the report. The file as it was is {kept}."

    def rewind_metrics(self, samples: int) -> None:
        """Drop the lines that a run resumed at `samples` will write again."""
        kept = [json.dumps(line) + "\n" for line in self.metrics() if line["samples"] <= samples]
        self.write("metrics.jsonl", "".join(kept))


def choose_folder(job: Job, *, resume: bool, root: Path = Path("runs")) -> Path:
    """`runs/<job name>-<number>`: the next free number, or the last one to resume."""
    stem = re.sub(r"[^\w.-]+", "-", job.name)  # a name may have anything, a folder not
    names = [path.name for path in root.iterdir()] if root.is_dir() else []
    numbers = [int(match[1]) for name in names if (match := re.fullmatch(rf"{re.escape(stem)}-(\d+)", name))]
    if resume and not numbers:
        raise RunError(
            f"there is no run of {job.name!r} in {root}/ to resume. Leave out --resume, or name it with --run."
        )
    number = max(numbers, default=0) + (0 if resume else 1)
    return root / f"{stem}-{number}"


def _differences(old: Any, new: Any, path: str = "") -> list[str]:
    """The dotted names of the fields in which two dumped jobs differ."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return [] if old == new else [path]
    names = dict.fromkeys([*old, *new])
    return [d for name in names for d in _differences(old.get(name), new.get(name), f"{path}.{name}".lstrip("."))]


def _whole_lines(path: Path) -> list[bytes]:
    """All lines of a file but a last one without an end; none where there is no file."""
    return (path.read_bytes() if path.exists() else b"").split(b"\n")[:-1]


def _metrics_line(text: bytes, where: str) -> dict[str, Any]:
    try:
        line = json.loads(text)
    except ValueError:
        line = None
    if not isinstance(line, dict) or not line.keys() >= ALWAYS_MEASURED or not isinstance(line["samples"], int):
        shown = text[:60].decode(errors="replace")
        raise RunError(f"{where}: this line is damaged: {shown!r}. Delete it, or restore the file.")
    return line


def _storage_error(error: OSError, path: Path) -> StorageError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(f"{path}: the disk is full. Free some room, then go on with --resume.")
    return StorageError(f"{path}: cannot be written: {error.strerror or error}. Check the folder and its permissions.")
