"""Hosts that are gone for longer than anybody waits: each is named, and the run goes on from its last checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster_runs import (
    BETWEEN,
    DEADLINE_S,
    ON_RAY,
    PLACE,
    assert_as_one_process,
    log,
    server,
    summary,
    training,
    wait_for_lines,
    with_server,
    write_plan,
)
from hosts import QUICK_RAY, Hosts, address, join_ray, start_ray

pytestmark = pytest.mark.slow
LOST = 8
"""The exit code of a run that has lost a peer."""


@pytest.mark.parametrize("how", ["mute", "kill"])
def test_a_server_that_is_cut_off_for_too_long_is_named_and_the_run_resumes(folder: Path, how: str) -> None:
    with_server(", deadline_s: 4.0")
    with Hosts(2) as hosts:
        with server(hosts), training(hosts) as process:
            wait_for_lines(BETWEEN, process)
            getattr(hosts, how)(2)
            assert process.wait(30.0) == LOST, log(1)
            assert f"server server-0 at {PLACE} did not answer" in log(1)
            assert "within 4 s" in log(1)
            assert "Start the servers of the job anew" in log(1)
            if how != "kill":
                hosts.heal(2)
            if how == "mute":  # it has learned more than the checkpoint
                with training(hosts, "--resume") as early:
                    assert early.wait(60.0) == 2, log(1)
                    assert f"the servers at {PLACE} hold rows of an earlier run already" in log(1)
        with server(hosts), training(hosts, "--resume") as process:
            assert process.wait(DEADLINE_S) == 0, log(1)
        assert_as_one_process()


@pytest.mark.parametrize("servers_on", ["near", "far"])
def test_a_host_of_ray_that_is_lost_is_named_and_the_job_goes_on_when_it_is_back(folder: Path, servers_on: str) -> None:
    """With a worker nothing is lost, and nobody goes back; with the server what came after the last checkpoint."""
    write_plan(servers_on)
    units = [{"near": 3}, {"far": 2}]
    with Hosts(2) as hosts:
        start_ray(hosts, units, QUICK_RAY)
        with training(hosts, *ON_RAY, "--restarts", 1) as process:
            wait_for_lines(BETWEEN, process)
            hosts.kill(2)
            join_ray(hosts, 2, units[1], QUICK_RAY)
            assert process.wait(DEADLINE_S) == 0, log(1)
        assert f"on Ray node {address(2)}) is gone" in log(1)
        counted = {name: summary()[name] for name in ("restarts", "recoveries")}
        assert counted == (
            {"restarts": 0, "recoveries": 1} if servers_on == "near" else {"restarts": 1, "recoveries": 0}
        )
        assert_as_one_process()


def test_a_run_whose_head_is_lost_resumes_on_another(folder: Path) -> None:
    write_plan()
    with Hosts(2) as hosts:
        start_ray(hosts, [{"near": 2}, {"far": 2}])
        with training(hosts, *ON_RAY) as process:
            wait_for_lines(BETWEEN, process)
            hosts.kill(1)
            process.wait(30.0)
        hosts.kill(2)
        start_ray(hosts, [{"near": 2, "far": 2}])
        with training(hosts, *ON_RAY, "--resume") as process:
            assert process.wait(DEADLINE_S) == 0, log(1)
        assert_as_one_process()
