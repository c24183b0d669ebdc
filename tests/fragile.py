"""An `os` for heterps.checkpoint.disk that crashes at the n-th call and forgets what was not synced.

Two kinds of crash: the process dies (what was called has happened), or the power fails (`lose_power`): data of a file
never synced is torn, and names entered in a folder never synced since are not there. Removals always stay: a save that
relied on them coming back would be wrong.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class Crash(BaseException):
    """The process is gone: nothing may catch this."""


@dataclass
class Entry:
    """A name in a folder that is not durable yet; `source` is where a renamed one came from."""

    path: Path
    source: Path | None = None


class FragileOS:
    def __init__(self, crash_at: int | None = None) -> None:
        self.num_calls = 0
        self.is_crashed = False
        self._crash_at = crash_at
        self._open: dict[int, Path] = {}
        self._torn: set[Path] = set()
        self._entries: list[Entry] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT:
            self._step()
            self._entries.append(Entry(Path(path)))
        descriptor = os.open(path, flags, mode)
        self._open[descriptor] = Path(path)
        return descriptor

    def write(self, descriptor: int, data: memoryview) -> int:
        self._step(lambda: os.write(descriptor, data[: len(data) // 2]))
        self._torn.add(self._open[descriptor])
        return os.write(descriptor, data)

    def fsync(self, descriptor: int) -> None:
        self._step()
        path = self._open[descriptor]
        self._torn.discard(path)
        self._entries = [entry for entry in self._entries if entry.path.parent != path]

    def mkdir(self, path: Path) -> None:
        self._step()
        os.mkdir(path)
        self._entries.append(Entry(path))

    def rename(self, source: Path, target: Path) -> None:
        self._step()
        os.rename(source, target)
        self._move(source, target)
        self._entries.append(Entry(target, source))

    def unlink(self, path: Path) -> None:
        self._step()
        os.unlink(path)

    def rmdir(self, path: Path) -> None:
        self._step()
        os.rmdir(path)

    def lose_power(self) -> None:
        for path in self._torn:
            if path.exists():
                os.truncate(path, path.stat().st_size // 2)
        while self._entries:
            entry = self._entries.pop()
            if not entry.path.exists():
                continue
            if entry.source is not None:
                os.rename(entry.path, entry.source)
                self._move(entry.path, entry.source)
            elif entry.path.is_dir():
                shutil.rmtree(entry.path)
            else:
                entry.path.unlink()

    def _step(self, half: Callable[[], object] = lambda: None) -> None:
        if self.num_calls == self._crash_at:
            self.is_crashed = True
            half()
            raise Crash
        self.num_calls += 1

    def _move(self, source: Path, target: Path) -> None:
        """Follow what lies in a renamed folder."""

        def moved(path: Path) -> Path:
            return target / path.relative_to(source) if path.is_relative_to(source) else path

        self._torn = {moved(path) for path in self._torn}
        for entry in self._entries:
            entry.path = moved(entry.path)
