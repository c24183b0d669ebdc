"""How fast are pulls and pushes at servers? See README.md beside this file.

Every contender takes a turn in every round, on the same batches, so that whatever else the machine does meets them
all. A figure is the median over rounds, a ratio the median of the rounds' ratios, percentiles are over all rounds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any

import numpy as np
from load import BATCH, Case
from ours import CHANNELS, run_server
from peers import Echo, ray_missing, redis_missing, run_echo, start_redis

FOLDER = Path(__file__).parent
OPS = ("pull", "push")
PEERS = (Case("no hash"), Case("table"), Case("redis"), Case("ray"), Case("ray", in_flight=4))
ECHOES = [Case("echo", values=values, in_flight=n) for values in ("fp32", "fp16") for n in (1, 4)]
OURS = [
    Case(kind, servers, clients, in_flight=in_flight)
    for kind, (servers, clients), in_flight in itertools.product(CHANNELS, ((1, 1), (2, 1), (1, 2), (2, 2)), (1, 4))
] + [
    Case(kind, values=values, in_flight=in_flight)
    for kind, values, in_flight in itertools.product(("ipc", "shm"), ("fp16", "bf16"), (1, 4))
]
QUICK = [*(Case(kind) for kind in CHANNELS), Case("ipc", 2, 2, "fp16", 4)]


@dataclass
class Process:
    """A part of the benchmark in a process of its own, spoken to by lines."""

    popen: subprocess.Popen[str]

    @property
    def into(self) -> IO[str]:
        assert self.popen.stdin is not None
        return self.popen.stdin

    def tell(self, order: object) -> None:
        self.into.write(f"{order if isinstance(order, str) else json.dumps(order)}\n")
        self.into.flush()

    def hear(self) -> str:
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        if not line:
            raise RuntimeError(f"a process of the benchmark ended: {' '.join(map(str, self.popen.args))}")  # type: ignore[arg-type]
        return line.strip()


@contextmanager
def process(*words: object) -> Iterator[Process]:
    """It ends when its stdin is closed."""
    command = [sys.executable, *map(str, words)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as popen:
        try:
            yield Process(popen)
        except BaseException:
            popen.kill()
            raise


def start_servers(stack: ExitStack, cases: list[Case], folder: Path) -> dict[str, Any]:
    """Everything that is connected to, started; by the names that clients know it by, where it is."""
    places: dict[str, Any] = {}
    for kind, servers in dict.fromkeys((case.kind, case.servers) for case in cases):
        if kind in CHANNELS and kind != "memory":
            started = []
            for number in range(servers):
                address = "tcp://127.0.0.1:*" if kind == "tcp" else f"ipc://{folder}/{kind}-{servers}-{number}"
                words = FOLDER / "bench.py", "--serve", kind, number, servers, address
                started.append(stack.enter_context(process(*words)))
            places[f"{kind} {servers}"] = [server.hear() for server in started]
        elif kind == "redis":
            redis = start_redis(folder)
            stack.callback(redis.wait)
            stack.callback(redis.terminate)
            places["redis"] = str(folder / "redis")
        elif kind == "echo" and "echo" not in places:
            places["echo"] = f"ipc://{folder}/echo"
            assert stack.enter_context(process(FOLDER / "bench.py", "--echo", places["echo"])).hear()
            stack.callback(stop_echo, places["echo"])
    return places


def stop_echo(address: str) -> None:
    echo = Echo(None, address, "fp32")  # type: ignore[arg-type]
    echo.stop_server()
    echo.close()


def take_turn(case: Case, places: dict[str, Any], turn: int, clients: list[Process]) -> dict[str, list[dict[str, Any]]]:
    """For each op what each client of the case measured, all at the same time."""
    mine = clients[: 1 if case.kind == "memory" else case.clients]
    for client in mine:
        client.tell({"case": asdict(case), "places": places, "turn": turn})
    for client in mine:
        assert json.loads(client.hear()) == "warm"
    found: dict[str, list[dict[str, Any]]] = {}
    for op in OPS:
        for client in mine:
            client.tell(op)
        found[op] = [entry for client in mine for entry in json.loads(client.hear())]
    return found


def summarize(case: Case, rounds: list[dict[Case, dict[str, Any]]], num_batches: int, rows: float) -> dict[str, Any]:
    """The figures of a line, for both ops."""
    echo = Case("echo", values="fp32" if case.values == "fp32" else "fp16", in_flight=case.in_flight)
    line: dict[str, Any] = asdict(case)

    def per_s(found: dict[Case, dict[str, Any]], which: Case, op: str) -> float:
        """Batches a second, of all clients together."""
        entries = found[which][op]
        return num_batches * len(entries) / max(entry["seconds"] for entry in entries)

    for op in OPS:
        batches = statistics.median(per_s(found, case, op) for found in rounds)
        times = [t for found in rounds for entry in found[case][op] for t in entry["latencies"]]
        line[op] = {
            "ids_per_s": batches * BATCH,
            "rows_per_s": batches * rows,
            "of_echo": statistics.median(per_s(found, case, op) / per_s(found, echo, op) for found in rounds),
            **{f"p{q}_ms": float(np.percentile(times, q)) * 1e3 for q in (50, 90, 99)},
        }
        for peer in (Case("redis"), Case("ray")):
            if peer in rounds[0]:
                ratios = [per_s(found, case, op) / per_s(found, peer, op) for found in rounds]
                line[op][f"over_{peer.kind}"] = statistics.median(ratios)
    return line


def report(lines: list[dict[str, Any]]) -> None:
    for op in OPS:
        print(f"\n### {op}\n")
        speeds, times = "M ids/s | M rows/s", "p50 ms | p90 ms | p99 ms"
        print(f"| what | servers | clients | values | in flight | {speeds} | {times} | of echo |")
        print("|---|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|")
        for line in lines:
            got = line[op]
            print(
                f"| {line['kind']} | {line['servers']} | {line['clients']} | {line['values']} | {line['in_flight']} "
                f"| {got['ids_per_s'] / 1e6:.2f} | {got['rows_per_s'] / 1e6:.2f} "
                f"| {got['p50_ms']:.2f} | {got['p90_ms']:.2f} | {got['p99_ms']:.2f} | {got['of_echo']:.2f} |"
            )
    print("\n### One client, one server, fp32, one in flight\n")
    print(
        "| | pull: of echo | x Redis | x Ray | push: of echo | x Redis | x Ray |\n|---|---:|---:|---:|---:|---:|---:|"
    )
    for line in lines:
        if line["kind"] in CHANNELS and Case(**{name: line[name] for name in asdict(Case(""))}) == Case(line["kind"]):
            cells = [
                f"{line[op][figure]:.2f}" if figure in line[op] else "-"
                for op in OPS
                for figure in ("of_echo", "over_redis", "over_ray")
            ]
            print(f"| {line['kind']} | {' | '.join(cells)} |")


def environment() -> dict[str, Any]:
    def installed(name: str) -> str:
        try:
            return version(name)
        except PackageNotFoundError:
            return "-"

    model = next((w for w in Path("/proc/cpuinfo").read_text().splitlines() if w.startswith("model name")), ":?")
    packages = {name: installed(name) for name in ("numpy", "numba", "pyzmq", "redis", "hiredis", "ray")}
    return {
        "processor": model.split(":")[1].strip(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
        **packages,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few cases and batches, to see that it runs")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="*", help="kinds of lines: ipc shm redis ...")
    parser.add_argument("--json", type=Path, help="where the figures go (default: results.json here, not with --quick)")
    parser.add_argument("--serve", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--echo", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        kind, number, servers, address = arguments.serve
        run_server(kind, int(number), int(servers), address)
    elif arguments.echo:
        run_echo(arguments.echo)
    else:
        run(arguments)


def run(arguments: argparse.Namespace) -> None:
    num_rounds, num_batches, num_keys = (1, 3, 50_000) if arguments.quick else (arguments.rounds, 40, 5_000_000)
    about = environment()
    print(f"Load of the machine before: {about['load_before']:.2f} (below 1, or the figures say little)")
    missing = {"redis": redis_missing(), "ray": ray_missing()}
    ours = QUICK if arguments.quick else OURS
    cases = [case for case in (*PEERS, *ours) if not missing.get(case.kind)]
    if arguments.only:
        cases = [case for case in cases if case.kind in arguments.only]
    cases = ECHOES + cases
    for sentence in filter(None, missing.values()):
        print(sentence)
    rounds: list[dict[Case, dict[str, Any]]] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        places = start_servers(stack, cases, folder)
        words = num_batches, num_keys
        clients = [stack.enter_context(process(FOLDER / "client.py", f"c{n}", *words)) for n in range(2)]
        rows = min(json.loads(client.hear()) for client in clients)
        print(f"{BATCH:,} ids a batch, {rows:,.0f} of them distinct", flush=True)
        for number in range(num_rounds):
            found: dict[Case, dict[str, Any]] = {}
            for place, case in enumerate(cases):
                progress(f"round {number + 1} of {num_rounds}, {place + 1} of {len(cases)}: {case.kind}")
                found[case] = take_turn(case, places, number * len(cases) + place, clients)
            rounds.append(found)
        progress("")
        for client in clients:
            client.into.close()
    lines = [summarize(case, rounds, num_batches, rows) for case in cases]
    report(lines)
    target = arguments.json or (None if arguments.quick else FOLDER / "results.json")
    if target is not None:
        settings = {"rounds": num_rounds, "batches": num_batches, "ids": BATCH, "rows": round(rows)}
        target.write_text(json.dumps({"environment": about, "settings": settings, "lines": lines}, indent=1) + "\n")


def progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    elif ", 1 of" in text:
        print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
