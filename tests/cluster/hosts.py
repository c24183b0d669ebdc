"""Several hosts on one machine, as real as a process can tell, joined by a switch whose links can be slowed and cut.

    with Hosts(2) as hosts:                          host1 at 10.99.0.1        host2 at 10.99.0.2
        hosts.limit(2, "100mbit")                          eth0                      eth0
        hosts.run(1, ["hostname"])                           |   +----------------+   |
        hosts.cut(2)                                         +---| port1    port2 |---+
        hosts.heal(2)                                            +---- switch ----+

A host has its own network, hostname, process ids, IPC, /dev/shm and /tmp/ray. Its own process ids matter: shared memory
that is opened through /proc would otherwise pass by the network. All other files are shared by all hosts, as on a
network file system. It takes Linux, root and iproute2 (Debian: apt-get install iproute2).

    python tests/cluster/hosts.py 3 --rate 100mbit

starts three hosts and prints how to enter each of them from another terminal, until it is ended.

Nothing is left behind: the first process of each host reads a pipe from here, and ends with this process. All others
of the host, its network and its links end with it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

TOOLS = ("ip", "tc", "nsenter", "unshare")
COMMAND_S = 120.0
Way = Literal["out", "in"]
_HOST = (
    "mount -t tmpfs -o size=4g tmpfs /dev/shm && mount -t tmpfs tmpfs /tmp/ray && hostname {name} && ip link set lo up "
    "&& echo up && exec cat"
)
_NOTHING = "8bit"
"""A rate that stands for none: no packet is as small as its bucket of one byte, so all are dropped."""
_SWITCH = "ip link add switch type bridge && ip link set switch up && echo up && exec cat"


def why_not() -> str | None:
    """A sentence that says why this machine cannot have hosts; None where it can."""
    if sys.platform != "linux":
        return "hosts on one machine are namespaces of Linux, and this is another system"
    if os.geteuid() != 0:
        return "hosts on one machine need root: sudo make cluster-test"
    if missing := [name for name in TOOLS if shutil.which(name) is None]:
        return f"hosts on one machine need {', '.join(missing)}: install iproute2 and util-linux"
    tried = subprocess.run(["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True, text=True)
    return f"this system lets nobody make namespaces: {tried.stderr.strip()}" if tried.returncode else None


def address(number: int) -> str:
    """Of host `number`, counted from 1."""
    return f"10.99.0.{number}"


class Hosts:
    """Hosts 1 to `count`, which end when the context does. Every method that names a host takes its number."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._inits: dict[int, _Namespaces] = {}
        self._rates: dict[int, dict[Way, str | None]] = {}

    def __enter__(self) -> Self:
        Path("/tmp/ray").mkdir(exist_ok=True)
        try:
            self._inits[0] = _Namespaces(["--net"], _SWITCH)
            for number in range(1, self.count + 1):
                self._boot(number)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    def command(self, number: int, words: Sequence[object]) -> list[str]:
        """The command line that runs `words` on a host."""
        return ["nsenter", f"--target={self._inits[number].pid}", "--all", f"--wd={Path.cwd()}", "--", *map(str, words)]

    def run(self, number: int, words: Sequence[object], timeout_s: float = COMMAND_S) -> str:
        """What a command on a host prints; subprocess.CalledProcessError where it fails."""
        return _output(self.command(number, words), timeout_s)

    def limit(self, number: int, rate: str | None, ways: Sequence[Way] = ("out", "in")) -> None:
        """Let a host send and receive no more than this (`100mbit`, `1gbit`); None lifts the limit.

        With one of the ways, only what it sends (`out`) or receives (`in`) is slow.
        """
        for way in ways:
            self._rates.setdefault(number, {})[way] = rate
            self._pass(*self._ends(number)[way], rate)

    def cut(self, number: int) -> None:
        """Take a host's link down: packets are lost in both directions, and nobody is told."""
        self._inits[0].run(["ip", "link", "set", f"port{number}", "down"])

    def mute(self, number: int) -> None:
        """Lose all that a host sends; it still receives."""
        self._pass(*self._ends(number)["out"], _NOTHING)

    def deafen(self, number: int) -> None:
        """Lose all that is sent to a host; it is still heard."""
        self._pass(*self._ends(number)["in"], _NOTHING)

    def heal(self, number: int) -> None:
        """Undo `cut`, `mute` and `deafen`; a limit stays."""
        self._inits[0].run(["ip", "link", "set", f"port{number}", "up"])
        for way, end in self._ends(number).items():
            self._pass(*end, self._rates.get(number, {}).get(way))

    def num_bytes(self, number: int) -> tuple[int, int]:
        """Bytes that a host has received and sent."""
        [line] = [line for line in self.run(number, ["cat", "/proc/net/dev"]).splitlines() if "eth0:" in line]
        counters = line.split(":")[1].split()
        return int(counters[0]), int(counters[8])

    def kill(self, number: int) -> None:
        """End all processes of a host at once, as a power cut would, and start it again with none."""
        self._inits[0].run(
            ["ip", "link", "delete", f"port{number}"]
        )  # the name is free at once, as it would not be later
        self._inits.pop(number).end()
        self._rates.pop(number, None)
        self._boot(number)

    def _ends(self, number: int) -> dict[Way, tuple[int, str]]:
        """Both ends of a host's link, each with the namespaces that it is in: what the host sends passes `out`."""
        return {"out": (number, "eth0"), "in": (0, f"port{number}")}

    def _pass(self, at: int, device: str, rate: str | None) -> None:
        """Let a device send at this rate, after a burst of what fits into its bucket; None lifts the limit."""
        bucket = ["noqueue"]
        if rate is not None:
            longest, burst = ("2s", "4kb") if rate.endswith("kbit") else ("50ms", "256kb")
            bucket = ["tbf", "rate", rate, "latency", longest, "burst", "1" if rate == _NOTHING else burst]
        self._inits[at].run(["tc", "qdisc", "replace", "dev", device, "root", *bucket])

    def _boot(self, number: int) -> None:
        own = ["--net", "--mount", "--uts", "--ipc", "--pid", "--mount-proc"]
        host = self._inits[number] = _Namespaces(own, _HOST.format(name=f"host{number}"))
        switch, port = self._inits[0], f"port{number}"
        own_mac = f"02:00:00:00:00:{number:02x}"  # also after `kill`, as that of a machine: others remember it
        link = [
            "ip",
            "link",
            "add",
            "eth0",
            "address",
            own_mac,
            "netns",
            host.pid,
            "type",
            "veth",
            "peer",
            "name",
            port,
        ]
        _output([*map(str, link), "netns", str(switch.pid)])
        host.run(["ip", "address", "add", f"{address(number)}/24", "dev", "eth0"])
        host.run(["ip", "link", "set", "eth0", "up"])
        switch.run(["ip", "link", "set", port, "master", "switch", "up"])

    def _end(self) -> None:
        for init in self._inits.values():
            init.end()
        self._inits.clear()


