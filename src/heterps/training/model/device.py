"""Device: how a worker's tensors get to its torch device and back, while the device computes.

    host                                      side streams                       compute stream
    array --[1]--> pinned memory              [2] copy in --> tensor
                    until the copy is done    [3] event ----------------------> [4] waits for it, then computes

    tensor <--[8]-- pinned memory             [6] copy out <-- [5] waits <------ what made the tensor
                    host waits for the event  [7] event

Copies in and copies out have a stream each, so that both go on beside the computation. A copy in does not wait for the
computation: its memory belongs to its own stream ([2]), and is told ([4]) who else uses it before it is used anew. A
copy out waits for what the compute stream was given up to then, and for nothing after it.

Devices without streams copy at once (mps), and the host itself not at all. Streams, events and pinned memory are those
of `Streams`, of which torch's are one kind: the order of the steps can be tested without a device.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heterps.devices import find_device, synchronize
from heterps.model.stages import map_leaves

Stream = Any
Event = Any


class Streams(Protocol):
    """What a device has to do things beside each other. Whatever a stream is given it does in order."""

    def holds(self, tensor: Tensor) -> bool:
        """Whether the tensor is on the device."""

    def side_stream(self) -> Stream:
        """Make a new stream for copies."""

    def compute_stream(self) -> Stream:
        """Return the stream that this thread computes on."""

    def pinned_like(self, tensor: Tensor) -> Tensor:
        """Memory of the host that the device copies from and to by itself."""

    def device_like(self, tensor: Tensor, stream: Stream) -> Tensor:
        """Memory of the device, which is free again when `stream`, and those it is kept for, have done with it."""

    def keep(self, tensor: Tensor, stream: Stream) -> None:
        """Keep memory of the device from being used anew before `stream` has done all that it was given up to then."""

    def copy(self, into: Tensor, out_of: Tensor, stream: Stream) -> None:
        """Copy as a step of `stream`."""

    def record(self, stream: Stream) -> Event:
        """An event that happens when the stream has done all that it was given."""

    def wait(self, stream: Stream, event: Event) -> None:
        """Let `stream` wait for an event; the host does not wait."""

    def has_happened(self, event: Event) -> bool: ...

    def finish(self, event: Event) -> None:
        """Let the host wait for an event."""

    def synchronize(self) -> None:
        """Let the host wait for all streams."""


class Device:
    """A torch device and the way there and back. What is moved is cut off from autograd: leaves, of equal bits."""

    def __init__(self, torch_device: torch.device, streams: Streams | None = None) -> None:
        self.torch_device = torch_device
        self._streams = streams
        if streams is not None:
            self._in, self._out = streams.side_stream(), streams.side_stream()
        self._staged: deque[tuple[Event, Tensor]] = deque()  # pinned memory that copies in may still read

    def bring(self, value: Tensor | NDArray[Any]) -> Tensor:
        """`value` on the device. The compute stream of this thread waits for it, the host does not.

        On the host, and where it is on the device already, it is the same memory (except of arrays that are read-only,
        which a tensor cannot be); elsewhere `value` may be written as soon as this returns.
        """
        streams = self._streams
        if streams is None:
            return _leaf(_as_tensor(value).to(self.torch_device), value)
        if isinstance(value, Tensor) and streams.holds(value):
            return _leaf(value, value)
        host = _as_tensor(value).detach()
        while self._staged and streams.has_happened(self._staged[0][0]):
            self._staged.popleft()
        pinned = streams.pinned_like(host)
        pinned.copy_(host)  # [1]
        tensor = streams.device_like(host, self._in)
        streams.copy(tensor, pinned, self._in)  # [2]
        event = streams.record(self._in)  # [3]
        self._staged.append((event, pinned))
        compute = streams.compute_stream()
        streams.wait(compute, event)  # [4]
        streams.keep(tensor, compute)
        return _leaf(tensor, value)

    def fetch(self, tensor: Tensor) -> Tensor:
        """`tensor` on the host, as soon as it was made: the device may go on with what it was given after that."""
        return self.fetch_later(tensor)()

    def fetch_later(self, tensor: Tensor) -> Callable[[], Tensor]:
        """Begin to fetch; what is returned waits for it. Nothing may write into `tensor` until then."""
        streams = self._streams
        if streams is None or not streams.holds(tensor):
            here = _leaf(tensor.to("cpu"), tensor)
            return lambda: here
        source = tensor.detach()
        streams.wait(self._out, streams.record(streams.compute_stream()))  # [5]
        pinned = streams.pinned_like(source)
        streams.copy(pinned, source, self._out)  # [6]
        streams.keep(source, self._out)
        event = streams.record(self._out)  # [7]

        def wait() -> Tensor:
            streams.finish(event)  # [8]
            return _leaf(pinned, tensor)

        return wait

    def bring_all(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The trees of a stage border with their tensors on the device; all else stays as it is."""
        return {name: _map_tensors(self.bring, tree) for name, tree in values.items()}

    def fetch_all(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The trees of a stage border with their tensors on the host; all are under way before one is waited for."""
        under_way = {name: _map_tensors(self.fetch_later, tree) for name, tree in values.items()}
        return {
            name: map_leaves(lambda leaf: leaf() if callable(leaf) else leaf, tree) for name, tree in under_way.items()
        }

    def synchronize(self) -> None:
        """Wait until the device has done all that it was given."""
        if self._streams is not None:
            self._streams.synchronize()
        else:
            synchronize(self.torch_device)


class TorchStreams:
    """The streams of a torch device, which cuda and xpu have under the same names."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._module: Any = torch.get_device_module(device)

    def holds(self, tensor: Tensor) -> bool:
        return tensor.device == self._device

    def side_stream(self) -> Stream:
        return self._module.Stream(self._device)

    def compute_stream(self) -> Stream:
        return self._module.current_stream(self._device)

    def pinned_like(self, tensor: Tensor) -> Tensor:
        return torch.empty_like(tensor, device="cpu", pin_memory=True)

    def device_like(self, tensor: Tensor, stream: Stream) -> Tensor:
        with self._module.stream(stream):
            return torch.empty_like(tensor, device=self._device)

    def keep(self, tensor: Tensor, stream: Stream) -> None:
        tensor.record_stream(stream)

    def copy(self, into: Tensor, out_of: Tensor, stream: Stream) -> None:
        with self._module.stream(stream):
            into.copy_(out_of, non_blocking=True)

    def record(self, stream: Stream) -> Event:
        event = self._module.Event()
        event.record(stream)
        return event

    def wait(self, stream: Stream, event: Event) -> None:
        stream.wait_event(event)

    def has_happened(self, event: Event) -> bool:
        return bool(event.query())

    def finish(self, event: Event) -> None:
        event.synchronize()

    def synchronize(self) -> None:
        self._module.synchronize(self._device)


def open_device(name: str) -> Device:
    """The device that torch calls `name`; ConfigError says which devices there are if that is not one of them."""
    device, has_streams = find_device(name)
    return Device(device, TorchStreams(device) if has_streams else None)


def _as_tensor(value: Tensor | NDArray[Any]) -> Tensor:
    if isinstance(value, Tensor):
        return value
    return torch.from_numpy(value if value.flags.writeable else np.array(value))


def _leaf(tensor: Tensor, like: Tensor | NDArray[Any]) -> Tensor:
    return tensor.detach().requires_grad_(isinstance(like, Tensor) and like.requires_grad)


def _map_tensors(function: Callable[[Tensor], Any], tree: Any) -> Any:
    return map_leaves(lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, tree)
