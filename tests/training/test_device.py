"""Copies to a device and back are ordered by events alone: proved on a device whose streams do nothing unasked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from heterps.data.batch import Slots
from heterps.devices import devices, is_available
from heterps.errors import ConfigError
from heterps.training.model.device import Device, Event, Stream, TorchStreams, open_device

CPU = torch.device("cpu")


class LazyStream:
    def __init__(self, name: str) -> None:
        self.name = name
        self.steps: list[Callable[[], None]] = []
        self.num_done = 0

    def run(self, until: int | None = None) -> None:
        """Do what was given up to then, as late as a device may."""
        while self.num_done < (len(self.steps) if until is None else until):
            self.num_done += 1
            self.steps[self.num_done - 1]()


class LazyStreams:
    """Streams that do a step only when somebody waits for it: every wait that is missing gives a wrong result.

    What is not copied yet is -1, as is memory that was given back too early. `calls` are the steps, in order.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.compute = LazyStream("compute")
        self.sides: list[LazyStream] = []
        self.on_device: set[int] = set()
        self.kept: list[tuple[Tensor, str]] = []

    def holds(self, tensor: Tensor) -> bool:
        return tensor.data_ptr() in self.on_device

    def side_stream(self) -> Stream:
        self.sides.append(LazyStream(("in", "out")[len(self.sides)]))
        return self.sides[-1]

    def compute_stream(self) -> Stream:
        return self.compute

    def pinned_like(self, tensor: Tensor) -> Tensor:
        self.calls.append("pin")
        return torch.full_like(tensor, -1)

    def device_like(self, tensor: Tensor, stream: Stream) -> Tensor:
        self.calls.append(f"{stream.name}: take")
        made = torch.full_like(tensor, -1)
        self.on_device.add(made.data_ptr())
        self.kept.append((made, stream.name))
        return made

    def keep(self, tensor: Tensor, stream: Stream) -> None:
        self.kept.append((tensor, stream.name))

    def copy(self, into: Tensor, out_of: Tensor, stream: Stream) -> None:
        self.calls.append(f"{stream.name}: copy")
        stream.steps.append(lambda: into.copy_(out_of))

    def record(self, stream: Stream) -> Event:
        self.calls.append(f"{stream.name}: record")
        return stream, len(stream.steps)

    def wait(self, stream: Stream, event: Event) -> None:
        self.calls.append(f"{stream.name}: wait for {event[0].name}")
        stream.steps.append(lambda: event[0].run(event[1]))

    def has_happened(self, event: Event) -> bool:
        return event[0].num_done >= event[1]

    def finish(self, event: Event) -> None:
        self.calls.append(f"host: wait for {event[0].name}")
        event[0].run(event[1])

    def synchronize(self) -> None:
        for stream in (self.compute, *self.sides):
            stream.run()

    def multiply(self, a: Tensor, b: Tensor) -> Tensor:
        """A computation, as late as can be."""
        made = torch.full_like(a, -1)
        self.on_device.add(made.data_ptr())
        self.compute.steps.append(lambda: made.copy_(a * b))
        return made


@pytest.fixture
def lazy() -> LazyStreams:
    return LazyStreams()


@pytest.fixture
def device(lazy: LazyStreams) -> Device:
    return Device(CPU, lazy)


def test_steps_of_bringing_are_in_order_and_the_host_waits_for_none(device: Device, lazy: LazyStreams) -> None:
    brought = device.bring(torch.ones(3))
    assert lazy.calls == ["pin", "in: take", "in: copy", "in: record", "compute: wait for in"]
    assert brought.tolist() == [-1, -1, -1], "copied although nobody waited"
    assert [name for kept, name in lazy.kept if kept.data_ptr() == brought.data_ptr()] == ["in", "compute"]


def test_steps_of_fetching_are_in_order(device: Device, lazy: LazyStreams) -> None:
    made = lazy.multiply(device.bring(torch.ones(3)), device.bring(torch.full((3,), 2.0)))
    lazy.calls.clear()
    assert device.fetch(made).tolist() == [2, 2, 2]
    assert lazy.calls == [
        "compute: record",
        "out: wait for compute",
        "pin",
        "out: copy",
        "out: record",
        "host: wait for out",
    ]
    assert lazy.kept[-1][1] == "out"


def test_what_is_brought_computed_and_fetched_equals_the_host(device: Device, lazy: LazyStreams) -> None:
    torch.manual_seed(0)
    pairs = [(torch.randn(4, 3), torch.randn(4, 3)) for _ in range(8)]
    made = [lazy.multiply(device.bring(a), device.bring(b.numpy())) for a, b in pairs]
    fetched = device.fetch_all({"made": made})["made"]
    assert all(torch.equal(got, a * b) for got, (a, b) in zip(fetched, pairs, strict=True))


def test_a_value_may_be_overwritten_as_soon_as_it_was_brought(device: Device, lazy: LazyStreams) -> None:
    value = np.ones(3, np.float32)
    brought = device.bring(value)
    value[:] = 7
    device.synchronize()
    assert brought.tolist() == [1, 1, 1]


def test_a_fetch_does_not_wait_for_what_is_computed_after_it(device: Device, lazy: LazyStreams) -> None:
    first = lazy.multiply(device.bring(torch.ones(2)), device.bring(torch.ones(2)))
    wait = device.fetch_later(first)
    second = lazy.multiply(first, first)
    assert wait().tolist() == [1, 1]
    assert second.tolist() == [-1, -1]


