"""Score the tables of several requests with as few calls as possible, each request by one version as a whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from heterps.serving.payload import RequestRefused
from heterps.serving.serve_metrics import ServeMetrics

Score = Callable[[Any], tuple[Any, str, NDArray[np.int64]]]
"""Gives, for a table of rows: their scores, the version that gave them, and how many keys of each row are unknown.

For rows that cannot be scored it raises ValueError, which names column and row, or an error of Arrow.
"""


@dataclass(frozen=True)
class ScoredRequest:
    """The scores of one request, in the order of its rows, and the version that gave them."""

    scores: Any
    version: str
    num_unknown: int


def score_tables(score: Score, tables: Sequence[Any], metrics: ServeMetrics) -> list[ScoredRequest | Exception]:
    """Return the scores of each table, or what it failed by: a RequestRefused where its rows cannot be scored.

    Tables with the same columns and types are scored as one. If that fails, for whatever reason, each is scored alone:
    bad rows of one request do not touch another, and errors count the rows of their own request.
    """
    found: list[ScoredRequest | Exception | None] = [None] * len(tables)
    alike: dict[Any, list[int]] = {}
    for place, table in enumerate(tables):
        alike.setdefault(table.schema, []).append(place)
    for places in alike.values():
        some = [tables[place] for place in places]
        begin = time.perf_counter()
        answers = _score_alike(score, some)
        seconds = time.perf_counter() - begin
        num_unknown = sum(answer.num_unknown for answer in answers if isinstance(answer, ScoredRequest))
        metrics.batch(len(some), sum(table.num_rows for table in some), num_unknown, seconds)
        for place, answer in zip(places, answers, strict=True):
            found[place] = answer
    return [answer for answer in found if answer is not None]


def _score_alike(score: Score, tables: list[Any]) -> list[ScoredRequest | Exception]:
    try:
        scores, version, unknown = score(pa.concat_tables(tables) if len(tables) > 1 else tables[0])
    except Exception as error:
        if len(tables) > 1:
            return [_score_alike(score, [table])[0] for table in tables]
        return [RequestRefused(422, str(error)) if isinstance(error, (ValueError, pa.ArrowException)) else error]
    ends = np.cumsum([table.num_rows for table in tables])
    cuts = zip(tables, [0, *ends[:-1].tolist()], ends.tolist(), strict=True)
    return [
        ScoredRequest(scores.slice(start, table.num_rows), version, int(unknown[start:end].sum()))
        for table, start, end in cuts
    ]
