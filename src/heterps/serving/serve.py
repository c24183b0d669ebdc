"""Serve an export: read it, follow what it follows, listen, and end in order. See docs/how-to/serve.md.

app.py --tables of rows--> batching.py --batches--> scoring.py --> Scorer, which has one state at a time
                                                                     ^
run_versions.py or increment_folder.py --new versions--> following.py  puts newer states in its place
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heterps.serving.app import Service, make_app
from heterps.serving.batching import Batcher, RequestQueue
from heterps.serving.following import Follower, Status, VersionSource, clock_of
from heterps.serving.increment_folder import IncrementFolder
from heterps.serving.listen import listening, read_token, run_app, url_of
from heterps.serving.model_columns import columns_of, describe
from heterps.serving.open_scorer import open_scorer
from heterps.serving.payload import MAX_ROWS
from heterps.serving.run_versions import RunVersions
from heterps.serving.score import Scorer
from heterps.serving.scoring import ScoredRequest, score_tables
from heterps.serving.serve_metrics import ServeMetrics
from heterps.threads import one_torch_thread, quick_switches

LOOK_S = 0.2
"""Seconds between two looks for a new version."""


@dataclass(frozen=True)
class ServeSettings:
    """How to serve; see the options of `heterps serve`."""

    host: str = "127.0.0.1"
    port: int = 8000
    token_file: Path | None = None
    max_batch: int = 1024
    max_wait_s: float = 0.002
    queue: int = 256
    deadline_s: float = 10.0
    max_body_mb: float = 16.0
    max_rows: int = MAX_ROWS
    every_s: float = 1.0

    @property
    def max_connections(self) -> int:
        """Number of connections that may be open, so that bodies which are still being sent have a bound, too."""
        return 2 * self.queue + 64


def serve_export(
    export: Path,
    settings: ServeSettings,
    *,
    follow: Path | None = None,
    increments: Path | None = None,
    ready: Callable[[str, str], None],
    tell: Callable[[str], None],
) -> int:
    """Serve until SIGTERM or SIGINT, and return its number.

    ready  is called with URL and version once requests are taken
    tell   is called with a sentence when following goes otherwise than before
    """
    token = read_token(settings.token_file)
    scorer = open_scorer(export)
    socket = listening(settings.host, settings.port, token)
    source: VersionSource | None = None
    if follow is not None:
        source = RunVersions(scorer, follow, settings.every_s)
    elif increments is not None:
        source = IncrementFolder(scorer, increments)
    metrics = ServeMetrics()
    metrics.version(clock_of(scorer.version), is_new=False)
    follower = None if source is None else _follower(source, metrics, tell)
    batcher: Batcher[Any, ScoredRequest] = Batcher(
        lambda tables: score_tables(scorer.scored, tables, metrics),
        RequestQueue(settings.max_batch, settings.max_wait_s, settings.queue),
        prepare=one_torch_thread,
    )
    service = Service(
        columns_of(scorer.manifest),
        batcher,
        metrics,
        describe=lambda: describe(scorer.manifest, scorer.version),
        health=lambda: _health(scorer, metrics, follower),
        max_body_mb=settings.max_body_mb,
        max_rows=settings.max_rows,
        deadline_s=settings.deadline_s,
        token=token,
    )
    try:
        if follower is not None:
            follower.start()
        url = url_of(socket)
        with quick_switches():  # between the thread that scores and the one that reads requests
            return run_app(
                make_app(service),
                socket,
                lambda: ready(url, scorer.version),
                settings.deadline_s,
                settings.max_connections,
            )
    finally:
        batcher.close(settings.deadline_s)  # a batch that takes longer ends with the process
        if follower is not None:
            follower.close()
        socket.close()


def _follower(source: VersionSource, metrics: ServeMetrics, tell: Callable[[str], None]) -> Follower:
    def changed(status: Status) -> None:
        if status.state == "refused":
            metrics.refused()
        tell(f"{status.state} {source.name}{f': {status.detail}' if status.detail else ''}")

    return Follower(source, LOOK_S, lambda name: metrics.version(clock_of(name)), changed)


def _health(scorer: Scorer, metrics: ServeMetrics, follower: Follower | None) -> dict[str, Any]:
    return {
        "version": scorer.version,
        "version_age_s": round(metrics.version_age_s, 3),
        "following": None if follower is None else follower.describe(),
    }
