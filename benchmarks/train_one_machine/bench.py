"""How close does a job on one machine come to the speed of its own dense layers?

Every round trains every arm for one epoch from its start, in turn, so that a slow minute of the machine hits all alike:

    heterps        the demo job: Parquet, prefetch, tables, Adagrad + Adam, streaming metrics
    bound          the MLP alone: forward, backward to its inputs, Adam, on ready tensors
    torch-26       the same model in plain PyTorch, a sparse nn.Embedding a slot, on ready tensors
    torch-1        the same, one nn.Embedding for all slots
    sparse-plane   heterps without the MLP: the logit is the sum of the rows

    python benchmarks/train_one_machine/bench.py [--rows 500000] [--rounds 3] [--batch-size 1024 4096]
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from heterps.config import Optimizers, Schema
from heterps.data.batch import Slots
from heterps.data.generate import generate
from heterps.data.prefetch import Prefetch
from heterps.data.reader import Reader
from heterps.data.synthetic import CARDINALITIES
from heterps.launch.inline import warm_up
from heterps.model.zoo import ctr_dnn, tower
from heterps.nn import SparseEmbedding
from heterps.training.metrics.binary import BinaryMetrics
from heterps.training.model.trainer import Trainer

SCHEMA = Schema()
DIM, HIDDEN, PREFETCH = 16, (512, 256, 128), 4
NUM_INPUTS = len(SCHEMA.dense) + DIM * len(SCHEMA.slots)


class Result(NamedTuple):
    samples_per_s: float
    cpu_s_per_million: float
    auc: float | None


class Clock:
    """Wall-clock and processor seconds of this process, threads included, since it was made."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), self._cpu()

    def result(self, samples: int, auc: float | None = None) -> Result:
        wall, cpu = time.perf_counter() - self.wall, self._cpu() - self.cpu
        return Result(samples / wall, cpu / samples * 1e6, auc)

    @staticmethod
    def _cpu() -> float:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime


# --- heterps ---------------------------------------------------------------------------------------------------------


