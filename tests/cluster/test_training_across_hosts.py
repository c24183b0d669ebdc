"""One job on several hosts: BSP has the losses of one process, whatever the links between them do for a while."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest
from cluster_runs import (
    DEADLINE_S,
    NUM_BATCHES,
    ON_RAY,
    assert_as_one_process,
    log,
    losses,
    server,
    training,
    wait_for_lines,
    with_server,
    write_plan,
)
from hosts import Hosts, start_ray

from heterps.profiling.profile import Cost, LayerProfile, Profile

pytestmark = pytest.mark.slow


def end(process: subprocess.Popen[str]) -> None:
    """The run ends well, and as that of one process."""
    assert process.wait(DEADLINE_S) == 0, log(1)
    assert_as_one_process()


def cut(hosts: Hosts, process: subprocess.Popen[str], seconds: float) -> None:
    """The link of host 2 is down for a while in the middle of a run."""
    wait_for_lines(40, process)
    hosts.cut(2)
    time.sleep(1.0)
    stands_at = len(losses())
    time.sleep(seconds - 1.0)
    assert len(losses()) == stands_at < NUM_BATCHES
    hosts.heal(2)


def test_stages_and_a_server_on_two_ray_hosts_train_as_one_process_does_over_a_cut_link(folder: Path) -> None:
    """For longer than connections live: what was in them has to come again."""
    write_plan()
    with Hosts(2) as hosts:
        start_ray(hosts, [{"near": 2}, {"far": 2}])
        hosts.limit(2, "20mbit")
        with training(hosts, *ON_RAY) as process:
            cut(hosts, process, 27.0)
            end(process)
        assert min(hosts.num_bytes(2)) > 100_000


def test_a_server_on_another_host_keeps_the_tables_of_one_process_over_a_cut_link(folder: Path) -> None:
    with_server()
    with Hosts(2) as hosts, server(hosts):
        hosts.limit(2, "20mbit")
        with training(hosts) as process:
            cut(hosts, process, 3.0)
            end(process)


def test_a_run_whose_server_is_on_another_host_is_predicted_by_the_port_between_them(folder: Path) -> None:
    with_server()
    job = Path("job.yaml")
    job.write_text(job.read_text().replace("limit: 4}", "limit: 4, port_gbps: 0.002}"))
    cost = Cost(compute_s=0.001, sync_s=0, input_s=0, alpha=1, beta=1)
    names = ("embedding", "cat", "deep.linear1", "deep.relu1", "deep.logit")
    layers = [LayerProfile(name=name, costs={"near": cost}, row_bytes=0, dense_bytes=0) for name in names]
    layers[0] = layers[0].model_copy(update={"row_bytes": 2000})
    Profile(model="tiny", batch_size=16, layers=tuple(layers)).write("profile.json")
    with Hosts(2) as hosts, server(hosts):
        hosts.limit(2, "2mbit")
        with training(hosts, "--launcher", "local", "--workers", "1", "--profile", "profile.json") as process:
            end(process)
    told = json.loads(Path("run/summary.json").read_text())
    assert told["predicted_terms"]["network_s"] == pytest.approx(2000 / 250_000, rel=0.1)
    assert told["measured_terms"].keys() == told["predicted_terms"].keys()
    assert min(told["measured_terms"].values()) > 0


def test_a_push_whose_answer_is_lost_is_applied_once(folder: Path) -> None:
    """A server that hears and is not heard has applied what is sent again."""
    with_server(", retry_s: 0.3")
    with Hosts(2) as hosts, server(hosts), training(hosts) as process:
        for count, lose in ((40, hosts.mute), (80, hosts.deafen), (120, hosts.mute)):
            wait_for_lines(count, process)
            lose(2)
            time.sleep(1.5)
            hosts.heal(2)
        end(process)
