"""The cost model: the time of a stage, and the throughput and cost of a plan. Plain functions of numbers, no search.

The paper's symbols, once:  N layers, T resources, B0 = batch_size, M = samples, L = epochs, OCT = compute_s,
ODT = sync_s + input_s. A station is a stage, or the servers. With k units it is busy for one profiling batch during

    ET(k) = max(CT(k), DT(k))      CT(k) = A + P/k  (compute)      DT(k) = D + Q/k  (communication, overlapped)

    P = sum alpha*compute_s                A = sum (1-alpha)*compute_s                    over the stage's layers
    Q = sum beta*sync_s + beta*input_s     D = sum (1-beta)*sync_s + (1-beta)*input_s     input_s: its first layer only

    servers:  P = V = sum server_s,  A = Q = D = 0;  none at all when V = 0

The slowest station decides: tau = max ET seconds a batch, throughput = B0/tau, and

    usd = hours * rate      hours = L*M/throughput/3600      rate = sum usd_per_hour*count

Sums run from a stage's first layer onwards, never as differences of prefix sums, which lose precision if a slow layer
precedes a fast one. The compiled kernels add in the same order, so that both give the same floats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from heterps.config import Cluster
from heterps.errors import ConfigError
from heterps.planning.plan import Stage
from heterps.profiling.profile import Cost, Profile

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Schedules = npt.NDArray[np.int16]  # [n, N]: the index of a resource for every layer

ROUNDING = 1e-12
"""Relative difference below which seconds are equal: far above rounding errors, far below what can be measured."""


class Terms(NamedTuple):
    """A station's seconds for one profiling batch, split by what more units divide."""

    compute_divided: float  # P
    compute_fixed: float  # A
    comm_divided: float  # Q
    comm_fixed: float  # D

    def compute_s(self, count: int) -> float:
        return self.compute_fixed + self.compute_divided / count

    def comm_s(self, count: int) -> float:
        return self.comm_fixed + self.comm_divided / count

    def busy_s(self, count: int) -> float:
        """Seconds for which `count` units are busy with one profiling batch: ET(k)."""
        return max(self.compute_s(count), self.comm_s(count))


@dataclass(frozen=True)
class Bill:
    """The predicted throughput and cost of stages and servers."""

    throughput: float  # samples a second
    hours: float
    usd: float
    bottleneck: str


class KernelInputs(NamedTuple):
    """What compiled kernels read of a problem; its properties say what each is."""

    terms: Floats
    prices: Floats
    limits: Ints
    server: int
    server_s: float
    tau_max: float


@dataclass(frozen=True)
class Problem:
    """A planning problem: checked inputs, and the arrays that the kernels read.

    `resources` are those of the cluster with a limit above 0, in the cluster's order; schedules hold indices into it.
    `profile` has costs under their names, taken from their kinds where needed (`Profile.on`).
    Raises ConfigError if the profile and the cluster do not match.
    """

    profile: Profile
    cluster: Cluster
    throughput: float  # the floor, samples a second
    samples: float
    epochs: float = 1
    resources: tuple[str, ...] = field(init=False)
    given: Profile = field(init=False)  # the profile before costs were taken from kinds

    def __post_init__(self) -> None:
        for name in ("throughput", "samples", "epochs"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name} must be a number above 0 (got {value}).")
        usable = tuple(name for name, resource in self.cluster.resources.items() if resource.limit > 0)
        object.__setattr__(self, "resources", usable)
        object.__setattr__(self, "given", self.profile)
        object.__setattr__(self, "profile", self.profile.on(self.cluster))
        _check_fit(self.profile, usable, self.cluster.server_resource)

    @property
    def num_layers(self) -> int:
        return len(self.profile.layers)

    @property
    def rentable(self) -> tuple[str, ...]:
        """The cluster's resources, including those with limit 0, that could run layers or the servers."""
        able = {*self.profile.resources, *([self.cluster.server_resource] if self.server_s > 0 else [])}
        return tuple(name for name in self.cluster.resources if name in able)

    @property
    def tau_max(self) -> float:
        """Largest seconds per batch of a station that meets the floor, with slack for rounding errors."""
        return self.profile.batch_size / self.throughput * (1 + ROUNDING)

    @property
    def hours_per_tau(self) -> float:
        """Hours of the whole job per second of a batch: usd = hours_per_tau * tau * rate."""
        return self.samples * self.epochs / self.profile.batch_size / 3600

    @cached_property
    def terms(self) -> Floats:
        """Array [T, N, 6]: P, A, Q, D of each layer, then Q and D of its input. A is infinite if there is no cost."""
        return np.array(
            [[layer_terms(layer.costs.get(name)) for layer in self.profile.layers] for name in self.resources]
        )

    @cached_property
    def prices(self) -> Floats:
        """Array [T]: USD per unit and hour."""
        return np.array([self.cluster.resources[name].usd_per_hour for name in self.resources])

    @cached_property
    def limits(self) -> Ints:
        """Array [T]: largest number of units that may be rented."""
        return np.array([self.cluster.resources[name].limit for name in self.resources], dtype=np.int64)

    @cached_property
    def server_s(self) -> float:
        """Seconds that one server unit spends on a batch (V)."""
        return math.fsum(layer.server_s for layer in self.profile.layers)

    @property
    def server(self) -> int:
        """Index of the server resource in `resources`; -1 if its limit is 0."""
        name = self.cluster.server_resource
        return self.resources.index(name) if name in self.resources else -1

    @property
    def kernel_inputs(self) -> KernelInputs:
        return KernelInputs(self.terms, self.prices, self.limits, self.server, self.server_s, self.tau_max)

    def layer_names(self, first: int, last: int) -> str:
        names = [layer.name for layer in self.profile.layers]
        return names[first] if first == last else f"{names[first]}..{names[last]}"


