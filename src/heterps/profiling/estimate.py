"""Estimate the time of a layer on a device that this machine does not have, by the roofline model.

    seconds of a kernel
      |            ______ compute: flops / (peak_flops * compute_efficiency)
      |     ______/
      |____/ memory: bytes / (memory_bytes_per_s * memory_efficiency)
      +-------------------------- a kernel takes the longer of the two, and never less than its launch

An estimate is good enough to place layers, but not to promise seconds: every cost made from it is marked `estimated`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from heterps.catalogue import DeviceSpec
from heterps.devices import is_cpu
from heterps.profiling.measure import Parts
from heterps.profiling.sandbox import LayerTraffic, Sandbox
from heterps.profiling.timing import Timing
from heterps.profiling.workload import Kernel, count


def roofline_s(kernels: Iterable[Kernel], device: DeviceSpec) -> float:
    """Estimate the seconds of the kernels, one after another, on one unit of `device`."""
    flops_per_s = device.peak_flops * device.compute_efficiency
    bytes_per_s = device.memory_bytes_per_s * device.memory_efficiency
    return sum(max(k.flops / flops_per_s, k.num_bytes / bytes_per_s, device.launch_s) for k in kernels)


def estimate_compute(sandbox: Sandbox, parts: Parts, device: DeviceSpec) -> dict[float, float]:
    """Estimate the seconds of forward and backward for each part of the batch, from the kernels of one step."""
    return {k: roofline_s(count(sandbox.step(values)), device) for k, values in parts.items()}


def estimate_embedding(
    host: Mapping[float, Timing], traffic: Mapping[float, LayerTraffic], device: DeviceSpec
) -> dict[float, float]:
    """Estimate the seconds of an embedding, from its time on the host.

    Rows are looked up, gathered and summed on the host, whatever the device, and that was measured here. On a device
    other than the host the gathered rows and their gradients also cross the link.
    """
    crossing = not is_cpu(device.torch_device)
    return {
        k: timing.median_s + (device.link.seconds(traffic[k].spread, num_messages=2) if crossing else 0.0)
        for k, timing in host.items()
    }
