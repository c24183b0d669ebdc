"""Two real processes: over ipc and tcp, with keys, checksums and shared memory, and when one is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from heterps.errors import PeerLost
from heterps.wire import Channel, Checked, ClientChannel, Shared, SocketOptions, create_keys, load_keys, receive_within

ECHO = Path(__file__).parent / "echo.py"


@contextmanager
def echo(address: str, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, str(ECHO), "server", address, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def stop(channel: Channel, process: subprocess.Popen[str]) -> None:
    channel.send("server", [b"stop"])
    assert bytes(receive_within(channel, 30, "server")[1][0]) == b"stop"
    assert process.wait(30) == 0


def exchange(channel: Channel, num: int) -> None:
    for number in range(num):
        rows = np.full(50_000, number, np.float32)
        channel.send("server", [bytes([number]), rows])
        header, values = receive_within(channel, 30, "server")[1]
        assert header[0] == number
        assert (np.frombuffer(values, np.float32) == number).all()
        del values


@pytest.mark.parametrize("address", ["ipc", "tcp://127.0.0.1:*"])
def test_two_processes_exchange_messages(tmp_path: Path, address: str) -> None:
    address = f"ipc://{tmp_path}/s" if address == "ipc" else address
    with (
        echo(address) as (process, bound),
        closing(
            ClientChannel("client", {"server": bound}, options=SocketOptions(send_deadline_s=30, open_loopback=True))
        ) as channel,
    ):
        exchange(channel, 5)
        stop(channel, process)
    assert not (tmp_path / "s").exists()


def test_two_processes_exchange_messages_with_keys_and_checksums(tmp_path: Path) -> None:
    path = create_keys(tmp_path)
    with (
        echo("tcp://127.0.0.1:*", "--checked", "--key", str(path)) as (process, bound),
        closing(ClientChannel("client", {"server": bound}, keys=load_keys(path))) as inner,
    ):
        channel = Checked(inner)
        exchange(channel, 5)
        stop(channel, process)


def test_two_processes_exchange_large_frames_through_shared_memory(tmp_path: Path) -> None:
    with (
        echo(f"ipc://{tmp_path}/s", "--shared") as (process, bound),
        closing(Shared(ClientChannel("client", {"server": bound}))) as channel,
    ):
        exchange(channel, 30)
        assert channel.counters.shared_bytes >= 25 * 200_000
        assert channel.counters.shared_full == 0
        assert channel.counters.bytes_received < 6 * 200_000, "answers came through shared memory too"
        stop(channel, process)


def test_a_killed_process_is_noticed_and_leaves_no_shared_memory(tmp_path: Path) -> None:
    before = set(os.listdir("/dev/shm"))
    options = SocketOptions(send_deadline_s=0.2)
    with (
        echo(f"ipc://{tmp_path}/s", "--shared") as (process, bound),
        closing(ClientChannel("client", {"server": bound}, options=options)) as inner,
    ):
        inner.wait_connected("server", 30)
        channel = Shared(inner)
        exchange(channel, 5)
        channel.send("server", [b"kept", np.full(50_000, 7, np.float32)])
        _, values = receive_within(channel, 30, "server")[1]
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        for _ in range(3000):
            if not inner.is_connected("server"):
                break
            channel.receive(0.01)
        with pytest.raises(PeerLost, match="connection to server at ipc://"):
            channel.send("server", [b"x"])
        assert (np.frombuffer(values, np.float32) == 7).all(), "what was received stays readable"
        del values
        channel.close()
    assert set(os.listdir("/dev/shm")) == before
