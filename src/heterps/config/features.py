"""Features: dense columns and slots that are made from columns of the data, as a job file says.

    features:
      price:      [log, standardise]                               the column price, changed before the model gets it
      age_group:  {column: age, steps: [{bucketise: 10}]}          a slot with the number of a bucket as its id
      hour:       {column: time, steps: [{date: hour}]}            a part of a date: an id in slots, a number in dense
      user_hour:  {cross: [user, hour]}                            a slot with one id for every pair of ids

`standardise` and `bucketise` need numbers that are found on the training data (data/fit.py). Once found they are
written into the step itself, `{standardise: {mean: 3.1, std: 0.7}}`: a job with these numbers is the same job, and
everybody who gets it computes the same features.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PositiveFloat, model_validator

from heterps.config.base import Frozen, Name

MAX_BUCKETS = 100_000

DatePart = Literal["year", "month", "day", "weekday", "day_of_year", "hour", "minute", "days"]


class Log(Frozen):
    """Logarithm with sign: sign(x) * log(1 + abs(x))."""

    kind: Literal["log"] = "log"


class ClipValues(Frozen):
    """Limits: values below `low` become `low`, values above `high` become `high`."""

    kind: Literal["clip"] = "clip"
    low: float | None = Field(None, description="Lowest value; null: none.")
    high: float | None = Field(None, description="Highest value; null: none.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.low is None and self.high is None:
            raise ValueError("clip needs low, high or both: {clip: [0, 100]}")
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise ValueError(f"clip: low ({self.low:g}) must be below high ({self.high:g})")
        return self


class Standardise(Frozen):
    """Unit scale: (x - mean) / std. Without numbers, those of the training data."""

    kind: Literal["standardise"] = "standardise"
    mean: float | None = Field(None, description="Mean; null: that of the training data.")
    std: PositiveFloat | None = Field(None, description="Standard deviation; null: that of the training data.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.mean is None) != (self.std is None):
            raise ValueError("standardise takes both mean and std, or neither")
        return self


class Bucketise(Frozen):
    """The number of a value's bucket, from 0, as an id: how many `borders` are at or below the value."""

    kind: Literal["bucketise"] = "bucketise"
    buckets: Annotated[int, Field(ge=2, le=MAX_BUCKETS)] | None = Field(
        None, description="Number of buckets, each with about as many values of the training data; null: by borders."
    )
    borders: Annotated[tuple[float, ...], Field(min_length=1, max_length=MAX_BUCKETS)] | None = Field(
        None, description="Rising borders between buckets; null: quantiles of the training data."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.buckets is None and self.borders is None:
            raise ValueError("bucketise needs a number of buckets or borders: {bucketise: 10}, {bucketise: [18, 65]}")
        if any(b <= a for a, b in pairwise(self.borders or ())):
            raise ValueError("bucketise: borders must rise")
        return self


class Date(Frozen):
    """A part of a date, in UTC. Dates are timestamps, dates, ISO 8601 text, or numbers since 1970."""

    kind: Literal["date"] = "date"
    part: DatePart = Field(
        description="year, month (1 to 12), day (1 to 31), weekday (Monday is 0), day_of_year (1 to 366), hour, "
        "minute, or days: days since 1970 with their fraction, for a trend."
    )
    unit: Literal["s", "ms", "us", "ns"] = Field("s", description="Unit of dates that are numbers.")


AnyStep = Log | ClipValues | Standardise | Bucketise | Date
_STEPS: dict[str, tuple[str, ...]] = {  # kind: the fields that its short form sets
    "log": (),
    "clip": ("low", "high"),
    "standardise": (),
    "bucketise": ("buckets",),
    "date": ("part",),
}
_SHORT_FORMS = "log, standardise, {clip: [0, 100]}, {bucketise: 10}, {bucketise: [18, 65]}, {date: hour}"


def _expand(step: Any) -> Any:
    """Expand a short form: `log` means {kind: log}, {bucketise: 10} means {kind: bucketise, buckets: 10}."""
    if isinstance(step, dict) and "kind" in step:
        name, value = str(step["kind"]), None
    elif isinstance(step, dict) and len(step) == 1:
        name, value = next(iter(step.items()))
    elif isinstance(step, str):
        name, value = step, None
    else:
        return step if isinstance(step, Frozen) else _refuse(f"a step is one of: {_SHORT_FORMS}")
    if name not in _STEPS:
        near = get_close_matches(name, _STEPS, n=1)
        _refuse(f"there is no step {name!r}{f': did you mean {near[0]!r}?' if near else ''}; write {_SHORT_FORMS}")
    if value is None:
        return step if isinstance(step, dict) and "kind" in step else {"kind": name}
    if isinstance(value, dict):
        return {"kind": name, **value}
    if name == "bucketise" and isinstance(value, (list, tuple)):
        return {"kind": name, "borders": value}
    fields = _STEPS[name]
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    if len(values) != len(fields):
        takes = f"takes {' and '.join(fields)}" if fields else "takes no value, or its fields by name"
        _refuse(f"{name} {takes}; write {_SHORT_FORMS}")
    return {"kind": name, **dict(zip(fields, values, strict=True))}


def _refuse(problem: str) -> None:
    raise ValueError(problem)


Step = Annotated[
    Annotated[AnyStep, Field(discriminator="kind")],
    BeforeValidator(_expand),
]


def is_fitted(step: AnyStep) -> bool:
    """Tell whether a step has all its numbers."""
    match step:
        case Standardise():
            return step.mean is not None
        case Bucketise():
            return step.borders is not None
        case _:
            return True


class Feature(Frozen):
    """How a dense column or a slot is made. A list is short for its steps: `price: [log, standardise]`."""

    column: Name | None = Field(None, description="Column that it is made from; null: the column of its own name.")
    steps: tuple[Step, ...] = Field((), description="What is done to its values, one step after another.")
    cross: tuple[Name, ...] = Field(
        (), description="Slots, or columns of ids: the feature is an id for each combination of theirs."
    )

    @property
    def is_fitted(self) -> bool:
        return all(is_fitted(step) for step in self.steps)

    @property
    def makes_id(self) -> bool:
        """Whether it can be a slot: a cross, a bucket, a part of a date, or a column as it is."""
        return not self.steps or isinstance(self.steps[-1], Bucketise | Date)

    @model_validator(mode="before")
    @classmethod
    def _read_steps(cls, value: Any) -> Any:
        """Expand a list of steps, the short form."""
        if isinstance(value, str):
            raise ValueError(f"steps are a list: write [{value}]")
        return {"steps": value} if isinstance(value, (list, tuple)) else value

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.cross and (self.column or self.steps):
            raise ValueError("a cross is made of slots alone: leave out column and steps")
        if self.cross and (len(self.cross) < 2 or len(set(self.cross)) < len(self.cross)):
            raise ValueError("a cross is of two or more different slots: {cross: [user, hour]}")
        if not (self.cross or self.column or self.steps):
            raise ValueError("a feature needs steps, another column, or a cross")
        if any(isinstance(step, Date) for step in self.steps[1:]):
            raise ValueError("date must be the first step, since others make numbers that are no dates")
        if any(isinstance(step, Bucketise) for step in self.steps[:-1]):
            raise ValueError("bucketise must be the last step, since it makes an id")
        if sum(isinstance(step, Standardise | Bucketise) for step in self.steps) > 1:
            raise ValueError(
                "standardise and bucketise are one step too many: buckets are the same without standardise"
                if self.makes_id
                else "one standardise is enough"
            )
        return self


Features = dict[Name, Feature]


def check_features(features: Mapping[str, Feature], dense: tuple[str, ...], slots: tuple[str, ...]) -> None:
    """Raise ValueError unless every feature is used, and used as what it is."""
    parts = {part for feature in features.values() for part in feature.cross}
    for name, feature in features.items():
        if name in dense and (feature.cross or isinstance(feature.steps[-1] if feature.steps else None, Bucketise)):
            raise ValueError(f"features: {name} makes ids, so name it in slots, not in dense")
        if name in slots and not feature.makes_id:
            raise ValueError(f"features: {name} makes numbers, so name it in dense, or end its steps with bucketise")
        if name in parts and (feature.cross or not feature.makes_id):
            raise ValueError(f"features: a cross is of columns and features that are ids, and {name} is not one")
        if name not in dense and name not in slots and name not in parts:
            raise ValueError(f"features: {name} is made but not used: name it in dense or slots")


def sources_of(features: Mapping[str, Feature], name: str) -> Iterator[str]:
    """The columns of the data that the column or feature `name` is made from."""
    feature = features.get(name)
    if feature is None:
        yield name
    elif feature.cross:
        for part in feature.cross:
            yield from sources_of(features, part)
    else:
        yield feature.column or name


def keep_fitted(features: Features, before: Mapping[str, Feature]) -> Features:
    """The features with the numbers that were found `before`, where the same is asked for."""
    return {name: _kept(feature, before.get(name)) for name, feature in features.items()}


def _kept(feature: Feature, before: Feature | None) -> Feature:
    if before is None or feature.is_fitted:
        return feature
    asked = before.model_copy(update={"steps": tuple(map(_without_numbers, before.steps))})
    return before if asked == feature else feature


def _without_numbers(step: AnyStep) -> AnyStep:
    match step:
        case Standardise():
            return Standardise()
        case Bucketise(buckets=int()):
            return step.model_copy(update={"borders": None})
        case _:
            return step
