"""Whatever is wrong with what a user gives: an exit code, a paragraph with what, where and what to do, no traceback."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from command import heterps
from tiny import write_tiny

from heterps.checkpoint import disk
from heterps.cli import main
from heterps.errors import HeterpsError

UNTRACEABLE = """
import torch
from heterps.nn import SparseEmbedding

class Branching(torch.nn.Module):
    def __init__(self, schema):
        super().__init__()
        self.embedding = SparseEmbedding(schema.slots, 2)

    def forward(self, dense, slots):
        logits = self.embedding(slots).sum(dim=(1, 2))
        if logits.mean() > 100:
            logits = logits / 2
        return logits
"""
CLUSTER = "resources: {cpu: {usd_per_hour: 0.04, limit: 8}}\nserver_resource: cpu\n"
COST = {"compute_s": 0.01, "sync_s": 0.001, "input_s": 0.001, "alpha": 0.9, "beta": 0.9}
PROFILE = {"version": 1, "model": "m", "batch_size": 16, "layers": [{"name": "l", "costs": {"cpu": COST}}]}


@pytest.fixture(autouse=True)
def folder(tiny_job: Path) -> Path:
    """A working directory with a good job, cluster and profile, for each test to spoil."""
    (tiny_job.parent / "cluster.yaml").write_text(CLUSTER)
    (tiny_job.parent / "profile.json").write_text(json.dumps(PROFILE))
    return tiny_job.parent


def change_job(folder: Path, old: str, new: str) -> None:
    text = (folder / "job.yaml").read_text()
    assert old in text
    (folder / "job.yaml").write_text(text.replace(old, new))


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]):
    """Run a command that must fail: its exit code and what it says, having checked the manners of saying it."""

    def refused(command: str, code: int, *said: str) -> None:
        with pytest.raises(SystemExit) as end:
            main(command.split())
        err = capsys.readouterr().err
        assert end.value.code == code, err
        assert "Traceback" not in err
        paragraph = err.strip()
        assert paragraph.startswith("error: ")
        assert "\n" not in paragraph, "one paragraph"
        for words in said:
            assert words in paragraph
        with pytest.raises(HeterpsError):  # and with --debug, the traceback
            main([*command.split(), "--debug"])

    return refused


TRAIN = "train job.yaml --run run"
PLAN = "plan profile.json cluster.yaml --samples 1e6"


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "what"),
    [
        ("train none.yaml", "none.yaml: there is no such job file"),
        ("config show none.yaml", "none.yaml: there is no such job file"),
        ("profile none.yaml", "none.yaml: there is no such job file"),
        ("plan none.json cluster.yaml --throughput 1 --samples 1", "none.json: there is no such profile"),
        ("plan profile.json none.yaml --throughput 1 --samples 1", "none.yaml: there is no such cluster file"),
    ],
)
def test_a_missing_file(refused, command, what):
    refused(command, 2, what, "Check the path")


def test_a_file_that_is_no_text(refused, folder):
    (folder / "job.yaml").write_bytes(b"\xff\xfe\x00")
    refused(TRAIN, 2, "job.yaml", "not UTF-8 text", "save it as UTF-8")


def test_a_folder_in_the_place_of_a_file(refused, folder):
    (folder / "job.yaml").unlink()
    (folder / "job.yaml").mkdir()
    refused(TRAIN, 2, "job.yaml: cannot read this job file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(refused, folder):
    (folder / "train.parquet").chmod(0)
    refused(TRAIN, 4, "train.parquet")


ALIAS_BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("command", "file"),
    [(TRAIN, "job.yaml"), (f"{PLAN} --throughput 1", "profile.json"), (f"{PLAN} --throughput 1", "cluster.yaml")],
)
def test_aliases_that_expand_to_more_than_memory_holds(refused, folder, command, file):
    (folder / file).write_text(ALIAS_BOMB)
    refused(command, 2, f"{file}:", "the file has more than 200,000 values", "write it with fewer values or aliases")


def test_a_file_that_is_too_large_for_a_job(refused, folder):
    (folder / "job.yaml").write_text("# " + 8_000_000 * "x")
    refused(TRAIN, 2, "job.yaml: a job file has at most 8,000,000 bytes; this file has more.")


def test_a_field_that_is_not_one(refused, folder):
    change_job(folder, "batch_size: 16", "batchsize: 16")
    refused(TRAIN, 2, "job.yaml:", "data.batchsize is not a field. Did you mean 'batch_size'?")


@pytest.mark.parametrize("which", ["train", "test"])
def test_missing_data(refused, folder, which):
    (folder / f"{which}.parquet").unlink()
    refused(TRAIN, 4, f"{which}.parquet: there is no such file or folder in {folder}, the working directory")
    assert not (folder / "run").exists()


def test_data_that_is_not_parquet(refused, folder):
    (folder / "train.parquet").write_text("label,a,b\n")
    refused(TRAIN, 4, "train.parquet")


# --- data ------------------------------------------------------------------------------------------------------------


def test_a_column_that_is_not_there(refused, folder):
    write_tiny(folder / "train.parquet", 200, b=[])
    refused(TRAIN, 4, "train.parquet", "the schema names b, but the file has no such column")


def test_a_column_of_the_wrong_type(refused, folder):
    write_tiny(folder / "train.parquet", 200, a=["text"] * 200)
    refused(TRAIN, 4, "train.parquet", "a", "string")


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        (7, "classes, set data.columns.num_classes: 8 or more"),
        (0.5, "{label: mse}"),
        (-1, "{label: mse}"),
        (None, "missing: mask"),
    ],
)
def test_a_label_that_is_neither_0_nor_1_is_told_with_what_it_may_be(refused, folder, value, advice):
    write_tiny(folder / "train.parquet", 200, label=[0, 1] * 99 + [0, value])
    refused(TRAIN, 4, "train.parquet: row 199", "column label", advice)


@pytest.mark.parametrize("value", [None, float("nan")])
def test_missing_values_in_a_dense_column_where_they_are_errors(refused, folder, value):
    write_tiny(folder / "train.parquet", 200, a=[0.5] * 120 + [value] + [0.5] * 79)
    change_job(folder, "dense: [a, b]", "dense_missing: error, dense: [a, b]")
    refused(TRAIN, 4, "train.parquet", "120", "a", "dense_missing")


def test_nulls_in_a_slot_where_they_are_errors(refused, folder):
    write_tiny(folder / "train.parquet", 200, s=[3] * 120 + [None] + [3] * 79)
    change_job(folder, "dense: [a, b]", "slot_missing: error, dense: [a, b]")
    refused(TRAIN, 4, "train.parquet", "120", "s", "slot_missing")


@pytest.mark.parametrize(
    ("policies", "samples"),
    [("", 200), ("dense_missing: skip, ", 197), ("dense_missing: skip, slot_missing: skip, ", 195)],
)
@pytest.mark.parametrize("where", ["", "epochs: 2, ", "workers"])
def test_missing_values_are_filled_keyed_or_skipped_and_counted(folder, capsys, policies, samples, where):
    """Each row is counted once, however many workers or epochs read it."""
    dense = [0.5] * 197 + [None, float("nan"), None]
    slot = [None, None] + [3] * 198
    write_tiny(folder / "train.parquet", 200, a=dense, s=slot)
    change_job(folder, "dense: [a, b]", f"{policies}dense: [a, b]")
    if where == "workers":
        change_job(folder, "threads: 1", "threads: 2\nworkers: {channel: memory}")
    else:
        change_job(folder, "batch_size: 16", f"batch_size: 16\n  {where.removesuffix(', ')}")
    with pytest.raises(SystemExit) as end:
        main([*TRAIN.split(), "--json", *(["--launcher", "local"] if where == "workers" else [])])
    summary = json.loads(capsys.readouterr().out)
    assert end.value.code == 0
    assert summary["samples"] == samples * (2 if "epochs" in where else 1)
    assert summary["data"] == {"num_rows": 200, "num_skipped": 200 - samples, "missing": {"a": 3, "s": 2}}


def test_every_row_skipped(refused, folder):
    write_tiny(folder / "train.parquet", 200, s=[None] * 200)
    change_job(folder, "dense: [a, b]", "slot_missing: skip, dense: [a, b]")
    refused(TRAIN, 4, "train.parquet", "s")


def test_an_empty_data_set(refused, folder):
    write_tiny(folder / "train.parquet", 0, label=[0][:0])
    refused(TRAIN, 4, "train.parquet")


def test_a_batch_larger_than_the_data(refused, folder):
    change_job(folder, "batch_size: 16", "batch_size: 201")
    refused(TRAIN, 4, "train.parquet: a batch of 201 samples cannot be made of 200 rows. Set data.batch_size")
    assert not (folder / "run").exists()


# --- models ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def untraceable(folder, monkeypatch):
    (folder / "untraceable_model.py").write_text(UNTRACEABLE)
    monkeypatch.syspath_prepend(folder)
    change_job(
        folder, "factory: ctr_dnn, args: {embedding_dim: 4, hidden: [8]}", "factory: 'untraceable_model:Branching'"
    )


def test_a_model_that_cannot_be_traced_cannot_be_profiled(refused, untraceable):
    refused("profile job.yaml", 5, "untraceable_model.py:12", "torch.fx cannot trace", "torch.where")


@pytest.mark.parametrize("launcher", ["inline", "local"])
def test_a_model_that_cannot_be_traced_trains_without_a_prediction(untraceable, folder, capsys, launcher):
    change_job(folder, "threads: 1", "threads: 2\nworkers: {channel: memory}")
    with pytest.raises(SystemExit) as end:
        main([*TRAIN.split(), "--launcher", launcher])
    assert end.value.code == 0
    shown = capsys.readouterr().out.replace("\n", " ")
    assert ("warning: there is no prediction for this run" in shown) == (launcher == "inline")
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert (summary["status"], summary["predicted_throughput"]) == ("completed", None)


def test_an_unknown_model(refused, folder):
    change_job(folder, "ctr_dnn", "ctr_dn")
    refused(TRAIN, 5, "no model 'ctr_dn' in the zoo: did you mean 'ctr_dnn'?")


def test_a_model_with_arguments_that_it_does_not_take(refused, folder):
    change_job(folder, "hidden: [8]", "hiden: [8]")
    refused(TRAIN, 5, "unexpected keyword argument 'hiden'", "Its signature is")


# --- plans -----------------------------------------------------------------------------------------------------------


def test_an_unknown_method(refused):
    refused(f"{PLAN} --throughput 10 --method exakt", 2, "exakt", "exact, rl, rl-scratch, rl-rnn, rl-paper, changes")


@pytest.mark.parametrize(
    ("resources", "what"),
    [
        ("{}", "a cluster needs at least one resource"),
        ("{cpu: {usd_per_hour: 1, limit: 0}}", "every resource has limit 0"),
    ],
)
def test_a_cluster_that_rents_nothing(refused, folder, resources, what):
    (folder / "cluster.yaml").write_text(f"resources: {resources}\nserver_resource: cpu\n")
    refused(f"{PLAN} --throughput 10", 2, "cluster.yaml", what)
    change_job(folder, "threads: 1", "cluster: cluster.yaml")
    refused(TRAIN, 2, "job.yaml", "cluster.yaml", what)


@pytest.mark.parametrize("number", ["0", "-1", "nan"])
def test_a_throughput_that_is_no_number_to_ask_for(refused, number):
    refused(f"{PLAN} --throughput {number}", 2, "throughput")


def test_a_throughput_that_nobody_can_reach(refused):
    refused(f"{PLAN} --throughput 1e12", 3, "throughput")


# --- a full disk -----------------------------------------------------------------------------------------------------


def full(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_disk_too_full_for_metrics(refused, monkeypatch):
    open_file = Path.open
    monkeypatch.setattr(
        Path, "open", lambda path, mode="r", *a, **k: (full if mode == "a" else open_file)(path, mode, *a, **k)
    )
    refused(TRAIN, 7, "run/metrics.jsonl: the disk is full. Free some room, then go on with --resume")


def test_a_disk_too_full_for_a_checkpoint(refused, folder, monkeypatch):
    monkeypatch.setattr(disk.os, "write", full)
    refused(TRAIN, 7, "run/checkpoints: cannot save the checkpoint of clock 13", "Free space on that disk")


# --- the traceback ---------------------------------------------------------------------------------------------------


def test_only_debug_shows_a_traceback(folder):
    plain = heterps("config", "show", "none.yaml", cwd=folder)
    debug = heterps("config", "show", "none.yaml", "--debug", cwd=folder)
    assert plain.returncode == 2
    assert "Traceback" not in plain.stderr
    assert "Traceback" in debug.stderr
    assert "none.yaml: there is no such job file" in debug.stderr
