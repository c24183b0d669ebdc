"""A process that is a client of one contender after another, as the benchmark tells it line by line.

    benchmark                                   client
    {"case": ..., "places": ..., "turn": 3} --> opens, warms up      --> "warm"
    "pull"                                  --> measures             --> [{"seconds": ..., "latencies": [...]}]
    "push"                                  --> measures, closes     --> the same

Two clients are two such processes; in memory they are two threads of one, because that is where the servers are.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from load import Case, Contender, Load, make_load, measure
from ours import CHANNELS, InProcess, MemoryServers, make_remote
from peers import Echo, NoHash, RayActor, Redis


class Client:
    def __init__(self, name: str, num_batches: int, num_keys: int) -> None:
        self._name = name
        self._loads = {shards: make_load(num_batches, num_keys, shards) for shards in (1, 2)}
        self._memory: dict[int, MemoryServers] = {}
        self._kept: dict[str, Contender] = {}  # those whose table is in this process
        self._seen: set[tuple[str, int]] = set()

    def serve(self) -> None:
        """Do what stdin says until it ends."""
        print(json.dumps(self._loads[1].rows), flush=True)
        for line in sys.stdin:
            order = json.loads(line)
            self._turn(Case(**order["case"]), order["places"], order["turn"])

    def _turn(self, case: Case, places: dict[str, Any], turn: int) -> None:
        load = self._loads[case.servers]
        in_process = case.clients if case.kind == "memory" else 1
        contenders = [self._open(case, places, f"{self._name}-{turn}-{number}") for number in range(in_process)]
        numbers = range(len(load.lookups))
        is_new = (case.kind, case.servers) not in self._seen
        self._seen.add((case.kind, case.servers))
        for contender in contenders:  # creates the rows the first time; then connects, maps and touches memory
            for begin in (contender.pull, contender.push):
                measure(begin, numbers if is_new else numbers[:3], case.in_flight)
        print(json.dumps("warm"), flush=True)
        with ThreadPoolExecutor(in_process) as threads:
            for op in ("pull", "push"):
                assert sys.stdin.readline().strip() == op
                begins = [getattr(contender, op) for contender in contenders]
                if in_process == 1:
                    found = [measure(begins[0], numbers, case.in_flight)]
                else:
                    found = list(threads.map(lambda begin: measure(begin, numbers, case.in_flight), begins))
                print(json.dumps([{"seconds": s, "latencies": times} for s, times in found]), flush=True)
        for contender in contenders:
            contender.close()

    def _open(self, case: Case, places: dict[str, Any], name: str) -> Contender:
        load: Load = self._loads[case.servers]
        if case.kind == "memory" and case.servers not in self._memory:
            self._memory[case.servers] = MemoryServers(case.servers)
        if case.kind in CHANNELS:
            memory = self._memory[case.servers] if case.kind == "memory" else None
            return make_remote(load, case, places.get(f"{case.kind} {case.servers}", []), memory, name)
        if case.kind == "echo":
            return Echo(load, places["echo"], case.values)
        if case.kind == "redis":
            return Redis(load, places["redis"])
        if case.kind not in self._kept:
            self._kept[case.kind] = {"table": InProcess, "no hash": NoHash, "ray": RayActor}[case.kind](load)
        return self._kept[case.kind]


if __name__ == "__main__":
    Client(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])).serve()
