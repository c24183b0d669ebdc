"""Correct a profile by the measurements of trials: compute_s, alpha, sync_s, input_s and beta of the layers tried.

    [1] Every stage of every trial gives the seconds of its layers on k units, on each side of max(CT, DT):

            fixed[a] + .. + fixed[b]  +  (divided[a] + .. + divided[b]) / k  =  measured seconds

    [2] Two counts of the same layers, far enough apart: least squares gives the fixed and the divided sum, and so
        alpha. One count gives their sum at that count, and alpha stays.
    [3] Proportional fitting: each sum in turn scales its terms by target / current value, until all sums hold. Layers
        in several stages are corrected by all of them, each by no more than needed.

A worker, on a real unit or an emulated one, reports the time of computing, and of communication that computing did not
hide. If communication is visible, both sides are known: CT = compute, DT = compute + communication. Otherwise DT is at
most the worker's busy time. Servers do not report their work, so server_s stays.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from heterps.config import Cluster
from heterps.planning.cost import Floats, Ints
from heterps.planning.trial import StageSeconds, Trial
from heterps.profiling.profile import Cost, LayerProfile, Profile

BOUND = 4.0
"""Largest factor (or its inverse) by which one trial may change the seconds of a stage, since a trial can go wrong."""

VISIBLE = 0.05
"""Share of a worker's busy time from which communication counts as visible, if the profile says that it is hidden."""

APART = 1.5
"""Smallest ratio of two counts from which fixed and divided seconds are fitted; closer counts would fit noise."""

ROUNDS = 300
CLOSE = 1e-6  # relative


@dataclass(frozen=True)
class _StageTrial:
    """The measurement of one stage in one trial."""

    count: int
    measured: StageSeconds
    is_emulated: bool


@dataclass(frozen=True)
class _Observation:
    """The seconds of a stage on one side with `count` units, as a trial gives them; at most these if `is_most`."""

    count: int
    seconds: float
    is_most: bool = False

    def excess(self, parts: _Parts) -> float:
        """Relative amount by which the seconds of `parts` exceed this observation; at least 0."""
        return max(parts.seconds(self.count) / self.seconds - 1, 0.0) if self.seconds > 0 else 0.0


@dataclass
class _Side:
    """Seconds on one side on one resource: compute [N], or communication [2 N] of the layers, then of their inputs."""

    fixed: Floats
    divided: Floats
    observed: dict[tuple[int, ...], list[_Observation]] = field(default_factory=dict)  # by the indices that are summed

    def seconds(self, items: Ints, count: int) -> float:
        return float(self.fixed[items].sum() + self.divided[items].sum() / count)


def correct(profile: Profile, cluster: Cluster, trials: Sequence[Trial]) -> Profile:
    """Correct `profile`, which is for the batch size of the trials, so that its costs predict what `trials` measured.

    Costs of layers and resources without a trial stay. The others are marked `corrected`, and are no longer `estimated`
    unless all their trials were emulated, since an emulation only repeats the profile. If a resource takes its costs
    from its kind, those are corrected. No cost becomes negative, and no trial changes a stage by more than BOUND.
    """
    names = {stage.resource for trial in trials for stage in trial.plan.stages}
    sources = {name: profile.source(cluster, name) or name for name in names}
    visits: dict[tuple[str, int, int], list[_StageTrial]] = {}
    for trial in trials:
        for stage, measured in zip(trial.plan.stages, trial.stages, strict=True):
            of_stage = visits.setdefault((sources[stage.resource], stage.first, stage.last), [])
            of_stage.append(_StageTrial(stage.count, measured, trial.is_emulated))
    visited: dict[str, dict[int, bool]] = {}  # resource -> layer -> whether all trials of it were emulated
    sides: dict[str, tuple[_Side, _Side]] = {}
    for (source, first, last), of_stage in visits.items():
        _observe(*sides.setdefault(source, _sides(profile, source)), np.arange(first, last + 1), of_stage)
        seen = visited.setdefault(source, {})
        for layer in range(first, last + 1):
            seen[layer] = seen.get(layer, True) and all(visit.is_emulated for visit in of_stage)
    for compute, comm in sides.values():
        _fit(compute)
        _fit(comm, halves=len(profile.layers))
    layers = [
        _corrected(layer, number, {name: visited[name][number] for name in visited if number in visited[name]}, sides)
        for number, layer in enumerate(profile.layers)
    ]
    return profile.model_copy(update={"layers": tuple(layers)})


