"""Increments: every version equals the trained model's, and what does not follow or is not whole is refused."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from export_cases import job_parts, samples
from trained_runs import as_arrays, assert_equal, own_scores, train_further, train_run

from heterps.checkpoint import latest
from heterps.cli import main
from heterps.config import load_job
from heterps.errors import RunError, StorageError
from heterps.serving.export import Exporter, export
from heterps.serving.score import ScoreError, Scorer
from heterps.serving.score_rows import Table, make_layer

NUM_INCREMENTS = 10


class Chain:
    """A run with eviction, exported in full and then after each of ten further epochs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        model, columns = job_parts("ctr_dnn")
        self.tables = [samples("ctr_dnn", 96, seed=seed, num_ids=40) for seed in range(1 + NUM_INCREMENTS)]
        fields = {"tables": {"eviction": {"max_age": 4}}}
        self.run = train_run(folder / "chain", self.tables[0], model, columns, **fields)
        self.asked = samples("ctr_dnn", 60, seed=99, num_ids=60)
        export(self.run, folder / "full")
        export(self.run, folder / "full.onnx", format="onnx")
        self.expected, self.done = [self.scores()], []
        for number, table in enumerate(self.tables[1:], 1):
            pq.write_table(table, folder / "chain" / "train.parquet")
            before = latest(self.run / "checkpoints")
            train_further(self.run, load_job(self.run / "job.yaml"), before, epoch=number)
            self.done.append(export(self.run, self.increment(number), since=before.name.lstrip("0")))
            self.expected.append(self.scores())

    def scores(self) -> dict[str, np.ndarray]:
        return own_scores(self.run, self.asked, self.folder)

    def increment(self, number: int) -> Path:
        return self.folder / f"increment-{number}"


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    return Chain(tmp_path_factory.mktemp("increments"))


@pytest.mark.parametrize("full", ["full", "full.onnx"])
def test_every_version_of_ten_increments_equals_the_trained_model(full, chain):
    scorer = Scorer(chain.folder / full)
    for number, expected in enumerate(chain.expected):
        if number:
            scorer.apply(chain.increment(number))
        assert_equal(scorer.score(chain.asked), expected)
    assert scorer.version == chain.done[-1].version
    assert sum(done.num_gone for done in chain.done) > 20
    at_once = Scorer(chain.folder / full, [chain.increment(number) for number in range(1, 1 + NUM_INCREMENTS)])
    assert at_once.score(chain.asked).equals(scorer.score(chain.asked))


def test_an_increment_holds_only_what_changed(chain):
    rows = pq.read_table(chain.increment(1) / "rows.parquet")
    assert rows["values"].null_count == chain.done[0].num_gone
    assert len(rows) == chain.done[0].num_rows + chain.done[0].num_gone


def test_a_gap_a_double_and_a_full_export_are_refused_and_change_nothing(chain):
    scorer = Scorer(chain.folder / "full", [chain.increment(1)])
    for wrong in (chain.increment(3), chain.increment(1)):
        with pytest.raises(ScoreError, match=r"Apply increments in their order, each once"):
            scorer.apply(wrong)
    with pytest.raises(ScoreError, match="is a full export, not an increment"):
        scorer.apply(chain.folder / "full")
    with pytest.raises(ScoreError, match="is an increment: name the full export"):
        Scorer(chain.increment(1))
    assert scorer.version == chain.done[0].version
    assert_equal(scorer.score(chain.asked), chain.expected[1])


@pytest.mark.parametrize("name", ["rows.parquet", "weights.parquet", "manifest.json"])
def test_an_increment_that_is_cut_off_or_damaged_is_refused_and_changes_nothing(name, chain, tmp_path):
    shutil.copytree(chain.increment(1), tmp_path / "copy")
    scorer, path = Scorer(chain.folder / "full"), tmp_path / "copy" / name
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], whole[:40] + bytes([whole[40] ^ 4]) + whole[41:], b""):
        path.write_bytes(content)
        with pytest.raises(ScoreError, match=name):
            scorer.apply(tmp_path / "copy")
        assert_equal(scorer.score(chain.asked), chain.expected[0])
    path.write_bytes(whole)
    scorer.apply(tmp_path / "copy")
    assert_equal(scorer.score(chain.asked), chain.expected[1])


