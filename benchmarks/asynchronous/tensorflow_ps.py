"""The same model in TensorFlow, in one process or with a parameter server and workers, on the same files.

python benchmarks/asynchronous/tensorflow_ps.py data-0 --batch-size 1024 --workers 2     prints a line of JSON

Needs tensorflow-cpu and tf-keras (2.21 was used) in an environment of its own; nothing here comes from heterps.

    this process: coordinator            worker 0, worker 1: a gRPC server each      parameter server: a gRPC server
    schedule(step, batch 0, 1, 2 ..) --> forward and backward ---------------------> gather rows, scatter, Adam
    one batch at a time for each worker, each batch once: a gradient is about one update old with two workers

Adagrad starts at 0, as torch's does; its epsilon, 1e-7, stands inside the root, which is TensorFlow's way.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import tensorflow as tf
import tf_keras

# fmt: off
CARDINALITIES = [
    1_460, 583, 1_200_000, 600_000, 305, 24, 12_517, 633, 3, 93_145, 5_683, 1_000_000, 3_194,
    27, 14_992, 700_000, 10, 5_652, 2_173, 4, 800_000, 18, 15, 120_000, 105, 90_000,
]
# fmt: on
DENSE = [f"I{i + 1}" for i in range(13)]
SLOTS = [f"C{i + 1}" for i in range(26)]
DIM, HIDDEN = 16, (512, 256, 128)
Batch = tuple[np.ndarray, np.ndarray, np.ndarray]


def load(folder: Path) -> Batch:
    """Numbers [n, 13], ids [n, 26] and labels [n]; a missing id is one more id of its slot."""
    table = pq.read_table(folder)
    dense = np.stack([table[name].fill_null(0).to_numpy() for name in DENSE], axis=1)
    slots = zip(SLOTS, CARDINALITIES, strict=True)
    ids = np.stack([table[name].fill_null(size).to_numpy() for name, size in slots], axis=1)
    return dense.astype(np.float32), ids, table["label"].to_numpy().astype(np.float32)


def in_batches(data: Batch, size: int, seed: int | None) -> Iterator[Batch]:
    count = len(data[0])
    order = np.arange(count) if seed is None else np.random.default_rng(seed).permutation(count)
    for first in range(0, count, size):
        some = order[first : first + size]
        yield data[0][some], data[1][some], data[2][some]


class Ctr(tf.Module):
    """26 tables under a tower, with both optimizers."""

    def __init__(self, start: float, seed: int) -> None:
        super().__init__()
        tf.random.set_seed(seed)
        self.tables = [
            tf.Variable(tf.random.uniform((size + 1, DIM), -0.01, 0.01), name=f"table{i}")
            for i, size in enumerate(CARDINALITIES)
        ]
        widths = (len(DENSE) + DIM * len(SLOTS), *HIDDEN, 1)
        self.weights = [
            tf.Variable(tf_keras.initializers.GlorotUniform(seed + number)((a, b)))
            for number, (a, b) in enumerate(pairwise(widths))
        ]
        self.biases = [tf.Variable(tf.zeros(b)) for b in widths[1:]]
        self.sparse = tf_keras.optimizers.Adagrad(0.05, initial_accumulator_value=start, jit_compile=False)
        self.dense = tf_keras.optimizers.Adam(0.001, jit_compile=False)
        self.sparse.build(self.tables)
        self.dense.build([*self.weights, *self.biases])

    def logits(self, dense: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        rows = [tf.nn.embedding_lookup(table, ids[:, i]) for i, table in enumerate(self.tables)]
        hidden = tf.concat([dense, *rows], axis=1)
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            hidden = tf.nn.relu(hidden @ weight + bias)
        return (hidden @ self.weights[-1] + self.biases[-1])[:, 0]

    def step(self, dense: tf.Tensor, ids: tf.Tensor, label: tf.Tensor) -> None:
        others = [*self.weights, *self.biases]
        with tf.GradientTape() as tape:
            losses = tf.nn.sigmoid_cross_entropy_with_logits(label, self.logits(dense, ids))
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, [*self.tables, *others])
        self.sparse.apply_gradients(zip(gradients[: len(self.tables)], self.tables, strict=True))
        self.dense.apply_gradients(zip(gradients[len(self.tables) :], others, strict=True))


SIGNATURE = [tf.TensorSpec((None, 13), tf.float32), tf.TensorSpec((None, 26), tf.int64), tf.TensorSpec((None,))]


def train_alone(model: Ctr, batches: Iterator[Batch]) -> None:
    step = tf.function(model.step, input_signature=SIGNATURE)
    for batch in batches:
        step(*map(tf.constant, batch))


def train_on_workers(strategy: Any, coordinator: Any, model: Ctr, batches: Iterator[Batch]) -> None:
    """Each batch goes to whichever worker is free."""

    @tf.function(input_signature=SIGNATURE)
    def step(*batch: tf.Tensor) -> None:
        strategy.run(model.step, args=batch)

    for batch in batches:
        coordinator.schedule(step, args=tuple(map(tf.constant, batch)))
    coordinator.join()


class Cluster:
    """A parameter server and workers as processes of this file, on loopback; they end with the block."""

    def __init__(self, num_workers: int) -> None:
        with_ports = [socket.create_server(("127.0.0.1", 0)) for _ in range(num_workers + 1)]
        places = [f"127.0.0.1:{each.getsockname()[1]}" for each in with_ports]
        for each in with_ports:
            each.close()
        self.spec = {"worker": places[1:], "ps": places[:1]}
        self._tasks = [("ps", 0), *(("worker", i) for i in range(num_workers))]
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Any:
        for kind, index in self._tasks:
            config = {"cluster": self.spec, "task": {"type": kind, "index": index}}
            given = {**os.environ, "TF_CONFIG": json.dumps(config)}
            self._processes.append(subprocess.Popen([sys.executable, __file__, "serve"], env=given))
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(self.spec), rpc_layer="grpc"
        )
        return tf.distribute.ParameterServerStrategy(resolver)

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def serve() -> None:
    """Be the server that TF_CONFIG names, until killed."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
    )
    server.join()


