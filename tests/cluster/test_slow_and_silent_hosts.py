"""Links that are slow one way, hosts that die with a server and its mirror apart, workers that return too late."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest
from cluster_runs import (
    DEADLINE_S,
    KEY,
    NUM_BATCHES,
    ON_RAY,
    PLACE,
    assert_as_one_process,
    log,
    losses,
    server,
    summary,
    training,
    wait_for_lines,
    with_server,
    write_plan,
)
from command import COMMAND
from hosts import QUICK_RAY, Hosts, Way, join_ray, start_ray

pytestmark = pytest.mark.slow
SLOW = "48kbit"
"""A push or its answer takes longer than a retry."""
WORKER_S = 4.0


@pytest.mark.parametrize("way", ["out", "in"])
def test_a_link_that_is_slow_one_way_slows_a_run_and_nothing_comes_twice(folder: Path, way: Way) -> None:
    with_server(", retry_s: 0.1")
    with Hosts(2) as hosts, server(hosts), training(hosts) as process:
        wait_for_lines(40, process)
        hosts.limit(2, SLOW, [way])
        wait_for_lines(60, process)
        assert len(losses()) < NUM_BATCHES, "it was slow"
        hosts.limit(2, None, [way])
        assert process.wait(DEADLINE_S) == 0, log(1)
    assert_as_one_process()


def with_mirrors() -> None:
    """Servers have mirrors, and losses are noticed within seconds."""
    write_plan()
    with Path("job.yaml").open("a") as job:
        job.write("servers: {replicas: 1, silence_s: 5.0}\nworkers: {backoff_s: 0.1}\n")


@pytest.mark.parametrize("lost", [2, 3])
def test_a_host_that_dies_with_a_server_or_its_mirror_loses_nothing_and_nobody_goes_back(
    folder: Path, lost: int
) -> None:
    """A server and its mirror are on hosts 2 and 3, the last stage with one of them; host 4 takes what is lost."""
    with_mirrors()
    units = [{"near": 2}, *3 * [{"far": 3}]]
    with Hosts(4) as hosts:
        start_ray(hosts, units[:3], QUICK_RAY)
        with training(hosts, *ON_RAY) as process:
            wait_for_lines(30, process)
            join_ray(hosts, 4, units[3], QUICK_RAY)
            wait_for_lines(50, process)
            hosts.kill(lost)
            assert process.wait(DEADLINE_S) == 0, log(1)
    assert "server-0" in log(1)
    told = summary()
    assert told["restarts"] == 0
    assert told["recoveries"] > 0
    assert_as_one_process()


@pytest.mark.parametrize("how", ["cut", "mute", "deafen"])
def test_a_worker_that_was_given_up_and_returns_changes_nothing(folder: Path, how: str) -> None:
    """It is out of reach for longer than its deadline, and its host is back when another has its place."""
    write_plan()
    plan = json.loads(Path("plan.json").read_text())
    plan["stages"] = [{"first": 0, "last": 4, "resource": "far", "count": 1}]
    Path("plan.json").write_text(json.dumps(plan))
    with_server()
    with Path("job.yaml").open("a") as job:
        job.write(f"workers: {{deadline_s: {WORKER_S}}}\n")
    with Hosts(4) as hosts, server(hosts):
        start_ray(hosts, [{"near": 1}, {"near": 1}, {"far": 1}, {"far": 1}])
        with training(hosts, *ON_RAY) as process:
            wait_for_lines(5, process)
            hosts.limit(2, SLOW)
            wait_for_lines(len(losses()) + 3, process)
            (lost,) = hosts_of_the_worker(hosts)
            getattr(hosts, how)(lost)
            wait_for_text("worker-1.0 is back after", process)
            assert hosts_of_the_worker(hosts) - {lost}
            hosts.heal(lost)
            wait_for_lines(len(losses()) + 10, process)  # slowly: what the old one still sends comes before the end
            hosts.limit(2, None)
            assert process.wait(DEADLINE_S) == 0, log(1)
        refused = json.loads(hosts.run(2, [*COMMAND, "server", "stats", PLACE, "--key", KEY, "--json"]))["dropped"]
    assert f"the coordinator has waited {WORKER_S:g} s for worker-1.0" in log(1)
    assert {name: summary()[name] for name in ("restarts", "recoveries")} == {"restarts": 0, "recoveries": 1}
    assert_as_one_process(num_repeated=1)
    if how == "deafen":  # what it sends still arrives
        assert refused["stale_incarnation"] > 0


def hosts_of_the_worker(hosts: Hosts) -> set[int]:
    """The hosts that have a process of the worker, one that was given up included."""
    words = ["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]
    return {number for number in (3, 4) if "ray::WorkerRole" in hosts.run(number, words)}


def wait_for_text(text: str, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while text not in log(1):
        assert process.poll() is None, log(1)
        assert time.monotonic() < deadline, log(1)
        time.sleep(0.1)
