"""A running job as a source of versions for a server: it writes them to RUN/stream/ while somebody follows it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from heterps.checkpoint.finished import finished
from heterps.checkpoint.stream import FOLDER
from heterps.errors import RunError
from heterps.serving.follow import Stream, follow
from heterps.serving.following import NothingToFollow, clock_of
from heterps.serving.same_inputs import difference
from heterps.serving.score import Scorer
from heterps.serving.score_inputs import ScoreError
from heterps.training.run.control import NotRunning, find


class RunVersions:
    """The versions that the job of a run writes while this follows it. The job may end, be resumed, or not have begun.

    A stream from before that is not newer than the export is left alone: the server would go back. A job that itself
    went back to a checkpoint is followed, since what it trains now is no version that was there when this began. A run
    whose job has other inputs or tables than the export is refused.
    """

    def __init__(self, scorer: Scorer, run: Path, every_s: float) -> None:
        self.name = str(run)
        self._scorer, self._run, self._every_s = scorer, run, every_s
        self._opened = ExitStack()
        self._stream: Stream | None = None
        self._taken: str | None = None  # the version that the next must build on, unless it has all rows
        self._before = self._newest()
        self._compared_ns: int | None = None  # when the job that was compared with the export was written
        self._difference: str | None = None

    def look(self) -> Iterator[str]:
        if self._stream is None:
            try:
                self._stream = self._opened.enter_context(follow(self._run, self._every_s))
            except RunError as error:
                raise NothingToFollow(str(error)) from None
        self._compare()
        if self._taken is not None or self._is_news():
            yield from self._take(self._stream)
            if damaged := self._stream.passed_over:
                raise ScoreError(
                    f"{self._run}: version {damaged[0]} is damaged, so that {self._scorer.version} stays in use until "
                    "the job writes one with all rows."
                )
        try:
            find(self._run)
        except NotRunning:
            raise NothingToFollow(f"no job runs in {self._run}") from None

    def close(self) -> None:
        self._opened.close()

    def _compare(self) -> None:
        """Raise ScoreError if the job of the run does not fit the export; it is read again when it has changed."""
        try:
            written_ns = (self._run / "job.yaml").stat().st_mtime_ns
        except FileNotFoundError:
            raise NothingToFollow(f"there is no job.yaml in {self._run}") from None
        if written_ns != self._compared_ns:
            self._difference = difference(self._run, self._scorer.manifest)
            self._compared_ns = written_ns
        if self._difference is not None:
            raise ScoreError(self._difference)

    def _is_news(self) -> bool:
        """Whether the newest version of the stream is newer than the export, or was not there when this began."""
        newest = self._newest()
        return newest is not None and (newest[0] > clock_of(self._scorer.version) or newest != self._before)

    def _newest(self) -> tuple[int, int, int] | None:
        """Return the clock of the newest version of the stream, and by what its folder differs from any other."""
        found = finished(self._run / FOLDER)
        if not found:
            return None
        folder = found[-1].path.stat()
        return found[-1].clock, folder.st_ino, folder.st_mtime_ns

    def _take(self, stream: Stream) -> Iterator[str]:
        for version in stream.poll():
            try:
                if not version.is_full and version.parent != self._taken:
                    raise ScoreError(
                        f"version {version.name} of {self._run} builds on {version.parent}, which is not here."
                    )
                self._scorer.update(version.name, version.weights, version.rows, version.gone, version.is_full)
            except Exception:
                self._stream, self._taken = Stream(self._run), None  # which begins anew with all rows
                raise
            self._taken = version.name
            yield version.name
