"""How long the list of a thousand runs takes, first and again, and what a page of a run weighs."""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from heterps.report.page.runs import render_list
from heterps.ui.runs import RunList
from heterps.ui.watch import Watched

RECORDED = Path(__file__).parents[2] / "tests" / "report" / "run"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for number in range(words.runs):
            shutil.copytree(RECORDED, folder / f"run-{number}")
        first, again = [], []
        for _ in range(words.rounds):
            runs = RunList(folder)
            for seconds in (first, again):
                begin = time.perf_counter()
                page = render_list(place, runs.lines("auc"), "auc")
                seconds.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        look = Watched("run-0", folder / "run-0").look()
        told = {
            "runs": words.runs,
            "first_ms": round(1000 * statistics.median(first), 1),
            "again_ms": round(1000 * statistics.median(again), 1),
            "list_bytes": len(page),
            "run_ms": round(1000 * (time.perf_counter() - begin), 1),
            "run_bytes": len(look.html),
        }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
