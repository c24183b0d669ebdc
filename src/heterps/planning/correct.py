"""The profile, corrected by what trials measured: compute_s and alpha, sync_s, input_s and beta of what was visited.

    [1] Every stage of every trial says what its layers take on k units, on each side of max(CT, DT):

            fixed[a] + .. + fixed[b]  +  (divided[a] + .. + divided[b]) / k  =  measured seconds

    [2] Two counts of the same layers, well apart: least squares gives the fixed and the divided sum, and so alpha.
        One count gives their sum at that count, and alpha stays.
    [3] Proportional fitting: every sum in turn scales what it is made of by (what it should be) / (what it is), until
        all hold. Layers that are in several stages are so corrected by all of them, and none by more than it must.

What a worker of real units tells is computing, and the communication that computing did not hide. Where communication
shows, both sides are known: CT = compute, DT = compute + communication. Where it hardly does, DT is at most what the
worker was busy for. An emulated unit is busy for max(CT, DT) and tells no sides: both are scaled alike. Servers tell
nothing of their work, so that server_s stays.
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
"""The factor, or one over it, that a trial may change the seconds of a stage by: a trial can go wrong altogether."""

VISIBLE = 0.05
"""Share of a worker's busy time from which on communication shows where the profile says that computing hides it."""

APART = 1.5
"""Ratio of two counts from which on they tell what more units divide; nearer ones would tell their noise."""

ROUNDS = 300
CLOSE = 1e-6  # relative


@dataclass(frozen=True)
class _StageTrial:
    """Of a stage, in a trial."""

    count: int
    measured: StageSeconds
    is_emulated: bool


@dataclass(frozen=True)
class _Observation:
    """What a trial tells of a stage on one side: so many seconds with so many units, or no more than that."""

    count: int
    seconds: float
    is_most: bool = False

    def excess(self, parts: _Parts) -> float:
        """By how much the parts are above it, relative to it."""
        return max(parts.seconds(self.count) / self.seconds - 1, 0.0) if self.seconds > 0 else 0.0


@dataclass
class _Side:
    """Seconds of one side, on one resource: compute [N], or communication [2 N], of layers and then of their inputs."""

    fixed: Floats
    divided: Floats
    told: dict[tuple[int, ...], list[_Observation]] = field(default_factory=dict)  # by what is added up

    def seconds(self, items: Ints, count: int) -> float:
        return float(self.fixed[items].sum() + self.divided[items].sum() / count)


