"""What a server takes from the stream of a run: whole versions in order, and never one that goes back or is a mix."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heterps.checkpoint import Snapshot, TableRows
from heterps.checkpoint.stream import StreamWriter
from heterps.config import Job
from heterps.model.build import build_model
from heterps.serving.export import inputs_of, tables_of
from heterps.serving.following import Follower
from heterps.serving.run_versions import RunVersions
from heterps.yamlfile import dump_yaml


def job(**changes: Any) -> Job:
    """Return a job with one slot, `user`; `changes` are of its columns, `seed` is its own."""
    fields = {"seed": changes.pop("seed", 0), "model": changes.pop("model", {"factory": "ctr_dnn"})}
    columns = {"dense": ["price"], "slots": ["user"], **changes}
    return Job.model_validate({"name": "x", "data": {"train": "x.parquet", "columns": columns}, **fields})


class Recorder:
    """Stands in for a scorer of an export of job(): notes the versions, and refuses those that it is told to."""

    def __init__(self, version: str = "3") -> None:
        self.version, self.refused = version, ""
        model = build_model(job().model, job().data.columns)
        self.manifest = json.loads(json.dumps({"inputs": inputs_of(job()), "tables": tables_of(model, job())}))
        self.rows: dict[int, float] = {}

    def update(self, version: str, weights: Any, rows: Any, gone: Any, full: bool) -> None:
        if version == self.refused:
            raise ValueError(f"{version} has other tables")
        keys, values = rows["user"]
        changed = dict(zip(keys.tolist(), values[:, 0].tolist(), strict=True))
        kept = {} if full else {key: value for key, value in self.rows.items() if key not in gone["user"].tolist()}
        self.version, self.rows = version, kept | changed


def write(writer: StreamWriter, clock: int, keys: list[int], gone: list[int] | None = None) -> Path:
    """Write a version in which the rows of `keys` are `clock`; the first has 1000 rows."""
    keys = keys if writer.parent else list(range(1000))
    values = np.full((len(keys), 1), clock, np.float32)
    metadata = {"gone": np.array(gone, np.uint64)} if gone else {}
    table = TableRows(np.array(keys, np.uint64), values, np.empty((len(keys), 0), np.float32), metadata=metadata)
    return writer.write(Snapshot(clock, clock, {}, {"user": table}, parent=writer.parent))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run that does not run."""
    (tmp_path / "job.yaml").write_text(dump_yaml(job()))
    (tmp_path / "metrics.jsonl").write_text("")
    return tmp_path


@pytest.fixture
def scorer() -> Recorder:
    return Recorder()


@contextmanager
def following(run: Path, scorer: Recorder) -> Iterator[Follower]:
    one = Follower(RunVersions(scorer, run, 1.0), 1.0, lambda _: None, lambda _: None)  # type: ignore[arg-type]
    yield one
    one.close()


@pytest.fixture
def follower(run: Path, scorer: Recorder) -> Iterator[Follower]:
    with following(run, scorer) as one:
        yield one


def look(follower: Follower) -> tuple[str, str]:
    follower.look()
    return follower.status.state, follower.status.detail


def test_a_run_that_is_not_there_yet_is_waited_for(tmp_path: Path, scorer: Recorder) -> None:
    follower = Follower(RunVersions(scorer, tmp_path / "later", 1.0), 1.0, print, print)  # type: ignore[arg-type]
    state, detail = look(follower)
    assert state == "waiting"
    assert "later" in detail
    follower.close()


def test_changes_and_evictions_arrive(run: Path, scorer: Recorder, follower: Follower) -> None:
    writer = StreamWriter(run)
    write(writer, 5, [])
    write(writer, 6, [1, 2])
    assert look(follower) == ("waiting", f"no job runs in {run}")
    write(writer, 7, [2], gone=[1, 999])
    look(follower)
    assert scorer.version == "7"
    assert (scorer.rows[0], scorer.rows[2]) == (5.0, 7.0)
    assert not scorer.rows.keys() & {1, 999}