def test_bringing_does_not_wait_for_what_is_being_computed(device: Device, lazy: LazyStreams) -> None:
    made = lazy.multiply(device.bring(torch.ones(2)), device.bring(torch.ones(2)))
    next_batch = device.bring(torch.full((2,), 5.0))
    lazy.sides[0].run()
    assert next_batch.tolist() == [5, 5]
    assert made.tolist() == [-1, -1]


def test_pinned_memory_stays_until_its_copy_is_done_and_no_longer(device: Device, lazy: LazyStreams) -> None:
    for _ in range(3):
        device.bring(torch.ones(2))
    assert len(device._staged) == 3
    device.synchronize()
    device.bring(torch.ones(2))
    assert len(device._staged) == 1


@pytest.mark.parametrize("streams", [None, LazyStreams()], ids=["host", "streams"])
def test_values_of_a_border_keep_all_but_their_place(streams: Any) -> None:
    device = Device(CPU, streams)
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last).requires_grad_()
    slots = Slots(("a",), np.ones(2, np.uint64))
    values = {"x": (x * 1, [torch.arange(3), None]), "s": slots, "n": {"size": x.shape, "empty": torch.empty(0, 2)}}
    arrived = device.fetch_all(device.bring_all(values))
    got = arrived["x"][0]
    assert torch.equal(got, x)
    assert (got.stride(), got.requires_grad, got.is_leaf) == (x.stride(), True, True)
    assert arrived["x"][1][0].tolist() == [0, 1, 2]
    assert not arrived["x"][1][0].requires_grad
    assert arrived["x"][1][1] is None
    assert arrived["s"] is slots
    assert type(arrived["n"]["size"]) is torch.Size
    assert arrived["n"]["empty"].shape == (0, 2)


def test_what_is_on_the_device_already_is_not_copied(device: Device, lazy: LazyStreams) -> None:
    brought = device.bring(torch.ones(3))
    lazy.calls.clear()
    assert device.bring(brought).data_ptr() == brought.data_ptr()
    assert lazy.calls == []


# --- torch's streams, which the host has as stubs of the same names --------------------------------------------------


class HostStreams(TorchStreams):
    """What the host has no stub for: pinned memory, and memory that belongs to a stream."""

    def holds(self, tensor: Tensor) -> bool:
        return False

    def pinned_like(self, tensor: Tensor) -> Tensor:
        return torch.empty_like(tensor)

    def keep(self, tensor: Tensor, stream: Stream) -> None:
        assert isinstance(stream, torch.cpu.Stream)


class HostDevice(HostStreams):
    def holds(self, tensor: Tensor) -> bool:
        return True


def test_torch_streams_take_the_calls_of_a_device() -> None:
    device = Device(CPU, HostStreams(CPU))
    value = torch.randn(3, 4).t()
    brought = device.bring(value)
    device.synchronize()
    assert torch.equal(brought, value)
    assert brought.stride() == value.stride()
    device.bring(value)
    assert len(device._staged) == 1
    fetched = Device(CPU, HostDevice(CPU)).fetch(value)
    assert torch.equal(fetched, value)
    assert fetched.data_ptr() != value.data_ptr()


# --- which devices there are -----------------------------------------------------------------------------------------


def test_on_the_host_nothing_is_copied() -> None:
    device = open_device("cpu")
    array, tensor = np.ones(3, np.float32), torch.ones(3)
    assert device.bring(array).data_ptr() == array.__array_interface__["data"][0]
    assert device.bring(tensor).data_ptr() == tensor.data_ptr() == device.fetch(tensor).data_ptr()
    device.synchronize()


def test_an_array_that_is_read_only_is_copied_for_layers_may_write(recwarn: pytest.WarningsRecorder) -> None:
    array = np.ones(3, np.float32)
    array.flags.writeable = False
    open_device("cpu").bring(array).zero_()
    assert array.tolist() == [1, 1, 1]
    assert not recwarn.list


@pytest.mark.parametrize("name", ["cuda:7", "xpu:3", "gpu", "cpu:1", "cuda:x", "", "meta"])
def test_a_device_that_is_not_there_is_refused_with_those_that_are(name: str) -> None:
    assert not is_available(name)
    with pytest.raises(ConfigError, match=rf"no device '{name}' on this machine, only cpu"):
        open_device(name)


def test_devices_are_those_that_torch_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: device)
    monkeypatch.setattr(torch.xpu, "device_count", lambda: 0)
    monkeypatch.setattr(torch.mps, "device_count", lambda: 1)
    assert devices() == ["cpu", "cuda:0", "cuda:1", "mps"]
    assert [is_available(name) for name in ("cpu", "cuda", "cuda:1", "cuda:2", "xpu", "mps")] == [
        True,
        True,
        True,
        False,
        False,
        True,
    ]
    assert open_device("cuda").torch_device == torch.device("cuda:1")
    assert open_device("cuda:0").torch_device == torch.device("cuda:0")
    assert open_device("mps").torch_device == torch.device("mps")
    with pytest.raises(ConfigError, match="only cpu, cuda:0, cuda:1, mps"):
        open_device("cuda:2")
