"""Do ten pages on one live run slow it down? And how long does the what-if page take to answer?

runs in turns:  train alone, with `heterps ui` and TABS open streams  |  with, alone  |  alone, with  | ...

Samples/s are of the clock on the wall, which others on the machine change. CPU seconds of the training process are not,
so they tell what the pages cost it; those of `heterps ui` are told beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from heterps.data.generate import generate

ROOT = Path(__file__).parents[2]
HETERPS = [sys.executable, "-m", "heterps"]
JOB = (ROOT / "examples" / "ctr.yaml").read_text(encoding="utf-8")


def train(place: Path, name: str) -> subprocess.Popen[bytes]:
    words = ["train", "job.yaml", "--run", f"runs/{name}"]
    return subprocess.Popen([*HETERPS, *words], cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def follow(url: str, counts: list[int]) -> None:
    """A page that is open: it takes every change until the run has ended, with as little work as can be."""
    at = urlsplit(url)
    page = HTTPConnection(at.netloc)
    page.request("GET", at.path)
    answer, num_bytes = page.getresponse(), 0
    while chunk := answer.read1(1 << 20):
        num_bytes += len(chunk)
    counts.append(num_bytes)


def ended(process: subprocess.Popen[bytes], code: int = 0) -> float:
    """Wait for a process; the seconds of CPU that it and its own processes have taken."""
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == code, process.returncode
    return used.ru_utime + used.ru_stime


def with_tabs(place: Path, name: str, tabs: int) -> tuple[list[int], float, float]:
    """Train while that many pages are open: bytes sent to each, and CPU seconds of training and of `heterps ui`."""
    words = [*HETERPS, "ui", "runs", "--port", "0", "--json"]
    server = subprocess.Popen(words, cwd=place, stdout=subprocess.PIPE)
    counts: list[int] = []
    training_s = 0.0
    try:
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["url"]
        for _ in range(3):  # the server imports what it needs when it is first asked
            httpx.get(f"{url}run/alone-0/", timeout=60)
        job = train(place, name)
        while not (place / "runs" / name / "metrics.jsonl").exists() and job.poll() is None:
            time.sleep(0.05)
        pages = [threading.Thread(target=follow, args=(f"{url}run/{name}/events", counts)) for _ in range(tabs)]
        for page in pages:
            page.start()
        training_s = ended(job)
        for page in pages:
            page.join()
    finally:
        server.send_signal(signal.SIGINT)
        server_s = ended(server, code=130)
    return counts, training_s, server_s


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=800_000)
    parser.add_argument("--tabs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3, help="0: only ask the what-if page")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        generate(place / "data" / "criteo", words.rows, 1000)
        os.symlink(ROOT / "examples", place / "examples")
        profile = ROOT / "benchmarks" / "profiles" / "ctr_dnn.json"
        (place / "runs").mkdir()
        (place / "job.yaml").write_text(f"{JOB}metrics_every_samples: 20000\n")
        alone, watched, sent = [], [], []
        alone_s, watched_s, server_s = [], [], []

        def run_alone(name: str) -> None:
            alone_s.append(ended(train(place, name)))
            alone.append(speed(place, name))

        def run_watched(name: str) -> None:
            counts, *seconds = with_tabs(place, name, words.tabs)
            watched_s.append(seconds[0])
            server_s.append(seconds[1])
            watched.append(speed(place, name))
            sent.append(sum(counts))

        ended(train(place, "alone-0"))  # not counted: whoever is first reads files that nobody has read
        for number in range(1, words.rounds + 1):
            arms = [(run_alone, f"alone-{number}"), (run_watched, f"watched-{number}")]
            for run, name in arms if number % 2 else arms[::-1]:
                run(name)
            told = f"alone {alone[-1]:,.0f} samples/s, {alone_s[-1]:.2f} s of CPU"
            print(f"{told}; with {words.tabs} pages {watched[-1]:,.0f}, {watched_s[-1]:.2f} s", file=sys.stderr)
        recorded = place / "runs" / "alone-0" / "job.yaml"
        recorded.write_text(recorded.read_text().replace("profile: null", f"profile: {profile}"))
        told: dict[str, object] = {"what_if_ms": what_if_ms(place, "alone-0")}
        if words.rounds:
            told |= {
                "alone": [round(one) for one in alone],
                "watched": [round(one) for one in watched],
                "alone_cpu_s": [round(one, 2) for one in alone_s],
                "watched_cpu_s": [round(one, 2) for one in watched_s],
                "more_cpu": round(statistics.median(watched_s) / statistics.median(alone_s) - 1, 4),
                "ui_cpu_s": [round(one, 2) for one in server_s],
                "slower": round(1 - statistics.median(watched) / statistics.median(alone), 4),
                "sent_bytes": sent[-1],
            }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
