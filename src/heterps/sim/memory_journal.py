"""MemoryJournal: the journal of a simulated job."""

from __future__ import annotations

from pathlib import Path

from heterps.training.coordinator.journal import Journal, JournalContents, ServerPlace, contents_of


class MemoryJournal(Journal):
    """A journal that is kept in memory, for simulated jobs."""

    def __init__(self, found: JournalContents | None = None) -> None:
        super().__init__(Path(), 1 if found is None else found.head.life, "", ServerPlace("", {}), lambda _: None)
        self._lines = [] if found is None else found.lines()

    def close(self) -> None:
        self._is_over, self._lines = True, []

    def _replace(self, line: bytes) -> None:
        self._lines = [line]

    def _append(self, line: bytes) -> None:
        self._lines.append(line)

    def read(self) -> JournalContents | None:
        """What the coordinator that wrote it has decided."""
        return contents_of(b"".join(self._lines))
