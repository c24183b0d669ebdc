"""How fast does a message travel? See README.md beside this file.

A client sends 26,624 x 16 float32 (1.7 MB) to a server that sends the same frame back. `one at a time` waits for each
answer, which gives the latency; `4 at a time` keeps four messages under way, which gives the throughput. Carriers take
turns in rounds, so that whatever else the machine does meets them all.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from heterps.wire import (
    Channel,
    ClientChannel,
    Counters,
    Frame,
    MemoryNetwork,
    Received,
    ServerChannel,
    Shared,
    SocketOptions,
    receive_within,
)

ROWS, DIM = 26_624, 16
OPEN = SocketOptions(open_loopback=True)
CARRIERS = ("memory", "raw ipc", "ipc", "tcp", "shm")


class RawChannel:
    """Plain pyzmq in the shape of a channel."""

    name = "raw"

    def __init__(self, kind: int, address: str) -> None:
        self.counters = Counters()
        self._context = zmq.Context()
        self._socket = self._context.socket(kind)
        self._socket.linger = 0
        self._is_router = kind == zmq.ROUTER
        if self._is_router:
            self._socket.bind(address)
        else:
            self._socket.connect(address)

    def send(self, peer: str, parts: Sequence[Frame], deadline_s: float | None = None) -> None:  # noqa: ARG002
        to = [bytes.fromhex(peer)] if self._is_router else []
        self._socket.send_multipart([*to, *parts], copy=False)

    def receive(self, timeout_s: float) -> Received | None:
        if not self._socket.poll(int(timeout_s * 1000)):
            return None
        views = [frame.buffer for frame in self._socket.recv_multipart(copy=False)]
        return (bytes(views[0]).hex(), views[1:]) if self._is_router else ("server", views)

    def close(self) -> None:
        self._socket.close()
        self._context.term()


def serve(channel: Channel) -> None:
    """Echo until a message of one part comes, and answer that too."""
    while (received := channel.receive(60)) is not None:
        peer, parts = received
        channel.send(peer, parts)
        is_end = len(parts) == 1
        del received, parts
        if is_end:
            break
    channel.receive(0.1)
    channel.close()


@contextmanager
def connected(carrier: str) -> Iterator[Channel]:
    """A client's channel to a server on a thread (memory) or in a process of its own."""
    if carrier == "memory":
        network = MemoryNetwork()
        thread = threading.Thread(target=serve, args=(network.channel("server"),))
        thread.start()
        yield stopping(network.channel("client"))
        thread.join()
        return
    with tempfile.TemporaryDirectory() as folder:
        address = "tcp://127.0.0.1:*" if carrier == "tcp" else f"ipc://{folder}/server"
        command = [sys.executable, __file__, "--serve", carrier, "--address", address]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            bound = process.stdout.readline().strip()
            if carrier == "raw ipc":
                yield stopping(RawChannel(zmq.DEALER, bound))
                return
            client = ClientChannel("client", {"server": bound}, options=OPEN)
            yield stopping(Shared(client) if carrier == "shm" else client)


def stopping(channel: Channel) -> Channel:
    """The channel, whose close ends the server first."""
    close = channel.close

    def end() -> None:
        channel.send("server", [b"stop"])
        receive_within(channel, 60, "server")
        close()

    channel.close = end  # type: ignore[method-assign]
    return channel


def run_server(carrier: str, address: str) -> None:
    if carrier == "raw ipc":
        raw = RawChannel(zmq.ROUTER, address)
        print(address, flush=True)
        serve(raw)
        return
    channel = ServerChannel("server", address, options=OPEN)
    print(channel.address, flush=True)
    serve(Shared(channel) if carrier == "shm" else channel)


