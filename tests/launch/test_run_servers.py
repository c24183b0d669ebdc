"""Jobs with servers of their own: processes, threads or found ones, faults or none, the run is that without servers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import preloaded
import pytest

from heterps.checkpoint import Snapshot, load_latest
from heterps.config import Adagrad, Faults, Job, Servers, Tiers, ValueCoding, load_job
from heterps.errors import ConfigError, PeerLost, StorageError
from heterps.launch import train
from heterps.launch.run_servers import run_servers
from heterps.launch.servers import first_roster
from heterps.ps.client.connect import connect
from heterps.ps.client.remote import RemoteClient
from heterps.ps.keys.dedup import make_lookup
from heterps.ps.protocol.specs import TableSpec, TableSpecs
from heterps.ps.server.server import Server
from heterps.training.protocol.stage_tables import job_tables
from heterps.training.run.observer import Observer

STORM = Faults(drop=0.05, double=0.1, delay_s=0.002, reorder=0.1, corrupt=0.05, cut=0.01, cut_s=0.05)


def run(job: Path, servers: Servers | None, name: str, **options: object) -> tuple[dict, Snapshot, list[dict]]:
    """Summary, last checkpoint and metrics of a run."""
    read = load_job(job).model_copy(update={"servers": servers, "metrics_every_samples": 40})
    finished = train(read, job.parent / name, **options)
    lines = (finished.folder / "metrics.jsonl").read_text().splitlines()
    return finished.summary, load_latest(finished.folder / "checkpoints"), [json.loads(line) for line in lines]


def assert_equal(got: Snapshot, wanted: Snapshot) -> None:
    assert got.dense.keys() == wanted.dense.keys()
    for name, array in wanted.dense.items():
        np.testing.assert_array_equal(got.dense[name], array, err_msg=name)
    for name, table in ((name, table.whole()) for name, table in wanted.tables.items()):
        mine, theirs = np.argsort(got.tables[name].whole().keys), np.argsort(table.keys)
        for field in ("keys", "values", "state", "uses", "clock"):
            ours, other = getattr(got.tables[name].whole(), field)[mine], getattr(table, field)[theirs]
            np.testing.assert_array_equal(ours, other, err_msg=f"{name} {field}")


@pytest.mark.parametrize(
    "servers",
    [
        Servers(count=2),
        Servers(count=1, retry_s=0.05, faults=STORM),
        Servers(count=2, channel="memory"),
        Servers(count=2, channel="memory", retry_s=0.05, faults=STORM),
        Servers(count=2, channel="memory", coding=ValueCoding(compression="lz4", least_bytes=0)),
    ],
    ids=["processes", "processes with faults", "threads", "threads with faults", "compressed"],
)
def test_a_run_with_servers_equals_the_run_without(tiny_job: Path, servers: Servers) -> None:
    expected, snapshot, _ = run(tiny_job, None, "without")
    summary, got, _ = run(tiny_job, servers, "with")
    assert (summary["log_loss"], summary["auc"]) == (expected["log_loss"], expected["auc"])
    assert_equal(got, snapshot)


def test_a_run_stopped_and_resumed_on_other_servers_equals_one_that_never_stopped(tiny_job: Path) -> None:
    class Stop(Observer):
        def stepped(self, samples: int, seconds: float, loss: float, interval: object) -> None:
            if samples >= 100:
                os.kill(os.getpid(), signal.SIGTERM)

    expected, snapshot, _ = run(tiny_job, None, "without")
    run(tiny_job, Servers(count=2, channel="memory"), "with", observer=Stop())
    summary, got, _ = run(tiny_job, Servers(count=3, channel="memory"), "with", resume=True)
    assert summary["restarts"] == 1
    assert summary["auc"] == expected["auc"]
    assert_equal(got, snapshot)


def test_values_in_half_the_bytes_change_little_and_copies_of_hot_rows_are_in_the_metrics(tiny_job: Path) -> None:
    expected, _, lines = run(tiny_job, None, "without")
    assert "cache" not in lines[-1]
    half = Servers(count=1, channel="memory", coding=ValueCoding(values="bf16"), staleness=2, retry_s=30.0)
    summary, _, lines = run(tiny_job, half, "with")
    assert summary["log_loss"] == pytest.approx(expected["log_loss"], rel=0.02)
    assert 0 < lines[-1]["cache"]["hit_rate"] < 1
    assert lines[-1]["cache"]["num_hits"] > 0
    assert lines[-1]["traffic"]["bytes_sent"] > lines[0]["traffic"]["bytes_sent"] > 0
    assert lines[-1]["traffic"]["retries"] == 0


@pytest.mark.parametrize("servers", [None, Servers(count=2, channel="memory")], ids=["here", "servers"])
def test_what_tables_let_in_and_let_go_is_in_the_metrics(tiny_job: Path, servers: Servers | None) -> None:
    tiny_job.write_text(
        tiny_job.read_text() + "tables: {admission: {kind: sightings, num: 2}, eviction: {max_age: 2}}\n"
    )
    _, snapshot, lines = run(tiny_job, servers, "with")
    counts = lines[-1]["tables"]
    assert counts["refused"] > 0
    assert counts["evicted"]["age"] > 0
    assert counts["admitted"] - sum(counts["evicted"].values()) == len(snapshot.tables["embedding"])


class KillAServer(Observer):
    """Kills one of the servers once training goes on."""

    def __init__(self) -> None:
        self.killed: int | None = None

    def stepped(self, samples: int, seconds: float, loss: float, interval: object) -> None:
        if self.killed is None:
            children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
            self.killed = next(
                int(pid) for pid in children if b"server_process" in Path(f"/proc/{pid}/cmdline").read_bytes()
            )
            os.kill(self.killed, signal.SIGKILL)


def test_a_server_that_dies_ends_the_run_with_its_name_and_leaves_nothing(tiny_job: Path) -> None:
    observer = KillAServer()
    with pytest.raises(PeerLost, match=r"server-[01] \(process \d+\) ended with exit code -9 \(SIGKILL\)") as error:
        run(tiny_job, Servers(count=2, deadline_s=2.0, retry_s=0.2), "with", observer=observer)
    assert str(observer.killed) in str(error.value)
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    assert not [pid for pid in children if b"server_process" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_a_server_that_cannot_start_is_named(tiny_job: Path) -> None:
    job = load_job(tiny_job).model_copy(update={"servers": Servers(count=1)})
    missing = tiny_job.parent / "missing.yaml"
    with (
        pytest.raises(ConfigError, match=r"server-0 .* failed with ConfigError: .*missing.yaml"),
        run_servers(job, missing) as servers,
    ):
        servers.connect("worker-0", job_tables(job))


@pytest.fixture
def found(tiny_job: Path) -> Iterator[list[str]]:
    """Addresses of two servers of the job that run already."""
    addresses = [f"ipc://{tiny_job.parent}/s{number}" for number in range(2)]
    processes = []
    for shard in range(2):
        words = ["server", "start", str(tiny_job), *(f"--address={address}" for address in addresses)]
        code = f"from heterps.cli import main; main({[*words, f'--shard={shard}']!r})"
        processes.append(preloaded.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True))
    for process in processes:
        assert process.stdout is not None
        assert "listens at" in process.stdout.readline()
    yield addresses
    for process in processes:
        process.terminate()
        process.communicate(timeout=60)


def test_servers_that_run_already_are_used_once_and_not_mixed_with_another_run(tiny_job: Path, found) -> None:
    expected, snapshot, _ = run(tiny_job, None, "without")
    summary, got, _ = run(tiny_job, Servers(addresses=found), "with")
    assert summary["auc"] == expected["auc"]
    assert_equal(got, snapshot)
    with pytest.raises(ConfigError, match=r"hold rows of an earlier run already .* start them anew"):
        run(tiny_job, Servers(addresses=found), "again")


def test_servers_whose_dense_values_another_run_trained_are_not_used_either(tiny_job: Path, found) -> None:
    tables = job_tables(load_job(tiny_job))
    earlier = connect("worker-0", first_roster(found), tables)
    earlier.push_dense("dense", np.ones(tables.dense[0].size, np.float32)).result()
    earlier.close()
    with pytest.raises(ConfigError, match=r"hold values of an earlier run already \(table dense\): start them anew"):
        run(tiny_job, Servers(addresses=found), "with")


def test_servers_on_threads_begin_with_the_first_roster_and_share_the_memory_of_the_process(tmp_path: Path) -> None:
    tiers = Tiers(memory_bytes=600_000, folder=str(tmp_path))
    tables = TableSpecs((TableSpec("rows", 8, Adagrad(), 0, 0.1, tiers=tiers),))
    job = Job.model_construct(servers=Servers(count=2, channel="memory"), seed=0)
    with run_servers(job, tmp_path / "job.yaml") as servers:
        client = servers.connect("worker-0", tables)
        assert isinstance(client, RemoteClient)
        assert client.roster.epoch == 1
        for first in range(0, 20_000, 1000):
            client.pull("rows", make_lookup(np.arange(first, first + 1000), 2)).result()
        counts = client.tier_counts("rows")
        assert counts is not None
        assert counts.disk_rows > 0
        assert counts.memory_bytes <= tiers.memory_bytes
        client.close()


def test_servers_on_threads_of_which_one_cannot_be_made_leave_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(name: str, *args: object, **options: object) -> Server:
        if name == "server-1":
            raise StorageError("the disk is full")
        return Server(name, *args, **options)

    monkeypatch.setattr("heterps.launch.run_servers.Server", make)
    job = Job.model_construct(servers=Servers(count=2, channel="memory"), seed=0)
    tables = TableSpecs((TableSpec("rows", 8, Adagrad(), 0, 0.1),))
    with run_servers(job, Path("job.yaml")) as servers, pytest.raises(StorageError):
        servers.connect("worker-0", tables)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("server-")]


def test_a_coding_of_a_table_that_is_not_there_is_refused(tiny_job: Path) -> None:
    with pytest.raises(ConfigError, match=r"servers.codings: the job has no table 'embeding'; it has embedding, dense"):
        run(tiny_job, Servers(channel="memory", codings={"embeding": ValueCoding()}), "with")


def test_contradicting_fields_are_refused() -> None:
    with pytest.raises(ConfigError, match="reached by sockets"):
        Servers(addresses=("ipc:///tmp/a",), channel="memory")
    with pytest.raises(ConfigError, match="key is for servers at addresses"):
        Servers(key="job.key")


def test_a_second_run_at_servers_in_use_is_refused_and_leaves_the_first_alone(tiny_job: Path, found) -> None:
    job = load_job(tiny_job).model_copy(update={"servers": Servers(addresses=found)})
    tables = job_tables(job)
    name, dim = tables.sparse[0].name, tables.sparse[0].dim
    with run_servers(job, tiny_job) as servers, run_servers(job, tiny_job) as of_another_run:
        first = servers.connect("worker-0", tables)
        try:
            lookup = make_lookup(np.arange(10), 2)
            first.push(name, lookup, np.ones((10, dim), np.float32)).result()
            with pytest.raises(ConfigError, match="hold rows of an earlier run already"):
                of_another_run.connect("worker-0", tables)
            first.push(name, lookup, np.ones((10, dim), np.float32)).result()
            assert first.num_pushes(name) == 2
        finally:
            first.close()
