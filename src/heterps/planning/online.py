"""The online phase of a search: short trials of its plans replace the cost model's bills.

    before                search --> schedules --> bills of the cost model --> search
    on-line               search --> schedule
                           ^          [1] counts for it, by the profile as corrected so far
                           |          [2] a trial, unless this plan had one
                           |          [3] the profile is corrected by all trials so far (correct.py)
                           +-- bill   [4] below the floor: once more, with the counts of the corrected profile

The cost model knows single stations only: a pipeline that fills and drains is slower than its slowest station.
`reached` is the fraction of that station's throughput that whole runs reach, the median of all trials; counts are
chosen for floor / reached. The corrected profile keeps it, and later trials begin with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import mean, median

import numpy as np

from heterps.errors import ConfigError, HeterpsError
from heterps.planning.api import QUICK_S, compare
from heterps.planning.bill import bill, bill_at
from heterps.planning.correct import correct
from heterps.planning.cost import Problem, Schedules
from heterps.planning.infeasible import explain_infeasible
from heterps.planning.plan import Plan
from heterps.planning.provisioners.base import Bills, to_plan
from heterps.planning.provisioners.exact import exact
from heterps.planning.schedulers import make_scheduler
from heterps.planning.schedulers.base import SearchBudget, Unproven, search
from heterps.planning.schedulers.changes import Changes
from heterps.planning.trial import RunTrial, Trial, TrialStopped
from heterps.profiling.profile import Profile

NOISE = 0.02
"""Relative shortfall at which a trial still counts as meeting the floor: short runs are no more precise."""

LEAST_REACHED = 0.25
MOST_BATCH = 4  # trials between two feedbacks
UNTRIED = 1e3
"""Violation of a schedule for which no trial was left: larger than that of all schedules that were tried."""


@dataclass(frozen=True)
class Attempt:
    """A plan that was tried, with its predicted bill, and the measurement, or the reason why there is none."""

    plan: Plan
    trial: Trial | None
    hours: float = 0.0  # of the whole job at the measured throughput, as usd is
    usd: float = 0.0
    keeps_floor: bool = False
    reason: str = ""

    @property
    def throughput(self) -> float:
        return self.trial.throughput if self.trial is not None else 0.0

    @property
    def error(self) -> float:
        """Relative error of the predicted throughput: 0.1 means 10 % too high."""
        return self.plan.throughput / self.throughput - 1 if self.throughput > 0 else 0.0


@dataclass(frozen=True)
class Measurement:
    """The result of all trials."""

    attempts: tuple[Attempt, ...]
    best: Attempt  # the cheapest that meets the floor; if none does, the fastest
    optimum: Plan  # the cheapest plan by the given profile
    profile: Profile  # the corrected profile
    reached: float  # fraction of the slowest station's throughput that whole runs reach
    error_before: float  # mean relative error of the given profile's predictions for all trials
    error_after: float  # the same for the corrected profile and `reached`
    stopped_by: str | None = None

    @property
    def plan(self) -> Plan:
        """The best plan, with its measured bill."""
        trial = self.best.trial
        assert trial is not None
        how = "emulated trial" if trial.is_emulated else "trial"
        bill = {"throughput": trial.throughput, "hours": self.best.hours, "usd": self.best.usd, "measured": how}
        return self.best.plan.model_copy(update=bill)


def measure(
    problem: Problem,
    run: RunTrial,
    *,
    trials: int = 8,
    method: str = "rl",
    seed: int = 0,
    evaluations: int | None = None,
    seconds: float | None = 60.0,
    on_trial: Callable[[int, Plan], None] = lambda _number, _plan: None,
) -> Measurement:
    """Search by the cost model, for `evaluations` bills or `seconds`, then measure up to `trials` plans with `run`.

    `on_trial` is called with the number and the plan of each trial before it starts. It ends early, with the results so
    far, if the search has no new plan, or if `run` raises TrialStopped or KeyboardInterrupt. An error of the first
    trial is raised; an error of a later one becomes the reason of its attempt. Raises PlanInfeasible if there is no
    plan by the given profile.
    """
    optimum = compare(problem, others="none", seconds=QUICK_S).chosen
    scheduler = make_scheduler(method, problem, seed)
    if not isinstance(scheduler, Changes):
        raise ConfigError(f"trials are for the methods rl, rl-scratch, rl-rnn and changes, and {method!r} is none.")
    found = search(problem, scheduler, SearchBudget(evaluations, seconds))
    if found.schedule is None:
        raise explain_infeasible(problem, method, provisioner="exact", finished=found.finished)
    scheduler.start_trials(batch=min(max(trials // 4, 1), MOST_BATCH))
    tried = Trials(problem, run, trials, method, on_trial)
    search(problem, _UntilTrialsEnd(scheduler, tried), SearchBudget(), provisioner=tried)
    return tried.result(optimum)


class _UntilTrialsEnd(Unproven):
    """A scheduler that ends with the trials."""

    def __init__(self, scheduler: Changes, trials: Trials) -> None:
        self._scheduler, self._trials = scheduler, trials

    def propose(self) -> Schedules | None:
        return None if self._trials.is_over else self._scheduler.propose()

    def feedback(self, schedules: Schedules, bills: Bills) -> None:
        self._scheduler.feedback(schedules, bills)


class Trials:
    """A provisioner whose bills are measured by trials."""

    def __init__(
        self, problem: Problem, run: RunTrial, most: int, method: str, on_trial: Callable[[int, Plan], None]
    ) -> None:
        self._given, self._run, self._most, self._method, self._on_trial = problem, run, most, method, on_trial
        self._profile, self._reached = problem.given, problem.given.reached or 1.0
        self._attempts: list[Attempt] = []
        self._by_plan: dict[object, Attempt] = {}
        self._stopped_by: str | None = None

    @property
    def is_over(self) -> bool:
        return self._stopped_by is not None or len(self._attempts) >= self._most

    def __call__(self, problem: Problem, schedules: Schedules) -> Bills:
        """Return the measured bills of the schedules. `problem` must be the given one."""
        assert problem is self._given
        rows = [self._bill(schedule) for schedule in schedules]
        return Bills(*(np.concatenate([getattr(row, field) for row in rows]) for field in Bills.__dataclass_fields__))

    def result(self, optimum: Plan) -> Measurement:
        measured = [attempt for attempt in self._attempts if attempt.trial is not None]
        if not measured:
            raise KeyboardInterrupt
        keeping = [attempt for attempt in measured if attempt.keeps_floor]
        best = min(keeping, key=lambda a: a.usd) if keeping else max(measured, key=lambda a: a.throughput)
        before = _mean_error(self._given, measured, 1.0)
        after = _mean_error(self._problem(1.0), measured, self._reached)
        policy = self._given.conditions.sync if self._given.conditions is not None else None
        told = {"reached": self._reached, "reached_for": policy.label if policy is not None else None}
        profile = self._profile.model_copy(update={"version": 2, **told})
        return Measurement(
            tuple(self._attempts), best, optimum, profile, self._reached, before, after, self._stopped_by
        )

    def _problem(self, reached: float) -> Problem:
        """The problem with the profile as corrected so far, and a floor for the slowest station."""
        given = self._given
        floor = given.throughput / reached
        return Problem(self._profile, given.cluster, floor, given.samples, given.epochs, conditions=given.conditions)

    def _bill(self, schedule: Schedules) -> Bills:
        """Return the bill of one schedule as measured by its trial."""
        best: tuple[Attempt, Bills] | None = None
        for _ in range(2):  # [4]
            problem = self._problem(self._reached)
            bills = exact(problem, schedule[None])  # [1]
            if not np.isfinite(bills.usd[0]):
                return best[1] if best else bills
            if self.is_over:
                break
            attempt = self._attempt(self._predicted(to_plan(problem, schedule, bills.counts[0], self._method)))
            if attempt is None:
                break
            if best is None or attempt.throughput > best[0].throughput:
                best = attempt, self._measured_bills(attempt, bills)
            if attempt.keeps_floor or attempt.trial is None:
                break
        return best[1] if best else replace(bills, usd=np.array([np.inf]), violation=np.array([UNTRIED]))

    def _predicted(self, plan: Plan) -> Plan:
        """Return the plan with the predicted bill of a whole run."""
        throughput = plan.throughput * self._reached
        billed = bill_at(self._given, plan.stages, plan.servers.count, throughput)
        return plan.model_copy(update={"throughput": throughput, "hours": billed.hours, "usd": billed.usd})

    def _measured_bills(self, attempt: Attempt, bills: Bills) -> Bills:
        short = UNTRIED
        if attempt.throughput > 0:
            short = 0.0 if attempt.keeps_floor else self._given.throughput / attempt.throughput - 1
        usd = attempt.usd if attempt.keeps_floor else np.inf
        return Bills(np.array([usd]), np.array([attempt.throughput]), bills.counts, np.array([short]))

    def _attempt(self, plan: Plan) -> Attempt | None:
        """Try a plan [2] and correct the profile [3]; None if the user wants no more trials."""
        key = plan.stages, plan.servers
        if key in self._by_plan:
            return self._by_plan[key]
        self._on_trial(len(self._attempts) + 1, plan)
        try:
            attempt = self._judged(plan, self._run(plan))
        except (TrialStopped, KeyboardInterrupt) as stopped:
            self._stopped_by = str(stopped) or "SIGINT"
            return None
        except HeterpsError as error:
            if not self._attempts:
                raise
            attempt = Attempt(plan, None, reason=str(error))
        self._attempts.append(attempt)
        self._by_plan[key] = attempt
        self._correct()
        return attempt

    def _judged(self, plan: Plan, trial: Trial) -> Attempt:
        given = self._given
        billed = bill_at(given, plan.stages, plan.servers.count, trial.throughput)
        keeps_floor = trial.throughput >= given.throughput * (1 - NOISE)
        return Attempt(plan, trial, billed.hours, billed.usd, keeps_floor)

    def _correct(self) -> None:
        measured = [attempt for attempt in self._attempts if attempt.trial is not None]
        trials = [attempt.trial for attempt in measured if attempt.trial is not None]
        self._profile = correct(self._given.given, self._given.cluster, trials)
        problem = self._problem(1.0)
        shares = [attempt.throughput / _predict(problem, attempt.plan) for attempt in measured]
        self._reached = min(max(median(shares), LEAST_REACHED), 1.0) if shares else 1.0


def _predict(problem: Problem, plan: Plan) -> float:
    return bill(problem, plan.stages, plan.servers.count).throughput


def _mean_error(problem: Problem, measured: Sequence[Attempt], reached: float) -> float:
    return mean(abs(_predict(problem, a.plan) * reached / a.throughput - 1) for a in measured)
