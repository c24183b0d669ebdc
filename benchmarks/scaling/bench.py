"""What do workers and servers as processes cost on one machine? A server and two workers beside one process.

    python benchmarks/scaling/bench.py                          # five rounds, some ten minutes
    python benchmarks/scaling/bench.py --rounds 1 --sizes 1024  # a quick look; sizes are 1024, 4096 and small

Every round trains each arm of each size once, in turn, in a process of its own. What is measured begins when a tenth of
the samples are done and ends with the last step, so that starting, saving and testing are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from heterps.config import Job
from heterps.data.generate import generate
from heterps.launch import train
from heterps.training.metrics.metrics import Metrics
from heterps.training.run.observer import Observer

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
ROLES = ("workers", "server", "coordinator")
MODULES = {"heterps.launch.worker_process": "workers", "heterps.launch.server_process": "server"}


class Size(NamedTuple):
    batch_size: int
    hidden: tuple[int, ...]
    epochs: int  # a small model is done sooner


SIZES = {
    "1024": Size(1024, (512, 256, 128), 1),
    "4096": Size(4096, (512, 256, 128), 1),
    "small": Size(512, (64, 32), 2),
}
ARMS = {
    "inline": {"launcher": "inline", "threads": 2},
    "local, bsp": {"launcher": "local", "threads": 2, "sync": "bsp"},
    "local, ssp:3": {"launcher": "local", "threads": 2, "sync": "ssp:3"},
}


class Result(NamedTuple):
    """Speed, and milliseconds of processor time per batch by role; of one process they are the coordinator's."""

    samples_per_s: float
    cpu_ms: dict[str, float]

    @property
    def all_cpu_ms(self) -> float:
        return sum(self.cpu_ms.values())


# --- one run ---------------------------------------------------------------------------------------------------------


class Measure(Observer):
    """Notes time and processor seconds when a tenth of the samples are done, and after each step from then on."""

    def __init__(self) -> None:
        self._after = 0
        self._marks: list[tuple[int, float, dict[str, float]]] = []

    def started(self, samples: int, total: int, resumed: bool) -> None:
        del samples, resumed
        self._after, self._total = total // 10, total

    def stepped(self, samples: int, seconds: float, loss: float, interval: Metrics) -> None:
        del seconds, loss, interval
        if (samples >= self._after and not self._marks) or samples >= self._total:
            self._marks.append((samples, time.perf_counter(), processor_seconds()))

    def result(self, batch_size: int) -> Result:
        (first, began, before), *_, (last, ended, after) = self._marks
        num_batches = (last - first) / batch_size
        return Result(
            (last - first) / (ended - began),
            {role: 1000 * (after[role] - before[role]) / num_batches for role in ROLES},
        )


def processor_seconds() -> dict[str, float]:
    """Processor seconds so far of this process, the coordinator's, and of the processes that it has started."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    found = dict.fromkeys(ROLES, 0.0) | {"coordinator": own.ru_utime + own.ru_stime}
    for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        words = Path(f"/proc/{child}/cmdline").read_text().split("\0")
        if (role := next((MODULES[word] for word in words if word in MODULES), None)) is not None:
            times = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[11:13]
            found[role] += sum(map(int, times)) / TICKS_PER_S
    return found


def run_one(data: Path, size: str, arm: str) -> Result:
    """Train one arm in this process, from its start."""
    batch_size, hidden, epochs = SIZES[size]
    job = Job.model_validate(
        {
            "name": "scaling",
            "model": {"factory": "ctr_dnn", "args": {"embedding_dim": 16, "hidden": list(hidden)}},
            "data": {"train": str(data), "batch_size": batch_size, "epochs": epochs},
            "checkpoint": {"every_minutes": None},
            **ARMS[arm],
        }
    )
    measure = Measure()
    with tempfile.TemporaryDirectory() as folder:
        train(job, Path(folder) / "run", observer=measure)
    return measure.result(batch_size)


# --- rounds ----------------------------------------------------------------------------------------------------------


def measure_all(data: Path, sizes: Sequence[str], rounds: int) -> dict[str, dict[str, list[Result]]]:
    """Run every arm of every size once a round, each in a process of its own."""
    found: dict[str, dict[str, list[Result]]] = {size: {arm: [] for arm in ARMS} for size in sizes}
    for number in range(rounds):
        for size in sizes:
            for arm in ARMS:
                command = [sys.executable, __file__, "--run", str(data), size, arm]
                printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
                found[size][arm].append(result := Result(*json.loads(printed.splitlines()[-1])))
                told = f"{result.samples_per_s:,.0f} samples/s, {result.all_cpu_ms:.1f} ms a batch"
                print(f"round {number + 1}/{rounds}, {size}, {arm}: {told}", file=sys.stderr, flush=True)
    return found


def table(found: dict[str, dict[str, list[Result]]]) -> list[str]:
    """Medians over rounds, and medians of the ratios to the inline run of the same round."""
    lines = [
        "| batch | arm | samples/s | of inline | CPU ms a batch | of inline | workers | server | coordinator |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for size, arms in found.items():
        for arm, results in arms.items():
            pairs = list(zip(results, arms["inline"], strict=True))
            faster = statistics.median(own.samples_per_s / inline.samples_per_s for own, inline in pairs)
            dearer = statistics.median(own.all_cpu_ms / inline.all_cpu_ms for own, inline in pairs)
            speed = statistics.median(result.samples_per_s for result in results)
            cpu = statistics.median(result.all_cpu_ms for result in results)
            shares = [f"{statistics.median(result.cpu_ms[role] for result in results):.1f}" for role in ROLES]
            shares = ["", "", ""] if arm == "inline" else shares
            cells = [size, arm, f"{speed:,.0f}", f"{faster:.2f}", f"{cpu:.1f}", f"{dearer:.2f}", *shares]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=250_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--run", nargs=3, metavar=("DATA", "SIZE", "ARM"), help="train one arm, and print its result")
    asked: Any = parser.parse_args(words)
    if asked.run is not None:
        data, size, arm = asked.run
        print(json.dumps(run_one(Path(data), size, arm)))
        return
    with tempfile.TemporaryDirectory(prefix="scaling-") as folder:
        generate(Path(folder), rows=asked.rows, test_rows=1000)
        found = measure_all(Path(folder) / "train", asked.sizes, asked.rounds)
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()
