"""Hosts on one machine are apart: what one sends to another passes its link, and only that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hosts import Hosts, address

LISTEN = """
import socket, sys
with socket.create_server(("0.0.0.0", 5000)) as listener:
    print("listens", flush=True)
    while True:
        with listener.accept()[0] as other:
            while piece := other.recv(1 << 16):
                other.sendall(piece)
"""
ECHO = """
import socket, sys, time
began = time.perf_counter()
with socket.create_connection((sys.argv[1], 5000), timeout=float(sys.argv[3])) as other:
    for _ in range(int(sys.argv[2])):
        other.sendall(bytes(1 << 16))
        left = 1 << 16
        while left:
            left -= len(other.recv(left))
print(time.perf_counter() - began)
"""


def echo(hosts: Hosts, pieces: int, timeout_s: float = 30.0) -> float:
    """Seconds in which host 1 sends so many pieces of 64 KB to host 2 and back, one after the other."""
    return float(hosts.run(1, [sys.executable, "-c", ECHO, address(2), pieces, timeout_s]))


def test_hosts_hear_each_other_over_links_that_count_slow_down_break_and_heal() -> None:
    with Hosts(2) as hosts:
        assert [hosts.run(number, ["hostname"]).strip() for number in (1, 2)] == ["host1", "host2"]
        words = hosts.command(2, [sys.executable, "-c", LISTEN])
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as listener:
            assert listener.stdout is not None
            assert listener.stdout.readline() == "listens\n"
            echo(hosts, 8)
            assert min(hosts.num_bytes(2)) > 8 * (1 << 16)
            hosts.limit(2, "20mbit")  # 16 x 64 KB less a burst of 256 KB at 2.5 MB/s, in each direction
            assert echo(hosts, 16) > 0.3
            hosts.limit(2, None)
            hosts.cut(2)
            with pytest.raises(RuntimeError, match=r"TimeoutError|timed out"):
                echo(hosts, 1, 0.2)
            hosts.heal(2)
            echo(hosts, 1)
            hosts.kill(2)
            assert listener.wait(timeout=30) != 0
        assert hosts.run(2, ["ls", "/proc"]).split()[0] == "1"  # the new host has no other process yet
        inits = [Path(f"/proc/{init.pid}") for init in hosts._inits.values()]
    assert not any(path.exists() for path in inits)
