"""AllReduce: the dense gradients of one stage summed among its workers by torch.distributed, without servers.

    a  grads --\\                  /--> sum --> LocalDense: one optimizer step
    b  grads ---+--[3] ring sum --+--> sum --> LocalDense: the same step
    c  grads --/                  \\--> sum --> LocalDense: the same step

    [1] members meet at a store, a file or the first member's port, and see that all of them mean the same group;
    [2] they connect to each other: a process group of their own, not the default one of torch.distributed, so that a
        process may be in several, and threads of one process may be its members;
    [3] each chunk of the array is summed by one member, in the order of the ring, and copied to the others: all have
        equal bits, and so have the parameters that each keeps for itself.

The connections have neither keys nor encryption. So all members listen on loopback alone, which other users of the
machine can reach too, unless it is said that everybody in their network may be trusted.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
import torch
import torch.distributed
import xxhash
from torch import Tensor

from heterps.arrays import FloatArray
from heterps.errors import ConfigError, PeerLost
from heterps.ps.table.dense import DenseTable
from heterps.wire.address import is_loopback

dist: Any = torch.distributed  # whose types do not tell all that it has
Backend = Literal["gloo", "nccl"]
DEVICES: dict[str, str] = {"gloo": "cpu", "nccl": "cuda"}
LOOPBACK = "127.0.0.1"
LOOK_EVERY_S = 0.005
"""Seconds between looks at the store, while the group meets."""
LOOK_EVERY_NCCL_S = 0.0001
WAIT_S = 0.2
"""Seconds of one wait for a sum: signals are handled between two of them."""


class AllReduce:
    """One member of a group that sums arrays. Every member makes the same calls in the same order, from one thread."""

    def __init__(
        self,
        group: Sequence[str],
        own: str,
        store: Path | str,
        backend: Backend = "gloo",
        deadline_s: float = 60.0,
        *,
        host: str = LOOPBACK,
        trusted_network: bool = False,
    ) -> None:
        """Meets and connects to the other members; PeerLost if they do not come within the deadline.

        group            names of all members, in the same order for each of them
        store            where they meet: a path of a file that is not there yet, in a folder that all see, or
                         tcp://HOST:PORT, where the first member listens. For one group once: members that meet again,
                         after a loss or a change, need another file or port
        deadline_s       for meeting, and for every sum
        host             own address that the others connect to
        trusted_network  addresses may be beyond loopback
        """
        self.group = tuple(group)
        self.own = own
        self.deadline_s = deadline_s
        self._backend = backend
        self._lost: str | None = None
        self._num_agreed = 0
        self._process_group: Any = None
        self._store: Any = None
        self._check(str(store), host, trusted_network)
        if len(self.group) == 1:
            return
        until_s = time.monotonic() + deadline_s
        try:
            self._store = _open_store(store, self.group.index(own), len(self.group), until_s)
            self._store.set_timeout(_whole_seconds(deadline_s))
            self._meet("the members of the group", ", ".join(self.group), until_s)  # [1]
            self._process_group = self._connect(host)  # [2]
        except RuntimeError as error:  # torch has no other
            self.close()
            raise self._loss(f"could not meet: {_reason(error)}") from None
        except BaseException:
            self.close()
            raise

    def sum(self, array: FloatArray | Tensor) -> None:
        """Put the sum over all members in the place of `array`, which has the same size for all: equal bits for all.

        PeerLost if another member is gone or does not come within the deadline: the content of `array` is then
        undefined, and the group of no use any more.
        """
        if self._lost is not None:
            raise PeerLost(self._lost)
        own = _as_tensor(array)
        if len(self.group) == 1 or own.numel() == 0:
            return
        if self._process_group is None:
            raise PeerLost(f"{self} is closed")
        there = own.to(DEVICES[self._backend])  # mostly the same
        try:
            _finish(self._process_group.allreduce([there]), self.deadline_s, self._backend)  # [3]
        except RuntimeError as error:
            raise self._loss(f"lost a member while it summed {own.numel():,} values: {_reason(error)}") from None
        if there is not own:
            own.copy_(there)

    def agree(self, what: str, value: str) -> None:
        """Wait until all members have come here; ConfigError if one of them has another `value`."""
        if self._lost is not None:
            raise PeerLost(self._lost)
        if len(self.group) > 1:
            self._meet(what, value, time.monotonic() + self.deadline_s)

    def close(self) -> None:
        """Leave the group; members that still sum lose this one. It waits until a sum that failed has given up too."""
        self._process_group = None
        self._store = None

    def __str__(self) -> str:
        return f"the all-reduce group of {', '.join(self.group)}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check(self, store: str, host: str, trusted_network: bool) -> None:
        if self.own not in self.group or len(set(self.group)) < len(self.group):
            raise ValueError(f"{self.own} must be one of different names, but the group is {list(self.group)}")
        if not dist.is_available() or not (dist.is_gloo_available() if self._is_gloo else dist.is_nccl_available()):
            raise ConfigError(
                f"this build of torch has no {self._backend}: let the servers keep the dense parameters"
                + ("" if self._is_gloo else ", or use gloo")
            )
        met = [_split(store)[0]] if store.startswith("tcp://") else []
        for address in (host, *met):
            if not trusted_network and not is_loopback(address):
                raise ConfigError(
                    f"all-reduce at {address} could be reached from other machines, and has no keys: let the servers "
                    "keep the dense parameters, or say that everybody in this network may be trusted"
                )

    @property
    def _is_gloo(self) -> bool:
        return self._backend == "gloo"

    def _meet(self, what: str, value: str, until_s: float) -> None:
        """Tell the others `value`, wait until each has told its own, and compare."""
        store, number = self._store, self._num_agreed
        if store is None:
            raise PeerLost(f"{self} is closed")
        self._num_agreed += 1
        store.set(f"{number}/{self.group.index(self.own)}", value)
        for place, name in enumerate(self.group):
            if not _until(lambda place=place: store.check([f"{number}/{place}"]), until_s):  # type: ignore[misc]
                raise self._loss(f"waited {self.deadline_s:g} s for {name}, which did not come")
            theirs = store.get(f"{number}/{place}").decode()
            if theirs != value:
                raise ConfigError(
                    f"{self.own} and {name} do not agree on {what}: {value} against {theirs}. All workers of a stage "
                    "must be started from the same job and checkpoint."
                )

    def _connect(self, host: str) -> Any:
        place, size = self.group.index(self.own), len(self.group)
        store = dist.PrefixStore("group", self._store)
        return (_gloo if self._is_gloo else _nccl)(store, place, size, host, timedelta(seconds=self.deadline_s))

    def _loss(self, what: str) -> PeerLost:
        self._lost = f"{self}, as {self.own} sees it, {what}"
        return PeerLost(self._lost)


class LocalDense:
    """The dense parameters of a stage on each of its workers: all take the same steps, so that all stay equal."""

    def __init__(self, table: DenseTable, group: AllReduce) -> None:
        """ConfigError if the tables of the members do not begin with equal values, state and optimizer."""
        self.table = table
        self._group = group
        digest = xxhash.xxh3_64(table.values.data)
        digest.update(table.state.data)
        start = f"{table.num_pushes} steps, digest {digest.hexdigest()}"
        group.agree("the dense parameters", f"{table.size} values, {table.optimizer!r}, {table.schedule!r}, {start}")

    def step(self, grads: FloatArray, samples: int | None = None) -> None:
        """Make one optimizer step with the sum of all members' `grads`, which takes their place.

        `samples` are those that the job had seen before. PeerLost leaves the parameters as they were.
        """
        if grads.shape != (self.table.size,):
            raise ValueError(f"{self.table.size:,} values need as many gradients, got shape {grads.shape}")
        self._group.sum(grads)
        self.table.push(grads, samples=samples)


def _as_tensor(array: FloatArray | Tensor) -> Tensor:
    """Return a tensor that shares the array's memory."""
    if isinstance(array, np.ndarray):
        if not array.flags.writeable:
            raise ValueError("the sum is put in the place of the array, and this one is read-only")
        array = torch.from_numpy(array)
    if array.dtype != torch.float32 or not array.is_contiguous():
        raise ValueError(f"sums are of contiguous float32, not of {array.dtype} with strides {array.stride()}")
    return array.detach()


