"""What the page of a run shows of its traffic: bytes by kind, what was saved, and how they travelled."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from heterps.report.figures import UNDEFINED
from heterps.report.page.charts import Chart, draw
from heterps.report.terminal.profile_table import size
from heterps.report.traffic import CARRIERS, KINDS, SAVED, Traffic, saved, saved_messages, traffic_of, travelled

Lines = list[dict[str, Any]]
Rows = list[tuple[str, ...]]


def traffic_values(metrics: Lines) -> dict[str, Any] | None:
    """What run.html.j2 shows of the bytes between workers, and to and from servers; None where none were counted."""
    lines = [line for line in metrics if traffic_of(line) is not None]
    if not lines:
        return None
    traffic: Traffic = lines[-1]["traffic"]
    samples = lines[-1]["samples"] - _since(lines)
    chart = Chart("Bytes a sample", _per_sample(lines), lambda v: UNDEFINED if v is None else size(round(v)),
                  lambda v: size(round(v)), from_zero=True)  # fmt: skip
    return {
        "told": _told(traffic),
        "kinds": _byte_rows(traffic, KINDS, samples),
        "saved": _saved_rows(traffic, metrics[-1]),
        "carriers": _byte_rows(traffic, CARRIERS, samples) + _mishaps(traffic),
        "chart": draw(chart) if len(lines) > 1 else "",
    }


def _told(traffic: Traffic) -> str:
    whole, less = travelled(traffic), saved(traffic)
    words = f"{size(whole)} travelled, in {traffic.get('requests', 0):,} requests to servers."
    if less:
        more = f"{size(whole + less)}, {(whole + less) / whole:.1f} times as much"
        words += f" Without de-duplication, copies of rows and compression it would have been {more}."
    return words


def _byte_rows(traffic: Traffic, titles: dict[str, str], samples: int) -> Rows:
    found = [(title, traffic.get(field, 0)) for field, title in titles.items()]
    return [(title, size(num_bytes), _a_sample(num_bytes, samples)) for title, num_bytes in found if num_bytes]


def _a_sample(num_bytes: int, samples: int) -> str:
    return size(round(num_bytes / samples)) if samples > 0 else ""


def _saved_rows(traffic: Traffic, line: dict[str, Any]) -> Rows:
    cache, tiers = line.get("cache") or {}, line.get("tiers") or {}
    copies = "none are kept: servers.staleness of the job allows them"
    if cache.get("hit_rate") is not None:
        num_rows = cache["num_hits"] + cache["num_misses"]
        copies = f"{cache['num_hits']:,} of {num_rows:,} rows ({cache['hit_rate']:.1%}) were not pulled"
    is_coded = bool(traffic.get("compression_saved_bytes"))
    why = {
        "deduplication_saved_bytes": "each key of a batch travels once, gradients summed",
        "caching_saved_bytes": copies,
        "compression_saved_bytes": "16 bits a value, or compressed" if is_coded else "servers.coding is exact",
    }
    rows: Rows = [(title, size(traffic.get(field, 0)), why[field]) for field, title in SAVED.items()]
    merged = f"{traffic.get('calls', 0):,} calls went in {traffic.get('requests', 0):,} requests"
    rows.append(("Merging", f"{saved_messages(traffic):,} messages", merged))
    if tiers.get("hit_rate") is not None:
        rows.append(("Tables in memory", f"{tiers['hit_rate']:.1%}", "of the rows; the others came from disk"))
    return rows


def _mishaps(traffic: Traffic) -> Rows:
    found = (
        ("retries", "Requests sent again", "no answer came in time"),
        ("dropped", "Messages lost", "or not understood"),
    )
    return [(title, f"{traffic[field]:,}", note) for field, title, note in found if traffic.get(field)]


def _since(lines: Lines) -> int:
    """The samples at which counting began: counts begin anew with each start of the run."""
    begun = 0
    for before, line in pairwise(lines):
        if travelled(line["traffic"]) < travelled(before["traffic"]):
            begun = before["samples"]
    return begun


def _per_sample(lines: Lines) -> list[tuple[float, float | None]]:
    """Bytes a sample of each interval; None where counting began anew in it."""
    points: list[tuple[float, float | None]] = []
    for before, line in pairwise([{"samples": 0, "traffic": {}}, *lines]):
        samples = line["samples"] - before["samples"]
        num_bytes = travelled(line["traffic"]) - travelled(before["traffic"])
        points.append((line["samples"], num_bytes / samples if samples > 0 and num_bytes >= 0 else None))
    return points
