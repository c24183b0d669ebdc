"""Do ten pages on one live run slow it down? And how long does the what-if page take to answer?

runs in turns:  alone     train
                pages     train, `heterps ui`, and TABS clients that ask for changes as pages do, with little work
                browser   train, `heterps ui`, and TABS pages in one window of headless Chromium, which draws them

Who is first changes with every round. Samples/s are of the clock on the wall, which others on the machine change. CPU
seconds of the training process are not, so they tell what the pages cost it; those of `heterps ui` stand beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from heterps.data.generate import generate

ROOT = Path(__file__).parents[2]
HETERPS = [sys.executable, "-m", "heterps"]
CHROMIUM = shutil.which("chromium")
EVERY_S = 1.0
LOCK = threading.Lock()
Arm = Callable[[str, int, Counter[str]], AbstractContextManager[None]]
JOB = (ROOT / "examples" / "ctr.yaml").read_text(encoding="utf-8")


def train(place: Path, name: str) -> subprocess.Popen[bytes]:
    words = ["train", "job.yaml", "--run", f"runs/{name}"]
    return subprocess.Popen([*HETERPS, *words], cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def follow(url: str, sent: Counter[str]) -> None:
    """A page that is open: it asks each second until the run has ended, with as little work as can be."""
    at, seen = urlsplit(url), ""
    page, found = HTTPConnection(at.netloc), Counter[str]()
    while not found["end"]:
        page.request("GET", at.path, headers={"last-event-id": seen})
        told = page.getresponse().read()
        found["bytes"] += len(told)
        for kind in ("body", "now", "end"):
            found[kind] += told.count(b"event: %b\n" % kind.encode())
        if found["body"] and b"\nid: " in told:
            seen = told.partition(b"\nid: ")[2].partition(b"\n")[0].decode()
        time.sleep(EVERY_S)
    with LOCK:
        sent.update(found)


@contextmanager
def clients(url: str, tabs: int, sent: Counter[str]) -> Iterator[None]:
    """Clients that follow the run until it has ended."""
    pages = [threading.Thread(target=follow, args=(f"{url}events", sent)) for _ in range(tabs)]
    for page in pages:
        page.start()
    yield
    for page in pages:
        page.join()


@contextmanager
def browser(url: str, tabs: int, sent: Counter[str]) -> Iterator[None]:
    """Pages of a browser that follow the run until each says that it has ended."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        context = found.new_context()
        pages = [context.new_page() for _ in range(tabs)]
        for page in pages:
            page.goto(url)
        yield
        for page in pages:
            page.get_by_text("The job has ended.").wait_for()
            sent["end"] += 1
        found.close()


def ended(process: subprocess.Popen[bytes], code: int = 0) -> float:
    """Wait for a process; the seconds of CPU that it and its own processes have taken."""
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == code, process.returncode
    return used.ru_utime + used.ru_stime


def watched(place: Path, name: str, tabs: int, arm: Arm) -> tuple[Counter[str], float, float]:
    """Train while that many pages are open: what they were sent, and CPU seconds of training and of `heterps ui`."""
    words = [*HETERPS, "ui", "runs", "--port", "0", "--json"]
    server = subprocess.Popen(words, cwd=place, stdout=subprocess.PIPE)
    sent: Counter[str] = Counter()
    training_s = 0.0
    try:
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["url"]
        for _ in range(3):  # the server imports what it needs when it is first asked
            httpx.get(f"{url}run/alone-0/", timeout=60)
        job = train(place, name)
        while not (place / "runs" / name / "metrics.jsonl").exists() and job.poll() is None:
            time.sleep(0.05)
        with arm(f"{url}run/{name}/", tabs, sent):
            training_s = ended(job)
    finally:
        server.send_signal(signal.SIGINT)
        server_s = ended(server, code=130)
    return sent, training_s, server_s


def speed(place: Path, name: str) -> float:
    summary = json.loads((place / "runs" / name / "summary.json").read_text())
    return float(summary["measured_throughput"])


def what_if_ms(place: Path, name: str) -> dict[str, float]:
    """Median times of the plan by policy, over HTTP, for a price that is another each time."""
    words = [*HETERPS, "ui", "runs", "--port", "0", "--json"]
    server = subprocess.Popen(words, cwd=place, stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["url"]
        found = {}
        with httpx.Client(timeout=60) as client:
            for sync in ("", "bsp", "asp", "ssp:3", "any"):
                times = []
                for number in range(12):
                    asked = {"sync": sync, "throughput": "200000", "samples": "1e9", "price.cpu": f"0.04{number}"}
                    began = time.perf_counter()
                    answer = client.get(f"{url}run/{name}/what-if/plan", params=asked).json()
                    times.append(1000 * (time.perf_counter() - began))
                    assert "html" in answer, answer
                found[sync or "batches divided"] = round(statistics.median(times[2:]), 1)
    finally:
        server.send_signal(signal.SIGINT)
        server.wait()
    return found


@dataclass(frozen=True)
class Measured:
    """One training. `sent` is what pages were sent: bytes, and events by kind."""

    speed: float
    training_s: float
    server_s: float
    sent: Counter[str]


def measure(place: Path, name: str, tabs: int, arm: Arm | None) -> Measured:
    if arm is None:
        training_s, server_s, sent = ended(train(place, name)), 0.0, Counter[str]()
    else:
        sent, training_s, server_s = watched(place, name, tabs, arm)
        assert sent["end"] == tabs, "each page has seen the end"
    return Measured(speed(place, name), training_s, server_s, sent)


def summary(found: list[Measured], alone: list[Measured]) -> dict[str, object]:
    """Figures of one arm; `slower` and `more_cpu` are shares of the medians of training alone."""

    def median(measured: list[Measured], figure: str) -> float:
        return statistics.median(getattr(one, figure) for one in measured)

    return {
        "samples_per_s": [round(one.speed) for one in found],
        "median": round(median(found, "speed")),
        "slower": round(1 - median(found, "speed") / median(alone, "speed"), 4),
        "more_cpu": round(median(found, "training_s") / median(alone, "training_s") - 1, 4),
        "ui_cpu_s": [round(one.server_s, 2) for one in found],
        "sent": dict(found[-1].sent),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=800_000)
    parser.add_argument("--tabs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=10, help="0: only ask the what-if page")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        generate(place / "data" / "criteo", words.rows, 1000)
        os.symlink(ROOT / "examples", place / "examples")
        (place / "runs").mkdir()
        (place / "job.yaml").write_text(f"{JOB}metrics_every_samples: 20000\n")
        ended(train(place, "alone-0"))  # not counted: whoever is first reads files that nobody has read
        arms: dict[str, Arm | None] = {"alone": None, "pages": clients} | ({"browser": browser} if CHROMIUM else {})
        measured: dict[str, list[Measured]] = {name: [] for name in arms}
        for number in range(1, words.rounds + 1):
            for name in [*arms][number % len(arms) :] + [*arms][: number % len(arms)]:
                measured[name].append(measure(place, f"{name}-{number}", words.tabs, arms[name]))
            told_now = ", ".join(f"{name} {one[-1].speed:,.0f}" for name, one in measured.items())
            print(f"round {number}, samples/s: {told_now}", file=sys.stderr)
        shutil.copy(ROOT / "benchmarks" / "profiles" / "ctr_dnn.json", place / "runs" / "alone-0" / "profile.json")
        told: dict[str, object] = {"what_if_ms": what_if_ms(place, "alone-0")}
        if words.rounds:
            told |= {name: summary(one, measured["alone"]) for name, one in measured.items()}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
