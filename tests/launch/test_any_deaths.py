"""Processes of a run are killed, stopped and told to leave at drawn moments, the command too, which is then resumed.

    pytest -m slow tests/launch/test_any_deaths.py               every policy, with one to three stages

A seed draws the moments and who is hit how; it is in the name of a test, and a failure prints the hits.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from ends import assert_same_tables, command, uses_of_rows
from leaks import marked_processes
from tiny import write_tiny

from heterps.checkpoint import load_latest
from heterps.config import Job
from heterps.planning.plan import Plan, PlannedServers, Stage
from heterps.yamlfile import dump_yaml

pytestmark = pytest.mark.usefixtures("no_leaks", "in_its_folder")
NUM_ROWS, NUM_TEST_ROWS, NUM_IDS, BATCH, EPOCHS = 32_000, 10_000, 40, 64, 2
SAMPLES = EPOCHS * NUM_ROWS
AUC_WITHIN = 0.002
POLICIES = ["bsp", "asp", "ssp:2", "dssp:1:4"]
STAGES: list[list[tuple[int, int, int]]] = [[(0, 4, 2)], [(0, 1, 2), (2, 4, 1)], [(0, 1, 1), (2, 3, 1), (4, 4, 1)]]
"""First and last layer, and number of workers, of each stage."""
WORDS = {
    "local": {"worker": "worker_process", "server": "server_process"},
    "ray": {"worker": "ray::WorkerRole", "server": "ray::ServerRole"},
}
"""What is in the command line of a process of a role. A mirror is a server."""
SIGNALS = [signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP]
STOPS_S = [0.5, 12.0]
"""For so long a process is stopped: less or more than SILENCE_S."""
SILENCE_S = 4.0
WORKERS = {"deadline_s": SILENCE_S, "backoff_s": 0.1, "replacements": 100, "restarts": 100}
LOOK_S, LONGEST_S = 0.02, 400.0
"""How often a run is looked at, and how long one life of the command may last."""


class Hit(NamedTuple):
    at: int  # samples that metrics show as trained
    later_s: float
    role: str
    number: int  # of those that run
    signal: signal.Signals
    for_s: float  # of a stop


class Case(NamedTuple):
    sync: str
    stages: int
    replicas: int
    hits: list[Hit]


def drawn(seed: int) -> Case:
    """Seeds that follow each other go through all policies, numbers of stages, and servers with and without mirrors."""
    draw = random.Random(seed)
    hits = [
        Hit(
            draw.randrange(BATCH, SAMPLES * 3 // 4),
            draw.uniform(0.0, 0.05),
            draw.choice(["worker", "server", "server", "command"]),
            draw.randrange(6),
            draw.choice(SIGNALS),
            draw.choice(STOPS_S),
        )
        for _ in range(draw.randint(2, 4))
    ]
    return Case(POLICIES[seed % 4], seed // 4 % 3, int(seed // 12 % 3 < 2), sorted(hits))


# --- the job ---------------------------------------------------------------------------------------------------------


def write_data(path: Path, num_rows: int, first_id: int) -> None:
    """Labels are drawn by ids of slot s. Slot t has another id in every row, from which nobody can learn."""
    random_ = np.random.default_rng(first_id)
    ids = random_.integers(0, NUM_IDS, num_rows)
    logits = np.random.default_rng(0).normal(size=NUM_IDS)[ids]
    labels = (random_.random(num_rows) < 1 / (1 + np.exp(-logits))).astype(int)
    write_tiny(path, num_rows, label=labels, s=ids, t=list(range(first_id, first_id + num_rows)))


def make_job(launcher: str, case: Case, **fields: Any) -> Job:
    stages = STAGES[case.stages]
    Plan(
        method="mine",
        stages=tuple(Stage(first=first, last=last, resource="cpu", count=count) for first, last, count in stages),
        servers=PlannedServers(resource="cpu", count=2),
        throughput=0.0, hours=0.0, usd=0.0, bottleneck="not predicted",
    ).write("plan.json")  # fmt: skip
    return Job.model_validate({
        "name": "deaths", "model": {"factory": "ctr_dnn", "args": {"embedding_dim": 4, "hidden": [8]}},
        "data": {
            "train": "train.parquet", "test": "test.parquet", "batch_size": BATCH, "epochs": EPOCHS,
            "columns": {"dense": ["a", "b"], "slots": ["s", "t"]},
        },
        "cluster": {"resources": {"cpu": {"device": "cpu", "usd_per_hour": 1.0, "limit": 9}}, "server_resource": "cpu"},
        "plan": "plan.json", "launcher": launcher, "sync": case.sync, "threads": 1,
        "tables": {"eviction": {"half_life": 2**40}},
        "metrics_every_samples": 4 * BATCH, "checkpoint": {"every_samples": 150 * BATCH}, **fields,
    })  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_data(tmp_path / "train.parquet", NUM_ROWS, 1000)
    write_data(tmp_path / "test.parquet", NUM_TEST_ROWS, 10_000_000)
    return tmp_path


# --- the run ---------------------------------------------------------------------------------------------------------


class Run:
    """`heterps train` in a folder, with processes that are told by their `words` from others with the mark."""

    def __init__(self, folder: Path, mark: str, words: dict[str, str], hits: list[Hit]) -> None:
        self.folder = folder / "run"
        self._base, self._mark, self._words, self._hits = folder, mark, words, list(hits)
        self._stopped: dict[int, float] = {}  # when each is to go on
        self.told: list[str] = []

    def live(self) -> None:
        """Run it to its end, and again whenever the command itself was hit."""
        words: tuple[str, ...] = ()
        while True:
            try:
                with command(self._base / "job.yaml", self.folder, *words) as process:
                    was_hit = self._hit_all(process)
            finally:
                self._let_go(float("inf"))
            if process.returncode == 0:
                return
            assert was_hit, f"exit code {process.returncode}: {(self._base / 'run.txt').read_text()[-3000:]}"
            words = ("--resume",)

    def _hit_all(self, process: subprocess.Popen[bytes]) -> bool:
        """Do what was drawn until the command ends; return whether that was by a hit."""
        deadline = time.monotonic() + LONGEST_S
        was_hit = False
        while process.poll() is None:
            assert time.monotonic() < deadline, f"it stands still: {(self._base / 'run.txt').read_text()[-3000:]}"
            self._let_go(time.monotonic())
            if self._hits and not was_hit and self._samples >= self._hits[0].at:
                hit = self._hits.pop(0)
                time.sleep(hit.later_s)
                was_hit = self._hit(hit, process) and hit.signal != signal.SIGSTOP
            time.sleep(LOOK_S)
        return was_hit

    def _hit(self, hit: Hit, process: subprocess.Popen[bytes]) -> bool:
        """Hit somebody of a role; return whether that was the command."""
        found = [process.pid] if hit.role == "command" else self._processes(hit.role)
        if not found or process.poll() is not None:
            return False
        pid = found[hit.number % len(found)]
        self.told.append(f"{hit.signal.name} of {hit.role} {pid} at {self._samples} samples")
        with suppress(ProcessLookupError):
            os.kill(pid, hit.signal)
        if hit.signal == signal.SIGSTOP:
            self._stopped[pid] = time.monotonic() + (STOPS_S[0] if hit.role == "command" else hit.for_s)
        return hit.role == "command"

    def _processes(self, role: str) -> list[int]:
        found = (each.partition(":") for each in marked_processes(self._mark))
        return sorted(int(pid) for pid, _, words in found if self._words[role] in words)

    def _let_go(self, now: float) -> None:
        """Let processes go on whose stop is over."""
        for pid in [pid for pid, until_s in self._stopped.items() if until_s <= now]:
            del self._stopped[pid]
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    @property
    def _samples(self) -> int:
        """How many samples metrics show as trained."""
        with suppress(OSError, ValueError, IndexError):
            return int(json.loads((self.folder / "metrics.jsonl").read_text().splitlines()[-1])["samples"])
        return 0


def check(folder: Path, mark: str, launcher: str, case: Case, **fields: Any) -> None:
    """Train through all hits, and hold the run to one on threads in which nobody dies."""
    servers = {"count": 2, "replicas": case.replicas, "silence_s": SILENCE_S}
    job = make_job(launcher, case, servers=servers, workers=WORKERS, **fields)
    (folder / "job.yaml").write_text(dump_yaml(job))
    run = Run(folder, mark, WORDS[launcher], case.hits)
    try:
        run.live()
        assert run.told, "nobody was hit"
        done = json.loads((run.folder / "summary.json").read_text())
        assert (done["status"], done["samples"]) == ("completed", SAMPLES)
        assert uses_of_rows(NUM_ROWS, run.folder) == [EPOCHS] * NUM_ROWS, "a batch was lost or doubled"
        clean = make_job("local", case, workers={"channel": "memory"}, servers={"count": 2})
        (folder / "clean.yaml").write_text(dump_yaml(clean))
        with command(folder / "clean.yaml", folder / "clean") as process:
            assert process.wait(LONGEST_S) == 0
        expected = json.loads((folder / "clean" / "summary.json").read_text())
        assert abs(done["auc"] - expected["auc"]) < AUC_WITHIN
        if case.sync == "bsp":
            assert_same_tables(load_latest(run.folder / "checkpoints"), load_latest("clean/checkpoints"))
            assert done["auc"] == expected["auc"]
        counts = {name: done[name] for name in ("restarts", "recoveries", "repeated_samples")}
        sys.stdout.write(f"\n{counts}, auc {done['auc']:.5f}, undisturbed {expected['auc']:.5f}")
    finally:
        sys.stdout.write(f"\n{case}; hit: {'; '.join(run.told)}")


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 36))])
def test_whoever_dies_whenever_and_however_every_batch_is_trained_once(
    folder: Path, process_mark: str, seed: int
) -> None:
    check(folder, process_mark, "local", drawn(seed))
