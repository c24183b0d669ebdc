"""One member of an all-reduce group as a process: `python -m all_reduce_member`, a processes.Child.

{"group", "own", "store", "deadline_s"}  --> {"listens": addresses}      has met the others
{"step": gradients}                      --> {"values": hex of float32}  has taken a step with the sum
the end of input                         --> leaves
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np

from heterps.config import AdamW
from heterps.processes import give_answer, reserve_stdout
from heterps.ps.table.dense import DenseTable
from heterps.training.worker.all_reduce import AllReduce, LocalDense


def listening() -> list[str]:
    """Addresses, in hexadecimal as the system writes them, that this process listens at."""
    inodes = set()
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            inodes.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        except OSError:  # closed since it was listed
            continue
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in inodes:
                found.append(words[1].split(":")[0])
    return found


def main() -> None:
    answers = reserve_stdout()
    start = json.loads(sys.stdin.readline())
    with AllReduce(**start) as group:
        table = DenseTable(4, AdamW(lr=0.1))
        dense = LocalDense(table, group)
        give_answer(answers, {"listens": listening()})
        for line in sys.stdin:
            dense.step(np.array(json.loads(line)["step"], np.float32))
            give_answer(answers, {"values": table.values.tobytes().hex()})


if __name__ == "__main__":
    main()
