"""Measure on this machine: a layer's step on a device, the servers' work for it, the link between processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch

from heterps.catalogue import Link
from heterps.model.stages import Values
from heterps.profiling.fit import fit_line
from heterps.profiling.sandbox import Sandbox
from heterps.profiling.timing import Timing, time_interleaved

CPU = torch.device("cpu")

Parts = Mapping[float, Values]
"""Inputs of a layer for one of k units, by k; k = 1 is the whole batch."""


def measure_compute(sandbox: Sandbox, parts: Parts, budget_s: float) -> dict[float, Timing]:
    """Time forward and backward for each part of the batch, on the sandbox's device."""
    steps = [sandbox.step(values) for values in parts.values()]
    return dict(zip(parts, time_interleaved(steps, budget_s, sandbox.device), strict=True))


class ServerSeconds(NamedTuple):
    """Seconds of one server for a layer's parameters, for one batch."""

    whole_s: float = 0.0
    fixed_s: float = 0.0  # for its weights, whatever the size of the batch
    moves_s: float = 0.0  # the part of that for handing weights out and taking gradients in


def measure_server(sandbox: Sandbox, values: Values, budget_s: float, table_bytes: int) -> ServerSeconds:
    """Measure one server's work for the layer's rows and weights. The tables are filled to about `table_bytes`."""
    rows, weights = sandbox.server_work(values, table_bytes)
    timings = [timing.median_s for timing in time_interleaved([*rows, *weights], budget_s, CPU)]
    rows_s = sum(timings[: len(rows)])
    if not weights:
        return ServerSeconds(rows_s)
    step_s, moves_s = timings[len(rows) :]
    return ServerSeconds(rows_s + step_s, step_s, min(moves_s, step_s))


LINK_BYTES = (64 * 1024, 1024 * 1024, 8 * 1024 * 1024)


def measure_link(budget_s: float = 0.05) -> Link:
    """Measure memory as a link: parameters and activations on one machine travel through it."""
    blocks = [(np.ones(size, np.uint8), np.empty(size, np.uint8)) for size in LINK_BYTES]
    timings = time_interleaved([lambda s=s, d=d: np.copyto(d, s) for s, d in blocks], budget_s, CPU)  # type: ignore[misc]
    line = fit_line([(size, timing.median_s) for size, timing in zip(LINK_BYTES, timings, strict=True)])
    return Link(bytes_per_s=1 / line.per_unit_s, latency_s=line.fixed_s)
