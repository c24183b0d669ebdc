"""How fast is a model in use, and how fresh? See README.md beside this file.

The model is ctr_dnn on Criteo-like rows (13 numbers, 26 ids), with rows of 16 values and layers of 512, 256 and 128.
`plain.py` has the same trained model without heterps: NumPy finds the rows, torch or ONNX Runtime does the rest.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from plain import PlainModel, save_plain

from heterps.config import load_job
from heterps.data.generate import generate
from heterps.launch import train
from heterps.serving.export import export
from heterps.serving.score import Scorer

HETERPS = [sys.executable, "-m", "heterps"]
PLAIN = [sys.executable, str(Path(__file__).with_name("plain.py"))]
JOB = """
name: serve
model: {{factory: ctr_dnn, args: {{embedding_dim: 16, hidden: [512, 256, 128]}}}}
data: {{train: data/train, test: data/test, batch_size: 1024, epochs: {epochs}}}
checkpoint: {{every_samples: {every}, every_minutes: null, keep: 1000}}
"""
ARROW = "application/vnd.apache.arrow.stream"
CALLERS = 4


# --- rows a second ---------------------------------------------------------------------------------------------------


def rate(score: Callable[[Any], Any], table: Any, repeats: int) -> float:
    """Rows a second of scoring a table in pieces of 4,096: the best of a few passes."""
    pieces = [table.slice(first, 4096) for first in range(0, len(table), 4096)]
    best = 0.0
    for _ in range(repeats):
        begin = time.perf_counter()
        for piece in pieces:
            score(piece)
        best = max(best, len(table) / (time.perf_counter() - begin))
    return best


def show_rates(folder: Path, table: Any, repeats: int) -> None:
    print("\n| in one process | rows/s | largest difference |\n|---|---|---|")
    scorers: dict[str, Callable[[Any], Any]] = {
        "plain PyTorch": PlainModel(folder, "torch").score,
        "plain ONNX Runtime": PlainModel(folder, "onnx").score,
        "heterps, export to torch": Scorer(folder / "torch").score,
        "heterps, export to onnx": Scorer(folder / "onnx").score,
    }
    expected = np.asarray(scorers["plain PyTorch"](table)["score"])
    for name, score in scorers.items():
        difference = np.abs(np.asarray(score(table)["score"]) - expected).max()
        print(f"| {name} | {rate(score, table, repeats):,.0f} | {difference:.1e} |")
    for source in ("run", "torch"):
        command = [*HETERPS, "predict", source, "data/test", "--out", "scores.parquet", "--json"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        told = json.loads(done.stdout)
        what = "run" if source == "run" else "export"
        print(f"| `heterps predict`, of the {what}, files and all | {told['rows'] / told['seconds']:,.0f} | |")


# --- a bounded load --------------------------------------------------------------------------------------------------


@contextmanager
def running(command: list[str], folder: Path) -> Iterator[str]:
    """A server in a process of its own; its URL, once it takes requests."""
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def request(table: Any, kind: str) -> bytes:
    """A whole HTTP request for the scores of a table."""
    if kind == ARROW:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        body = sink.getvalue().to_pybytes()
    else:
        body = json.dumps({"columns": table.to_pydict()}).encode()
    head = f"POST /score HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def answered(opened: socket.socket) -> bytes:
    """Read one answer; it must be 200."""
    got = b""
    while b"\r\n\r\n" not in got:
        got += opened.recv(65_536)
    head, _, body = got.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), got
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
    )
    while len(body) < length:
        body += opened.recv(65_536)
    return head


def load(url: str, requests: list[bytes], seconds: float) -> list[float]:
    """Let CALLERS ask without a pause, each over one connection, the next when the last is answered: their seconds."""
    where = urlsplit(url)
    found: list[list[float]] = [[] for _ in range(CALLERS)]

    def ask(mine: list[float], number: int) -> None:
        with socket.create_connection((where.hostname or "", where.port or 0)) as opened:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            until = time.perf_counter() + seconds
            while (begin := time.perf_counter()) < until:
                opened.sendall(requests[(number + CALLERS * len(mine)) % len(requests)])
                answered(opened)
                mine.append(time.perf_counter() - begin)

    with ThreadPoolExecutor(CALLERS) as pool:
        list(pool.map(ask, found, range(CALLERS)))
    return [one for mine in found for one in mine]


def show_load(folder: Path, table: Any, seconds: float) -> None:
    print(f"\n{CALLERS} callers on loopback, the next request when the last is answered.\n")
    print("| server | rows a request | kind | requests/s | rows/s | p50 ms | p99 ms |\n|---|---|---|---|---|---|---|")
    servers = {
        "heterps serve, torch": [*HETERPS, "serve", "torch", "--port", "0", "--json"],
        "heterps serve, onnx": [*HETERPS, "serve", "onnx", "--port", "0", "--json"],
        "plain PyTorch, same app": [*PLAIN, "torch"],
        "plain ONNX Runtime, same app": [*PLAIN, "onnx"],
    }
    for name, command in servers.items():
        with running(command, folder) as url:
            for num_rows in (1, 100):
                for kind in ("application/json", ARROW):
                    pieces = [table.slice(first * num_rows % 5000, num_rows) for first in range(64)]
                    requests = [request(piece, kind) for piece in pieces]
                    load(url, requests, seconds / 5)  # warm up
                    times = sorted(load(url, requests, seconds))
                    per_s = len(times) / seconds
                    p50, p99 = (1000 * times[int(share * (len(times) - 1))] for share in (0.5, 0.99))
                    word = "Arrow" if kind == ARROW else "JSON"
                    figures = f"{per_s:,.0f} | {per_s * num_rows:,.0f} | {p50:.1f} | {p99:.1f}"
                    print(f"| {name} | {num_rows} | {word} | {figures} |")


# --- freshness and bytes ---------------------------------------------------------------------------------------------


def show_freshness(folder: Path, table: Any, seconds: float) -> None:
    """A job that trains and saves now and then, and a server that follows it: when does the clock of a save show?"""
    (folder / "live.yaml").write_text(JOB.format(epochs=1000, every=20_480))
    asked = request(table.slice(0, 1), ARROW)
    command = [*HETERPS, "serve", "torch", "--follow", "live", "--port", "0", "--json"]
    seen: dict[int, float] = {}
    with running(command, folder) as url, (folder / "live.log").open("w") as log:
        where = urlsplit(url)
        words = [*HETERPS, "train", "live.yaml", "--run", "live"]
        job = subprocess.Popen(words, cwd=folder, stdout=log, stderr=log, start_new_session=True)
        try:
            with socket.create_connection((where.hostname or "", where.port or 0)) as opened:
                until = time.time() + seconds + 30  # it has to start first
                while time.time() < until:
                    opened.sendall(asked)
                    head = answered(opened).decode().lower()
                    clock = int(head.partition("x-heterps-version: ")[2].split()[0].partition("-")[0])
                    seen.setdefault(clock, time.time())
                    time.sleep(0.02)
        finally:
            os.killpg(job.pid, signal.SIGTERM)
            job.wait(60)
    saved = {int(path.name): path.stat().st_mtime for path in (folder / "live" / "checkpoints").glob("0*")}
    clocks = sorted(seen.keys() - {next(iter(seen))})  # without that of the export, which is served first
    late = [
        min(seen[other] for other in clocks if other >= clock) - when
        for clock, when in saved.items()
        if clocks and clocks[0] < clock <= clocks[-1]
    ]
    print("\n| from a push to its scores, while the job trains | |\n|---|---|")
    print(f"| versions served | {len(clocks)} |")
    print(f"| pushes looked at (those before a checkpoint) | {len(late)} |")
    if late:
        print(f"| median, largest | {statistics.median(late):.1f} s, {max(late):.1f} s |")


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def show_bytes(folder: Path) -> None:
    print("\n| bytes | samples since | size | of the full export |\n|---|---|---|---|")
    full = size(folder / "torch")
    print(f"| full export | | {full:,} | |")
    for path in sorted((folder / "increments").iterdir(), key=lambda one: int(one.name)):
        print(f"| increment | {int(path.name):,} | {size(path):,} | {100 * size(path) / full:.0f} % |")


def show_values(folder: Path) -> None:
    """Exports with fewer bits: their bytes, and the AUC on the test set that `heterps export` tells."""
    print("\n| values | size | AUC | AUC with fp32 |\n|---|---|---|---|")
    checkpoint = sorted((folder / "run" / "checkpoints").iterdir())[-3]
    for values in ("fp16", "int8"):
        found = export(checkpoint, folder / values, values=values).quality
        assert found is not None
        print(f"| {values} | {size(folder / values):,} | {found[values]:.6f} | {found['fp32']:.6f} |")


# --- all of it -------------------------------------------------------------------------------------------------------


def prepare(folder: Path, num_rows: int) -> None:
    """Train the model; export it with a tenth of the data to go, and increments from there."""
    generate(folder / "data", num_rows, num_rows // 4)
    every = num_rows // 20 // 1024 * 1024
    (folder / "job.yaml").write_text(JOB.format(epochs=1, every=every))
    os.chdir(folder)
    train(load_job("job.yaml"), "run")
    checkpoints = sorted((folder / "run" / "checkpoints").iterdir())[-3:]
    for format in ("torch", "onnx"):
        export(checkpoints[0], folder / format, format=format)
    version = Scorer(folder / "torch").version
    samples = [json.loads((path / "manifest.json").read_text())["samples"] for path in checkpoints]
    (folder / "increments").mkdir()
    for checkpoint, count in zip(checkpoints[1:], samples[1:], strict=True):
        export(checkpoint, folder / "increments" / str(count - samples[0]), since=version)
    save_plain(folder, checkpoints[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each load")
    parser.add_argument("--quick", action="store_true", help="only show that it runs")
    asked = parser.parse_args()
    num_rows, seconds, repeats = (24_000, 0.1, 1) if asked.quick else (asked.rows, asked.seconds, 3)
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, num_rows)
        table = pq.read_table(folder / "data" / "test").drop(["label"])
        show_rates(folder, table, repeats)
        show_load(folder, table, seconds)
        show_bytes(folder)
        show_values(folder)
        if not asked.quick:
            show_freshness(folder, table, 30.0)
        os.chdir(before)


if __name__ == "__main__":
    main()