QUICK_RAY = [
    "env",
    *(f"RAY_health_check_{name}" for name in ("period_ms=1000", "timeout_ms=1000", "failure_threshold=3")),
]
"""Before `ray start`: a host that is gone is found dead within some seconds, and not a minute."""


def start_ray(hosts: Hosts, units: Sequence[dict[str, int]], before: Sequence[str] = ()) -> None:
    """Make the first hosts a Ray cluster, each with so many units of its resources; host 1 is the head."""
    for number, own in enumerate(units, start=1):
        join_ray(hosts, number, own, before)


def join_ray(hosts: Hosts, number: int, own: dict[str, int], before: Sequence[str] = ()) -> None:
    """Start Ray on a host, the head on host 1, with so many units of its resources."""
    ray = Path(sys.executable).parent / "ray"
    role = ["--head", "--port=6379", "--include-dashboard=false"] if number == 1 else [f"--address={address(1)}:6379"]
    labels = [f"--node-ip-address={address(number)}", f"--resources={json.dumps(own)}", "--num-cpus=16"]
    memory = ["--object-store-memory=80000000", "--disable-usage-stats"]
    hosts.run(number, [*before, ray, "start", *role, *labels, *memory])


class _Namespaces:
    """Namespaces of their own, and their first process: it runs `script`, which prints `up` when it is done and then
    waits for the end of its input.
    """

    def __init__(self, kinds: list[str], script: str) -> None:
        self._outer = subprocess.Popen(
            ["unshare", *kinds, "--fork", "--kill-child", "sh", "-c", script],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._outer.stdout is not None
        if self._outer.stdout.readline() != "up\n":
            self._outer.kill()
            raise RuntimeError(f"a host did not come up: {self._outer.communicate()[1]}")
        self.pid = int(Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children").read_text())

    def run(self, words: Sequence[object]) -> str:
        """What a command prints that is run in this network."""
        return _output(["nsenter", f"--target={self.pid}", "--net", "--", *map(str, words)])

    def end(self) -> None:
        """All processes of these namespaces are gone when it returns, if process ids are among them."""
        os.kill(self.pid, signal.SIGKILL)
        self._outer.communicate()


def _output(words: list[str], timeout_s: float = COMMAND_S) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description="Start hosts on this machine until this command is ended.")
    parser.add_argument("count", type=int, help="how many")
    parser.add_argument("--rate", help="what each may send and receive, for example 100mbit (default: no limit)")
    options = parser.parse_args()
    if reason := why_not():
        raise SystemExit(reason)
    with Hosts(options.count) as hosts:
        for number in range(1, options.count + 1):
            if options.rate:
                hosts.limit(number, options.rate)
            enter = " ".join(hosts.command(number, ["bash"])[:3])
            sys.stdout.write(f"host{number} at {address(number)}: {enter} --wd=$PWD\n")
        sys.stdout.write("cut 2, mute 2, deafen 2, heal 2, kill 2, limit 2 100mbit; Ctrl-C or Ctrl-D ends all hosts\n")
        for line in sys.stdin:
            match line.split():
                case ["cut" | "mute" | "deafen" | "heal" | "kill" as what, number]:
                    getattr(hosts, what)(int(number))
                case ["limit", number, rate]:
                    hosts.limit(int(number), rate)


if __name__ == "__main__":
    main()
