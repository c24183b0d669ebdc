"""How fast is a sparse table, and what does a row cost? See README.md beside this file.

Every round starts from an empty table. Contenders take turns, some batches each, on the same ids, so that whatever
else the machine does meets them all; a figure is the median over rounds, and a ratio the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional

from heterps.ps import Adagrad, SparseTable
from heterps.ps.client.local import LocalClient
from heterps.ps.keys.dedup import Lookup, make_lookup, sum_rows
from heterps.ps.protocol.specs import TableSpec
from heterps.ps.table.memory import reserve

DIM, BATCH, TURN = 16, 26_624, 10
OPTIMIZER = Adagrad(lr=0.05)
Seconds = dict[str, float]


def zipf_batches(num_batches: int, num_keys: int, seed: int) -> np.ndarray:
    """Ids [num_batches, BATCH] of `num_keys` keys with Zipf popularity (exponent 1.05), popular ones anywhere."""
    rng = np.random.default_rng(seed)
    chances = np.cumsum(np.arange(1, num_keys + 1) ** -1.05)
    ranks = np.searchsorted(chances, rng.random(num_batches * BATCH) * chances[-1])
    return rng.permutation(num_keys)[ranks].reshape(num_batches, BATCH)


class TorchTable:
    """A preallocated tensor with dense ids: no hash, no growth, every key known."""

    def __init__(self, num_keys: int) -> None:
        self.values = torch.zeros(num_keys, DIM)
        self.squares = torch.zeros(num_keys, DIM)

    def pull(self, ids: torch.Tensor) -> torch.Tensor:
        return self.values.index_select(0, ids)

    def push(self, ids: torch.Tensor, grads: torch.Tensor) -> None:
        unique, inverse = torch.unique(ids, return_inverse=True)
        summed = torch.zeros(len(unique), DIM).index_add_(0, inverse, grads)
        squares = self.squares.index_select(0, unique).addcmul_(summed, summed)
        self.squares.index_copy_(0, unique, squares)
        self.values.index_add_(0, unique, summed / squares.sqrt_().add_(OPTIMIZER.eps), alpha=-OPTIMIZER.lr)


def tables_round(batches: np.ndarray, torch_table: TorchTable) -> Seconds:
    """Seconds that each contender spent on all batches."""
    warm_up(batches.size * 400)
    table = SparseTable(DIM, OPTIMIZER)
    client = LocalClient([TableSpec("rows", DIM, OPTIMIZER, seed=0, init_scale=0.01)], {}, num_shards=2)
    seconds: Seconds = defaultdict(float)
    out = np.empty((BATCH, DIM), np.float32)
    grads = np.random.default_rng(0).normal(size=(BATCH, DIM)).astype(np.float32)
    torch_grads = torch.from_numpy(grads)

    def take_turn(name: str, turn: np.ndarray, work: Callable[[np.ndarray], object], threads: int = 1) -> list[object]:
        torch.set_num_threads(threads)
        begin = time.perf_counter()
        results = [work(ids) for ids in turn]
        seconds[name] += time.perf_counter() - begin
        return results

    def pull_by_shards(ids: np.ndarray) -> torch.Tensor:
        lookup = make_lookup(ids, 2)
        rows = client.pull("rows", lookup).result()
        return functional.embedding(torch.from_numpy(lookup.inverse), torch.from_numpy(rows))

    alone, apart = (SparseTable(DIM, OPTIMIZER) for _ in range(2))

    def sum_then_push(lookup: Lookup) -> None:
        summed = np.empty((len(lookup.unique), DIM), np.float32)
        sum_rows(grads, lookup.sources, lookup.starts, 0, len(lookup.unique), summed)
        apart.push_unique(lookup.unique, summed)

    for first in range(0, len(batches), TURN):
        turn = batches[first : first + TURN]
        as_torch = [torch.from_numpy(ids) for ids in turn]
        take_turn("pull 1", turn, lambda ids: table.pull(ids, out) is None)
        take_turn("torch pull 1", as_torch, lambda ids: torch_table.pull(ids) is None)
        take_turn("pull 2", turn, lambda ids: pull_by_shards(ids) is None, threads=2)
        take_turn("torch pull 2", as_torch, lambda ids: torch_table.pull(ids) is None, threads=2)
        take_turn("push 1", turn, lambda ids: table.push(ids, grads))
        take_turn("torch push 1", as_torch, lambda ids: torch_table.push(ids, torch_grads))
        lookups = take_turn("lookup", turn, lambda ids: make_lookup(ids, 2))
        take_turn("numpy.unique", turn, lambda ids: np.unique(ids, return_inverse=True)[0] is None)
        take_turn("push of a lookup 2", lookups, lambda lookup: client.push("rows", lookup, grads).result())
        take_turn("torch push 2", as_torch, lambda ids: torch_table.push(ids, torch_grads), threads=2)
        whole = [make_lookup(ids) for ids in turn]
        take_turn("push in two passes 1", whole, sum_then_push)
        take_turn("push in one pass 1", whole, lambda lo: alone.push_sums(lo.unique, grads, lo.sources, lo.starts))
        take_turn("pull again 1", turn, lambda ids: table.pull(ids, out) is None)
        take_turn("pull of a lookup 2", lookups, lambda lookup: client.pull("rows", lookup).result() is None)
    seconds["push 2"] = seconds["lookup"] + seconds["push of a lookup 2"]
    client.close()
    return seconds


class Inserted(NamedTuple):
    """What inserting keys took."""

    seconds: Seconds  # to insert them, and to touch as much memory
    row_bytes: float  # as the table counts, index included
    resident_bytes: float  # a row, as the system counts
    longest_s: float  # of the calls
    user_s: float  # of the processor in user code, for all inserts


def insert_round(keys: np.ndarray) -> Inserted:
    warm_up(len(keys) * 200)
    before = rss_bytes()
    begin, user_s = time.perf_counter(), os.times().user
    table = SparseTable(DIM, OPTIMIZER)
    out = np.empty((BATCH, DIM), np.float32)
    longest_s = 0.0
    for first in range(0, len(keys), BATCH):
        part = keys[first : first + BATCH]
        started = time.perf_counter()
        table.pull(part, out[: len(part)])
        longest_s = max(longest_s, time.perf_counter() - started)
    inserted, user_s = time.perf_counter(), os.times().user - user_s
    resident = (rss_bytes() - before) / len(table)
    num_bytes, num_rows = table.num_bytes, len(table)
    del table
    touched = time.perf_counter()
    reserve(num_bytes)[:num_bytes].fill(1)
    seconds = {"insert": inserted - begin, "touch": time.perf_counter() - touched}
    return Inserted(seconds, num_bytes / num_rows, resident, longest_s, user_s)


def warm_up(num_bytes: int) -> None:
    """Take and free memory: a virtual machine's host may have to find it first, which would be charged to one side."""
    reserve(num_bytes)[:num_bytes].fill(1)


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def report(rounds: list[Seconds], num_ids: int, inserts: list[Inserted], num_keys: int) -> None:
    def line(what: str, ours: str, other: str, theirs: str, runs: list[Seconds], num: int) -> None:
        speeds = [num / statistics.median(run[name] for run in runs) / 1e6 for name in (ours, theirs)]
        ratio = statistics.median(run[theirs] / run[ours] for run in runs)
        print(f"| {what} | {speeds[0]:.1f} | {other} | {speeds[1]:.1f} | {ratio:.2f} |")

    print("| what | M/s | against | M/s | ratio |\n|---|---:|---|---:|---:|")
    one = "torch, 1 thread: "
    two = "torch, 2 threads: "
    steps = "`unique` + `index_add` + Adagrad"
    line("pull, 1 thread", "pull 1", one + "`index_select`", "torch pull 1", rounds, num_ids)
    line("pull of known keys, 1 thread", "pull again 1", one + "`index_select`", "torch pull 1", rounds, num_ids)
    line("pull, 2 shards, lookup included", "pull 2", two + "`index_select`", "torch pull 2", rounds, num_ids)
    line(
        "pull of a ready lookup of known keys, 2 shards",
        "pull of a lookup 2",
        two + "`index_select`",
        "torch pull 2",
        rounds,
        num_ids,
    )
    line("push, 1 thread", "push 1", one + steps, "torch push 1", rounds, num_ids)
    line("push, 2 shards, lookup included", "push 2", two + steps, "torch push 2", rounds, num_ids)
    line("push of a ready lookup, 2 shards", "push of a lookup 2", two + steps, "torch push 2", rounds, num_ids)
    line(
        "push of a ready lookup, 1 thread",
        "push in one pass 1",
        "summed first, then pushed",
        "push in two passes 1",
        rounds,
        num_ids,
    )
    line("lookup of a batch", "lookup", "`numpy.unique` with inverse", "numpy.unique", rounds, num_ids)
    line(
        f"insert of {num_keys:,} rows",
        "insert",
        "touching their memory",
        "touch",
        [entry.seconds for entry in inserts],
        num_keys,
    )
    counted, resident, longest_s, user_s = (statistics.median(entry[i] for entry in inserts) for i in (1, 2, 3, 4))
    alone, numbers = SparseTable(DIM, OPTIMIZER).row_bytes, 2 * DIM * 4
    print(
        f"\nBytes a row: {counted:.0f} in use (index included), {resident:.0f} resident; a row is {alone} alone, "
        f"{numbers} of values and state and {alone - numbers} of key and header."
    )
    print(
        f"The longest of the inserting calls of {BATCH:,} keys took {longest_s * 1e3:.1f} ms; "
        f"all took {user_s:.2f} s of the processor in user code."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    num_rounds, num_batches, num_keys = (1, 10, 50_000) if arguments.quick else (arguments.rounds, 200, 5_000_000)
    print(f"Load of the machine before: {os.getloadavg()[0]:.2f} (below 1, or the figures say little)\n")
    keys = np.random.default_rng(1).permutation(num_keys)
    torch_table = TorchTable(num_keys)
    tables_round(zipf_batches(TURN, num_keys, seed=0), torch_table)  # compiles, and touches the tensor
    rounds, inserts = [], []
    for number in range(num_rounds):
        rounds.append(tables_round(zipf_batches(num_batches, num_keys, seed=number), torch_table))
        inserts.append(insert_round(keys))
    report(rounds, num_batches * BATCH, inserts, num_keys)


if __name__ == "__main__":
    main()
