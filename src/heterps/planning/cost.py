"""The cost model: the time of a stage, and the throughput and cost of a plan. Plain functions of numbers, no search.

The paper's symbols, once:  N layers, T resources, B0 = batch_size, M = samples, L = epochs, OCT = compute_s,
ODT = sync_s + input_s. A station is a stage, or the servers. With k units it is busy for one profiling batch during

    ET(k) = max(CT(k), DT(k))      CT(k) = A + P/k  (compute)      DT(k) = D + Q/k  (communication, overlapped)

    P = sum alpha*compute_s                A = sum (1-alpha)*compute_s                    over the stage's layers
    Q = sum beta*sync_s + beta*input_s     D = sum (1-beta)*sync_s + (1-beta)*input_s     input_s: its first layer only

    servers:  P = V = sum server_s,  A = Q = D = 0;  none at all when V = 0

The slowest station decides: tau = max ET seconds a batch, throughput = B0/tau, and

    usd = hours * rate      hours = L*M/throughput/3600      rate = sum usd_per_hour*count

That is the paper's bill. Facts about machines (real.py) add to the same sums: a stage also pays to send its output (Q,
D of its last layer) and for the launcher's overhead (P, A of its first), holds W + S/k bytes of a unit's memory, and
units are paid for as they are sold (market.py), and traffic between zones is paid for (egress.py).

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

from heterps.config import Cluster, Resource
from heterps.errors import ConfigError
from heterps.planning.egress import border_weights, server_weights
from heterps.planning.fit import check_fit
from heterps.planning.interruptions import lost_s
from heterps.planning.market import Market, Offers, least_growth, make_market, without_facts
from heterps.planning.real import (
    Conditions,
    check_conditions,
    lanes_to_try,
    least_for_memory,
    memory_bytes,
    overhead_of,
    real_terms,
    served_s,
    server_seconds,
)
from heterps.planning.tables import disk_usd_per_hour, least_servers
from heterps.profiling.profile import Cost, Overhead, Profile

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Schedules = npt.NDArray[np.int16]  # [n, N]: the index of a resource for every layer

ROUNDING = 1e-12
"""Relative difference below which seconds are equal: far above rounding errors, far below what can be measured."""


UNLIMITED = 1 << 40
"""A number of units that no plan has."""


class Terms(NamedTuple):
    """A station's seconds for one profiling batch, split by what more units divide."""

    compute_divided: float  # P
    compute_fixed: float  # A
    comm_divided: float  # Q
    comm_fixed: float  # D
    held: float = 0.0  # W: bytes that each unit holds whatever its share
    divided: float = 0.0  # S: bytes that the units divide
    least: float = 1.0  # the least count whose memory suffices

    def compute_s(self, count: int) -> float:
        return self.compute_fixed + self.compute_divided / count

    def comm_s(self, count: int) -> float:
        return self.comm_fixed + self.comm_divided / count

    def busy_s(self, count: int) -> float:
        """Seconds for which `count` units are busy with one profiling batch: ET(k)."""
        if count < self.least:
            return math.inf
        return max(self.compute_s(count), self.comm_s(count))


