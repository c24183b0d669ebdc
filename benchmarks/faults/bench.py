"""What a death costs: a process of a real run is killed, stopped or told to leave, and the run is watched from outside.

python benchmarks/faults/bench.py run --folder /tmp/faults --tries 5      adds to results.jsonl
python benchmarks/faults/bench.py table --folder /tmp/faults              all results so far

    |--- steps ---| hit |--- detected: the run warns ---|--- pause: no step ---|--- steps at full speed ---|

Two workers, in one stage or in two, and a server as processes of this machine. Every row of the data has an id of its
own, so that the tables say afterwards how often each was trained on.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import heterps
from heterps.checkpoint import load_latest
from heterps.data.keys import slots_from_ids
from heterps.launch import standby, train
from heterps.planning.plan import Plan, PlannedServers, Stage
from heterps.training.run.observer import Observer

BATCH, EPOCHS, WARM_STEPS, WINDOW = 512, 4, 100, 10
SAVED_EVERY = 90
"""Batches: the first checkpoint comes before the kill, and no other while a worker starts in most tries."""
QUIET_S = 1.0
"""A process that has used no CPU for so long has imported all that it needs."""
SILENCE_S = 2.0
"""Seconds without a word after which a worker, or a server, counts as lost."""
LOST = "It is replaced", "takes over", "It mirrored", "goes on from its last checkpoint"
"""What is said of a process that was lost."""
FULL = 0.8
"""A run is at full speed again when WINDOW steps take at most 1 / FULL of what they took before the kill."""


class Case(NamedTuple):
    """Who is hit how, under which policy; `reserve`: a worker process is held in reserve.

    victim  worker, server, server+mirror (a server that has a mirror), or mirror
    how     KILL, STOP (for good: noticed by its silence) or TERM (somebody needs the machine)
    stages  1 with two workers, or 2 with a worker each, of which the last is hit
    """

    victim: str
    sync: str
    how: str = "KILL"
    reserve: bool = False
    stages: int = 1

    @property
    def replicas(self) -> int:
        return int("mirror" in self.victim)

    @property
    def process(self) -> int:
        """The process to be hit: of servers and mirrors, the servers are older, as workers of earlier stages are."""
        if self.victim == "worker":
            return processes("worker_process")[self.stages - 1]
        return processes("server_process")[int(self.victim == "mirror")]

    @property
    def name(self) -> str:
        """As it is asked for with --only."""
        return f"{self.victim}:{self.sync}:{self.how}:{self.stages}:{'reserve' if self.reserve else ''}"


CASES = [
    *(Case("worker", sync, reserve=True) for sync in ("bsp", "asp", "ssp:3", "dssp:3:12")),
    *(Case("worker", sync) for sync in ("bsp", "asp")),
    *(Case("worker", sync, how, reserve=True) for how in ("STOP", "TERM") for sync in ("bsp", "asp")),
    *(Case("worker", sync, reserve=True, stages=2) for sync in ("bsp", "asp")),
    Case("server", "bsp"),
    *(Case("server+mirror", "bsp", how) for how in ("KILL", "STOP", "TERM")),
    Case("server+mirror", "asp"),
    *(Case("mirror", sync) for sync in ("bsp", "asp")),
]


class Watched(Observer):
    """Hits a process of the run after WARM_STEPS, once the reserve is there if it is wanted, and notes when what
    happens."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.steps: list[float] = []
        self.killed: float | None = None
        self.warned_at: float | None = None
        self.back_at: float | None = None
        self._cpu: tuple[int, float] = 0, 0.0  # of the process in reserve: ticks, and since when

    def stepped(self, samples: int, seconds: float, loss: float, interval: object) -> None:
        del samples, seconds, loss, interval
        self.steps.append(time.monotonic())
        if self.killed is None and len(self.steps) >= WARM_STEPS and self._is_ready():
            os.kill(self.case.process, signal.Signals[f"SIG{self.case.how}"])
            self.killed = time.monotonic()

    def warned(self, message: str) -> None:
        if self.killed is not None and self.warned_at is None and any(words in message for words in LOST):
            self.warned_at = time.monotonic()
            if self.case.victim == "mirror":  # its server has gone on alone since then
                self.back_at = self.warned_at

    def changed(self, what: str) -> None:
        is_back = "is back" in what or "has taken the place" in what
        if self.killed is not None and self.back_at is None and is_back:
            self.back_at = time.monotonic()

    def _is_ready(self) -> bool:
        """Whether the process in reserve, if one is wanted, has imported all."""
        if not self.case.reserve:
            return True
        if len(self.steps) % WINDOW or len(found := processes("worker_process")) < 3:
            return False
        ticks = sum(map(int, Path(f"/proc/{found[-1]}/stat").read_text().rpartition(")")[2].split()[11:13]))
        if ticks != self._cpu[0]:
            self._cpu = ticks, time.monotonic()
        return ticks > 0 and time.monotonic() - self._cpu[1] > QUIET_S


