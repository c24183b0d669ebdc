"""The kinds of torch devices, and everything that is decided by a device's name.

    cpu          the host                              mps        Apple's GPU: one in a machine, without streams
    cuda, xpu    GPUs: numbered, with streams          cuda:7     number 7 of the machine's cuda devices
                                                       cuda       the one that torch computes on by itself

To add a kind, add a line to KINDS; from outside heterps, call `heterps.register_device`. A cluster file may name a kind
that is not listed: plans can be made for it, but nothing runs on it. Torch is imported when it is first needed.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from heterps.errors import ConfigError
from heterps.plugins import Registry

if TYPE_CHECKING:
    import torch

Precision = Literal["fp32", "bf16"]


@dataclass(frozen=True)
class DeviceKind:
    """A kind of torch device: `torch.<name>` is its module, with `device_count`, `synchronize` and `get_rng_state`."""

    name: str
    is_numbered: bool = True  # a machine may have several, counted by the module's `device_count`
    has_streams: bool = True  # the module has streams and events, so that copies run beside the computation
    ray_resource: str | None = "GPU"  # the name under which Ray counts units of it and hides them from other actors


CPU = "cpu"
KINDS: Registry[DeviceKind] = Registry(
    "device",
    {
        kind.name: kind
        for kind in (
            DeviceKind(CPU, is_numbered=False, has_streams=False, ray_resource=None),
            DeviceKind("cuda"),
            DeviceKind("xpu"),
            DeviceKind("mps", is_numbered=False, has_streams=False, ray_resource=None),
        )
    },
)


def register_device(kind: DeviceKind) -> None:
    """Add a kind of device that torch knows under this name, for example by an extension of torch."""
    if ":" in kind.name:
        raise ConfigError(f"the name of a kind of device has no number (got {kind.name!r}).")
    KINDS.add(kind.name, kind)


def kind_of(device: str) -> str:
    """The kind of the device called `device`: cuda for cuda:7."""
    return device.partition(":")[0]


def is_cpu(device: str) -> bool:
    return kind_of(device) == CPU


def ray_resource(device: str) -> str | None:
    """What Ray counts a unit of this device as; None if Ray does not count it."""
    kind = KINDS.get(kind_of(device))
    return kind.ray_resource if kind else None


def devices() -> list[str]:
    """The names of all devices of this machine that torch can compute on, of the kinds in the table."""
    found = []
    for kind in KINDS.values():
        module = _module(kind.name)
        count = module.device_count() if module is not None else 0
        if kind.is_numbered:
            found += [f"{kind.name}:{i}" for i in range(count)]
        elif count:
            found.append(kind.name)
    return found


def is_available(device: str) -> bool:
    """Whether this machine has the device; without a number, whether it has any of that kind."""
    there = devices()
    return device in there or f"{device}:0" in there


def find_device(device: str) -> tuple[torch.device, bool]:
    """The torch device called `device`, with its number, and whether it has streams.

    ConfigError says which devices there are if that is not one of them.
    """
    import torch

    if not is_available(device):
        raise ConfigError(
            f"torch has no device {device!r} on this machine, only {', '.join(devices())}: change the resource's "
            "`device`, install the build of torch for it, or emulate the resource"
        )
    kind = KINDS[kind_of(device)]
    if not kind.is_numbered or device != kind.name:
        return torch.device(device), kind.has_streams
    return torch.device(kind.name, _module(kind.name).current_device()), kind.has_streams


def find_model(kind: str, model: str) -> torch.device | None:
    """The first device of this kind whose name in torch contains `model`, as in ("cuda", "V100"); None without one."""
    import torch

    if kind not in KINDS or not KINDS[kind].is_numbered:
        return None
    module = _module(kind)
    numbers = range(module.device_count() if module is not None else 0)
    return next((torch.device(kind, i) for i in numbers if model in module.get_device_name(i)), None)


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all that it was given; a CPU needs no waiting."""
    if device.type == CPU:
        return
    module = _module(device.type)
    if device.index is None:
        module.synchronize()
    else:
        module.synchronize(device)


def random_state(device: torch.device) -> torch.Tensor:
    """The state of the random generators that code on a device may draw from: the host's, and the device's own."""
    import torch

    host = torch.get_rng_state()
    return host if device.type == CPU else torch.cat([host, _module(device.type).get_rng_state()])


def computing_in(precision: Precision, device: torch.device) -> AbstractContextManager[Any]:
    """A context in which layers compute in this precision on the device: bf16 is torch's autocast.

    Only forward passes and losses belong in it: backward follows what they did.
    """
    import torch

    return nullcontext() if precision == "fp32" else torch.autocast(device.type, torch.bfloat16)


def _module(kind: str) -> Any:
    """Torch's module of a kind of device; None if this build of torch has none."""
    import torch

    return getattr(torch, kind, None)
