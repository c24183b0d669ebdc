"""Jobs on files of text train as jobs on Parquet do: the same losses from the same rows, inline and on workers."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import yaml

from heterps.errors import DataError
from heterps.launch import train
from heterps.training.run.folder import Run


def losses(job_file: Path, name: str, train_data: str, test_data: str, **fields: object) -> list[object]:
    """Losses of all intervals of a run on these files, and those of the test set."""
    job = yaml.safe_load(job_file.read_text())
    job["data"] |= {"train": train_data, "test": test_data}
    job_file.with_name(f"{name}.yaml").write_text(yaml.safe_dump(job | fields))
    run = train(job_file.with_name(f"{name}.yaml"), job_file.with_name(name))
    return [*(line["log_loss"] for line in Run(run.folder).metrics()), run.summary["log_loss"]]


@pytest.fixture
def text_data(tiny_job: Path) -> Path:
    """The rows of the tiny job in one row group, as Parquet, CSV and JSON lines."""
    for name in ("train", "test"):
        table = pq.read_table(f"{name}.parquet")
        pq.write_table(table, f"{name}.parquet")
        pyarrow.csv.write_csv(table, f"{name}.csv")
        rows = "\n".join(json.dumps(row) for row in table.to_pylist())
        Path(f"{name}.jsonl.gz").write_bytes(gzip.compress(rows.encode()))
    return tiny_job


@pytest.mark.parametrize("suffix", ["csv", "jsonl.gz"])
def test_text_trains_as_parquet_does(text_data: Path, suffix: str) -> None:
    of_parquet = losses(text_data, "parquet", "train.parquet", "test.parquet")
    of_text = losses(text_data, "text", f"train.{suffix}", f"test.{suffix}")
    on_workers = losses(
        text_data, "workers", f"train.{suffix}", f"test.{suffix}",
        launcher="local", threads=2, workers={"channel": "memory"},
    )  # fmt: skip
    assert of_text == of_parquet
    assert on_workers == pytest.approx(of_parquet, rel=1e-5)


def test_a_column_without_values_is_warned_about(text_data: Path) -> None:
    lines = Path("train.csv").read_text().splitlines()
    Path("train.csv").write_text("\n".join(re.sub(",[^,]*$", ",", line) for line in lines).replace('"s",', '"s","t"'))
    losses(text_data, "empty", "train.csv", "test.parquet")
    summary = json.loads(Path("empty/summary.json").read_text())
    assert any(text.startswith("t: every value is missing in 200 rows") for text in summary["warnings"])


def test_ids_that_are_numbers_in_one_set_and_words_in_the_other_are_refused(text_data: Path) -> None:
    """Both files are fine alone, but no id of the test set would have the key that it had in training."""
    text = Path("test.csv").read_text().splitlines()
    Path("test.csv").write_text("\n".join([*text[:-1], re.sub(",[^,]*$", ",x9", text[-1])]))
    with pytest.raises(DataError, match=r"test\.csv: column t holds string ids, but integer ids in .*train\.csv"):
        losses(text_data, "mixed", "train.csv", "test.csv")
