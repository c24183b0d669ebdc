"""What the numbers of a run mean: metrics with a verdict, and predictions beside measurements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from heterps.planning.plan import Plan
from heterps.report.figures import duration, rate, usd

COMPLETED = "completed"
UNFINISHED = "unfinished"  # neither completed nor stopped: still running, or killed
CALIBRATED = 0.02
NEARLY_CALIBRATED = 0.1
AS_PREDICTED = 0.005
UNPREDICTED = (
    "Nothing was predicted for this run. A job without a plan is predicted by its profile (`heterps profile` makes "
    "one, `profile` of the job names it), and `heterps plan` makes plans with their predictions"
)
"""What a run on workers says when nothing was predicted for it."""


@dataclass(frozen=True)
class Measure:
    """A metric of metrics.jsonl and summary.json."""

    field: str
    title: str
    meaning: str
    judge: Callable[[float], str]


def _judge_auc(value: float) -> str:
    return "no better than a coin" if value <= 0.505 else f"{value:.1%} of pairs are ranked right"


def _judge_entropy(value: float) -> str:
    if value < 1:
        return f"{1 - value:.1%} better than always saying the average"
    return f"{value - 1:.1%} worse than always saying the average: it has not learned"


def _judge_calibration(value: float) -> str:
    off = value - 1
    if abs(off) <= CALIBRATED:
        return f"good: within {CALIBRATED:.0%} of 1"
    word = "fair" if abs(off) <= NEARLY_CALIBRATED else "poor"
    return f"{word}: predicts {abs(off):.1%} too {'many' if off > 0 else 'few'} positives"


def _measures_of_loss(label: str, shares: str) -> tuple[Measure, Measure]:
    """Log loss and normalised entropy, in words for two classes or for more."""
    mean = f"Mean of −log of the probability given to the true {label}."
    over = f"Log loss over that of always predicting the share of {shares}: below 1 has learned."
    return (
        Measure("log_loss", "Log loss", mean, lambda _: "nats a sample; lower is better"),
        Measure("normalised_entropy", "Normalised entropy", over, _judge_entropy),
    )


_AUC = "The chance that a positive sample scores above a negative one: 0.5 is chance, 1 is perfect."
_CALIBRATION = "Mean prediction over mean label: above 1 predicts too many positives."
MEASURES = (
    Measure("auc", "AUC", _AUC, _judge_auc),
    *_measures_of_loss("label", "positives"),
    Measure("calibration", "Calibration", _CALIBRATION, _judge_calibration),
)

ACCURACY = "accuracy"
_TOLD_RIGHT = "The share of samples whose class has the highest score."
CLASS_MEASURES = (
    Measure(ACCURACY, "Accuracy", _TOLD_RIGHT, lambda value: f"{value:.1%} of samples are told right"),
    *_measures_of_loss("class", "each class"),
)
"""The metrics of a model that tells more than two classes apart, instead of MEASURES."""


def measures_in(figures: dict[str, Any]) -> tuple[Measure, ...]:
    """The metrics that a summary, or a line of metrics.jsonl, has."""
    return CLASS_MEASURES if ACCURACY in figures else MEASURES


def headline(figures: dict[str, Any]) -> tuple[str, float | None]:
    """The name and the value of the first metric, AUC or accuracy; None: undefined."""
    measure = measures_in(figures)[0]
    return measure.title, figures.get(measure.field)


def verdict(measure: Measure, value: float, summary: dict[str, Any]) -> str:
    """What the value of a metric means; of a model with a loss of its own, only the ranking or accuracy is judged."""
    if summary.get("own_loss") and measure.field not in ("auc", ACCURACY):
        return "not judged: the model has a loss of its own"
    return measure.judge(value)


@dataclass(frozen=True)
class PredictionCheck:
    """A quantity that the plan predicted and the run measured."""

    title: str
    predicted: float | None  # None: there was no prediction
    measured: float
    show: Callable[[float | None], str]
    too_much: str  # what it is when more was measured than predicted
    too_little: str

    @property
    def error(self) -> float | None:
        """Measured over predicted, less one; None without a prediction."""
        return self.measured / self.predicted - 1 if self.predicted else None

    @property
    def verdict(self) -> str:
        """The error in words."""
        if self.error is None:
            return "no prediction"
        if abs(self.error) < AS_PREDICTED:
            return "as predicted"
        if self.error >= 1:
            return f"{1 + self.error:.1f} times the prediction"
        return f"{abs(self.error):.1%} {self.too_much if self.error > 0 else self.too_little}"


def compare(summary: dict[str, Any]) -> list[PredictionCheck]:
    """Checks throughput, time and cost of the samples trained so far: a stopped run is not held to the whole job.

    A plan is predicted for batches that overlap. Those of BSP wait for each other, which is predicted beside it.
    """
    samples, seconds = summary["samples"], summary["seconds"]
    throughput = summary["predicted_throughput"] or None
    predicted_s = samples / throughput if throughput else None
    predicted_usd = summary["predicted_usd"]
    if summary["status"] != COMPLETED:  # the plan's units cost the same in every second
        predicted_usd = summary["measured_usd"] / seconds * predicted_s if predicted_s and seconds else None
    measured, in_rounds = summary["measured_throughput"], summary.get("predicted_in_rounds")
    return [
        PredictionCheck("Samples/s", throughput, measured, rate, "faster", "slower"),
        *([PredictionCheck("In rounds (BSP)", in_rounds, measured, rate, "faster", "slower")] if in_rounds else []),
        PredictionCheck("Time", predicted_s, seconds, duration, "longer", "shorter"),
        PredictionCheck("Cost", predicted_usd, summary["measured_usd"], usd, "dearer", "cheaper"),
    ]


def follows_plan(summary: dict[str, Any]) -> bool:
    """Whether the run was on workers, by the plan in its folder; an inline run is one process, whatever its plan."""
    return "stages" in summary and summary.get("launcher") != "inline"


def bill_of(plan: Plan) -> dict[str, float | str]:
    """The `plan` of summary.json: what a plan that was given to a run promises on the units that it rents."""
    return {"method": plan.method, "throughput": plan.throughput, "hours": plan.hours, "usd": plan.usd}


def promised(bill: dict[str, Any]) -> str:
    """What a bill of `bill_of` promises, in words."""
    samples = bill["throughput"] * bill["hours"] * 3600
    return f"{rate(bill['throughput'])} samples/s and {usd(bill['usd'])} for {samples:,.0f} samples"


def not_rented(plan: Plan) -> str:
    """A sentence on what the inline launcher does with a plan for other machines."""
    units = ", ".join(f"{name}×{count}" for name, count in plan.units.items())
    stages = "the one stage" if len(plan.stages) == 1 else f"all {len(plan.stages)} stages"
    return (
        f"the inline launcher runs {stages} of the plan in this process; {units} are not rented. Follow the plan with "
        "--launcher local, and --emulate where it has units that are not here"
    )


def metrics_of(summary: dict[str, Any]) -> str:
    """The samples that the metrics were computed on, in words."""
    return {
        "test": "test set",
        "train": "training stream (each sample before it was learned from)",
        "interval": "last interval (each sample before it was learned from)",
    }[summary["metrics_of"]]


def against_teacher(summary: dict[str, Any]) -> str | None:
    """How far the AUC is on the way from chance to the teacher's, which no model can beat; None: not known."""
    auc, teacher = summary.get("auc"), summary.get("teacher_auc")
    if auc is None or teacher is None or teacher <= 0.5:
        return None
    return f"{(auc - 0.5) / (teacher - 0.5):.0%} of the way from chance to teacher {teacher:.4f}"


def usd_per_billion(summary: dict[str, Any]) -> str:
    """The cost of a billion samples, in words: comparable between runs of any length."""
    return f"{usd(summary['measured_usd'] / summary['samples'] * 1e9)} a billion samples" if summary["samples"] else ""
