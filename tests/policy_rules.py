"""What asynchronous policies promise, held against the events of a trace: clocks are counted here, and nothing of
`heterps.sync` is used.

    rules = Rules(lower=3, spread=12)
    rules.hold(["lane-0", "lane-1"], events)      # AssertionError with the event that breaks a rule

[1] an iteration starts at a lead of lower + spread at most, and above lower only with a grant or after a wait
[2] nobody begins to wait, or goes on waiting, at a lead of lower or less
[3] whoever waits goes on at the next rise of the lowest clock (release next), or once its lead is lower (release lower)
[4] a grant is used up before the next one, and ends within the bound; where only the fastest gets any, nobody is ahead
[5] somebody always runs
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Rules:
    lower: float
    spread: int = 0
    release: str = "lower"
    grant: str = "fastest"

    def hold(self, workers: Iterable[str], events: Iterable[Mapping[str, Any]]) -> None:
        clocks = dict.fromkeys(workers, 0)
        waits_since: dict[str, int] = {}  # the lowest clock when the wait began
        granted: dict[str, int] = {}
        for event in events:
            kind, worker = event["event"], event["worker"]
            if kind in ("pushed", "joined", "left"):
                self._hold_between_inputs(clocks, waits_since)
            least = min(clocks.values(), default=0)
            if kind == "pushed":
                clocks[worker] += 1
                continue
            if kind == "joined":
                clocks[worker] = least
                continue
            if kind == "left":
                for known in (clocks, waits_since, granted):
                    known.pop(worker, None)
                continue
            lead = clocks[worker] - least
            if kind == "granted":
                assert not granted.get(worker), f"[4] {event}"
                assert 0 < event["extra"] <= self.spread, f"[4] {event}"
                assert lead + event["extra"] - 1 <= self.lower + self.spread, f"[4] {event}"
                assert self.grant == "all" or clocks[worker] == max(clocks.values()), f"[4] {event}"
                granted[worker] = event["extra"]
            elif kind == "waits":
                assert lead > self.lower, f"[2] {event}"
                assert not granted.get(worker), f"[4] {event}"
                waits_since[worker] = least
            else:
                assert lead <= self.lower + self.spread, f"[1] {event}"
                since = waits_since.pop(worker, None)
                if since is None and granted.get(worker):
                    granted[worker] -= 1
                elif lead > self.lower:
                    assert self.release == "next", f"[1] {event}"
                    assert since is not None, f"[1] {event}"
                    assert since < least, f"[1] {event}"
        self._hold_between_inputs(clocks, waits_since)

    def _hold_between_inputs(self, clocks: dict[str, int], waits_since: dict[str, int]) -> None:
        if not clocks:
            return
        least = min(clocks.values())
        assert len(waits_since) < len(clocks), "[5] everybody waits"
        for worker, since in waits_since.items():
            assert clocks[worker] - least > self.lower, f"[2] {worker} waits within lower"
            assert self.release == "lower" or since == least, f"[3] {worker} waits although the lowest clock rose"


def hold_of_run(folder: Path, rules: Rules) -> int:
    """Holds the rules against every trace of a run, and returns the number of iterations that were pushed."""
    pushes = 0
    for path in sorted((folder / "traces").glob("stage-*.jsonl")):
        header, *events = map(json.loads, path.read_text().splitlines())
        rules.hold(header["workers"], events)
        pushes += sum(event["event"] == "pushed" for event in events)
    return pushes