class KernelInputs(NamedTuple):
    """What compiled kernels read of a problem; its properties say what each is."""

    terms: Floats
    prices: Floats
    limits: Ints
    server: int
    server_s: float
    tau_max: float
    least_servers: int
    memory: Floats
    started: Floats
    linear: bool
    batch_size: int
    offers: Offers
    most_workers: int
    borders: Floats
    disk_usd: float
    worker_s: float


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
    conditions: Conditions | None = None  # None: the paper's bill, whatever the cluster says of its machines
    reached: float = 1.0  # share of the throughput of the slowest station that whole runs reach: seconds are over it
    resources: tuple[str, ...] = field(init=False)
    given: Profile = field(init=False)  # the profile before costs were taken from kinds

    def __post_init__(self) -> None:
        for name in ("throughput", "samples", "epochs"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name} must be a number above 0 (got {value}).")
        if self.conditions is not None:
            check_conditions(self.conditions)
        usable = tuple(name for name, resource in self.cluster.resources.items() if self._is_rented(resource))
        object.__setattr__(self, "resources", usable)
        object.__setattr__(self, "given", self.profile)
        object.__setattr__(self, "profile", self.profile.on(self.cluster))
        check_fit(self.profile, usable, self.cluster.server_resource)
        if (
            self.conditions is not None
            and self.server_s == 0
            and not self.terms[:, :, :4].any(axis=2).all(axis=0).any()
        ):
            raise ConfigError(
                f"the profile of {self.profile.model!r} says that no layer takes any time, neither to compute nor on "
                "the ports of the cluster, so no throughput or cost follows from it. Profile the model again."
            )

    def _is_rented(self, resource: Resource) -> bool:
        spot = resource.spot if self.conditions is not None else None
        return resource.limit > 0 or (spot is not None and spot.limit > 0)

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
        """Array [T, N, 16]: P, A, Q, D of each layer, Q and D of its input, Q and D of its output, P of a stage that
        begins with it, W and S, the bytes that it holds, the seconds of a server for each worker's weights, A of a
        stage that begins with it, the seconds of an all-reduce of its weights among very many workers, and what its
        traffic with servers costs, in all and for each worker. A is infinite if there is no cost.
        """
        if self.conditions is not None:
            terms = np.concatenate(
                [
                    real_terms(self.profile, self.cluster, self.resources, self.conditions),
                    server_weights(self.profile, self.cluster, self.resources, self.conditions),
                ],
                axis=2,
            )
        else:
            layers = self.profile.layers
            terms = np.array([[layer_terms(layer.costs.get(name)) for layer in layers] for name in self.resources])
        if self.reached != 1:
            terms[:, :, [*range(9), 11, 12, 13]] /= self.reached
        return terms

    @cached_property
    def borders(self) -> Floats:
        """Array [N, T, T]: what the input of a layer costs on its way from one resource to another, in weights."""
        if self.conditions is None:
            return np.zeros((self.num_layers, len(self.resources), len(self.resources)))
        return border_weights(self.profile, self.cluster, self.resources)

    @property
    def pays_egress(self) -> bool:
        """Whether some traffic between the resources is paid for."""
        return bool(self.borders.any() or self.terms[:, :, 14:].any())

    @cached_property
    def market(self) -> Market:
        """What is offered of the resources; in the paper's bill single units without a start."""
        cluster = self.cluster if self.conditions is not None else without_facts(self.cluster)
        return make_market(cluster, self.resources, self.num_batches, self._overhead.start_s, self._lost_s)

    def _lost_s(self, name: str) -> float:
        given = self.conditions or Conditions()
        replaces = given.replaces and not given.all_reduce
        return lost_s(self.cluster, name, given.sync, replaces=replaces, mirrored=given.mirrored)

    @property
    def in_rounds(self) -> bool:
        """Whether all workers share each batch, and the next begins when it is applied (BSP)."""
        return self.conditions is not None and self.conditions.in_rounds

    @cached_property
    def lanes_of(self) -> Ints:
        """Numbers of micro-batches that are considered in rounds."""
        assert self.conditions is not None
        return np.array(lanes_to_try(self.conditions, self.profile.batch_size), np.int64)

    @property
    def overhead_s(self) -> float:
        """Seconds of a round that the launcher takes besides layers and servers, with one worker."""
        return self._overhead.batch_s / self.reached

    @property
    def worker_s(self) -> float:
        """Seconds of a round that the launcher takes for each worker beyond the first."""
        return self._overhead.worker_s / self.reached if self.in_rounds else 0.0

    @property
    def _overhead(self) -> Overhead:
        return overhead_of(self.profile) if self.conditions is not None else Overhead()

    @property
    def num_batches(self) -> float:
        return self.samples * self.epochs / self.profile.batch_size

    @property
    def prices(self) -> Floats:
        """Array [T]: USD per unit and hour; with machines or spot units a lower bound of it."""
        return self.market.prices

    @property
    def limits(self) -> Ints:
        """Array [T]: largest number of units that may be rented."""
        return self.market.limits

    @cached_property
    def memory(self) -> Floats:
        """Array [T]: bytes of one unit's memory."""
        if self.conditions is None:
            return np.full(len(self.resources), np.inf)
        return np.array([memory_bytes(self.cluster, name) for name in self.resources])

    @cached_property
    def holds_whole_batches(self) -> bool:
        """Whether workers take whole batches, and have a memory that may be too small for those of a pipeline."""
        is_whole = self.conditions is not None and self.conditions.takes_whole_batches
        return is_whole and bool(np.isfinite(self.memory).any())

    @cached_property
    def server_s(self) -> float:
        """Seconds that one server unit spends on a batch (V)."""
        if self.conditions is not None:
            return server_seconds(self.profile, self.cluster, self.conditions) / self.reached
        return math.fsum(layer.server_s for layer in self.profile.layers) / self.reached

    @property
    def needs_servers(self) -> bool:
        """Whether the model has parameters that servers keep."""
        return any(served_s(layer, self.conditions or Conditions()) > 0 for layer in self.profile.layers)

    @cached_property
    def least_servers(self) -> int:
        """Smallest number of servers whose memory and disks hold the tables in the end."""
        if self.conditions is None:
            return 1
        return least_servers(self.profile, self.cluster, self.samples, self.conditions)

    @cached_property
    def disk_usd(self) -> float:
        """USD per hour of the servers' disks."""
        if self.conditions is None:
            return 0.0
        return disk_usd_per_hour(self.profile, self.cluster, self.samples, self.conditions)

    def growth(self, tau: float, slower: float) -> float:
        """Least ratio of what the same units cost at tau to what they cost at `slower`, a larger tau."""
        if self.market.linear and not self.market.started.any():
            return tau / slower
        return float(least_growth(self.market.offers, tau, slower))

    def slower_s(self, tau: float, share: float) -> float:
        """Largest seconds up to tau at which units may cost less than `share` of what they cost at tau."""
        if self.market.linear and not self.market.started.any():
            return tau * min(share, 1.0)
        if share > 1 + ROUNDING:
            return tau
        share = min(share, 1.0)
        low, high = 0.0, tau
        while (middle := (low + high) / 2) not in (low, high):
            low, high = (middle, high) if self.growth(middle, tau) < share else (low, middle)
        return low

    @property
    def most_workers(self) -> int:
        """Largest number of workers of a stage, whatever the limits."""
        asked = self.conditions.most_workers if self.conditions is not None else None
        return UNLIMITED if asked is None or self.in_rounds else asked

    @property
    def server(self) -> int:
        """Index of the server resource in `resources`; -1 if its limit is 0."""
        return {name: t for t, name in enumerate(self.resources)}.get(self.cluster.server_resource, -1)

    @property
    def kernel_inputs(self) -> KernelInputs:
        market = self.market
        return KernelInputs(
            self.terms, market.prices, market.limits, self.server, self.server_s, self.tau_max,
            self.least_servers, self.memory, market.started, market.linear, self.profile.batch_size,
            market.offers, self.most_workers, self.borders, self.disk_usd, self.worker_s,
        )  # fmt: skip

    def layer_names(self, first: int, last: int) -> str:
        names = [layer.name for layer in self.profile.layers]
        return names[first] if first == last else f"{names[first]}..{names[last]}"


