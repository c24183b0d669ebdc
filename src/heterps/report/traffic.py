"""The bytes between the processes of a run, by kind, and what was saved, in words: for pages, tables and monitoring.

`Traffic` is the field `traffic` of metrics.jsonl, summary.json and a job's status, summed over all workers.
"""

from __future__ import annotations

from typing import Any

Traffic = dict[str, int]

KINDS = {
    "keys_bytes": "Keys",
    "rows_bytes": "Rows",
    "row_gradients_bytes": "Row gradients",
    "dense_bytes": "Dense parameters",
    "dense_gradients_bytes": "Dense gradients",
    "border_bytes": "Between stages",
    "other_bytes": "Other",
}
"""What travels, by its field."""
SAVED = {
    "deduplication_saved_bytes": "De-duplication",
    "caching_saved_bytes": "Copies of rows",
    "compression_saved_bytes": "Compression",
}
"""What would have travelled besides, by its field."""
CARRIERS = {
    "bytes_sent": "Sent to servers by sockets",
    "bytes_received": "Received from servers by sockets",
    "bytes_shared": "Sent to servers by shared memory",
}


def traffic_of(figures: dict[str, Any]) -> Traffic | None:
    """The traffic in a summary, a status or a line of metrics.jsonl; None where nothing travelled."""
    traffic: Traffic | None = figures.get("traffic")
    return traffic if traffic and travelled(traffic) else None


def travelled(traffic: Traffic) -> int:
    """Bytes that travelled, of all kinds."""
    return sum(traffic.get(kind, 0) for kind in KINDS)


def saved(traffic: Traffic) -> int:
    """Bytes that did not travel."""
    return sum(traffic.get(way, 0) for way in SAVED)


def saved_messages(traffic: Traffic) -> int:
    """Messages that were saved, since calls to one server travel together."""
    return traffic.get("calls", 0) - traffic.get("requests", 0)