def layer_terms(cost: Cost | None) -> tuple[float, ...]:
    if cost is None:
        return (0.0, math.inf, 0.0, 0.0, 0.0, 0.0)
    return (
        cost.alpha * cost.compute_s,
        (1 - cost.alpha) * cost.compute_s,
        cost.beta * cost.sync_s,
        (1 - cost.beta) * cost.sync_s,
        cost.beta * cost.input_s,
        (1 - cost.beta) * cost.input_s,
    )


def stage_terms(problem: Problem, first: int, last: int, resource: int) -> Terms:
    rows = problem.terms[resource, first : last + 1].tolist()
    compute_divided = compute_fixed = 0.0
    comm_divided, comm_fixed = rows[0][4:]
    for row in rows:
        compute_divided += row[0]
        compute_fixed += row[1]
        comm_divided += row[2]
        comm_fixed += row[3]
    return Terms(compute_divided, compute_fixed, comm_divided, comm_fixed)


def runs(schedule: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return (first, last, resource) of each maximal run of layers on one resource."""
    borders = [i for i in range(len(schedule)) if i == 0 or schedule[i] != schedule[i - 1]]
    return [
        (first, after - 1, int(schedule[first]))
        for first, after in zip(borders, [*borders[1:], len(schedule)], strict=True)
    ]


def bill(problem: Problem, stages: Sequence[Stage], num_servers: int) -> Bill:
    """Compute the bill of stages that cover the layers in order, whether or not they meet floor and limits."""
    used = [0] * len(problem.resources)
    slowest_s, bottleneck = 0.0, ""
    if problem.server_s > 0:
        slowest_s, bottleneck = problem.server_s / num_servers, f"servers on {problem.cluster.server_resource}"
        used[problem.server] += num_servers
    for stage in stages:
        resource = problem.resources.index(stage.resource)
        used[resource] += stage.count
        terms = stage_terms(problem, stage.first, stage.last, resource)
        if terms.busy_s(stage.count) > slowest_s:
            slowest_s = terms.busy_s(stage.count)
            side = "compute" if terms.compute_s(stage.count) >= terms.comm_s(stage.count) else "communication"
            bottleneck = f"{problem.layer_names(stage.first, stage.last)} on {stage.resource} ({side})"
    throughput = problem.profile.batch_size / slowest_s
    if problem.throughput * (1 - 2 * ROUNDING) <= throughput < problem.throughput:
        throughput = problem.throughput  # met, but for rounding: see tau_max
    hours = problem.samples * problem.epochs / throughput / 3600
    rate = math.fsum(float(price) * count for price, count in zip(problem.prices, used, strict=True))
    return Bill(throughput, hours, hours * rate, bottleneck)


def _check_fit(profile: Profile, usable: Sequence[str], server_resource: str) -> None:
    """Raise ConfigError unless every resource has costs (the servers' may have none) and every layer can run."""
    missing = [name for name in usable if name not in (*profile.resources, server_resource)]
    if missing:
        raise ConfigError(
            f"the cluster has resource {', '.join(map(repr, missing))}, but the profile of {profile.model!r} has costs "
            f"for {', '.join(map(repr, profile.resources))} only. Profile the model for it, say with `kind` in the "
            "cluster which of these it is, or set its limit to 0."
        )
    for layer in profile.layers:
        if not any(name in layer.costs for name in usable):
            raise ConfigError(
                f"layer {layer.name!r} can run on {', '.join(map(repr, layer.costs))} only, and the cluster rents "
                f"{', '.join(map(repr, usable))}. Profile it for one of these, or add a resource to the cluster."
            )
    instant = [any(_is_free(layer.costs[name]) for name in usable if name in layer.costs) for layer in profile.layers]
    if all(instant) and not any(layer.server_s > 0 for layer in profile.layers):
        raise ConfigError(
            f"the profile of {profile.model!r} says that no layer takes any time (compute_s, sync_s and server_s are "
            "all 0), so no throughput or cost follows from it. Profile the model again."
        )


def _is_free(cost: Cost) -> bool:
    return cost.compute_s == 0 and cost.sync_s == 0
