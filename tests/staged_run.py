"""Figures of runs by a plan, as metrics.jsonl and summary.json have them."""

from __future__ import annotations

from typing import Any


def a_stage(resource: str = "cpu", workers: int = 3, **figures: Any) -> dict[str, Any]:
    shares = {"compute": 0.2, "communicate": 0.1, "wait": 0.7}
    others = {"samples_per_s": 1000.0, "queue": 0.25, "late": 0.0, "late_s": 0.0}
    return {"resource": resource, "workers": workers} | shares | others | figures


BUSY = a_stage("v100", 1, compute=0.9, communicate=0.05, wait=0.05)
STAGES = [a_stage(), BUSY]
LATE = [a_stage(), BUSY | {"late": 0.45, "late_s": 12.0}]
EMULATED = {"emulated": {"scale": 28.0}}
VIEW = {"seconds": 12.0, "stages": STAGES, "staleness": 1.25, "usd": 0.0042}


def staged(summary: dict[str, Any], **figures: Any) -> dict[str, Any]:
    """The summary of an inline run as that of a run by a plan."""
    more = {"launcher": "local", "sync": "ssp:3", "stages": STAGES, "staleness": 1.25, "max_lead": {"0": 3, "1": 2}}
    return {name: value for name, value in summary.items() if name != "data"} | more | figures


def staged_line(line: dict[str, Any], **figures: Any) -> dict[str, Any]:
    return line | {"stages": STAGES, "staleness": 1.25, "usd": 0.0042} | figures