# --- stores ----------------------------------------------------------------------------------------------------------


def _open_store(store: Path | str, place: int, size: int, until_s: float) -> Any:
    if not str(store).startswith("tcp://"):
        if not Path(store).parent.is_dir():  # torch would wait minutes for somebody to make it
            raise ConfigError(f"an all-reduce group cannot meet at {store}: make the folder {Path(store).parent} first")
        return dist.FileStore(str(store), size)  # deleted when all have left
    host, port = _split(str(store))
    left = timedelta(seconds=max(until_s - time.monotonic(), 1.0))
    if place == 0:  # torch would listen on every address, so it gets a socket that does not
        try:
            listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        except OSError as error:
            raise ConfigError(
                f"cannot listen at {store} for an all-reduce group: {error.strerror}: choose another port"
            ) from None
        return dist.TCPStore(
            host, port, size, True, left, wait_for_workers=False, master_listen_fd=listener.detach(), use_libuv=True
        )
    if not _until(lambda: _listens(host, port), until_s):  # torch would print a page for every attempt
        raise RuntimeError(f"nobody listens at {store}")
    return dist.TCPStore(host, port, size, False, left, wait_for_workers=False)


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ConfigError(f"address {address!r}: write tcp://HOST:PORT, as in tcp://127.0.0.1:5555")
    return host.strip("[]"), int(port)