def test_an_increment_of_another_run_is_refused(chain, tmp_path):
    model, columns = job_parts("ctr_dnn")
    other = train_run(tmp_path / "other", samples("ctr_dnn", 96, seed=50), model, columns)
    export(other, tmp_path / "full")
    with pytest.raises(ScoreError, match="of run chain to 6, but this is another 3 of run other"):
        Scorer(tmp_path / "full", [chain.increment(1)])


def test_going_back_to_an_earlier_checkpoint_is_an_increment_too(chain):
    older, newer = sorted((chain.run / "checkpoints").iterdir())
    export(older, chain.folder / "older")
    back = export(older, chain.folder / "back", since=newer.name.lstrip("0"))
    assert (back.parent, back.version) == (newer.name.lstrip("0"), older.name.lstrip("0"))
    scorer = Scorer(chain.folder / "full", [chain.increment(number) for number in range(1, 1 + NUM_INCREMENTS)])
    scorer.apply(chain.folder / "back")
    assert_equal(scorer.score(chain.asked), chain.expected[-2])


def test_arrays_bring_a_scorer_to_another_version(chain):
    last = Scorer(chain.folder / "full", [chain.increment(1)])
    rows = pq.read_table(chain.increment(1) / "rows.parquet")
    there = rows.filter(pa.compute.is_valid(rows["values"]))
    values = np.array(there["values"].to_pylist(), np.float32)
    gone = rows.filter(pa.compute.is_null(rows["values"]))["key"].to_numpy()
    weights = {
        row["name"]: np.frombuffer(row["data"], row["dtype"]).reshape(row["shape"])
        for row in pq.read_table(chain.increment(1) / "weights.parquet").to_pylist()
    }
    scorer = Scorer(chain.folder / "full")
    scorer.update("7", weights, {"embedding": (there["key"].to_numpy()[::-1], values[::-1])}, {"embedding": gone})
    assert scorer.version == "7"
    assert scorer.score(chain.asked).equals(last.score(chain.asked))
    with pytest.raises(ScoreError, match="has no table strange"):
        scorer.update("8", {}, {}, {"strange": gone})
    with pytest.raises(ScoreError, match=r"has no weight deep.linear1.weight of shape \[2\]"):
        scorer.update("8", {"deep.linear1.weight": np.zeros(2, np.float32)}, {}, {})
    scorer.update("9", {}, {}, {}, full=True)
    assert scorer.scored(chain.asked).unknown.min() == 4  # no row is left


@pytest.mark.parametrize("format", ["torch", "onnx"])
def test_an_increment_changes_a_parameter_that_is_a_scalar(format, tmp_path):
    table = pa.table({"label": [0, 1] * 16, "x": np.linspace(-1, 1, 32), "s": np.arange(32) % 5})
    model = {"factory": f"{Path(__file__).with_name('export_models.py')}:Scaled"}
    run = train_run(tmp_path / "scaled", table, model, {"dense": ["x"], "slots": ["s"]})
    before = latest(run / "checkpoints")
    full = export(run, tmp_path / "full", format=format)
    train_further(run, load_job(run / "job.yaml"), before, epoch=1)
    export(run, tmp_path / "increment", since=full.version)
    scorer = Scorer(tmp_path / "full", [tmp_path / "increment"])
    assert_equal(scorer.score(table), own_scores(run, table, tmp_path))


def test_a_version_that_was_not_exported_is_named(chain, capsys):
    with pytest.raises(SystemExit) as end:
        main(["export", str(chain.run), "--to", str(chain.folder / "none"), "--since", "4711"])
    assert end.value.code == 6
    told = " ".join(capsys.readouterr().err.split())
    assert "version 4711 was not exported from this run (exported so far: 3, 6, 9," in told
    assert not (chain.folder / "none").exists()


def test_a_version_since_which_nothing_is_new_writes_nothing(chain, tmp_path, capsys):
    version = chain.done[-1].version
    words = ["export", str(chain.run), "--to", str(tmp_path / "none"), "--since", version]
    for more in ([], ["--json"]):
        with pytest.raises(SystemExit) as end:
            main([*words, *more])
        assert end.value.code == 0
    plain, _, told = capsys.readouterr().out.partition("\n")
    assert plain == f"nothing is new since version {version}: no increment was written"
    told = json.loads(told)
    assert (told["folder"], told["version"], told["parent"], told["num_rows"]) == (None, version, version, 0)
    assert not (tmp_path / "none").exists()