def auc_of(model: Ctr, test: Batch) -> float:
    """Share of pairs in the right order, as their ranks have it."""
    logits = tf.function(model.logits, input_signature=SIGNATURE[:2])
    scores = np.concatenate(
        [logits(tf.constant(d), tf.constant(i)).numpy() for d, i, _ in in_batches(test, 5000, None)]
    )
    order = scores.argsort(kind="stable")
    ranks = np.empty(len(order))
    ranks[order] = np.arange(1, len(order) + 1)
    positive = test[2] > 0.5
    num, others = positive.sum(), (~positive).sum()
    return float((ranks[positive].sum() - num * (num + 1) / 2) / (num * others))


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="a folder with train/ and test/, as `heterps data synth` writes")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--workers", type=int, default=0, help="0: in this process alone")
    parser.add_argument("--seed", type=int, default=0, help="of initial values and of the order of rows")
    parser.add_argument(
        "--start", type=float, default=0.0, help="of Adagrad's sums of squares; TensorFlow's own is 0.1"
    )
    asked = parser.parse_args(words)
    if asked.data == "serve":
        serve()
    folder = Path(asked.data)
    train, test = load(folder / "train"), load(folder / "test")
    batches = in_batches(train, asked.batch_size, asked.seed)
    if asked.workers:
        with Cluster(asked.workers) as strategy:
            coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
            with strategy.scope():
                model = Ctr(asked.start, asked.seed)
            begun = time.perf_counter()
            train_on_workers(strategy, coordinator, model, batches)
            seconds = time.perf_counter() - begun
            auc = auc_of(model, test)
            del coordinator
    else:
        model = Ctr(asked.start, asked.seed)
        begun = time.perf_counter()
        train_alone(model, batches)
        seconds = time.perf_counter() - begun
        auc = auc_of(model, test)
    print(json.dumps({"auc": auc, "samples_per_s": len(train[0]) / seconds, "tensorflow": tf.__version__}))


if __name__ == "__main__":
    main()