def layer_terms(cost: Cost | None) -> tuple[float, ...]:
    if cost is None:
        return (0.0, math.inf, *[0.0] * 14)
    return (
        cost.alpha * cost.compute_s,
        (1 - cost.alpha) * cost.compute_s,
        cost.beta * cost.sync_s,
        (1 - cost.beta) * cost.sync_s,
        cost.beta * cost.input_s,
        (1 - cost.beta) * cost.input_s,
        *[0.0] * 10,
    )


def stage_terms(problem: Problem, first: int, last: int, resource: int) -> Terms:
    rows = problem.terms[resource, first : last + 1].tolist()
    compute_divided, compute_fixed = rows[0][8], rows[0][12]
    comm_divided, comm_fixed = rows[0][4:6]
    held = divided = 0.0
    for row in rows:
        compute_divided += row[0]
        compute_fixed += row[1]
        comm_divided += row[2]
        comm_fixed += row[3]
        held += row[9]
        divided += row[10]
    least = least_for_memory(held, divided, float(problem.memory[resource]))
    return Terms(
        compute_divided, compute_fixed, comm_divided + rows[-1][6], comm_fixed + rows[-1][7], held, divided, least
    )


def runs(schedule: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return (first, last, resource) of each maximal run of layers on one resource."""
    borders = [i for i in range(len(schedule)) if i == 0 or schedule[i] != schedule[i - 1]]
    return [
        (first, after - 1, int(schedule[first]))
        for first, after in zip(borders, [*borders[1:], len(schedule)], strict=True)
    ]