def test_a_checkpoint_that_is_removed_while_it_is_exported_is_replaced_by_the_next(chain, tmp_path, monkeypatch):
    run = shutil.copytree(chain.run, tmp_path / "run")
    removed = latest(run / "checkpoints")
    write = Exporter.full

    def full(exporter: Exporter, *given: Any) -> Any:
        if removed.exists():
            shutil.rmtree(removed)
            raise FileNotFoundError(errno.ENOENT, "it is gone", str(removed))
        return write(exporter, *given)

    monkeypatch.setattr(Exporter, "full", full)
    done = export(run, tmp_path / "out")
    left = latest(run / "checkpoints")
    assert left.name != removed.name
    assert Scorer(tmp_path / "out").version == done.version == left.name.lstrip("0")


def test_layers_answer_as_a_dict_does_whatever_comes_and_goes():
    random = np.random.default_rng(0)
    table, known = Table(2, 1, {"kind": "zero"}), {}
    for step in range(60):
        keys = random.choice(50, random.integers(0, 12), replace=False).astype(np.uint64)
        gone = random.choice(np.arange(50, 100), random.integers(0, 6), replace=False).astype(np.uint64) - np.uint64(50)
        gone = np.setdiff1d(gone, keys)
        values = np.full((len(keys), 2), step + 1, np.float32)
        table = table.under(make_layer(2, keys, values, gone))
        known |= dict.fromkeys(keys.tolist(), step + 1)
        for key in gone.tolist():
            known.pop(key, None)
        found, unknown = table.pull(np.arange(60, dtype=np.uint64))
        assert found[:, 0].tolist() == [known.get(key, 0) for key in range(60)]
        assert unknown.tolist() == [key not in known for key in range(60)]
        assert len(table.layers) <= 6


@pytest.mark.parametrize("num", [1, 2, 3, 1000])
@pytest.mark.parametrize("highest", [100, 2**64 - 1], ids=["one prefix", "hashes"])
def test_places_of_keys_are_those_of_a_binary_search(num, highest):
    random = np.random.default_rng(num)
    keys = np.unique(random.integers(0, highest, num, np.uint64, endpoint=True))
    layer = make_layer(1, keys, np.zeros((len(keys), 1))).indexed()
    asked = np.concatenate([keys, keys - np.uint64(1), keys + np.uint64(1), np.array([0, 2**64 - 1], np.uint64)])
    assert np.array_equal(layer.find(asked), np.minimum(np.searchsorted(keys, asked), len(keys) - 1))


class FullDisk:
    """An `os` whose disk takes so many bytes."""

    def __init__(self, num_bytes: int) -> None:
        self._left = num_bytes

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def write(self, descriptor: int, data: memoryview) -> int:
        if len(data) > self._left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._left -= len(data)
        return os.write(descriptor, data)


@pytest.mark.parametrize("num_bytes", [0, 30_000, 60_000])
@pytest.mark.parametrize("since", [None, "3"])
def test_a_full_disk_leaves_nothing_behind(num_bytes, since, chain, tmp_path, monkeypatch):
    monkeypatch.setattr("heterps.checkpoint.disk.os", FullDisk(num_bytes if since is None else num_bytes // 40))
    records = sorted(path.name for path in (chain.run / "exports").iterdir())
    with pytest.raises(StorageError, match="No space left on device"):
        export(chain.run, tmp_path / "out", since=since)
    assert list(tmp_path.iterdir()) == []
    assert sorted(path.name for path in (chain.run / "exports").iterdir()) == records


def test_a_run_that_cannot_be_written_is_exported_without_a_record(chain, tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("heterps.serving.row_record.RowRecord.write", refuse)
    done = export(chain.run, tmp_path / "out")
    assert "no increments from this version can be made" in done.notes[0]
    assert as_arrays(Scorer(tmp_path / "out").score(chain.asked))["score"].shape == (60,)


def test_a_damaged_record_is_named(chain):
    path = chain.run / "exports" / "6.arrow"
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    try:
        with pytest.raises(RunError, match=r"6.arrow is damaged"):
            export(chain.run, chain.folder / "broken", since="6")
    finally:
        path.write_bytes(whole)
