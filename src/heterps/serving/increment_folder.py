"""A folder to which increments are added, as a source of versions for a server that is at work."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from heterps.serving.following import NothingToFollow, clock_of
from heterps.serving.score import Scorer
from heterps.serving.score_inputs import ScoreError


class IncrementFolder:
    """A folder to which increments are added, each a folder with a name of any kind, in any order.

    Each is applied when the version that it leads from is in use, and not again unless it is written anew: increments
    that go back to an earlier version must not form an endless circle. Where several lead from one version, the newest
    is tried first. An increment that leads to its own version is passed over.
    """

    def __init__(self, scorer: Scorer, folder: Path) -> None:
        self.name = str(folder)
        self._scorer, self._folder = scorer, folder
        self._seen: dict[
            Path, tuple[int, tuple[str, str] | None]
        ] = {}  # by manifest: when it was written, its two ends
        self._applied: set[Path] = set()

    def look(self) -> Iterator[str]:
        try:
            manifests = sorted(self._folder.glob("*/manifest.json"))
            is_there = self._folder.is_dir()
        except OSError as error:
            raise NothingToFollow(f"{self._folder}: {error.strerror}") from None
        if not is_there:
            raise NothingToFollow(f"there is no folder {self._folder}")
        known = {path.parent: found for path in manifests if (found := self._ends(path)) is not None}
        ends = {
            folder: (parent, version)
            for folder, (parent, version) in known.items()
            if parent != version and folder not in self._applied
        }
        problem: Exception | None = None
        while True:
            following = [folder for folder, (parent, _) in ends.items() if parent == self._scorer.version]
            applied = None
            for folder in sorted(following, key=lambda one: clock_of(ends[one][1]), reverse=True):
                try:
                    self._scorer.apply(folder)
                except (ScoreError, OSError) as error:
                    problem = problem or error
                else:
                    self._applied.add(folder)
                    applied, problem = ends.pop(folder)[1], None
                    break
            if applied is None:
                break
            yield applied
        ahead = [one for one, (parent, _) in ends.items() if clock_of(parent) > clock_of(self._scorer.version)]
        if problem is not None:
            raise problem
        if ahead:
            first = min(ahead, key=lambda one: clock_of(ends[one][0]))
            raise ScoreError(
                f"{first} leads from version {ends[first][0]}, but version {self._scorer.version} is in use: an "
                "increment between them is missing. Add it, or serve a newer export."
            )

    def close(self) -> None:
        pass

    def _ends(self, manifest: Path) -> tuple[str, str] | None:
        """Return the versions that an increment leads from and to; None for a full export, or what cannot be read."""
        try:
            written = manifest.stat().st_mtime_ns
            if (seen := self._seen.get(manifest)) is not None and seen[0] == written:
                return seen[1]
            content = json.loads(manifest.read_bytes())
            ends = None if content["parent"] is None else (content["parent"]["version"], content["version"])
        except (OSError, ValueError, KeyError, TypeError):
            return None  # it is being written, or damaged: whoever needs it finds a gap
        self._seen[manifest] = written, ends
        self._applied.discard(manifest.parent)
        return ends