def _sides(profile: Profile, resource: str) -> tuple[_Side, _Side]:
    nothing = Cost(compute_s=0, sync_s=0, input_s=0, alpha=1, beta=1)
    costs = [layer.costs.get(resource, nothing) for layer in profile.layers]
    alpha, beta = np.array([c.alpha for c in costs]), np.array([c.beta for c in costs] * 2)
    compute_s = np.array([c.compute_s for c in costs])
    comm_s = np.array([c.sync_s for c in costs] + [c.input_s for c in costs])
    return _Side((1 - alpha) * compute_s, alpha * compute_s), _Side((1 - beta) * comm_s, beta * comm_s)


def _observe(compute: _Side, comm: _Side, layers: Ints, visits: Sequence[_StageTrial]) -> None:
    """Add the observations of all trials of one stage to both sides. [1]"""
    moved = np.append(layers, len(compute.fixed) + layers[0])
    of_compute = compute.observed[tuple(layers.tolist())] = []
    of_comm = comm.observed[tuple(moved.tolist())] = []
    shows = any(visit.measured.communicate_s > VISIBLE * visit.measured.busy_s for visit in visits)
    for number, visit in enumerate(visits, 1):
        compute_s, comm_s = compute.seconds(layers, visit.count), comm.seconds(moved, visit.count)
        most_s = BOUND**number * max(compute_s, comm_s) or math.inf

        def bounded(seconds: float, predicted_s: float, most_s: float = most_s, number: int = number) -> float:
            return min(max(seconds, predicted_s / BOUND**number), most_s)

        seen_compute, seen_comm = _sides_of(visit, shows or comm_s > compute_s)
        of_compute.append(replace(seen_compute, seconds=bounded(seen_compute.seconds, compute_s)))
        of_comm.append(replace(seen_comm, seconds=bounded(seen_comm.seconds, comm_s)))


def _sides_of(visit: _StageTrial, shows: bool) -> tuple[_Observation, _Observation]:
    """Return the observations of compute and communication of a stage; `shows`: communication is visible."""
    busy_s = visit.measured.busy_s
    if shows and visit.measured.communicate_s > 0:
        return _Observation(visit.count, visit.measured.compute_s), _Observation(visit.count, busy_s)
    return _Observation(visit.count, busy_s), _Observation(visit.count, busy_s, is_most=True)


def _fit(side: _Side, halves: int | None = None) -> None:
    """Fit one side to its observations. [3] With `halves`, items n and halves + n have the same divided share."""
    groups = [(np.array(items), told) for items, told in side.observed.items()]
    targets = [(items, target) for items, told in groups for target in _targets(side, items, told)]
    for _ in range(ROUNDS):
        off = 0.0
        for items, target in targets:
            off = max(off, target.apply(side, items))
        if halves is not None:
            _share_parts(side, halves)
        if off < CLOSE:
            return


def _share_parts(side: _Side, half: int) -> None:
    """Give the parameters and the input of each layer the same divided share: a layer has one beta."""
    seconds = (side.fixed + side.divided).reshape(2, half)
    whole_s = seconds.sum(axis=0)
    share = np.divide(side.divided.reshape(2, half).sum(axis=0), whole_s, out=np.zeros(half), where=whole_s > 0)
    side.divided = (share * seconds).reshape(-1)
    side.fixed = ((1 - share) * seconds).reshape(-1)


@dataclass(frozen=True)
class _Total:
    """A target for the seconds of some items with `count` units: exactly these, or at most these if `is_most`."""

    count: int
    seconds: float
    is_most: bool

    def apply(self, side: _Side, items: Ints) -> float:
        """Scale the items to the target, and return the relative error before that."""
        now_s = side.seconds(items, self.count)
        if now_s == self.seconds or (self.is_most and now_s <= self.seconds):
            return 0.0
        if now_s == 0.0:
            side.divided[items] += self.seconds * self.count / len(items)
            return 1.0
        ratio = self.seconds / now_s
        side.fixed[items] *= ratio
        side.divided[items] *= ratio
        return abs(ratio - 1)


