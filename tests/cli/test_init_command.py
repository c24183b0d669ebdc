"""`heterps init` writes a job that trains as it is, and whose comments say why."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from heterps.cli import main
from heterps.config import load_job
from heterps.data.generate import generate


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as end:
        main(list(words))
    out, err = capsys.readouterr()
    return end.value.code, out, " ".join(err.split())


def write_ratings(header: bool = True) -> None:
    draw = np.random.default_rng(0)
    rows = ["user_id\titem\tage\tprice\tgender\trating\ttimestamp\tempty\tone"] if header else []
    for _ in range(600):
        user, item, age = draw.integers(50), draw.integers(80), draw.integers(18, 70)
        price, time = draw.exponential() ** 4, 880_000_000 + draw.integers(10**7)
        rows.append(f"{user}\t{item}\t{age}\t{price:.3f}\t{'MF'[user % 2]}\t{1 + (user + item) % 5}\t{time}\t\t7")
    Path("ratings.tsv").write_text("\n".join(rows) + "\n")


def test_a_job_for_ratings_in_text_trains_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    write_ratings()
    code, out, _ = run(capsys, "init", "ratings.tsv")
    assert code == 0
    assert "heterps train job.yaml" in out
    code, out, _ = run(capsys, "init", "ratings.tsv", "--force", "--json")
    assert json.loads(out) == {"job": "job.yaml", "train": "ratings.tsv", "test": None, "label": "rating"}
    columns = load_job("job.yaml").data.columns
    assert columns.labels["rating"].loss == "mse"
    assert columns.dense == ("age", "price")
    assert columns.slots == ("user_id", "item", "gender", "timestamp_weekday", "timestamp_hour")
    text = Path("job.yaml").read_text()
    assert "user_id              # whole numbers, 50 distinct: named as an id" in text
    assert "price: [log, standardise]" in text
    assert "#   empty: every value is missing" in text
    assert "#   one: every value is the same" in text
    code, out, _ = run(capsys, "train", "job.yaml", "--json")
    assert (code, json.loads(out)["status"]) == (0, "completed")


def test_a_folder_with_train_and_test_becomes_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generate(tmp_path / "data", 2000, 500)
    assert run(capsys, "init", "data", "--out", "criteo.yaml")[0] == 0
    job = load_job("criteo.yaml")
    assert (job.data.train, job.data.test, job.data.columns.label) == ("data/train", "data/test", "label")
    assert job.data.columns.dense == tuple(f"I{i}" for i in range(1, 14))
    assert job.data.columns.slots == tuple(f"C{i}" for i in range(1, 27))
    code, out, _ = run(capsys, "train", "criteo.yaml", "--json")
    assert (code, json.loads(out)["metrics_of"]) == (0, "test")


def test_what_the_format_needs_is_written_into_the_job(capsys: pytest.CaptureFixture[str]) -> None:
    write_ratings(header=False)
    names = "[user, item, age, price, sex, rating, when, empty, one]"
    assert "first line is no header" in run(capsys, "init", "ratings.tsv")[2]
    assert run(capsys, "init", "ratings.tsv", "--format", f"names: {names}", "--label", "sex")[0] == 2
    assert run(capsys, "init", "ratings.tsv", "--format", f"names: {names}", "--label", "rating")[0] == 0
    assert load_job("job.yaml").data.format.names == tuple(names[1:-1].split(", "))
    assert run(capsys, "train", "job.yaml", "--json")[0] == 0


def test_ids_alone_and_strange_names_train_too(capsys: pytest.CaptureFixture[str]) -> None:
    table = {"is click?": [0, 1] * 50, "user: id": range(100), "null": ["a", "b"] * 50}
    pq.write_table(pa.table(table), "a.parquet")
    assert run(capsys, "init", "a.parquet")[0] == 0
    job = load_job("job.yaml")
    assert (job.data.columns.label, job.data.columns.dense) == ("is click?", ())
    assert job.data.columns.slots == ("user: id", "null")
    assert run(capsys, "train", "job.yaml", "--json")[0] == 0


@pytest.mark.parametrize(
    ("columns", "words", "says"),
    [
        ({"a": [1.5, 2.5], "b": ["x", "y"]}, [], "none of the columns is called label"),
        ({"label": [1, 1], "b": ["x", "y"]}, [], "every value is 1; there is nothing to learn"),
        ({"label": [0, 1], "b": [0.5, 1.5]}, [], "no column looks like an id"),
        ({"label": [0, 1], "b": ["x", "y"]}, ["--label", "b"], "the label must be a column of numbers"),
        ({"label": [0, 1], "b": ["x", "y"]}, ["--format", "kid: csv"], "--format:1: kid is not a field"),
    ],
)
def test_what_cannot_be_guessed_is_told(
    capsys: pytest.CaptureFixture[str], columns: dict[str, list[object]], words: list[str], says: str
) -> None:
    pq.write_table(pa.table(columns), "a.parquet")
    code, _, err = run(capsys, "init", "a.parquet", *words)
    assert code == 2
    assert says in err
    assert not Path("job.yaml").exists()


def test_a_job_file_is_not_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    write_ratings()
    Path("job.yaml").write_text("mine")
    assert "this file exists" in run(capsys, "init", "ratings.tsv")[2]
    assert Path("job.yaml").read_text() == "mine"
    assert run(capsys, "init", "ratings.tsv", "--force")[0] == 0