class RowSum(nn.Module):
    """Embeddings and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = SparseEmbedding(SCHEMA.slots, DIM)

    def forward(self, dense: Tensor, slots: Slots) -> Tensor:  # noqa: ARG002
        return self.embedding(slots).sum((1, 2))


def train_heterps(folder: Path, batch_size: int, model: nn.Module) -> Result:
    threads = torch.get_num_threads()
    with Trainer(model, Optimizers(), num_shards=threads, num_threads=threads) as trainer:
        reader = Reader(str(folder / "train"), SCHEMA, batch_size=batch_size)
        metrics = BinaryMetrics()
        clock = Clock()
        batches = (batch for batch, _ in reader.read())
        with Prefetch(batches, PREFETCH, trainer.prepare) as prefetched:
            for batch in prefetched:
                _, logits = trainer.step(batch)
                metrics.update(logits, batch.label)
        result = clock.result(reader.num_rows)
        test = Reader(str(folder / "test"), SCHEMA, batch_size=1000, shuffle=False)
        auc = trainer.evaluate(batch for batch, _ in test.read())["auc"]
    torch.set_num_threads(threads)
    return result._replace(auc=auc)


# --- plain PyTorch ---------------------------------------------------------------------------------------------------


class Ready(NamedTuple):
    """The whole data set as tensors: dense features, ids [n, slots] from 0 for each slot, labels."""

    dense: Tensor
    ids: Tensor
    label: Tensor


def load_ready(folder: Path) -> Ready:
    import pyarrow.parquet as pq

    table = pq.read_table(folder)
    dense = np.stack([table[name].fill_null(0).to_numpy() for name in SCHEMA.dense], axis=1)
    missing = CARDINALITIES  # one more id a slot
    ids = np.stack([table[name].fill_null(int(missing[s])).to_numpy() for s, name in enumerate(SCHEMA.slots)], axis=1)
    label = table[SCHEMA.label].to_numpy().astype(np.float32)
    return Ready(torch.from_numpy(dense.astype(np.float32)), torch.from_numpy(ids), torch.from_numpy(label))


def in_batches(data: Ready, batch_size: int, seed: int | None) -> Iterator[Ready]:
    order = torch.arange(len(data.label))
    if seed is not None:
        order = torch.randperm(len(order), generator=torch.Generator().manual_seed(seed))
    for rows in order.split(batch_size):
        yield Ready(*(tensor[rows] for tensor in data))


class TorchModel(nn.Module):
    def __init__(self, one_table: bool) -> None:
        super().__init__()
        sizes = [int(size) + 1 for size in CARDINALITIES]
        self.one_table = one_table
        self.register_buffer("offsets", torch.tensor([0, *np.cumsum(sizes)[:-1]]))
        self.tables = nn.ModuleList(
            nn.Embedding(size, DIM, sparse=True) for size in ([sum(sizes)] if one_table else sizes)
        )
        for table in self.tables:
            nn.init.uniform_(table.weight, -0.01, 0.01)
        self.deep = tower(NUM_INPUTS, HIDDEN)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        if self.one_table:
            rows = self.tables[0](ids + self.offsets).flatten(1)
        else:
            rows = torch.cat([table(ids[:, s]) for s, table in enumerate(self.tables)], dim=1)
        return self.deep(torch.cat([dense, rows], dim=1)).squeeze(1)


def train_torch(train: Ready, test: Ready, batch_size: int, one_table: bool) -> Result:
    model = TorchModel(one_table)
    sparse = torch.optim.Adagrad(model.tables.parameters(), lr=0.05)
    dense = torch.optim.Adam(model.deep.parameters(), lr=0.001)
    batches = list(in_batches(train, batch_size, seed=0))
    loss_of = nn.BCEWithLogitsLoss()
    clock = Clock()
    for batch in batches:
        loss = loss_of(model(batch.dense, batch.ids), batch.label)
        sparse.zero_grad()
        dense.zero_grad()
        loss.backward()
        sparse.step()
        dense.step()
    result = clock.result(len(train.label))
    metrics = BinaryMetrics()
    with torch.no_grad():
        for batch in in_batches(test, 1000, seed=None):
            metrics.update(model(batch.dense, batch.ids).numpy(), batch.label.numpy())
    return result._replace(auc=metrics.auc)


def train_bound(train: Ready, batch_size: int) -> Result:
    """The dense layers on ready inputs. The gradient of the inputs is part of it: the embeddings need it."""
    model = tower(NUM_INPUTS, HIDDEN)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    inputs = [torch.randn(batch_size, NUM_INPUTS, requires_grad=True) for _ in range(8)]
    labels = list(train.label.split(batch_size))
    loss_of = nn.BCEWithLogitsLoss()
    clock = Clock()
    for i, label in enumerate(labels):
        features = inputs[i % len(inputs)]
        features.grad = None
        loss = loss_of(model(features[: len(label)]).squeeze(1), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return clock.result(len(train.label))


# --- rounds ----------------------------------------------------------------------------------------------------------


def measure(folder: Path, batch_sizes: list[int], rounds: int) -> dict[int, dict[str, list[Result]]]:
    train, test = load_ready(folder / "train"), load_ready(folder / "test")
    results: dict[int, dict[str, list[Result]]] = {}
    for batch_size in batch_sizes:
        arms: dict[str, Callable[[], Result]] = {
            "bound": lambda b=batch_size: train_bound(train, b),
            "heterps": lambda b=batch_size: train_heterps(folder, b, ctr_dnn(SCHEMA, DIM, HIDDEN)),
            "torch-1": lambda b=batch_size: train_torch(train, test, b, one_table=True),
            "torch-26": lambda b=batch_size: train_torch(train, test, b, one_table=False),
            "sparse-plane": lambda b=batch_size: train_heterps(folder, b, RowSum()),
        }
        results[batch_size] = {name: [] for name in arms}
        for number in range(rounds):
            for name, arm in arms.items():
                torch.manual_seed(number)
                results[batch_size][name].append(arm())
                print(
                    f"batch {batch_size} round {number + 1}/{rounds} {name}: {results[batch_size][name][-1]}",
                    flush=True,
                )
    return results


def show(results: dict[int, dict[str, list[Result]]]) -> None:
    print("\n| batch | arm | samples/s | of bound | CPU s/M | of bound | test AUC |\n|---|---|---|---|---|---|---|")
    for batch_size, arms in results.items():
        for name, rounds in arms.items():
            speed = statistics.median(r.samples_per_s for r in rounds)
            cpu = statistics.median(r.cpu_s_per_million for r in rounds)
            # Ratios are taken within a round, then the median: the machine's speed moves between rounds.
            pairs = list(zip(rounds, arms["bound"], strict=True))
            faster = statistics.median(r.samples_per_s / b.samples_per_s for r, b in pairs)
            dearer = statistics.median(r.cpu_s_per_million / b.cpu_s_per_million for r, b in pairs)
            auc = f"{rounds[0].auc:.4f}" if rounds[0].auc is not None else ""
            print(f"| {batch_size} | {name} | {speed:,.0f} | {faster:.2f} | {cpu:.1f} | {dearer:.2f} | {auc} |")
        ids = statistics.median(r.samples_per_s for r in arms["sparse-plane"]) * len(SCHEMA.slots) / 1e6
        print(f"\nbatch {batch_size}: the sparse plane alone handles {ids:.1f} M ids/s\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch-size", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="also write the results here")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "data"
        info = generate(folder, options.rows, max(options.rows // 10, 1000))
        assert info.test is not None
        print(f"{options.rows:,} rows; the teacher's own test AUC is {info.test.teacher_auc:.4f}")
        warm_up()
        train_heterps(folder, min(1024, options.rows), RowSum())  # compiles what is left to compile
        results = measure(folder, options.batch_size, options.rounds)
    show(results)
    if options.json:
        options.json.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
