"""The numbers of features are those that NumPy finds on all values at once, and unscaled columns are named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from heterps.config import Schema
from heterps.config.features import Bucketise, Standardise
from heterps.data import fit
from heterps.data.fit import fit_columns, unscaled
from heterps.data.sources import open_dataset
from heterps.errors import DataError

SCHEMA = Schema(
    dense=("year", "price"),
    slots=("group",),
    features={
        "year": ["standardise"],
        "price": ["log", "standardise", {"clip": [-3, 3]}],
        "group": {"column": "price", "steps": [{"bucketise": 8}]},
    },
)


def write(path: Path, num_rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    year = random.integers(1900, 2000, num_rows).astype(float) + 1e7 * (seed > 0)
    columns = {"label": np.zeros(num_rows), "year": year, "price": np.exp(3 * random.standard_normal(num_rows))}
    masked = {name: pa.array(v, mask=random.random(num_rows) < 0.1 * (name == "price")) for name, v in columns.items()}
    pq.write_table(pa.table(masked), path, row_group_size=100)
    return {name: column.drop_null().to_numpy() for name, column in masked.items()}


def test_numbers_are_those_of_all_values_at_once(tmp_path: Path) -> None:
    columns = write(tmp_path / "a.parquet", 5_000)
    told: list[str] = []
    fitted = fit_columns(str(tmp_path), SCHEMA, told.append)
    assert told == ["year, price, group: fitted on 5,000 rows"]
    year, price, group = (fitted.features[name].steps for name in ("year", "price", "group"))
    assert isinstance(year[0], Standardise)
    assert isinstance(price[1], Standardise)
    assert isinstance(group[0], Bucketise)
    assert (year[0].mean, year[0].std) == pytest.approx((columns["year"].mean(), columns["year"].std()), rel=1e-12)
    logs = np.log1p(columns["price"])
    assert (price[1].mean, price[1].std) == pytest.approx((logs.mean(), logs.std()), rel=1e-12)
    assert group[0].borders == pytest.approx(np.percentile(columns["price"], np.arange(12.5, 100, 12.5)), rel=1e-12)
    assert price[2] == SCHEMA.features["price"].steps[2]
    assert fit_columns(str(tmp_path), SCHEMA) == fitted


def test_of_large_data_a_part_of_every_file_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = write(tmp_path / "a.parquet", 20_000)
    monkeypatch.setattr(fit, "FIT_ROWS", 8_000)
    monkeypatch.setattr(fit, "SAMPLED_VALUES", 2_000)
    told: list[str] = []
    fitted = fit_columns(str(tmp_path), SCHEMA, told.append)
    assert told == ["year, price, group: fitted on 8,000 rows"]
    group = fitted.features["group"].steps[0]
    assert isinstance(group, Bucketise)
    assert group.borders is not None
    assert len(group.borders) == 7
    shares = [(columns["price"] <= border).mean() for border in group.borders]
    assert shares == pytest.approx(np.arange(1, 8) / 8, abs=0.04)


def test_means_of_numbers_far_from_zero_keep_their_digits(tmp_path: Path) -> None:
    columns = write(tmp_path / "a.parquet", 3_000, seed=1)
    year = fit_columns(str(tmp_path), SCHEMA).features["year"].steps[0]
    assert isinstance(year, Standardise)
    assert year.std == pytest.approx(columns["year"].std(), rel=1e-9)


def test_a_constant_becomes_zero_and_a_column_without_values_is_refused(tmp_path: Path) -> None:
    schema = Schema(dense=("x",), slots=(), features={"x": ["standardise"]})
    pq.write_table(pa.table({"label": [0, 1], "x": [7.0, 7.0]}), tmp_path / "a.parquet")
    assert fit_columns(str(tmp_path), schema).features["x"].steps == (Standardise(mean=7, std=1),)
    pq.write_table(pa.table({"label": [0, 1], "x": [float("nan"), None]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="the feature x cannot be fitted, since column x has no value"):
        fit_columns(str(tmp_path), schema)


def test_dense_columns_far_from_unit_scale_are_named_with_the_line_to_add(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", 1_000)
    dataset = open_dataset(str(tmp_path))
    sentence = unscaled(dataset, Schema(dense=("year", "price"), slots=()))
    assert sentence is not None
    assert "year (mean 1,9" in sentence
    assert "data.columns: features: {year: [standardise], price: [log, standardise]}" in sentence
    assert unscaled(dataset, SCHEMA) is None
    assert unscaled(dataset, Schema(dense=(), slots=("year",))) is None


def test_columns_near_unit_scale_or_without_values_are_not_named(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    columns = {"label": np.zeros(500), "x": random.standard_normal(500), "age": random.integers(0, 30, 500)}
    pq.write_table(pa.table({**columns, "none": pa.nulls(500)}), tmp_path / "a.parquet")
    assert unscaled(str(tmp_path), Schema(dense=("x", "age", "none"), slots=())) is None
