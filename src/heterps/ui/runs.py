"""The runs of a folder, by what their files say. Files are read again when they have changed."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heterps.errors import RunError
from heterps.report.meaning import RUNNING, UNFINISHED, headline
from heterps.training.run.control import FILE as CONTROL
from heterps.training.run.control import find

LAST_BYTES = 65_536
"""Bytes at the end of metrics.jsonl that are read for its last line."""


@dataclass(frozen=True)
class RunLine:
    """What a list says of a run.

    name     name of its folder            score    title and value of its first metric; None where there is none yet
    status   of its summary, or `running`  changed  when its metrics or its summary changed, in seconds since 1970
    """

    name: str
    status: str
    samples: int
    seconds: float
    usd: float | None
    score: tuple[str, float | None] | None
    changed: float


class RunList:
    """The runs in `folder`, or the one run that `folder` is."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, tuple[tuple[int, ...], RunLine]] = {}

    def folders(self) -> dict[str, Path]:
        """Return the run folders by name."""
        if (self._folder / "job.yaml").is_file():
            return {self._folder.resolve().name: self._folder}
        with suppress(OSError), os.scandir(self._folder) as found:
            return {entry.name: Path(entry.path) for entry in found if os.path.isfile(f"{entry.path}/job.yaml")}
        return {}

    def lines(self, search: str = "") -> list[RunLine]:
        """Return the runs whose name, status or metric has all words of `search`, the newest first."""
        lines = [self._line(name, folder) for name, folder in self.folders().items()]
        words = search.lower().split()
        found = [line for line in lines if all(word in _searched(line) for word in words)]
        return sorted(found, key=lambda line: line.changed, reverse=True)

    def _line(self, name: str, folder: Path) -> RunLine:
        summary, metrics, control = (_stat(f"{folder}/{file}") for file in ("summary.json", "metrics.jsonl", CONTROL))
        key = tuple(number for stat in (summary, metrics) if stat for number in (stat.st_mtime_ns, stat.st_size))
        is_asked = control is not None  # a job that was killed leaves its file, so that the file alone says little
        if not is_asked and name in self._known and self._known[name][0] == key:
            return self._known[name][1]
        line = _read_line(name, folder, summary, metrics, is_asked=is_asked)
        self._known[name] = key, line
        return line


def is_running(folder: Path) -> bool:
    """Tell whether the job of a run folder runs, and may be asked from here."""
    try:
        find(folder)
    except RunError:
        return False
    return True


def _read_line(
    name: str, folder: Path, summarised: os.stat_result | None, measured: os.stat_result | None, *, is_asked: bool
) -> RunLine:
    summary = (_read_json(folder / "summary.json") if summarised else None) or {}
    is_over = summary and measured and summarised and summarised.st_mtime_ns >= measured.st_mtime_ns
    last = {} if is_over else _last_line(folder / "metrics.jsonl") or {}
    is_newer = _number(last.get("samples")) > _number(summary.get("samples"))
    shown = last if is_newer or not summary else summary
    recorded = UNFINISHED if is_newer or not summary else str(summary.get("status"))
    stats = summarised, measured, _stat(f"{folder}/job.yaml")
    return RunLine(
        name=name,
        status=RUNNING if is_asked and is_running(folder) else recorded,
        samples=int(_number(shown.get("samples"))),
        seconds=_number(shown.get("seconds")),
        usd=shown.get("measured_usd", shown.get("usd")),
        score=_score(shown),
        changed=max((stat.st_mtime for stat in stats if stat is not None), default=0.0),
    )


def _score(figures: dict[str, Any]) -> tuple[str, float | None] | None:
    try:
        return headline(figures)
    except (KeyError, IndexError, TypeError):  # no metric yet, or a file that heterps did not write
        return None


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _searched(line: RunLine) -> str:
    return f"{line.name} {line.status} {line.score[0] if line.score else ''}".lower()


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _last_line(path: Path) -> dict[str, Any] | None:
    """Return the last whole line of a file of JSON lines."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_BYTES))
            whole = file.read().rpartition(b"\n")[0]
        found = json.loads(whole.rpartition(b"\n")[2])
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