def processes(words: str) -> list[int]:
    """The children of this process with these words in their command, the oldest first."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            command = (process / "cmdline").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == os.getpid() and words in command:
            found.append(int(process.name))
    return sorted(found)


def figures(seen: Watched) -> dict[str, float]:
    """Seconds from the kill until the run warns, the longest time without a step until the new worker has its place,
    seconds from the kill until WINDOW steps with it are as fast as before, and how many a second those were."""
    assert seen.killed is not None, "nothing was killed: the run was too short"
    before = [at for at in seen.steps if at <= seen.killed]
    after = [seen.killed, *(at for at in seen.steps if at > seen.killed)]
    back = seen.back_at or math.inf
    until = next((at for at in after if at > back), after[-1])  # the first step with the new worker
    usual = statistics.median(b - a for a, b in zip(before, before[WINDOW:], strict=False))
    quick = [b for a, b in zip(after, after[WINDOW:], strict=False) if b >= until and b - a <= usual / FULL]
    return {
        "detected_s": (seen.warned_at or seen.killed) - seen.killed,
        "pause_s": max(b - a for a, b in pairwise(after) if b <= until),
        "full_speed_s": (quick[0] if quick else after[-1]) - seen.killed,
        "steps_per_s": WINDOW / usual,
    }


def write_plan(folder: Path, stages: int) -> Path:
    """Two workers in one stage, or in two stages, with a server."""
    layers = [(0, 6, 2)] if stages == 1 else [(0, 1, 1), (2, 6, 1)]
    planned = (Stage(first=first, last=last, resource="cpu", count=count) for first, last, count in layers)
    servers = PlannedServers(resource="cpu", count=1)
    bill = {"throughput": 0.0, "hours": 0.0, "usd": 0.0, "bottleneck": "not predicted"}
    plan = Plan(method="by hand", stages=tuple(planned), servers=servers, **bill)
    plan.write(path := folder / f"plan-{stages}.json")
    return path


def run_case(folder: Path, case: Case, num_rows: int, name: str) -> dict[str, Any]:
    """Train with one kill; what it cost, and whether every row was trained on as often as asked."""
    standby.AFTER_S = 0.0 if case.reserve else 1e9
    job = {
        "name": name,
        "model": {"factory": "ctr_dnn", "args": {"embedding_dim": 8, "hidden": [64, 32]}},
        "data": {
            "train": str(folder / "rows.parquet"), "batch_size": BATCH, "epochs": EPOCHS,
            "columns": {"dense": ["a"], "slots": ["s", "t"]},
        },
        "cluster": {"resources": {"cpu": {"device": "cpu", "usd_per_hour": 1.0, "limit": 9}}, "server_resource": "cpu"},
        "launcher": "local", "threads": 2, "sync": case.sync, "plan": str(write_plan(folder, case.stages)),
        "workers": {"restarts": 1, "deadline_s": SILENCE_S},
        "tables": {"eviction": {"half_life": 2**40}},
        "checkpoint": {"every_samples": SAVED_EVERY * BATCH},
        "servers": {"replicas": case.replicas, "silence_s": SILENCE_S},
    }  # fmt: skip
    seen = Watched(case)
    done = train(heterps.Job.model_validate(job), folder / name, observer=seen).summary
    table = load_latest(folder / name / "checkpoints").tables["embedding"].whole()
    keys = slots_from_ids(np.arange(num_rows)[:, None], ("t",)).keys
    uses = np.round(table.uses[np.isin(table.keys, keys)]).astype(int) - 1
    return {
        **case._asdict(), **figures(seen), "repeated": done["repeated_samples"], "restarts": done["restarts"],
        "lost": int(np.maximum(EPOCHS - uses, 0).sum()), "doubled": int(np.maximum(uses - EPOCHS, 0).sum()),
    }  # fmt: skip


def run(folder: Path, tries: int, num_rows: int, cases: Sequence[Case]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    columns = {
        "label": random.integers(0, 2, num_rows), "a": random.normal(size=num_rows).astype(np.float32),
        "s": random.integers(0, 1000, num_rows), "t": np.arange(num_rows),
    }  # fmt: skip
    pq.write_table(pa.table(columns), folder / "rows.parquet", row_group_size=8192)
    for number in range(tries):
        for case in cases:
            name = f"run-{time.monotonic_ns()}"
            found = {"try": number, **run_case(folder, case, num_rows, name)}
            with (folder / "results.jsonl").open("a") as file:
                file.write(json.dumps(found) + "\n")
            print(json.dumps(found), flush=True)


COLUMNS: list[tuple[str, str, Callable[[list[Any]], float], str]] = [
    ("noticed, s", "detected_s", statistics.median, ".2f"),
    ("pause, s", "pause_s", statistics.median, ".2f"),
    ("worst", "pause_s", max, ".2f"),
    ("full speed, s", "full_speed_s", statistics.median, ".2f"),
    ("repeated", "repeated", max, ","),
    ("lost", "lost", sum, ","),
    ("doubled", "doubled", sum, ","),
]


def show(folder: Path) -> None:
    """Print a row a case."""
    found = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    cases: dict[Case, list[dict[str, Any]]] = {}
    for line in found:
        cases.setdefault(Case(*(line[field] for field in Case._fields)), []).append(line)
    print(f"| hit | how | policy | stages | reserve | tries | {' | '.join(name for name, *_ in COLUMNS)} |")
    print(f"|---|---|---|--:|---|--:|{'--:|' * len(COLUMNS)}")
    for case, lines in cases.items():
        cells = [format(of([line[field] for line in lines]), shown) for _, field, of, shown in COLUMNS]
        reserve = "yes" if case.reserve else "no"
        words = [case.victim, case.how, case.sync, str(case.stages), reserve, str(len(lines)), *cells]
        print(f"| {' | '.join(words)} |")


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "table"))
    parser.add_argument("--folder", type=Path, default=Path("/tmp/faults"))
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--only", default="", help="cases that begin so, such as worker:bsp:STOP; all without it")
    options = parser.parse_args(words)
    if options.command == "run":
        cases = [case for case in CASES if case.name.startswith(options.only)]
        run(options.folder, options.tries, options.rows, cases)
    show(options.folder)


if __name__ == "__main__":
    main()
