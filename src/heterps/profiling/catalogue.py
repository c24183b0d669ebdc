"""Devices that a profile can be estimated for without having one. Every figure names its source.

To add a device, add an entry: the estimate, the command line and the error messages find it here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from heterps.errors import ConfigError

GB = 1e9
TERA = 1e12


@dataclass(frozen=True)
class Link:
    """How bytes reach one unit from elsewhere: from servers, from the stage before, from the data cluster."""

    bytes_per_s: float
    latency_s: float

    def seconds(self, num_bytes: float, num_messages: int = 1) -> float:
        """Nothing to send takes no time, not even the latency."""
        return num_messages * self.latency_s + num_bytes / self.bytes_per_s if num_bytes else 0.0


@dataclass(frozen=True)
class Device:
    """One unit of a resource: a GPU, or one core of a CPU."""

    name: str
    title: str
    torch_device: str  # "cpu", "cuda"
    torch_name: str  # part of the name by which torch knows it; tells whether this device is the one that is here
    peak_flops: float  # float32, multiply and add counted as two
    memory_bytes_per_s: float
    link: Link
    launch_s: float  # to start one kernel
    # What real kernels reach of the two peaks; the time of a kernel is the slower of the two sides.
    compute_efficiency: float
    memory_efficiency: float


# 100 Gb/s, the network of the HeterPS paper's cluster: 12.5 GB/s a port. The latency is our assumption: a request and
# its answer over TCP inside one data centre.
NETWORK = Link(bytes_per_s=12.5 * GB, latency_s=30e-6)

V100 = Device(
    name="v100",
    title="NVIDIA V100 SXM2",
    torch_device="cuda",
    torch_name="V100",
    peak_flops=15.7 * TERA,  # NVIDIA V100 data sheet: 15.7 TFLOPS single precision (SXM2)
    memory_bytes_per_s=900 * GB,  # NVIDIA V100 data sheet: 900 GB/s HBM2
    # The network, then PCIe 3.0 x16: 15.75 GB/s by the standard, about 12 GB/s of payload for pinned memory. The two
    # hops overlap, so the slower one counts. The latency is the network's, and our assumption of 10 us for the copy.
    link=Link(bytes_per_s=12.0 * GB, latency_s=40e-6),
    launch_s=5e-6,  # our assumption for dispatch and launch from PyTorch, which small kernels cannot hide
    compute_efficiency=0.75,  # our assumption: SGEMM of cuBLAS at the sizes of such towers
    memory_efficiency=0.8,  # our assumption: streaming kernels reach 80 to 90 % of HBM2's peak
)

SERVER_CORE = Device(
    name="server-core",
    title="one core of a 2.6 GHz server CPU",
    torch_device="cpu",
    torch_name="",
    peak_flops=83 * GB,  # AVX2 with two FMA units: 2 x 8 lanes x 2 FLOP = 32 a cycle, at 2.6 GHz
    memory_bytes_per_s=5.9 * GB,  # 6 channels of DDR4-2933 (JEDEC: 23.5 GB/s each) for 24 cores
    link=NETWORK,
    launch_s=2e-6,  # our assumption: the dispatch of a torch operator on a CPU
    compute_efficiency=0.85,  # 70 GFLOP/s of SGEMM were measured with torch on one Zen 3 core
    memory_efficiency=0.8,  # our assumption: STREAM reaches about 80 % of the channels' peak
)

CATALOGUE: dict[str, Device] = {device.name: device for device in (V100, SERVER_CORE)}

LOCAL = "cpu"
"""The resource that is always here: one core of this machine. It is measured, never estimated."""


def find_device(name: str) -> Device:
    """The catalogue's entry, or a ConfigError that lists what there is."""
    if name in CATALOGUE:
        return CATALOGUE[name]
    known: Iterable[str] = (LOCAL, *CATALOGUE)
    near = get_close_matches(name, known, n=1)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    raise ConfigError(
        f"resource {name!r} is neither here to be measured nor in the catalogue to be estimated. {hint}"
        f"There are: {', '.join(known)}. A resource with a name of its own is given as name=device, spot=v100."
    )
