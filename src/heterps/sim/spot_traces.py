"""Traces of spot capacity: read from a file, or generated.

    time_s,resource,units,usd_per_hour       CSV with these heads, or a JSON object with these fields on each line;
    0,v100,8,0.92                            the price may be left out. A row holds until the next of its resource.
    5400,v100,3,1.10

    {"metadata": {"gap_seconds": 300}, "data": [16, 16, 3, ...]}      the public traces of "Can't Be Late" (NSDI 2024)

Generated traces have the cluster's `interruptions_per_hour` of each unit, and one of two extremes:

    generated     all spot units of a resource go at once, and are away for AWAY_S on average, exponentially
                  distributed. Of 2,635 interruptions on AWS and Azure, those that hit the same type in the same zone
                  came within three minutes of each other in more than 92 % of cases (arXiv 2604.16457)
    independent   units go one by one, and each is replaced at once, as the planner expects it
"""

from __future__ import annotations

import csv
import heapq
import io
import json
from collections.abc import Iterator, Mapping
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, NonNegativeFloat, NonNegativeInt

from heterps.config import Cluster
from heterps.config.base import Frozen, Name
from heterps.errors import ConfigError
from heterps.yamlfile import read_text, validate

AWAY_S = 1.7 * 3600
"""Mean seconds for which spot capacity of V100s was away on AWS in spring 2023: the median over nine zones
(benchmarks/spot)."""


class Capacity(Frozen):
    """A row of a trace: from `time_s` on this number of spot units of a resource can be held."""

    time_s: float = Field(description="Seconds; they count from the first row.")
    resource: Name
    units: NonNegativeInt
    usd_per_hour: NonNegativeFloat | None = Field(None, description="Price of a unit from then on; null: as before.")


def generated(units: Mapping[str, int], cluster: Cluster, seed: int, *, together: bool) -> Iterator[Capacity]:
    """Yield an endless trace of these spot units of a cluster, which go all `together` or one by one."""

    def of(number: int, name: str, count: int) -> Iterator[Capacity]:
        spot = cluster.resources[name].spot
        random = np.random.default_rng([seed, number])
        time_s = 0.0
        yield Capacity(time_s=time_s, resource=name, units=count)
        per_s = (spot.interruptions_per_hour if spot is not None else 0.0) / 3600 * (1 if together else count)
        while per_s > 0:
            time_s += random.exponential(1 / per_s)
            yield Capacity(time_s=time_s, resource=name, units=0 if together else count - 1)
            time_s += random.exponential(AWAY_S) if together else 0.0
            yield Capacity(time_s=time_s, resource=name, units=count)

    each = [of(number, name, count) for number, (name, count) in enumerate(units.items())]
    return heapq.merge(*each, key=attrgetter("time_s"))


def read_trace(path: Path, resources: Mapping[str, int]) -> list[Capacity]:
    """Read a trace of these resources, in the order of time and from 0 s on; rows of others are left out.

    Raises ConfigError, which names the line, for a bad row, and where a resource has none.
    """
    text = read_text(path, what="trace")
    is_json = text.lstrip().startswith("{")
    rows = (_sampled(path, text, resources) or _json_rows(path, text)) if is_json else _csv_rows(path, text)
    for (_, before), (line, row) in pairwise(rows):
        if row.time_s < before.time_s:
            raise ConfigError(
                f"{path}:{line}: time_s is {row.time_s:g}, after {before.time_s:g} in the row before: sort the rows by "
                "time."
            )
    kept = [row for _, row in rows if row.resource in resources]
    if missing := [name for name in resources if all(row.resource != name for row in kept)]:
        known = ", ".join(dict.fromkeys(row.resource for _, row in rows)) or "nothing"
        raise ConfigError(
            f"{path}: the trace has no row of {', '.join(missing)}, whose spot units the plan rents. It has {known}."
        )
    start_s = kept[0].time_s
    first = {id(next(row for row in kept if row.resource == name)) for name in resources}
    shifted = [row.model_copy(update={"time_s": 0.0 if id(row) in first else row.time_s - start_s}) for row in kept]
    return sorted(shifted, key=attrgetter("time_s"))


def from_second(trace: list[Capacity], start_s: float) -> list[Capacity]:
    """Return the trace as it is for a job that begins at `start_s`."""
    now: dict[str, Capacity] = {}
    for row in trace:
        if row.time_s <= start_s:
            price = row.usd_per_hour
            if price is None and row.resource in now:
                price = now[row.resource].usd_per_hour
            now[row.resource] = row.model_copy(update={"time_s": 0.0, "usd_per_hour": price})
    later = [row.model_copy(update={"time_s": row.time_s - start_s}) for row in trace if row.time_s > start_s]
    return [*now.values(), *later]


def _csv_rows(path: Path, text: str) -> list[tuple[int, Capacity]]:
    table = csv.DictReader(io.StringIO(text), restkey="more")
    heads = list(table.fieldnames or [])
    if lacking := [name for name in ("time_s", "resource", "units") if name not in heads]:
        raise ConfigError(
            f"{path}:1: the heads of a trace are time_s,resource,units and maybe usd_per_hour; "
            f"{', '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} not there."
        )
    rows = []
    for row in table:
        if "more" in row:
            raise ConfigError(f"{path}:{table.line_num}: this row has more cells than the {len(heads)} heads.")
        written = {name: value for name, value in row.items() if value not in (None, "")}
        rows.append((table.line_num, validate(written, Capacity, where=f"{path}:{table.line_num}")))
    return rows


def _json_rows(path: Path, text: str) -> list[tuple[int, Capacity]]:
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            where = f"{path}:{number}"
            rows.append((number, validate(_parse(line, where), Capacity, where=where)))
    return rows


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(
            f"{where}: this is no JSON object ({error}): a trace is CSV, or has one object on each line."
        ) from None


class _Spacing(Frozen):
    gap_seconds: float = Field(gt=0)


class _Sampled(Frozen):
    """A trace of one resource as it was published with "Can't Be Late": the units at equal distances of time."""

    metadata: _Spacing
    data: tuple[NonNegativeInt, ...] = Field(min_length=1)


def _sampled(path: Path, text: str, resources: Mapping[str, int]) -> list[tuple[int, Capacity]] | None:
    """Return the rows of a trace that is one JSON object with `data`; None if the file is not one."""
    try:
        data = json.loads(text)
    except ValueError:
        return None
    if not isinstance(data, dict) or "data" not in data:
        return None
    found = validate(data, _Sampled, where=str(path))
    if len(resources) != 1:
        raise ConfigError(
            f"{path}: this trace does not say of which resource it is, and the plan rents spot units of "
            f"{', '.join(resources)}: write a trace with a column `resource`."
        )
    (name,) = resources
    gap_s = found.metadata.gap_seconds
    return [(1, Capacity(time_s=i * gap_s, resource=name, units=units)) for i, units in enumerate(found.data)]
