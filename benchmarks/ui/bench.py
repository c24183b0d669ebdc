"""How long the list of a thousand runs takes, by itself and over HTTP, and what a page of a run weighs."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from heterps.report.page.runs import render_list
from heterps.ui.runs import RunList
from heterps.ui.watch import Watched

RECORDED = Path(__file__).parents[2] / "tests" / "report" / "run"


def over_http(folder: Path, rounds: int) -> dict[str, float]:
    """Milliseconds that `heterps ui` takes to answer: with the list, first when it has read no run and then again;
    and with the changes of a run, as a page asks for them each second, where there are none."""
    words = [sys.executable, "-m", "heterps", "ui", str(folder), "--port", "0", "--json"]

    def took_ms(path: str, **request: Any) -> float:
        begin = time.perf_counter()
        assert client.get(f"{url}{path}", **request).status_code == 200
        return 1000 * (time.perf_counter() - begin)

    with subprocess.Popen(words, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["url"]
        with httpx.Client(timeout=60) as client:
            took_ms("style.css")  # the connection is open, as in a browser that has shown a page
            lists = [took_ms("", params={"q": "auc"}) for _ in range(rounds + 1)]
            told = client.get(f"{url}run/run-0/events").text
            seen = {"last-event-id": told.partition("\nid: ")[2].partition("\n")[0]}
            changes = [took_ms("run/run-0/events", headers=seen) for _ in range(100)]
        server.send_signal(signal.SIGINT)
    median = {"again": lists[1:], "changes": changes}
    return {"http_first_ms": lists[0]} | {f"http_{name}_ms": statistics.median(all_) for name, all_ in median.items()}


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
        http_ms = over_http(folder, words.rounds)
        begin = time.perf_counter()
        look = Watched("run-0", folder / "run-0").look()
        told = {
            "runs": words.runs,
            "first_ms": round(1000 * statistics.median(first), 1),
            "again_ms": round(1000 * statistics.median(again), 1),
            **{name: round(each, 1) for name, each in http_ms.items()},
            "list_bytes": len(page),
            "run_ms": round(1000 * (time.perf_counter() - begin), 1),
            "run_bytes": len(look.html),
        }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
