"""The catalogue of devices for which a profile can be estimated without having one. Every figure names its source.

To add a device, write it here with its name in CATALOGUE, and its price and machine as a line of LISTED in
`offers.py`: the estimate, the command line and the error messages find it there. If torch calls it by a name that
`devices.py` does not list, add that too, or nothing runs on it. A unit is one GPU, or one physical core of a CPU with
its share of the socket's memory channels.

Figures of GPUs are those of NVIDIA's data sheets for dense float32 without tensor cores (no TF32), which torch uses by
default. Figures of CPU cores follow from the microarchitecture: lanes x FMA units x 2 FLOP x clock. "Assumption" marks
a figure without a source.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from heterps.errors import ConfigError

GB = 1e9
GHZ = 1e9
TERA = 1e12


@dataclass(frozen=True)
class Link:
    """The connection of one unit to servers, to the previous stage and to the data cluster."""

    bytes_per_s: float
    latency_s: float

    def seconds(self, num_bytes: float, num_messages: int = 1) -> float:
        """Seconds to transfer `num_bytes` in `num_messages` messages; 0 if there is nothing to send."""
        return num_messages * self.latency_s + num_bytes / self.bytes_per_s if num_bytes else 0.0


@dataclass(frozen=True)
class DeviceSpec:
    """Figures of one unit of a device: a GPU, or one core of a CPU."""

    name: str
    title: str
    torch_device: str  # "cpu", "cuda"
    torch_name: str  # part of torch's name of the device; tells whether this machine has it
    peak_flops: float  # float32, multiply and add counted as two
    memory_bytes_per_s: float
    link: Link
    launch_s: float  # seconds to start one kernel
    # Fraction of each peak that real kernels reach; a kernel takes the longer of compute and memory time.
    compute_efficiency: float
    memory_efficiency: float


# 100 Gb/s, the network of the HeterPS paper's cluster: 12.5 GB/s per port, for every device, so that estimates differ
# by the device and not by where it is rented. The latency is an assumption: a request and its answer over TCP inside
# one data centre.
NETWORK = Link(bytes_per_s=12.5 * GB, latency_s=30e-6)

# To an accelerator the network comes first, then PCIe; the two hops overlap, so the slower one counts. The latency is
# the network's, and an assumption of 10 us for the copy.
# PCIe 3.0 x16: 15.75 GB/s by the standard, about 12 GB/s of payload for pinned memory.
PCIE3 = Link(bytes_per_s=12.0 * GB, latency_s=40e-6)
# PCIe 4.0 x16 (31.5 GB/s by the standard) and above are faster than the network.
PCIE4 = Link(bytes_per_s=NETWORK.bytes_per_s, latency_s=40e-6)


def _gpu(
    name: str,
    title: str,
    *,
    peak_flops: float,
    memory_bytes_per_s: float,
    link: Link,
    torch_device: str = "cuda",
    torch_name: str | None = None,
    launch_s: float = 5e-6,  # assumption for dispatch and launch from PyTorch, which small kernels cannot hide
    compute_efficiency: float = 0.75,  # assumption: SGEMM of cuBLAS at the sizes of such towers
    memory_efficiency: float = 0.8,  # assumption: streaming kernels reach 80 to 90 % of HBM's peak
) -> DeviceSpec:
    """Figures of one GPU; its name in torch contains `torch_name`, by default its name in capitals."""
    return DeviceSpec(
        name, title, torch_device, torch_name or name.upper(), peak_flops, memory_bytes_per_s, link, launch_s,
        compute_efficiency, memory_efficiency,
    )  # fmt: skip


V100 = _gpu(
    "v100",
    "NVIDIA V100 SXM2",
    peak_flops=15.7 * TERA,  # NVIDIA V100 data sheet: 15.7 TFLOPS single precision (SXM2)
    memory_bytes_per_s=900 * GB,  # NVIDIA V100 data sheet: 900 GB/s HBM2
    link=PCIE3,  # NVIDIA V100 data sheet: 32 GB/s PCIe, both ways together
)
A100 = _gpu(
    "a100",
    "NVIDIA A100 SXM4 40 GB",
    peak_flops=19.5 * TERA,  # NVIDIA A100 data sheet: FP32 19.5 TFLOPS
    memory_bytes_per_s=1555 * GB,  # NVIDIA A100 data sheet: 1,555 GB/s (40 GB SXM); the 80 GB version has 2,039
    link=PCIE4,  # NVIDIA A100 data sheet: PCIe Gen4
)
H100 = _gpu(
    "h100",
    "NVIDIA H100 SXM5 80 GB",
    peak_flops=67 * TERA,  # NVIDIA H100 data sheet: FP32 67 TFLOPS (SXM); the PCIe card has 51
    memory_bytes_per_s=3350 * GB,  # NVIDIA H100 data sheet: 3.35 TB/s HBM3 (SXM)
    link=PCIE4,  # NVIDIA H100 data sheet: PCIe Gen5
    compute_efficiency=0.7,  # assumption: towers of a few hundred columns do not fill 132 multiprocessors
)
T4 = _gpu(
    "t4",
    "NVIDIA T4",
    peak_flops=8.1 * TERA,  # NVIDIA T4 data sheet: 8.1 TFLOPS single precision
    memory_bytes_per_s=320 * GB,  # NVIDIA T4 data sheet: over 300 GB/s; 256 bits of 10 Gb/s GDDR6
    link=PCIE3,  # NVIDIA T4 data sheet: x16 PCIe Gen3
    compute_efficiency=0.55,  # assumption: at 70 W the clock drops far below boost under steady load
)
L4 = _gpu(
    "l4",
    "NVIDIA L4",
    peak_flops=30.3 * TERA,  # NVIDIA L4 data sheet: FP32 30.3 TFLOPS
    memory_bytes_per_s=300 * GB,  # NVIDIA L4 data sheet: 300 GB/s
    link=PCIE4,  # NVIDIA L4 data sheet: PCIe Gen4 x16
    compute_efficiency=0.5,  # assumption: at 72 W the clock drops far below boost under steady load
)
A10G = _gpu(
    "a10g",
    "NVIDIA A10G",
    peak_flops=35 * TERA,  # NVIDIA A10G data sheet: FP32 35 TFLOPS (the A10 has 31.2)
    memory_bytes_per_s=600 * GB,  # NVIDIA A10 data sheet: 600 GB/s GDDR6
    link=PCIE4,  # NVIDIA A10 data sheet: PCIe Gen4 x16
    compute_efficiency=0.6,  # assumption: half of its lanes serve integers too, and 150 W bound the clock
)
KUNLUN = _gpu(
    "kunlun",
    "Kunlun K200 XPU",
    torch_device="xpu",
    torch_name="Kunlun",
    peak_flops=16 * TERA,  # press on the Kunlun K200: 256 TOPS int8, 64 fp16, 16 fp32, at 150 W
    memory_bytes_per_s=512 * GB,  # Baidu at Hot Chips 32 (2020): 2 stacks of HBM, 512 GB/s
    link=PCIE3,  # Baidu at Hot Chips 32: PCIe 4.0 x8, which is as fast as PCIe 3.0 x16
    launch_s=10e-6,  # assumption: twice a GPU's
    compute_efficiency=0.5,  # assumption
    memory_efficiency=0.7,  # assumption
)


def _core(
    name: str, title: str, *, flops_per_cycle: int, clock_hz: float, socket_bytes_per_s: float, num_cores: int
) -> DeviceSpec:
    """Figures of one core of a socket with `num_cores` cores, which share its memory channels."""
    return DeviceSpec(
        name=name,
        title=f"a core of {title}",
        torch_device="cpu",
        torch_name="",
        peak_flops=flops_per_cycle * clock_hz,
        memory_bytes_per_s=socket_bytes_per_s / num_cores,
        link=NETWORK,
        launch_s=2e-6,  # assumption: the dispatch of a torch operator on a CPU
        compute_efficiency=0.85,  # 70 of 83 GFLOP/s of SGEMM were measured with torch on one Zen 3 core
        memory_efficiency=0.8,  # assumption: STREAM reaches about 80 % of the channels' peak
    )


# FLOP a cycle: lanes x FMA units x 2. AVX-512 with two units: 16 x 2 x 2 = 64. AVX2 with two units, AVX-512 at half
# rate (Zen 4) and two 256-bit SVE units: 32. Clocks are assumptions for all cores under vector load: near the base
# clock where AVX-512 lowers it, below boost elsewhere. Memory: channels x JEDEC's rate (DDR4-2933 23.5, DDR4-3200 25.6,
# DDR5-4800 38.4 GB/s), as Intel's, AMD's and AWS's pages on the family name them.
CASCADE_LAKE = _core(  # Xeon Platinum 8275CL: 24 cores, 6 channels of DDR4-2933
    "cascade-lake", "Intel Xeon Cascade Lake",
    flops_per_cycle=64, clock_hz=2.5 * GHZ, socket_bytes_per_s=6 * 23.5 * GB, num_cores=24,
)  # fmt: skip
ICE_LAKE = _core(  # Xeon Platinum 8375C: 32 cores, 8 channels of DDR4-3200
    "ice-lake", "Intel Xeon Ice Lake",
    flops_per_cycle=64, clock_hz=2.9 * GHZ, socket_bytes_per_s=8 * 25.6 * GB, num_cores=32,
)  # fmt: skip
SAPPHIRE_RAPIDS = _core(  # Xeon Platinum 8488C: 48 cores, 8 channels of DDR5-4800
    "sapphire-rapids", "Intel Xeon Sapphire Rapids",
    flops_per_cycle=64, clock_hz=2.6 * GHZ, socket_bytes_per_s=8 * 38.4 * GB, num_cores=48,
)  # fmt: skip
MILAN = _core(  # EPYC 7R13: 48 cores, 8 channels of DDR4-3200
    "milan", "AMD EPYC Milan (Zen 3)",
    flops_per_cycle=32, clock_hz=3.0 * GHZ, socket_bytes_per_s=8 * 25.6 * GB, num_cores=48,
)  # fmt: skip
GENOA = _core(  # EPYC 9R14: 96 cores, 12 channels of DDR5-4800
    "genoa", "AMD EPYC Genoa (Zen 4)",
    flops_per_cycle=32, clock_hz=3.4 * GHZ, socket_bytes_per_s=12 * 38.4 * GB, num_cores=96,
)  # fmt: skip
GRAVITON3 = _core(  # 64 cores at a fixed 2.6 GHz, 8 channels of DDR5-4800 (WikiChip: 307.2 GB/s)
    "graviton3", "AWS Graviton3 (Neoverse V1)",
    flops_per_cycle=32, clock_hz=2.6 * GHZ, socket_bytes_per_s=8 * 38.4 * GB, num_cores=64,
)  # fmt: skip

CATALOGUE: dict[str, DeviceSpec] = {
    device.name: device
    for device in (
        *(V100, A100, H100, T4, L4, A10G, KUNLUN),
        *(CASCADE_LAKE, ICE_LAKE, SAPPHIRE_RAPIDS, MILAN, GENOA, GRAVITON3),
    )
}

LOCAL = "cpu"
"""Name of the resource that is one core of this machine. It is measured, never estimated."""


def find_device(name: str) -> DeviceSpec:
    """Return the catalogue's entry; raises ConfigError, which lists the known devices."""
    if name in CATALOGUE:
        return CATALOGUE[name]
    known: Iterable[str] = (LOCAL, *CATALOGUE)
    near = get_close_matches(name, known, n=1)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    raise ConfigError(
        f"resource {name!r} is neither here to be measured nor in the catalogue to be estimated. {hint}"
        f"There are: {', '.join(known)}. A resource with a name of its own is given as name=device, spot=v100; "
        "in a cluster file its field `kind` names the device."
    )