def _listens(host: str, port: int) -> bool:
    with suppress(OSError), socket.create_connection((host, port), timeout=1.0):
        return True
    return False


def _until(is_so: Callable[[], bool], until_s: float) -> bool:
    """Poll until the condition holds or it is too late: torch's own waits last seconds longer than they were told."""
    while not is_so():
        if time.monotonic() >= until_s:
            return False
        time.sleep(LOOK_EVERY_S)
    return True


# --- backends --------------------------------------------------------------------------------------------------------


def _gloo(store: Any, place: int, size: int, host: str, timeout: timedelta) -> Any:
    gloo = dist.ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=host)]
    options._threads = 1
    options._timeout = timeout
    return gloo(store, place, size, options)


def _nccl(store: Any, place: int, size: int, host: str, timeout: timedelta) -> Any:
    if is_loopback(host):
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")  # nccl has no other way to be told, and would listen beyond
    nccl = dist.ProcessGroupNCCL
    options = nccl.Options()
    options._timeout = timeout
    return nccl(store, place, size, options)


def _finish(work: Any, deadline_s: float, backend: Backend) -> None:
    """Wait for a sum; RuntimeError if it failed, or was not done by the deadline."""
    until_s = time.monotonic() + deadline_s
    while not work.is_completed():
        if time.monotonic() >= until_s:
            raise RuntimeError(f"not done after {deadline_s:g} s")
        if backend == "gloo":
            with suppress(RuntimeError):  # what went wrong, other than that it is not done yet, is told again below
                work.wait(timedelta(seconds=min(WAIT_S, max(until_s - time.monotonic(), 0.001))))
        else:  # waiting for nccl would be the compute stream's business, not the host's
            time.sleep(LOOK_EVERY_NCCL_S)
    work.wait()


def _whole_seconds(seconds: float) -> timedelta:
    """Round a time up to whole seconds, in which torch's store counts."""
    return timedelta(seconds=max(1, round(seconds)))


def _reason(error: Exception) -> str:
    """Return what torch says of an error, without its source lines, stacks and advice."""
    return re.sub(r"^\[\S+:\d+\] ", "", str(error).split("\n")[0]).split(". ")[0]