def test_an_old_stream_does_not_take_a_server_back(run: Path, scorer: Recorder) -> None:
    writer = StreamWriter(run)
    for clock in (1, 2):
        write(writer, clock, [1])
    with following(run, scorer) as follower:
        look(follower)
        assert scorer.version == "3"
        write(writer, 4, [1])
        look(follower)
        assert scorer.version == "4"


def test_a_job_that_went_back_to_a_checkpoint_is_followed(run: Path, scorer: Recorder, follower: Follower) -> None:
    write(StreamWriter(run), 2, [])  # written after the server began
    look(follower)
    assert scorer.version == "2"
    writer = StreamWriter(run)
    write(writer, 1, [])
    write(writer, 2, [5])
    look(follower)
    assert scorer.version.partition("-")[0] == "2"
    assert (scorer.rows[0], scorer.rows[5]) == (1.0, 2.0)


@pytest.mark.parametrize("file", ["manifest.json", "*.safetensors"])
def test_a_damaged_version_leaves_the_old_one_in_use_and_is_told(
    run: Path, scorer: Recorder, follower: Follower, file: str
) -> None:
    writer = StreamWriter(run)
    write(writer, 5, [])
    look(follower)
    damaged = next(write(writer, 6, [1]).rglob(file))
    damaged.write_bytes(damaged.read_bytes()[:-3])
    write(writer, 7, [2])
    state, detail = look(follower)
    assert state == "refused"
    assert "version 6 is damaged, so that 5 stays in use" in detail
    assert (scorer.version, scorer.rows[1], scorer.rows[2]) == ("5", 5.0, 5.0)
    write(StreamWriter(run), 8, [])
    assert look(follower)[0] == "waiting"
    assert (scorer.version, set(scorer.rows.values())) == ("8", {8.0})


def test_after_a_refusal_nothing_is_built_on_what_is_not_here(run: Path, scorer: Recorder, follower: Follower) -> None:
    writer = StreamWriter(run)
    write(writer, 5, [])
    look(follower)
    scorer.refused = "6"
    write(writer, 6, [1])
    write(writer, 7, [2])
    assert look(follower) == ("refused", "6 has other tables")
    assert (scorer.version, scorer.rows[2]) == ("5", 5.0)
    scorer.refused = ""
    look(follower)
    assert (scorer.version, scorer.rows[0], scorer.rows[1], scorer.rows[2]) == ("7", 5.0, 6.0, 7.0)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (job(slots=["item"]), "other inputs (slots)"),
        (job(slot_missing="skip"), "other inputs (slot_missing)"),
        (job(features={"price": ["log"]}), "other inputs (features)"),
        (job(seed=1), "other tables (embedding)"),
        (job(model={"factory": "ctr_dnn", "args": {"embedding_dim": 3}}), "other tables (embedding)"),
    ],
)
def test_a_run_of_another_job_is_refused_before_it_gives_wrong_scores(
    run: Path, scorer: Recorder, follower: Follower, other: Job, words: str
) -> None:
    (run / "job.yaml").write_text(dump_yaml(other))
    write(StreamWriter(run), 5, [])
    for _ in range(2):
        state, detail = look(follower)
        assert state == "refused"
        assert words in detail
    assert scorer.version == "3"
    (run / "job.yaml").write_text(dump_yaml(job()))
    os.utime(run / "job.yaml", (1.0, 1.0))
    look(follower)
    assert scorer.version == "5"


def test_kinds_of_ids_may_be_found_after_the_export(run: Path, scorer: Recorder, follower: Follower) -> None:
    (run / "job.yaml").write_text(dump_yaml(job(id_kinds={"user": "string"})))
    write(StreamWriter(run), 5, [])
    look(follower)
    assert scorer.version == "5"


def test_a_run_whose_model_cannot_be_built_here_is_followed_if_its_inputs_are_the_same(
    run: Path, scorer: Recorder, follower: Follower
) -> None:
    (run / "job.yaml").write_text(dump_yaml(job(model={"factory": "python:Gone"})))
    write(StreamWriter(run), 5, [])
    look(follower)
    assert scorer.version == "5"