def measure(channel: Channel, num_messages: int, num_under_way: int) -> tuple[float, list[float]]:
    """Seconds for all messages, and seconds from each one's sending to its answer."""
    values = np.random.default_rng(0).random((ROWS, DIM), np.float32)
    latencies, sent_s = [], []
    begin = time.perf_counter()
    for number in range(num_messages + num_under_way):
        if number >= num_under_way:
            parts = receive_within(channel, 60, "server")[1]
            assert parts[1].nbytes == values.nbytes
            del parts
            latencies.append(time.perf_counter() - sent_s[number - num_under_way])
        if number < num_messages:
            sent_s.append(time.perf_counter())
            channel.send("server", [b"header of a push", values])
    return time.perf_counter() - begin, latencies


def copy_seconds(num_messages: int) -> tuple[float, list[float]]:
    """The bound: the same bytes copied once there and once back inside one process."""
    values, there = np.ones((ROWS, DIM), np.float32), np.ones((ROWS, DIM), np.float32)
    latencies = []
    for _ in range(num_messages):
        begin = time.perf_counter()
        there[:] = values
        values[:] = there
        latencies.append(time.perf_counter() - begin)
    return sum(latencies), latencies


Found = dict[tuple[str, int], list[tuple[float, list[float]]]]


def rounds(num_rounds: int, num_messages: int) -> Found:
    found: Found = {}
    for number in range(num_rounds):
        print(f"round {number + 1} of {num_rounds}", file=sys.stderr, flush=True)
        found.setdefault(("copy there and back", 1), []).append(copy_seconds(num_messages))
        for carrier in CARRIERS:
            with connected(carrier) as channel:
                measure(channel, 20, 1)  # connects, maps, touches
                for under_way in (1, 4):
                    found.setdefault((carrier, under_way), []).append(measure(channel, num_messages, under_way))
                channel.close()
    return found


def summarize(found: Found, num_messages: int) -> list[dict[str, Any]]:
    """Medians over rounds, and the median of the rounds' ratios to the raw socket; bytes count in both directions."""
    lines = []
    for (carrier, under_way), runs in found.items():
        per_s = num_messages / statistics.median(seconds for seconds, _ in runs)
        p50, p99 = (statistics.median(float(np.quantile(times, q)) for _, times in runs) * 1e3 for q in (0.5, 0.99))
        raw = found["raw ipc", under_way]
        ratio = statistics.median(bare[0] / run[0] for bare, run in zip(raw, runs, strict=True))
        line = {"carrier": carrier, "under_way": under_way, "messages_per_s": per_s}
        line |= {"gb_per_s": per_s * 2 * ROWS * DIM * 4 / 1e9, "p50_ms": p50, "p99_ms": p99, "of_raw_ipc": ratio}
        lines.append(line)
    return lines


def report(lines: list[dict[str, Any]]) -> None:
    print("| carrier | under way | messages/s | GB/s | p50 ms | p99 ms | of raw ipc |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for line in lines:
        print(
            f"| {line['carrier']} | {line['under_way']} | {line['messages_per_s']:,.0f} | {line['gb_per_s']:.2f} "
            f"| {line['p50_ms']:.3f} | {line['p99_ms']:.3f} | {line['of_raw_ipc']:.2f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few messages, to see that it runs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="where the figures go (default: results.json here, not with --quick)")
    parser.add_argument("--serve", choices=CARRIERS, help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        run_server(arguments.serve, arguments.address)
        return
    num_rounds, num_messages = (1, 20) if arguments.quick else (arguments.rounds, 1000)
    load = os.getloadavg()[0]
    print(f"Load of the machine before: {load:.2f} (below 1, or the figures say little)\n")
    lines = summarize(rounds(num_rounds, num_messages), num_messages)
    report(lines)
    target = arguments.json or (None if arguments.quick else Path(__file__).parent / "results.json")
    if target is not None:
        about = {"cores": os.cpu_count(), "load_before": load, "pyzmq": zmq.__version__, "rounds": num_rounds}
        target.write_text(json.dumps({"environment": about, "lines": lines}, indent=1) + "\n")


if __name__ == "__main__":
    main()
