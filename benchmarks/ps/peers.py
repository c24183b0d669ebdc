"""What heterps is measured against: Redis, a Ray actor, an array without a hash, and an echo with the same bytes."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import zmq
from load import DIM, SPEC, WIDTHS, Load, Wait

from heterps.ps import SparseTable

PIECE = 1024
"""Keys of one MGET or MSET in Redis's pipeline."""
HEADER_BYTES = 120
"""About what a header of heterps takes."""


# --- raw ZeroMQ ------------------------------------------------------------------------------------------------------


def run_echo(address: str) -> None:
    """Answer a pull with as many bytes as its rows would have, and a push with a header; until told to stop."""
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.bind(address)
    print(address, flush=True)
    rows = np.ones((1 << 16, DIM), np.float32).view(np.uint8).reshape(-1)
    while True:
        peer, header, *_ = socket.recv_multipart(copy=False)
        asked = json.loads(bytes(header.buffer))
        if asked["bytes"] < 0:
            break
        answer = [rows[: asked["bytes"]]] if asked["bytes"] else []
        socket.send_multipart([peer, header, *answer], copy=False)
    socket.close(linger=0)
    context.term()


class Echo:
    """Plain pyzmq: DEALER to ROUTER, frames not copied by Python; no lock, no deadline, nothing done with the bytes."""

    def __init__(self, load: Load, address: str, values: str) -> None:
        self._load, self._width = load, WIDTHS[values]
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.connect(address)
        self._values = np.ones((1 << 16, DIM), np.float32).view(np.uint8).reshape(-1)

    def pull(self, number: int) -> Wait:
        keys = self._load.lookups[number].unique
        self._socket.send_multipart([_header(len(keys) * DIM * self._width), keys], copy=False)
        return self._answer

    def push(self, number: int) -> Wait:
        keys = self._load.lookups[number].unique
        grads = self._values[: len(keys) * DIM * self._width]
        self._socket.send_multipart([_header(0), keys, grads], copy=False)
        return self._answer

    def _answer(self) -> object:
        return [frame.buffer for frame in self._socket.recv_multipart(copy=False)]

    def stop_server(self) -> None:
        self._socket.send(_header(-1))

    def close(self) -> None:
        self._socket.close(linger=1000)
        self._context.term()


def _header(num_bytes: int) -> bytes:
    return json.dumps({"bytes": num_bytes}).ljust(HEADER_BYTES).encode()


# --- no hash ---------------------------------------------------------------------------------------------------------


class NoHash:
    """A preallocated array with a place known for every key: gather for a pull, scatter of the sums for a push."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._rows = np.zeros((load.num_keys, DIM), np.float32)
        self._out = np.empty((1 << 16, DIM), np.float32)
        self._places = [lookup.unique.astype(np.intp) for lookup in load.lookups]

    def pull(self, number: int) -> Wait:
        places = self._places[number]
        np.take(self._rows, places, axis=0, out=self._out[: len(places)], mode="clip")
        return _nothing

    def push(self, number: int) -> Wait:
        self._rows[self._places[number]] = self._load.summed(number)
        return _nothing

    def close(self) -> None:
        pass


# --- Redis -----------------------------------------------------------------------------------------------------------


def redis_missing() -> str:
    """Why Redis cannot take part; empty if it can."""
    if shutil.which("redis-server") is None:
        return "Redis is left out: there is no redis-server (Debian: apt-get install redis-server)."
    if importlib.util.find_spec("redis") is None:
        return "Redis is left out: its client is not installed (pip install redis hiredis)."
    return ""


def start_redis(folder: Path) -> subprocess.Popen[bytes]:
    """A server of its own on a Unix socket in `folder`, which writes nothing to disk."""
    words = ["redis-server", "--port", "0", "--unixsocket", str(folder / "redis"), "--save", "", "--appendonly", "no"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, cwd=folder)
    for _ in range(500):
        if (folder / "redis").exists():
            return process
        time.sleep(0.02)
    process.kill()
    raise RuntimeError("redis-server did not open its socket within 10 s")


class Redis:
    """Rows as strings by 8 bytes of key: MGET and MSET in a pipeline. A push only stores: Redis has no optimizer."""

    def __init__(self, load: Load, path: str) -> None:
        import redis

        self._load, self._redis = load, redis.Redis(unix_socket_path=path)

    def pull(self, number: int) -> Wait:
        keys = _strings(self._load.lookups[number].unique)
        pipeline = self._redis.pipeline(transaction=False)
        for first in range(0, len(keys), PIECE):
            pipeline.mget(keys[first : first + PIECE])
        found = [row or bytes(4 * DIM) for piece in pipeline.execute() for row in piece]
        rows = np.frombuffer(b"".join(found), np.float32).reshape(-1, DIM)
        return lambda: rows

    def push(self, number: int) -> Wait:
        keys = _strings(self._load.lookups[number].unique)
        rows = _strings(self._load.summed(number))
        pipeline = self._redis.pipeline(transaction=False)
        for first in range(0, len(keys), PIECE):
            pipeline.mset(dict(zip(keys[first : first + PIECE], rows[first : first + PIECE], strict=True)))
        pipeline.execute()
        return _nothing

    def close(self) -> None:
        self._redis.close()


def _strings(rows: np.ndarray) -> list[bytes]:
    return rows.view(np.dtype((np.void, rows.nbytes // len(rows)))).reshape(-1).tolist()


# --- Ray -------------------------------------------------------------------------------------------------------------


def ray_missing() -> str:
    """Why Ray cannot take part; empty if it can."""
    return "" if importlib.util.find_spec("ray") else "The Ray actor is left out: pip install 'heterps[ray]'."


class RayActor:
    """The same table as an actor; arrays go through Ray's object store. The actor lives from turn to turn."""

    _actor: Any = None

    def __init__(self, load: Load) -> None:
        import ray

        self._load, self._ray = load, ray
        if RayActor._actor is None:
            ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
            RayActor._actor = ray.remote(SparseTable).remote(DIM, SPEC.optimizer, SPEC.seed, SPEC.init_scale)

    def pull(self, number: int) -> Wait:
        reference = self._actor.pull.remote(self._load.lookups[number].unique)
        return lambda: self._ray.get(reference)

    def push(self, number: int) -> Wait:
        reference = self._actor.push_unique.remote(self._load.lookups[number].unique, self._load.summed(number))
        return lambda: self._ray.get(reference)

    def close(self) -> None:
        pass


def _nothing() -> None:
    return None
