"""What does a table lose when only a part of it fits in memory? See README.md beside this file.

For each budget: fill the table, warm it up with batches until hot rows have come up, then time pull and push of more
batches, a step after each. All budgets get the same batches.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from typing import NamedTuple

import numpy as np

from heterps.config import Tiers
from heterps.ps import Adagrad, SparseTable
from heterps.ps.keys.dedup import Lookup, make_lookup
from heterps.ps.table.tiers import TieredTable

BATCH = 26_624
OPTIMIZER = Adagrad(lr=0.05)
BUDGETS = (1.0, 0.5, 0.2, 0.1)
Table = SparseTable | TieredTable


class Figures(NamedTuple):
    pull_s: float
    push_s: float
    step_s: float
    hit_rate: float  # of pulls
    memory: float  # in use, as a part of the whole table's


def zipf_batches(num_batches: int, num_keys: int, seed: int) -> list[Lookup]:
    """Lookups of BATCH ids each, of `num_keys` keys with Zipf popularity (exponent 1.05), popular ones anywhere."""
    chances = np.cumsum(np.arange(1, num_keys + 1) ** -1.05)
    places = np.random.default_rng(0).permutation(num_keys)
    rng = np.random.default_rng(seed)
    return [make_lookup(places[np.searchsorted(chances, rng.random(BATCH) * chances[-1])]) for _ in range(num_batches)]


def fill(table: Table, num_keys: int) -> None:
    for begin in range(0, num_keys, BATCH):
        table.pull(np.arange(begin, min(begin + BATCH, num_keys)))


def measure(table: Table, warm: list[Lookup], timed: list[Lookup], table_bytes: int) -> Figures:
    """Seconds of pulls, pushes and steps over all `timed` batches."""
    grads = np.random.default_rng(0).normal(size=(BATCH, table.dim)).astype(np.float32)
    pull_s = push_s = step_s = 0.0
    num_up = 0
    for number, lookup in enumerate([*warm, *timed]):
        is_timed = number >= len(warm)
        before = num_promotions(table)
        begin = time.perf_counter()
        table.pull(lookup.unique)
        pulled = time.perf_counter()
        num_up += is_timed * (num_promotions(table) - before)
        table.push_unique(lookup.unique, grads[: len(lookup.unique)])
        pushed = time.perf_counter()
        if isinstance(table, TieredTable):
            table.step()
        stepped = time.perf_counter()
        pull_s += is_timed * (pulled - begin)
        push_s += is_timed * (pushed - pulled)
        step_s += is_timed * (stepped - pushed)
    num_pulled = sum(len(lookup.unique) for lookup in timed)
    return Figures(pull_s, push_s, step_s, 1 - num_up / num_pulled, table.num_bytes / table_bytes)


def num_promotions(table: Table) -> int:
    return table.counts.num_promotions if isinstance(table, TieredTable) else 0


def compile_kernels(folder: str) -> None:
    """Every kernel that is timed, once."""
    table = TieredTable(SparseTable(4, OPTIMIZER), Tiers(memory_bytes=100_000, folder=folder))
    fill(table, 5000)
    measure(table, [], zipf_batches(2, 5000, 0), 1)
    table.close()


def measure_all(dim: int, num_keys: int, num_batches: int, num_rounds: int, folder: str) -> None:
    """A line of the table for each budget."""
    warm, timed = zipf_batches(num_batches, num_keys, 1), zipf_batches(num_batches, num_keys, 2)
    num_pulled = sum(len(lookup.unique) for lookup in timed)
    plain: list[Figures] = []
    lines: dict[float, list[Figures]] = {budget: [] for budget in BUDGETS}
    for _ in range(num_rounds):
        table = SparseTable(dim, OPTIMIZER)
        fill(table, num_keys)
        table_bytes = table.num_bytes
        plain.append(measure(table, warm, timed, table_bytes))
        del table
        for budget in BUDGETS:
            tiered = TieredTable(
                SparseTable(dim, OPTIMIZER), Tiers(memory_bytes=int(table_bytes * budget), folder=folder)
            )
            fill(tiered, num_keys)
            lines[budget].append(measure(tiered, warm, timed, table_bytes))
            tiered.close()
    show(dim, "no tiers", plain, plain, num_pulled)
    for budget, figures in lines.items():
        show(dim, f"{budget:.0%}", figures, plain, num_pulled)


def show(dim: int, budget: str, figures: list[Figures], plain: list[Figures], num_rows: int) -> None:
    pull, push = (
        statistics.median(num_rows / getattr(f, name) / 1e6 for f in figures) for name in ("pull_s", "push_s")
    )
    both = statistics.median(num_rows / (f.pull_s + f.push_s + f.step_s) / 1e6 for f in figures)
    against = statistics.median(
        (p.pull_s + p.push_s) / (f.pull_s + f.push_s + f.step_s) for f, p in zip(figures, plain, strict=True)
    )
    hits, memory = (statistics.median(getattr(f, name) for f in figures) for name in ("hit_rate", "memory"))
    print(
        f"| {dim} | {budget} | {memory:.0%} | {hits:.1%} | {pull:.2f} | {push:.2f} | {both:.2f} | {against:.2f} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", help="of the disk to measure; a temporary folder by default")
    arguments = parser.parse_args()
    num_rounds, num_batches, num_keys = (1, 3, 100_000) if arguments.quick else (arguments.rounds, 100, 2_000_000)
    print(f"Load of the machine before: {os.getloadavg()[0]:.2f} (below 1, or the figures say little)\n")
    print("| dim | budget | memory in use | hits | pull M rows/s | push M rows/s | both M rows/s | of no tiers |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        compile_kernels(folder)
        for dim in (16, 64):
            measure_all(dim, num_keys, num_batches, num_rounds, folder)


if __name__ == "__main__":
    main()
