"""events.jsonl: moments of faults and changes, from the start of training on, whatever the disk does."""

from __future__ import annotations

import json
from pathlib import Path

from heterps.training.run.events import FILE, MOST_EVENTS, EventLog, read_events
from heterps.training.run.folder import Run


def test_events_have_their_moment_and_begin_with_training(tmp_path: Path) -> None:
    log = EventLog(run := Run(tmp_path), now=lambda: 100.0)
    log.warned("the data is odd")
    log.started(0, 5000, resumed=False)
    log.stepped(512, 1.5, 0.7, None)
    log.warned("worker-1.0 died")
    log.changed("1 worker was replaced")
    log.started(256, 5000, resumed=True)
    assert read_events(run) == [
        {"at": 100.0, "samples": 512, "seconds": 1.5, "event": "warned", "text": "worker-1.0 died"},
        {"at": 100.0, "samples": 512, "seconds": 1.5, "event": "changed", "text": "1 worker was replaced"},
        {"at": 100.0, "samples": 256, "seconds": 1.5, "event": "resumed", "text": "went on from 256 of 5,000 samples"},
    ]


def test_events_that_cannot_be_written_are_left_out_and_others_do_not_fill_the_disk(tmp_path: Path) -> None:
    gone = EventLog(Run(tmp_path / "gone"))
    gone.started(0, 10, resumed=True)
    assert not (tmp_path / "gone").exists()
    log = EventLog(run := Run(tmp_path))
    log.started(0, 10, resumed=False)
    for _ in range(MOST_EVENTS + 5):
        log.warned("again")
    assert len(read_events(run)) == MOST_EVENTS


def test_lines_that_are_not_events_are_left_out(tmp_path: Path) -> None:
    good = {"at": 1.0, "samples": 2, "seconds": 3.0, "event": "warned", "text": "oops"}
    (tmp_path / FILE).write_text(f'[1]\n{{"at": 1}}\n{json.dumps(good)}\n{{"at": 1, "sam')
    assert read_events(Run(tmp_path)) == [good]
    assert read_events(Run(tmp_path / "elsewhere")) == []
