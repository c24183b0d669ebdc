"""Runs that somebody loses a process of: each test in a folder of its own, with its processes in sight."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from heterps.processes import Child


@pytest.fixture
def in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test's folder is the working directory, and its model is imported from there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "net_that_ends", raising=False)


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Child]]:
    """The processes of a run in this one, by name; a restart adds new ones."""
    made: dict[str, list[Child]] = {}

    class Noted(Child):
        def __init__(self, name: str, *args: Any, **options: Any) -> None:
            super().__init__(name, *args, **options)
            made.setdefault(name, []).append(self)

    monkeypatch.setattr("heterps.launch.standby.Child", Noted)
    monkeypatch.setattr("heterps.launch.run_servers.Child", Noted)
    return made
