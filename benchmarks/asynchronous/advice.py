"""Is the gain that `simulate --from RUN --advise` expects the gain that the other policy then has?

python benchmarks/asynchronous/advice.py --folder /tmp/advice --rounds 3     samples/s of real runs beside what was said

Runs of each policy take turns; every run is asked what the other policies would gain. Leave the machine alone.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from commands import heterps

POLICIES = ("bsp", "ssp:3", "asp")
JOB = """
name: ctr
model: {{factory: ctr_dnn, args: {{embedding_dim: 16, hidden: [512, 256, 128]}}}}
data: {{train: data/train, batch_size: {0}}}
"""


def measure(folder: Path, rows: int, batch_size: int, rounds: int) -> str:
    """Train with every policy in turn, ask each run, and return a line of a table for each pair."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "data").exists():
        heterps(folder, "data", "synth", "data", "--rows", rows, "--test-rows", 0)
    (folder / "job.yaml").write_text(JOB.format(batch_size))
    real: dict[str, list[float]] = defaultdict(list)  # samples/s of each policy
    expected: dict[tuple[str, str], list[list[float]]] = defaultdict(list)  # by run: gains of its seeds
    for _, sync in itertools.product(range(rounds), POLICIES):
        run = f"run-{len(list(folder.glob('run-*')))}"
        words = ["--launcher", "local", "--workers", 2, "--sync", sync]
        summary = json.loads(heterps(folder, "train", "job.yaml", "--run", run, "--json", *words))
        real[sync].append(summary["measured_throughput"])
        told = heterps(folder, "simulate", "--from", run, "--advise", "--compare", ",".join(POLICIES), "--json")
        for row in json.loads(told)["policies"]:
            expected[sync, row["policy"]].append(row["gains"])
    return "\n".join(_line(batch_size, *pair, real, expected[pair]) for pair in itertools.permutations(POLICIES, 2))


def _line(batch_size: int, own: str, other: str, real: dict[str, list[float]], expected: list[list[float]]) -> str:
    said = [gain for gains in expected for gain in gains]
    found = [there / here for here, there in zip(real[own], real[other], strict=True)]
    return f"| {batch_size:,} | {own} | {other} | {_spread(said)} | {_spread(found)} |"


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="for data and runs")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--batch-sizes", type=int, nargs="*", default=[1024, 4096])
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args(words)
    print("| batch | run | policy | gain that is expected | real gain |\n|--:|---|---|--:|--:|")
    for batch_size in asked.batch_sizes:
        print(measure(asked.folder, asked.rows, batch_size, asked.rounds), flush=True)


if __name__ == "__main__":
    main()
