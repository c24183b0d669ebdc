"""Jobs whose checkpoints have changes only: what they resume to is what a run never stopped has, to the bit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command import heterps, heterps_here
from tiny import JOB, write_tiny

from heterps.checkpoint import Snapshot, load

SAVING = "checkpoint: {every_samples: 32, keep: 20, full_every: FULL}\n"
KINDS = {
    "plain": "servers: {count: 2}\n",
    "in this process": "",
    "evicts": "servers: {count: 2}\ntables: {eviction: {max_age: 3}}\n",
    "tiers": "tiers: {memory_bytes: 30000}\n",
    "asynchronous": "servers: {count: 2}\nsync: asp\n",
}

RARE = "in this process", "tiers", "asynchronous"
slow = pytest.mark.slow


def write_job(folder: Path, full_every: int, more: str) -> None:
    folder.mkdir(exist_ok=True)
    write_tiny(folder / "train.parquet", 320, s=(np.arange(320) // 3).tolist())  # most keys come once, and never again
    write_tiny(folder / "test.parquet", 50)
    (folder / "job.yaml").write_text(JOB + SAVING.replace("FULL", str(full_every)) + more)


def train(folder: Path, *words: str, how=heterps_here) -> None:
    done = how("train", "job.yaml", "--run", "run", *words, cwd=folder)
    assert done.returncode == 0, done.stderr


def tables(snapshot: Snapshot) -> dict[str, dict[int, tuple[bytes, ...]]]:
    found = {}
    for name, table in snapshot.tables.items():
        rows = table.whole()
        arrays = rows.values, rows.state, rows.uses, rows.clock
        found[name] = {int(key): tuple(a[i].tobytes() for a in arrays) for i, key in enumerate(rows.keys)}
    return found


def checkpoints(folder: Path) -> dict[int, Path]:
    return {int(path.name): path for path in sorted((folder / "run" / "checkpoints").iterdir())}


@pytest.mark.parametrize("kind", ["plain", "evicts", *(pytest.param(kind, marks=slow) for kind in RARE)])
def test_every_checkpoint_has_the_tables_of_a_run_that_saves_all_rows(tmp_path, kind):
    for name, full_every in (("all", 1), ("changes", 4)):
        write_job(tmp_path / name, full_every, KINDS[kind])
        train(tmp_path / name)
    expected, found = checkpoints(tmp_path / "all"), checkpoints(tmp_path / "changes")
    assert list(expected) == list(found)
    parents = [load(path).parent for path in found.values()]
    assert [number for number, parent in enumerate(parents) if parent is None] == list(range(0, len(parents), 4))
    for clock, path in found.items():
        assert tables(load(path)) == tables(load(expected[clock])), f"clock {clock}"
    assert parents[-1] is not None
    if kind == "plain":  # rows that eviction leaves in a table so small have all changed
        last = max(found)
        sizes = [sum(f.stat().st_size for f in one[last].glob("tables/*.arrow")) for one in (found, expected)]
        assert sizes[0] < sizes[1]


@pytest.mark.parametrize("kind", ["plain", *(pytest.param(kind, marks=slow) for kind in ("evicts", "tiers"))])
@pytest.mark.parametrize("launcher", ["inline", "local"])
def test_a_run_resumed_from_changes_equals_one_never_stopped(tmp_path, kind, launcher):
    write_job(tmp_path, 5, KINDS[kind])
    train(tmp_path)
    before = checkpoints(tmp_path)
    clock, path = list(before.items())[-2]
    assert load(path).parent is not None
    expected = tables(load(before[max(before)]))
    how = heterps if launcher == "local" else heterps_here
    train(tmp_path, "--resume", "--from", str(clock), "--launcher", launcher, how=how)
    newest = (tmp_path / "run" / "checkpoints").joinpath(f"{max(before):010d}-2")
    assert load(newest).parent is None, "after a start nobody knows what changed"
    assert tables(load(newest)) == expected


def test_ls_verify_predict_and_export_understand_changes(tmp_path):
    write_job(tmp_path, 3, KINDS["plain"])
    train(tmp_path)
    listed = json.loads(heterps_here("checkpoint", "ls", "run", "--json", cwd=tmp_path).stdout)
    assert [one["parent"] is None for one in listed] == [number % 3 == 0 for number in range(len(listed))]
    assert "since" in heterps_here("checkpoint", "ls", "run", cwd=tmp_path).stdout
    assert heterps_here("checkpoint", "verify", "run", cwd=tmp_path).returncode == 0
    newest = next(one["path"] for one in reversed(listed) if one["parent"])
    write_job(tmp_path / "all", 1, KINDS["plain"])
    train(tmp_path / "all")
    scores = {}
    for where, path in ((tmp_path, newest), (tmp_path / "all", newest)):
        done = heterps_here("predict", path, "test.parquet", "--out", "scores.parquet", cwd=where)
        assert done.returncode == 0, done.stderr
        done = heterps_here("export", path, "--to", "export", cwd=where)
        assert done.returncode == 0, done.stderr
        done = heterps_here("predict", "export", "test.parquet", "--out", "exported.parquet", cwd=where)
        assert done.returncode == 0, done.stderr
        scores[where] = [(where / name).read_bytes() for name in ("scores.parquet", "exported.parquet")]
    assert scores[tmp_path] == scores[tmp_path / "all"]
