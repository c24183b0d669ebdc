"""What the death of the command costs a run on `local`, and what its journal costs while nobody dies.

python benchmarks/faults/killed_command.py --folder /tmp/killed --tries 3

killed   the command is killed with SIGKILL in the middle of a run, and resumed at once: seconds from its second start
         to the first line of metrics, samples that were repeated, and whether the test AUC is that of a clean run
journal  runs in turns with a journal and without (`servers.wait_s: 0`): samples/s and CPU seconds of all processes
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from commands import heterps

JOB = """
name: small
model: {{factory: ctr_dnn, args: {{embedding_dim: 16, hidden: [64, 32]}}}}
data: {{train: data/train, test: data/test, batch_size: 512}}
launcher: local
threads: 2
sync: {sync}
metrics_every_samples: 20480
servers: {{wait_s: {wait_s}}}
"""


def write_job(folder: Path, sync: str, wait_s: str = "null") -> None:
    (folder / "job.yaml").write_text(JOB.format(sync=sync, wait_s=wait_s))
    shutil.rmtree(folder / "run", ignore_errors=True)


def summary_of(folder: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((folder / "run" / "summary.json").read_text())
    return summary


def num_lines(folder: Path) -> int:
    path = folder / "run" / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def kill_and_resume(folder: Path, sync: str) -> tuple[float, int, float]:
    """Seconds until a killed run trains again, samples repeated, test AUC."""
    write_job(folder, sync)
    command = [sys.executable, "-m", "heterps", "train", "job.yaml", "--run", "run"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
    while num_lines(folder) < 3:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before, began = num_lines(folder), time.monotonic()
    process = subprocess.Popen([*command, "--resume"], cwd=folder, stdout=subprocess.DEVNULL)
    while num_lines(folder) <= before:
        time.sleep(0.01)
    seconds = time.monotonic() - began
    if process.wait():
        raise SystemExit("the resumed run failed")
    summary = summary_of(folder)
    return seconds, summary["repeated_samples"], summary["auc"]


def speed(folder: Path, sync: str, wait_s: str) -> tuple[float, float, float]:
    """Samples/s, CPU seconds of all processes, test AUC of an undisturbed run."""
    write_job(folder, sync, wait_s)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    heterps(folder, "train", "job.yaml", "--run", "run", "--json")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    summary = summary_of(folder)
    return summary["samples_per_s"], cpu_s, summary["auc"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=150_000)
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--policies", default="bsp,asp")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    heterps(options.folder, "data", "synth", "data", "--rows", options.rows, "--test-rows", 20_000)
    for sync in options.policies.split(","):
        found: dict[str, list[tuple[float, float, float]]] = {"null": [], "0": []}
        for _ in range(options.tries):
            for arm, runs in found.items():
                runs.append(speed(options.folder, sync, arm))
        of = {arm: [statistics.median(run[i] for run in runs) for i in (0, 1)] for arm, runs in found.items()}
        print(
            f"{sync}: with a journal {of['null'][0]:,.0f} samples/s and {of['null'][1]:.1f} CPU s, without "
            f"{of['0'][0]:,.0f} and {of['0'][1]:.1f}; clean AUC {found['0'][0][2]:.6f}"
        )
        for _ in range(options.tries):
            seconds, repeated, auc = kill_and_resume(options.folder, sync)
            print(
                f"{sync}: killed, trains again {seconds:.1f} s after its second start, {repeated} repeated, {auc:.6f}"
            )


if __name__ == "__main__":
    main()
