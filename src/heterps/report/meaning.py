"""What the numbers of a run mean: metrics with a verdict, and predictions beside measurements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from heterps.config.launchers import has_workers
from heterps.planning.plan import Plan
from heterps.report.figures import batch_time, duration, rate, ratio, usd, whole
from heterps.training.metrics.metrics import better

COMPLETED = "completed"
STOPPED_EARLY = "stopped early"
DIVERGED = "diverged"  # all samples were trained on, and the model became worse
FINISHED = (COMPLETED, STOPPED_EARLY, DIVERGED)
"""The status of a run that needs nothing more."""
RUNNING = "running"  # as `heterps ui` shows it; no file says so
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
    needs: str = "samples"  # to be defined
    show: Callable[[float | None], str] = ratio

    def of(self, label: str) -> Measure:
        """The same metric of one of several labels."""
        return replace(self, field=f"{label}/{self.field}", title=f"{label}: {self.title}") if label else self

    def at(self, field: str) -> Measure:
        """The same metric of the k highest scores, for a field such as ndcg@10."""
        _, at, k = field.partition("@")
        return replace(self, field=field, title=f"{self.title}{at}{k}")

    @property
    def is_loss(self) -> bool:
        return self.field.rpartition("/")[2] in ("loss", "log_loss")


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


def _judge_r2(value: float) -> str:
    if value > 0:
        return f"{value:.1%} of the variance of the labels is explained"
    return "no better than always saying the mean label: it has not learned"


def _measures_of_loss(label: str, shares: str, needs: str) -> tuple[Measure, Measure]:
    """Log loss and normalised entropy, in words for two classes or for more."""
    mean = f"Mean of −log of the probability given to the true {label}."
    over = f"Log loss over that of always predicting the share of {shares}: below 1 has learned."
    return (
        Measure("log_loss", "Log loss", mean, lambda _: "nats a sample; lower is better", needs),
        Measure("normalised_entropy", "Normalised entropy", over, _judge_entropy, needs),
    )


_AUC = "The chance that a positive sample scores above a negative one: 0.5 is chance, 1 is perfect."
_CALIBRATION = "Mean prediction over mean label: above 1 predicts too many positives."
BOTH = "samples of both labels"
MEASURES = (
    Measure("auc", "AUC", _AUC, _judge_auc, BOTH),
    *_measures_of_loss("label", "positives", BOTH),
    Measure("calibration", "Calibration", _CALIBRATION, _judge_calibration, BOTH),
)

ACCURACY = "accuracy"
_TOLD_RIGHT = "The share of samples whose class has the highest score."
TWO = "samples of two classes"
CLASS_MEASURES = (
    Measure(ACCURACY, "Accuracy", _TOLD_RIGHT, lambda value: f"{value:.1%} of samples are told right", TWO),
    *_measures_of_loss("class", "each class", TWO),
)
"""The metrics of a model that tells more than two classes apart, instead of MEASURES."""

_LOSS = "What training minimises: the mean over samples, over several labels their weighted sum."
_ROOT = "Root of the mean squared error, in units of the label: large errors count more."
_ABSOLUTE = "Mean of the error's size, in units of the label."
_R2 = "Share of the labels' variance that the predictions explain: 1 is perfect, 0 is always saying the mean."
_DEVIANCE = "Mean Poisson deviance: 0 is perfect."
_MEAN_PREDICTION = "Mean of the predictions: near the mean label if they are right on average."
_GAUC = "Mean over users of the AUC of their own samples, weighted by their number; users of one label are left out."
_NDCG = "Gain of the k highest scores of a user, discounted by rank, over that of the best order; mean over users."
_HITS = "Share of users with a positive sample that have one among their k highest scores."
REAL_MEASURES = (
    Measure("rmse", "RMSE", _ROOT, lambda _: "in units of the label; lower is better"),
    Measure("mae", "MAE", _ABSOLUTE, lambda _: "in units of the label; lower is better"),
    Measure("deviance", "Deviance", _DEVIANCE, lambda _: "0 is perfect; lower is better"),
    Measure("loss", "Loss", _LOSS, lambda _: "what is minimised; lower is better"),
    Measure("r2", "R²", _R2, _judge_r2, "labels that differ"),
    Measure("mean_label", "Mean label", "Mean of the labels.", lambda _: "of these samples"),
    Measure("mean_prediction", "Mean prediction", _MEAN_PREDICTION, lambda _: "should be near the mean label"),
)
"""The metrics of predicted numbers, and the loss of several labels, in the order that summaries have them."""

RANKING_MEASURES = (
    Measure(
        "gauc", "GAUC", _GAUC, lambda value: f"{value:.1%} of a user's pairs are ranked right", "users of both labels"
    ),
    Measure("ndcg", "NDCG", _NDCG, lambda _: "1 is the best order", "users with a label above 0"),
    Measure("hit_rate", "Hit rate", _HITS, lambda value: f"{value:.1%} of users find one", "users with a label 1"),
    Measure("users", "Users", "Number of users that were ranked.", lambda _: "whose samples were ranked", show=whole),
)
"""The metrics of rankings by user; NDCG and hit rate have `@k` after their names."""

NOT_OF_OWN_LOSS = ("log_loss", "normalised_entropy", "calibration", "loss", "deviance")
"""Metrics that say little of a model with a loss of its own."""


def measures_in(figures: dict[str, Any]) -> tuple[Measure, ...]:
    """The metrics that a summary, or a line of metrics.jsonl, has: label by label where there are several."""
    known = {m.field: m for m in (*MEASURES, *CLASS_MEASURES, *REAL_MEASURES, *RANKING_MEASURES)}
    fields: dict[str, list[str]] = {}  # by label, which is "" where there is only one
    for name in figures:
        label, _, field = name.rpartition("/")
        if field.partition("@")[0] in known:
            fields.setdefault(label, []).append(field)
    several = [label for label in fields if label]
    found = [measure.of(label) for label in several or [""] for measure in _measures_of(fields.get(label, []))]
    return (*found, known["loss"]) if several else tuple(found)


def _measures_of(fields: list[str]) -> tuple[Measure, ...]:
    """The metrics of one label, given the fields that a summary has of it."""
    if ACCURACY in fields:
        return CLASS_MEASURES
    ranked = tuple(m.at(field) for m in RANKING_MEASURES for field in fields if field.partition("@")[0] == m.field)
    if "rmse" in fields:
        real = {measure.field: measure for measure in REAL_MEASURES}
        return (*(real[field] for field in fields if field in real), *ranked)
    return (*MEASURES, *ranked)


def headline(figures: dict[str, Any]) -> tuple[str, float | None]:
    """The name and the value of the first metric, such as AUC, accuracy or RMSE; None: undefined."""
    measure = measures_in(figures)[0]
    return measure.title, figures.get(measure.field)


def in_sentence(title: str) -> str:
    """The title of a metric inside a sentence: accuracy, but AUC and click: AUC."""
    return title if any(letter.isupper() for letter in title[1:]) else title.lower()


def named(field: str, figures: dict[str, Any]) -> str:
    """The name of a metric inside a sentence, of which `figures` have the field."""
    return next((in_sentence(measure.title) for measure in measures_in(figures) if measure.field == field), field)


def verdict(measure: Measure, value: float, summary: dict[str, Any]) -> str:
    """What the value of a metric means; what a model with a loss of its own is not trained for is not judged."""
    if summary.get("own_loss") and measure.field.rpartition("/")[2] in NOT_OF_OWN_LOSS:
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
    interval: tuple[float, float] | None = None  # in which 9 of 10 measurements are expected
    is_term: bool = False  # of a sum: its error is a difference, for a term may be 0 or, where others overlap, less

    @property
    def error(self) -> float | None:
        """Measured over predicted, less one; None without a prediction."""
        if self.is_term and self.predicted == 0:
            return 0.0
        return self.measured / self.predicted - 1 if self.predicted else None

    @property
    def verdict(self) -> str:
        """The error in words, and whether the measurement lies in the interval of the prediction."""
        if self.error is None:
            return "no prediction"
        if self.interval is None:
            return self._error_words
        low, high = self.interval
        where = "inside" if low <= self.measured <= high else "outside"
        return f"{self._error_words}, {where} {self.show(low)}-{self.show(high)}"

    @property
    def _error_words(self) -> str:
        assert self.error is not None
        assert self.predicted is not None
        if self.is_term:
            more_s = self.measured - self.predicted
            return f"{self.show(abs(more_s))} {self.too_much if more_s > 0 else self.too_little}"
        if abs(self.error) < AS_PREDICTED:
            return "as predicted"
        if self.error >= 1:
            return f"{1 + self.error:.1f} times the prediction"
        return f"{abs(self.error):.1%} {self.too_much if self.error > 0 else self.too_little}"


def compare(summary: dict[str, Any]) -> list[PredictionCheck]:
    """Checks throughput, time and cost of the samples trained so far: a stopped run is not held to the whole job.

    A plan is predicted for batches that overlap. Those of BSP wait for each other, which is predicted beside it. Where
    the prediction has terms, the seconds of a batch are checked term by term.
    """
    samples, seconds = summary["samples"], summary["seconds"]
    throughput = summary["predicted_throughput"] or None
    predicted_s = samples / throughput if throughput else None
    predicted_usd = summary["predicted_usd"]
    if summary["status"] != COMPLETED:  # the plan's units cost the same in every second
        predicted_usd = summary["measured_usd"] / seconds * predicted_s if predicted_s and seconds else None
    measured, in_rounds = summary["measured_throughput"], summary.get("predicted_in_rounds")
    return [
        PredictionCheck("Samples/s", throughput, measured, rate, "faster", "slower", _interval(summary)),
        *([PredictionCheck("In rounds (BSP)", in_rounds, measured, rate, "faster", "slower")] if in_rounds else []),
        PredictionCheck("Time", predicted_s, seconds, duration, "longer", "shorter"),
        PredictionCheck("Cost", predicted_usd, summary["measured_usd"], usd, "dearer", "cheaper"),
        *_terms(summary),
    ]


def _interval(summary: dict[str, Any]) -> tuple[float, float] | None:
    low, high = (summary.get(f"predicted_throughput_{end}") for end in ("low", "high"))
    return None if low is None or high is None else (low, high)


def _terms(summary: dict[str, Any]) -> list[PredictionCheck]:
    """Checks the seconds of a batch by term. What was measured in one is predicted by the sum of its terms.

    A worker in one process with its tables does not tell layers and tables apart; others take servers for a part of the
    network where nobody has counted their seconds.
    """
    predicted, measured = summary.get("predicted_terms"), summary.get("measured_terms")
    if predicted is None or measured is None:
        return []
    groups = {"Compute": ["compute_s"], "Servers": ["servers_s"], "Network": ["network_s"], "Overhead": ["overhead_s"]}
    if not has_workers(summary.get("launcher")):
        groups = {"Compute, tables": ["compute_s", "servers_s"], "Overhead": ["network_s", "overhead_s"]}
    elif "servers_s" not in measured:
        groups = groups | {"Network": ["servers_s", "network_s"]}
        del groups["Servers"]

    def total(terms: dict[str, float], names: list[str]) -> float:
        return sum(terms.get(name, 0.0) for name in names)

    return [
        PredictionCheck(
            title, total(predicted, names), total(measured, names), batch_time, "more a batch", "less a batch",
            is_term=True,
        )
        for title, names in groups.items()
    ]  # fmt: skip


def follows_plan(summary: dict[str, Any]) -> bool:
    """Whether the run was on workers, by the plan in its folder; an inline run is one process, whatever its plan."""
    return "stages" in summary and has_workers(summary.get("launcher"))


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
    before = "each sample before it was learned from"
    if summary.get("epochs", 0) > 1 or (summary.get("epochs", 0) == 1 and summary["status"] not in FINISHED):
        before = "most samples were learned from before"
    best = summary.get("validation", {}).get("best", {}).get("samples")
    return {
        "test": "test set" + (f" (the best model, of {best:,} samples)" if best is not None else ""),
        "validation": f"samples for validation (the best model, of {best or 0:,} samples)",
        "train": f"training stream ({before})",
        "interval": f"last interval ({before})",
    }[summary["metrics_of"]]


def over_fitting(summary: dict[str, Any]) -> str | None:
    """A sentence if the model does clearly better on samples it has learned from, or has become worse on others."""
    measure = measures_in(summary)[0]
    validation, train = summary.get("validation"), summary.get("train", {}).get(measure.field)
    if validation is not None:
        name, last = validation["metric"], validation["last"]
        best, now = validation["best"][name], last[name]
        if validation["stopped_early"]:
            return None  # it was seen in time
        if validation["since_best"] >= 2 and best is not None and now is not None and _is_far(best, now):
            return (
                f"the model over-fits: {named(name, last)} of the validation was {ratio(best)} after "
                f"{validation['best']['samples']:,} samples and is {ratio(now)} after {last['samples']:,}. Stop early "
                "with validation.patience, or regularise: weight decay, dropout, fewer dimensions."
            )
        return None
    found = summary.get(measure.field)
    if summary["metrics_of"] != "test" or summary.get("epochs", 1) < 2 or found is None or train is None:
        return None
    if better(measure.field, train, found) and _is_far(train, found):
        return (
            f"the model over-fits: {measure.title} is {ratio(train)} on the samples of {summary['epochs']} epochs of "
            f"training and {ratio(found)} on the test set. Name data.validation to see from when on, and train for "
            "fewer epochs."
        )
    return None


def _is_far(one: float, other: float) -> bool:
    return abs(one - other) > 0.03 * max(abs(one), abs(other))


def against_teacher(summary: dict[str, Any]) -> str | None:
    """How near the first metric is to the teacher's, which no model can beat; None: not known."""
    field = measures_in(summary)[0].field
    if field.rpartition("/")[2] == "rmse" and "teacher_rmse" in summary:
        return f"the teacher has {summary['teacher_rmse']:.4f}, the best that is possible"
    auc = summary.get(field) if field.rpartition("/")[2] == "auc" else None
    teacher = summary.get("teacher_auc")
    if auc is None or teacher is None or teacher <= 0.5:
        return None
    if auc <= 0.5:
        return f"no better than chance; the teacher has {teacher:.4f}"
    return f"{(auc - 0.5) / (teacher - 0.5):.0%} of the way from chance to teacher {teacher:.4f}"


def usd_without(summary: dict[str, Any]) -> str:
    """What is paid for and not part of the measured cost, in words; nothing if that is all."""
    names = summary.get("measured_usd_without", ())
    return f"measured without {', '.join(names)}" if names else ""


def usd_per_billion(summary: dict[str, Any]) -> str:
    """The cost of a billion samples, in words: comparable between runs of any length."""
    return f"{usd(summary['measured_usd'] / summary['samples'] * 1e9)} a billion samples" if summary["samples"] else ""
