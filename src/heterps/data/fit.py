"""Find the numbers of features on the training data, and dense columns that are far from unit scale.

    row groups, evenly from all files --> numbers of the columns to fit --+--> count, mean, variance --> standardise
    (all of small data)                                                   +--> a sample of values ----> bucketise

Which rows are looked at depends on the files alone, and sums are made in their order: the same data gives the same
numbers everywhere. Missing values are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from heterps.config import Job, Schema, Split
from heterps.config.features import AnyStep, Bucketise, Feature, Standardise, is_fitted
from heterps.data.arrow import floats_of, one_chunk
from heterps.data.columns import check_columns, find_id_kinds, is_list
from heterps.data.feature_columns import numbers_of
from heterps.data.features import Numbers, transform
from heterps.data.sources import Dataset, open_dataset, open_paths, spread_groups
from heterps.data.split import Part
from heterps.errors import DataError

FIT_ROWS = 1_000_000
"""Number of rows on which features are fitted, if there are more: more would hardly change the numbers."""
SAMPLED_VALUES = 1 << 17
"""Number of values of a feature from which quantiles are found, if there are more."""
SCALE_ROWS = 65_536
"""Number of rows of which the scale of dense columns is looked at."""
FAR_FROM_UNIT = 20.0
"""Mean or standard deviation from which on a dense column is said to be unscaled."""


def fit_job(job: Job, waiting: Callable[[str], object] = lambda _: None) -> Job:
    """Return the job with the kinds of its ids and all numbers of its features, found on its training data where they
    are not given.

    Rows that are held out for validation are left out. `waiting` is told once what takes a while, if anything does.
    """
    dataset = open_paths(job.data, job.data.train)
    fitted = find_id_kinds(dataset, job.data.columns)
    if not all(feature.is_fitted for feature in fitted.features.values()):
        split = job.data.validation
        part = Part(split, held_out=False) if isinstance(split, Split) else None
        fitted = fit_columns(dataset, fitted, waiting, part)
    return job.model_copy(update={"data": job.data.model_copy(update={"columns": fitted})})


def fit_columns(
    source: str | Sequence[str] | Dataset,
    schema: Schema,
    waiting: Callable[[str], object] = lambda _: None,
    part: Part | None = None,
) -> Schema:
    """Return the schema with the numbers of its features, found on a data set or a part of it if they are not given."""
    dataset = source if isinstance(source, Dataset) else open_dataset(source)
    check_columns(dataset, schema)
    asked = {name: feature for name, feature in schema.features.items() if not feature.is_fitted}
    groups = spread_groups(dataset, FIT_ROWS)
    num_rows = sum(group.num_rows for group in groups)
    waiting(f"{', '.join(asked)}: fitted on {num_rows:,} rows")
    found = {name: Statistics(num_rows) for name in asked}
    for group in groups:
        needed = (*schema.sources(asked), *(() if part is None else part.columns))
        table = group.file.read(group.index, tuple(dict.fromkeys(needed)))
        if part is not None:
            table = table.filter(pa.array(part.mask(group, table)))
        for name, feature in asked.items():
            column = one_chunk(table.column(feature.column or name))
            try:
                found[name].add(_unfitted_numbers(column, feature))
            except ValueError as error:
                raise DataError(f"{group}, column {feature.column or name}: {error}.") from None
    return schema.with_features({**schema.features, **{n: _fitted(n, f, found[n]) for n, f in asked.items()}})


@dataclass
class Statistics:
    """Count, mean and variance of numbers that come in parts, and an even sample of them for quantiles."""

    expected: int  # how many numbers will come, about
    count: int = 0
    mean: float = 0.0
    squares: float = 0.0  # sum of the squared distances from the mean
    sample: list[Numbers] = field(default_factory=list)

    def add(self, values: Numbers) -> None:
        """Add the numbers of a part; NaN is left out. Means and variances are joined as Chan et al. (1979) do."""
        values = values[np.isfinite(values)]
        if not len(values):
            return
        every = max(1, self.expected // SAMPLED_VALUES)
        self.sample.append(values[(-self.count) % every :: every])
        mean, count = float(values.mean()), self.count + len(values)
        apart = mean - self.mean
        self.squares += float(((values - mean) ** 2).sum()) + apart**2 * self.count * len(values) / count
        self.mean += apart * len(values) / count
        self.count = count

    @property
    def std(self) -> float:
        return math.sqrt(self.squares / self.count) if self.count else 0.0

    def borders(self, buckets: int) -> tuple[float, ...]:
        """Return borders between this number of buckets of equally many values; fewer where values are equal."""
        shares = np.arange(1, buckets) / buckets
        return tuple(np.unique(np.quantile(np.concatenate(self.sample), shares)).tolist())


def _unfitted_numbers(column: object, feature: Feature) -> Numbers:
    """The numbers that come to the step that is to be fitted."""
    first = next(i for i, step in enumerate(feature.steps) if not is_fitted(step))
    return transform(numbers_of(column, feature), feature.steps[:first])


def _fitted(name: str, feature: Feature, found: Statistics) -> Feature:
    if not found.count:
        raise DataError(
            f"the feature {name} cannot be fitted, since column {feature.column or name} has no value in the training "
            "data. Take it out of data.columns, or give the numbers."
        )
    return feature.model_copy(update={"steps": tuple(_fitted_step(step, found) for step in feature.steps)})


def _fitted_step(step: AnyStep, found: Statistics) -> AnyStep:
    match step:
        case Standardise(mean=None):
            return Standardise(mean=found.mean, std=found.std or 1.0)  # a constant becomes 0
        case Bucketise(borders=None, buckets=int(buckets)):
            return step.model_copy(update={"borders": found.borders(buckets)})
        case _:
            return step


# --- scales ----------------------------------------------------------------------------------------------------------


def unscaled(source: str | Sequence[str] | Dataset, schema: Schema) -> str | None:
    """Return a sentence about dense columns that are far from unit scale and made by no step; None if there are none.

    A network learns slowly or badly from a year such as 1995: its neighbours of mean 0 hardly count beside it.
    """
    names = [name for name in schema.dense if name not in schema.features]
    dataset = source if isinstance(source, Dataset) else open_dataset(source)
    if not names:
        return None
    found = {name: _Scale() for name in names}
    for group in spread_groups(dataset, min(SCALE_ROWS, dataset.row_groups[0].num_rows)):
        table = group.file.read(group.index, names)
        for name in names:
            column = one_chunk(table.column(name))
            values = floats_of(column.flatten() if is_list(column.type) else column)
            found[name].add(values[: SCALE_ROWS * schema.width_of(name)])
    far = {name: scale for name, scale in found.items() if scale.is_far}
    return _sentence(far) if far else None


@dataclass
class _Scale:
    statistics: Statistics = field(default_factory=lambda: Statistics(1))
    lowest: float = math.inf

    def add(self, values: NDArray[np.float32]) -> None:
        self.statistics.add(values.astype(np.float64))
        self.lowest = min(self.lowest, float(values[np.isfinite(values)].min(initial=math.inf)))

    @property
    def is_far(self) -> bool:
        return max(abs(self.statistics.mean), self.statistics.std) > FAR_FROM_UNIT

    @property
    def remedy(self) -> str:
        """The steps for a column: of counts, whose deviation is greater than their mean, the logarithm first."""
        is_skewed = self.lowest >= 0 and self.statistics.std > self.statistics.mean
        return "[log, standardise]" if is_skewed else "[standardise]"


def _sentence(far: Mapping[str, _Scale], shown: int = 5) -> str:
    def listed(words: Iterable[str]) -> str:
        kept = list(words)
        return ", ".join(kept[:shown]) + (f" and {len(kept) - shown} more" if len(kept) > shown else "")

    scales = listed(f"{n} (mean {s.statistics.mean:,.4g}, deviation {s.statistics.std:,.4g})" for n, s in far.items())
    steps = ", ".join(f"{name}: {scale.remedy}" for name, scale in far.items())
    return (
        f"dense columns are far from unit scale, which costs quality: {scales}. Scale them in the job, under "
        f"data.columns: features: {{{steps}}}"
    )