class _Parts(NamedTuple):
    """A target for the fixed and the divided seconds of some items."""

    fixed_s: float
    divided_s: float

    def seconds(self, count: int) -> float:
        return self.fixed_s + self.divided_s / count

    def apply(self, side: _Side, items: Ints) -> float:
        off = 0.0
        for part, other, target_s in (
            (side.fixed, side.divided, self.fixed_s),
            (side.divided, side.fixed, self.divided_s),
        ):
            now_s = float(part[items].sum())
            if now_s > 0:
                part[items] *= target_s / now_s
            elif target_s > 0:
                like = other[items] if other[items].sum() > 0 else np.ones(len(items))
                part[items] = target_s * like / like.sum()
            whole_s = self.fixed_s + self.divided_s
            off = max(off, abs(now_s - target_s) / whole_s if whole_s > 0 else now_s)
        return off


def _targets(side: _Side, items: Ints, told: Sequence[_Observation]) -> Iterator[_Total | _Parts]:
    """Derive the targets for the seconds of the same layers from their observations. [2]"""
    exact = [one for one in told if not one.is_most]
    most = [one for one in told if one.is_most]
    if not exact:
        yield from (_Total(one.count, one.seconds, is_most=True) for one in most)
        return
    fitted = _parts(exact)
    if max((one.excess(fitted or _scaled(side, items, exact)) for one in most), default=0.0) > CLOSE:
        # There are two parts, and exact observations leave at most one of them free: at most one bound is tight.
        candidates = [parts for one in most if (parts := _parts([*exact, one])) is not None]
        fitted = min(candidates, key=lambda parts: max(one.excess(parts) for one in most), default=fitted)
    if fitted is not None:
        yield fitted
        return
    yield from (_Total(one.count, one.seconds, is_most=False) for one in exact)


def _scaled(side: _Side, items: Ints, told: Sequence[_Observation]) -> _Parts:
    """Return both parts, scaled by one common factor to the observations."""
    ratios = [one.seconds / now_s for one in told if (now_s := side.seconds(items, one.count)) > 0]
    ratio = sum(ratios) / len(ratios) if ratios else 0.0
    return _Parts(float(side.fixed[items].sum()) * ratio, float(side.divided[items].sum()) * ratio)


def _parts(told: Sequence[_Observation]) -> _Parts | None:
    """Fit both parts by least squares of relative errors, in which bounds have a low weight.

    None if the counts are too close to each other.
    """
    counts = [one.count for one in told]
    if not counts or max(counts) < APART * min(counts) or any(one.seconds <= 0 for one in told):
        return None
    weights = np.array([1e-2 if one.is_most else 1.0 for one in told])
    rows = np.array([[1 / one.seconds, 1 / one.count / one.seconds] for one in told])
    (fixed_s, divided_s), _ = nnls(rows * weights[:, None], weights)
    return _Parts(float(fixed_s), float(divided_s))


def _corrected(
    layer: LayerProfile, number: int, visited: dict[str, bool], sides: dict[str, tuple[_Side, _Side]]
) -> LayerProfile:
    costs = dict(layer.costs)
    for resource, only_emulated in visited.items():
        cost, (compute, comm) = costs[resource], sides[resource]
        half = len(compute.fixed)
        compute_s = float(compute.fixed[number] + compute.divided[number])
        sync_s = float(comm.fixed[number] + comm.divided[number])
        input_s = float(comm.fixed[half + number] + comm.divided[half + number])
        comm_divided = float(comm.divided[number] + comm.divided[half + number])
        costs[resource] = cost.model_copy(
            update={
                "compute_s": compute_s,
                "alpha": _share(float(compute.divided[number]), compute_s, cost.alpha),
                "sync_s": sync_s,
                "input_s": input_s,
                "beta": _share(comm_divided, sync_s + input_s, cost.beta),
                "compute_fixed_s": _grown(cost.compute_fixed_s, cost.compute_s, compute_s),
                "sync_fixed_s": _grown(cost.sync_fixed_s, cost.sync_s, sync_s),
                "input_fixed_s": _grown(cost.input_fixed_s, cost.input_s, input_s),
                "estimated": cost.estimated and only_emulated,
                "corrected": True,
            }
        )
    return layer.model_copy(update={"costs": costs})


def _share(part_s: float, whole_s: float, before: float) -> float:
    return min(part_s / whole_s, 1.0) if whole_s > 0 else before


def _grown(fixed_s: float, before_s: float, after_s: float) -> float:
    """Scale the seconds that do not grow with the batch, so that their share stays the same."""
    return min(fixed_s * after_s / before_s, after_s) if before_s > 0 else 0.0
