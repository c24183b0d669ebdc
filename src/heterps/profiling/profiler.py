"""Profile a model: every layer on every resource, measured where the device is here, estimated where it is not.

    batch --> [layer 0] --> [layer 1] --> ...       each layer runs alone, on the real output of the layers before it
                  |             |
                  |  the whole batch, a half, a quarter: the part of each of 1, 2, 4 units
                  v             v
    compute_s, alpha    timed here, or by roofline from counted kernels
    sync_s, beta        bytes to and from the servers, over the resource's link
    input_s             bytes across the layer's border, over the link; layer 0: reading the data
    server_s            pulls, pushes and optimizer steps, timed here

alpha and beta of a core of this machine come from real runs of two units if there are processes for them (see
`heterps.profiling.units`), and otherwise from parts of the batch on one unit. Layers that are alike share what was
measured for any of them (see `heterps.profiling.pool`). The fixed parts of sync_s and input_s
follow from the whole batch and half of it.

beta is fitted on sync_s if the layer has parameters: half of a batch has more than half of its distinct rows, and every
unit needs all weights. The input would divide better, but both share one beta, and a beta that is too small never
promises too much. Layers without parameters have the beta of their input, so stage borders there are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from heterps.catalogue import LOCAL, DeviceSpec, Link, find_device
from heterps.config import Optimizers
from heterps.data.batch import Batch
from heterps.devices import Precision, find_model
from heterps.errors import ConfigError, HeterpsError, ModelError
from heterps.model.stages import StageModule, Values, split
from heterps.model.trace import Layer, trace
from heterps.profiling.batches import batch_size_of, divide, model_inputs
from heterps.profiling.estimate import estimate_compute, estimate_embedding
from heterps.profiling.fit import fit_fixed, fit_share, share_error
from heterps.profiling.measure import CPU, Parts, ServerSeconds, measure_compute, measure_link, measure_server
from heterps.profiling.pool import pooled
from heterps.profiling.profile import Cost, LayerProfile, Profile
from heterps.profiling.sandbox import LayerTraffic, Sandbox
from heterps.profiling.servers import TABLE_BYTES
from heterps.profiling.timing import Timing
from heterps.profiling.units import Ratio, Units
from heterps.threads import torch_threads

UNITS = (1, 2, 4)
"""Numbers of units among which the batch is divided to fit alpha and beta."""

Seconds = Mapping[float, float]  # by number of units


class Shares(NamedTuple):
    """alpha and beta of a layer with their standard errors; None where nothing was measured."""

    alpha: float
    beta: float
    alpha_error: float | None = None
    beta_error: float | None = None


@dataclass(frozen=True)
class Target:
    """A resource to profile for."""

    name: str
    device: DeviceSpec | None  # catalogue entry; None: a core of this machine
    here: torch.device | None  # the device to measure on; None: it is estimated
    link: Link


def profile(
    model: nn.Module,
    batch: Batch | Sequence[Any],
    resources: Sequence[str] = (LOCAL, "v100"),
    *,
    name: str | None = None,
    optimizers: Optimizers = Optimizers(),
    precision: Precision = "fp32",
    budget_s: float = 10.0,
    read_s: float | None = None,
    table_bytes: int = TABLE_BYTES,
    units: Callable[[], AbstractContextManager[Units | None]] = nullcontext,
    progress: Callable[[Layer, int], None] | None = None,
) -> Profile:
    """Profile `model`: measure or estimate the time of each layer for `batch` on one unit of each resource.

    batch        a Batch, or the inputs of `forward`
    resources    each is "cpu" (a core of this machine), a device of the catalogue, or `name=device`
    optimizers   the optimizers that run on the servers
    precision    of forward and backward: fp32, or bf16 by torch's autocast. Estimates count bf16 as fp32 operations
    budget_s     seconds to spend on measuring
    read_s       seconds to read such a batch, if known
    table_bytes  memory for the tables of a layer while its server is measured
    units        starts processes that build the same model and batch, to fit alpha and beta of this machine's cores;
                 it is called once the model is traced. Without them both are fitted from parts of the batch
    progress     called with each layer and the number of layers before it is measured

    The model, its tables, its gradients and the random state are left unchanged.
    """
    targets = find_targets(resources)
    traced = trace(model)
    inputs = model_inputs(batch)
    batch_size = batch_size_of(inputs)
    parts = divide(traced, inputs, batch_size, UNITS)
    stages = split(traced, range(1, len(traced.layers)))
    profiles = []
    shared: set[int] = set()  # ids of the parameters of the layers so far
    kept: set[str] = set()  # names of the values that these layers keep for backward
    with units() as processes, torch_threads(1), torch.random.fork_rng(), torch.enable_grad():
        for layer, stage in zip(traced.layers, stages, strict=True):
            if progress:
                progress(layer, len(traced.layers))
            try:
                visit = _LayerProfiler(
                    stage, parts, optimizers, precision, budget_s / len(stages), table_bytes, processes, shared, kept
                )
                profiles.append(visit.profile(layer, targets, read_s if layer.index == 0 else None))
                parts = visit.outputs()
                shared |= {id(parameter) for parameter in stage.module.parameters()}
            except HeterpsError:
                raise
            except Exception as error:  # the model's own code, or memory that is not there
                raise ModelError(_cannot_run(layer, stage, parts[1.0], error)) from error
        contention = processes.contention if processes else None
    local = [target.name for target in targets if target.device is None]
    return Profile(
        version=2,
        model=name or type(model).__name__,
        batch_size=batch_size,
        layers=pooled(profiles),
        contention=dict.fromkeys(local, contention) if contention is not None else None,
    )


def find_targets(resources: Sequence[str]) -> list[Target]:
    """Look up the resources; raises ConfigError if one is unknown or named twice."""
    named = [(word.partition("=")[0], word.partition("=")[2] or word) for word in resources]
    names = [name for name, _ in named]
    if not names or len(set(names)) < len(names) or not all(names):
        raise ConfigError(f"a profile needs resources with different names; got: {', '.join(resources) or 'none'}.")
    targets = []
    local = measure_link() if any(device_name == LOCAL for _, device_name in named) else None
    for name, device_name in named:
        if device_name == LOCAL and local is not None:
            targets.append(Target(name, None, CPU, local))
        else:
            device = find_device(device_name)
            targets.append(Target(name, device, find_model(device.torch_device, device.torch_name), device.link))
    return targets


class _LayerProfiler:
    """Profiles one layer, given its inputs for the whole batch and for parts of it."""

    def __init__(
        self,
        stage: StageModule,
        parts: Parts,
        optimizers: Optimizers,
        precision: Precision,
        budget_s: float,
        table_bytes: int,
        units: Units | None,
        shared: Collection[int],
        kept: set[str],
    ) -> None:
        self._units = units if len(parts) > 1 else None  # one sample cannot be divided
        self._stage = stage
        self._parts = parts
        self._optimizers, self._precision = optimizers, precision
        self._budget_s = budget_s
        self._table_bytes = table_bytes
        self._shared, self._kept = shared, kept
        self._host = Sandbox(stage, CPU, optimizers, precision, shared)
        self._traffic = {k: self._host.traffic(values) for k, values in parts.items()}
        self._timings: dict[torch.device, dict[float, Timing]] = {}
        self._shares: Shares | None = None

    def profile(self, layer: Layer, targets: Sequence[Target], read_s: float | None) -> LayerProfile:
        whole = self._traffic[1.0]
        server = ServerSeconds()
        if whole.sync:
            server = measure_server(self._host, self._parts[1.0], self._budget_s / 4, self._table_bytes)
        if self._units:
            self._units.enter(layer.name)
        return LayerProfile(
            name=layer.name,
            kind=layer.kind,
            input_bytes=whole.input,
            weight_bytes=whole.weights,
            output_bytes=whole.output,
            server_s=server.whole_s,
            server_fixed_s=server.fixed_s,
            server_moves_s=server.moves_s,
            dense_bytes=whole.dense,
            row_bytes=whole.rows,
            activation_bytes=self._activation_bytes(),
            costs={target.name: self._cost(layer, target, read_s) for target in targets},
        )

    def outputs(self) -> dict[float, Values]:
        """The inputs of the next layer, for the whole batch and for its parts."""
        return {k: self._host.forward(values) for k, values in self._parts.items()}

    def _activation_bytes(self) -> int:
        """Bytes that forward keeps for backward, besides the values that a layer before this one keeps already."""
        sizes = self._host.activations(self._parts[1.0])
        new = sum(size for name, size in sizes.items() if name not in self._kept)
        self._kept.update(name for name, size in sizes.items() if name and size)
        return new

    def _cost(self, layer: Layer, target: Target, read_s: float | None) -> Cost:
        spread, error = 0.0, None
        if target.here is not None:
            timings = self._measured(target.here)
            compute: Seconds = {k: timing.median_s for k, timing in timings.items()}
            spread, error = timings[1.0].spread, timings[1.0].error
        else:
            assert target.device is not None, "a core of this machine is always here"
            compute = self._estimated(layer, target.device)
        sync = {k: target.link.seconds(t.sync, num_messages=2) for k, t in self._traffic.items()}
        if read_s is not None:
            border: Seconds = {k: read_s / k for k in self._traffic}
        else:
            border = {k: _border_s(target.link, t) for k, t in self._traffic.items()}
        shares = Shares(fit_share(compute), fit_share(sync if self._traffic[1.0].sync else border))
        if target.here is not None:
            errors = {k: timing.error for k, timing in timings.items()}
            shares = shares._replace(alpha_error=share_error(compute, errors))
        if target.device is None and self._units:
            shares = self._measured_shares(self._units, shares.beta if read_s is not None else None)
        return Cost(
            compute_s=compute[1.0],
            sync_s=sync[1.0],
            input_s=border[1.0],
            **shares._asdict(),
            compute_fixed_s=fit_fixed(compute),
            sync_fixed_s=fit_fixed(sync),
            input_fixed_s=fit_fixed(border),
            spread=spread,
            error=error,
            estimated=target.here is None,
        )

    def _measured(self, device: torch.device) -> dict[float, Timing]:
        if device not in self._timings:
            sandbox = (
                self._host
                if device == CPU
                else Sandbox(self._stage, device, self._optimizers, self._precision, self._shared)
            )
            share = 3 / 8 if self._units else 3 / 4
            self._timings[device] = measure_compute(sandbox, self._parts, self._budget_s * share)
        return self._timings[device]

    def _measured_shares(self, units: Units, reading_beta: float | None) -> Shares:
        """Measure alpha and beta with two units at once.

        A layer without parameters has the beta of its input; if its input is read from data, that is `reading_beta`.
        """
        if self._shares is None:
            k = list(self._traffic)[1]
            beta_error: float | None = None
            alpha, alpha_error = _share(k, units.compute(self._budget_s * 2 / 8))
            whole, half = self._traffic[1.0], self._traffic[k]
            moved = [t.sync if whole.sync else t.border + t.border_back for t in (whole, half)]
            if not whole.sync and reading_beta is not None:
                beta = reading_beta
            else:
                beta, beta_error = _share(k, units.move(moved, self._budget_s / 8))
            self._shares = Shares(alpha, beta, alpha_error, beta_error)
        return self._shares

    def _estimated(self, layer: Layer, device: DeviceSpec) -> Seconds:
        if layer.kind == "embedding" and self._host.has_tables:
            return estimate_embedding(self._measured(CPU), self._traffic, device)
        return estimate_compute(self._host, self._parts, device)


def _share(k: float, measured: Ratio) -> tuple[float, float]:
    """Return the share that k units divide, and its standard error."""
    times_s = {1.0: 1.0, k: measured.value}
    return fit_share(times_s), share_error(times_s, {1.0: 0.0, k: measured.error})


def _border_s(link: Link, traffic: LayerTraffic) -> float:
    """Seconds to send activations forward, and gradients back for those that need one."""
    return link.seconds(traffic.border) + link.seconds(traffic.border_back)


def _cannot_run(layer: Layer, stage: StageModule, values: Values, error: Exception) -> str:
    shapes = [f"{n} {list(v.shape)}" if isinstance(v := values[n], Tensor) else n for n in stage.inputs]
    return (
        f"layer {layer.name} ({layer.kind}) cannot run on what the layers before it give ({', '.join(shapes)}): "
        f"{type(error).__name__}: {str(error).strip().rstrip('.')}. "
        "Check that the batch has the columns and the sizes that the model was made for."
    )