def correct(profile: Profile, cluster: Cluster, trials: Sequence[Trial]) -> Profile:
    """`profile`, for the batch size of the plans that were tried, with costs that predict what `trials` measured.

    Costs that no trial visited stay. Those that one did are marked `corrected`, and are no longer `estimated` unless
    the trial was an emulation, which knows nothing but the profile. A resource that has its costs from its kind
    corrects those. No cost becomes negative, and no trial changes what a stage takes by more than BOUND.
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
        _tell(*sides.setdefault(source, _sides(profile, source)), np.arange(first, last + 1), of_stage)
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


def _tell(compute: _Side, comm: _Side, layers: Ints, visits: Sequence[_StageTrial]) -> None:
    """[1] of the trials of one stage."""
    moved = np.append(layers, len(compute.fixed) + layers[0])
    of_compute = compute.told[tuple(layers.tolist())] = []
    of_comm = comm.told[tuple(moved.tolist())] = []
    real = [visit.measured for visit in visits if not visit.is_emulated]
    shows = any(measured.communicate_s > VISIBLE * measured.busy_s for measured in real)
    for number, visit in enumerate(visits, 1):
        compute_s, comm_s = compute.seconds(layers, visit.count), comm.seconds(moved, visit.count)
        most_s = BOUND**number * max(compute_s, comm_s) or math.inf

        def bounded(seconds: float, predicted_s: float, most_s: float = most_s, number: int = number) -> float:
            return min(max(seconds, predicted_s / BOUND**number), most_s)

        if visit.is_emulated:
            told_compute, told_comm = _emulated_sides(visit, compute_s, comm_s)
        else:
            told_compute, told_comm = _real_sides(visit, shows or comm_s > compute_s)
        of_compute.append(replace(told_compute, seconds=bounded(told_compute.seconds, compute_s)))
        of_comm.append(replace(told_comm, seconds=bounded(told_comm.seconds, comm_s)))


def _emulated_sides(visit: _StageTrial, compute_s: float, comm_s: float) -> tuple[_Observation, _Observation]:
    """Of compute and communication, which are predicted to take so long."""
    busy_s, predicted_s = visit.measured.busy_s, max(compute_s, comm_s)
    if predicted_s == 0:
        return _Observation(visit.count, busy_s), _Observation(visit.count, 0.0)
    ratio = busy_s / predicted_s
    return _Observation(visit.count, ratio * compute_s), _Observation(visit.count, ratio * comm_s)


def _real_sides(visit: _StageTrial, shows: bool) -> tuple[_Observation, _Observation]:
    """Of compute and communication, if that `shows` at all."""
    busy_s = visit.measured.busy_s
    if shows and visit.measured.communicate_s > 0:
        return _Observation(visit.count, visit.measured.compute_s), _Observation(visit.count, busy_s)
    return _Observation(visit.count, busy_s), _Observation(visit.count, busy_s, is_most=True)


def _fit(side: _Side, halves: int | None = None) -> None:
    """[3] `halves`: items n and halves + n share what part of them more units divide."""
    groups = [(np.array(items), told) for items, told in side.told.items()]
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
    """A layer has one beta, for its parameters and its input."""
    seconds = (side.fixed + side.divided).reshape(2, half)
    whole_s = seconds.sum(axis=0)
    share = np.divide(side.divided.reshape(2, half).sum(axis=0), whole_s, out=np.zeros(half), where=whole_s > 0)
    side.divided = (share * seconds).reshape(-1)
    side.fixed = ((1 - share) * seconds).reshape(-1)


@dataclass(frozen=True)
class _Total:
    """The seconds of some items with so many units should be these, or at most these."""

    count: int
    seconds: float
    is_most: bool

    def apply(self, side: _Side, items: Ints) -> float:
        """Scale to it; and how far off it was."""
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
    """The fixed and the divided seconds of some items should be these."""

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
    """[2] What the seconds of the same layers should be."""
    exact = [one for one in told if not one.is_most]
    most = [one for one in told if one.is_most]
    if not exact:
        yield from (_Total(one.count, one.seconds, is_most=True) for one in most)
        return
    fitted = _parts(exact)
    if max((one.excess(fitted or _scaled(side, items, exact)) for one in most), default=0.0) > CLOSE:
        # two parts, and what is exact leaves at most one of them open: one bound at most is met exactly
        candidates = [parts for one in most if (parts := _parts([*exact, one])) is not None]
        fitted = min(candidates, key=lambda parts: max(one.excess(parts) for one in most), default=fitted)
    if fitted is not None:
        yield fitted
        return
    yield from (_Total(one.count, one.seconds, is_most=False) for one in exact)


def _scaled(side: _Side, items: Ints, told: Sequence[_Observation]) -> _Parts:
    """Both parts as they are, but for one factor."""
    ratios = [one.seconds / now_s for one in told if (now_s := side.seconds(items, one.count)) > 0]
    ratio = sum(ratios) / len(ratios) if ratios else 0.0
    return _Parts(float(side.fixed[items].sum()) * ratio, float(side.divided[items].sum()) * ratio)


def _parts(told: Sequence[_Observation]) -> _Parts | None:
    """By least squares of relative errors, in which bounds weigh little; None where the counts are too near each other
    to tell."""
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
    """What does not grow with the batch stays the same share of the seconds."""
    return min(fixed_s * after_s / before_s, after_s) if before_s > 0 else 0.0
