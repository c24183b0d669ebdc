"""A folder of increments is applied to its end, whatever ways lead through its versions."""

from __future__ import annotations

import json
import os
from itertools import islice
from pathlib import Path

import pytest

from heterps.serving.increment_folder import IncrementFolder
from heterps.serving.score_inputs import ScoreError


class Recorder:
    """Stands in for a scorer: goes from version to version."""

    def __init__(self, version: str) -> None:
        self.version = version

    def apply(self, folder: Path) -> None:
        manifest = json.loads((folder / "manifest.json").read_text())
        assert manifest["parent"]["version"] == self.version
        self.version = manifest["version"]


def add(folder: Path, name: str, parent: str, version: str, written_s: float = 1.0) -> None:
    (folder / name).mkdir(exist_ok=True)
    manifest = {"parent": {"version": parent}, "version": version}
    (folder / name / "manifest.json").write_text(json.dumps(manifest))
    os.utime(folder / name / "manifest.json", (written_s, written_s))


def looks(source: IncrementFolder) -> list[str]:
    """Return the versions of one look, and fail rather than look forever."""
    found = list(islice(source.look(), 20))
    assert len(found) < 20, "it does not end"
    return found


@pytest.fixture
def source(tmp_path: Path) -> IncrementFolder:
    return IncrementFolder(Recorder("3"), tmp_path)  # type: ignore[arg-type]


def test_an_increment_that_leads_to_its_own_version_is_passed_over(source: IncrementFolder, tmp_path: Path) -> None:
    add(tmp_path, "none", "3", "3")
    add(tmp_path, "later", "9", "9")
    assert looks(source) == []
    add(tmp_path, "next", "3", "6")
    assert looks(source) == ["6"]


def test_a_way_back_is_gone_once_and_not_in_circles(source: IncrementFolder, tmp_path: Path) -> None:
    add(tmp_path, "on", "3", "6")
    add(tmp_path, "back", "6", "3")
    assert looks(source) == ["6", "3"]
    assert looks(source) == []
    add(tmp_path, "other", "3", "5")
    assert looks(source) == ["5"]


def test_an_increment_that_is_written_anew_is_applied_anew(source: IncrementFolder, tmp_path: Path) -> None:
    add(tmp_path, "newest", "3", "6")
    assert looks(source) == ["6"]
    add(tmp_path, "newest", "6", "9", written_s=2.0)
    assert looks(source) == ["9"]


def test_a_gap_is_told(source: IncrementFolder, tmp_path: Path) -> None:
    add(tmp_path, "far", "6", "9")
    with pytest.raises(ScoreError, match="leads from version 6, but version 3 is in use"):
        looks(source)
