"""`heterps checkpoint` and `train --resume --from`, on the checkpoints of real runs."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from command import heterps, heterps_here
from tiny import JOB, write_tiny

from heterps.checkpoint import load

CHECKPOINTS = "run/checkpoints"
NAMES = ["0000000004", "0000000008", "0000000012"]
SAVING = "checkpoint: {every_samples: 64, keep: 9}\nservers: {count: 2}\n"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run with three checkpoints: at clocks 4, 8 and 12 of batches of 16."""
    folder = tmp_path_factory.mktemp("trained")
    write_tiny(folder / "train.parquet", 192)
    write_tiny(folder / "test.parquet", 50)
    (folder / "job.yaml").write_text(JOB + SAVING)
    done = heterps_here("train", "job.yaml", "--run", "run", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def folder(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "copy")
    return tmp_path / "copy"


def damage(folder, name):
    path = next((folder / CHECKPOINTS / name / "tables").glob("*.arrow"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    return path


def names(folder):
    return sorted(path.name for path in (folder / CHECKPOINTS).iterdir())


def test_ls_lists_clocks_samples_and_sizes(folder):
    listed = json.loads(heterps_here("checkpoint", "ls", "run", "--json", cwd=folder).stdout)
    assert [(one["name"], one["clock"], one["samples"]) for one in listed] == [
        (name, int(name), 16 * int(name)) for name in NAMES
    ]
    for one in listed:
        files = [path for path in (folder / CHECKPOINTS / one["name"]).rglob("*") if path.is_file()]
        assert one["bytes"] == sum(path.stat().st_size for path in files if path.name != "manifest.json")
        assert (one["parent"], one["problem"]) == (None, None)
    shown = heterps("checkpoint", "ls", "run", cwd=folder).stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.count("0000000") == 3


def test_verify_reads_every_byte_and_ls_only_sizes(folder):
    whole = heterps_here("checkpoint", "verify", "run", cwd=folder)
    assert (whole.returncode, whole.stdout.count("good")) == (0, 3)
    path = damage(folder, NAMES[1])
    assert json.loads(heterps_here("checkpoint", "ls", "run", "--json", cwd=folder).stdout)[1]["problem"] is None
    found = heterps_here("checkpoint", "verify", "run", "--json", cwd=folder)
    assert found.returncode == 6
    assert [one["problem"] is None for one in json.loads(found.stdout)] == [True, False, True]
    assert path.name in found.stdout
    assert heterps_here("checkpoint", "verify", f"{CHECKPOINTS}/{NAMES[0]}", cwd=folder).returncode == 0
    path.unlink()
    assert (
        "is missing" in json.loads(heterps_here("checkpoint", "ls", "run", "--json", cwd=folder).stdout)[1]["problem"]
    )


def test_diff_counts_rows_as_two_dicts_of_them_do(folder):
    words = [f"{CHECKPOINTS}/{name}" for name in (NAMES[0], NAMES[2])]
    found = json.loads(heterps_here("checkpoint", "diff", *words, "--json", cwd=folder).stdout)
    assert (found["clock"], found["samples"], found["equal"]) == ([4, 12], [64, 192], False)
    first, second = (load(folder / word) for word in words)
    for name, table in found["tables"].items():
        before, after = (
            {int(key): (rows.values[i].tobytes(), rows.state[i].tobytes()) for i, key in enumerate(rows.keys)}
            for rows in (one.tables[name].whole() for one in (first, second))
        )
        both = before.keys() & after.keys()
        assert table["rows"] == [len(before), len(after)]
        assert table["changed"] == sum(before[key] != after[key] for key in both) > 0
        assert table["same"] == len(both) - table["changed"]
        assert (table["new"], table["gone"]) == (len(after) - len(both), len(before) - len(both))
    weight = next(name for name in found["dense"] if name.endswith("weight"))
    assert found["dense"][weight] == pytest.approx(np.abs(first.dense[weight] - second.dense[weight]).max())
    same = json.loads(heterps_here("checkpoint", "diff", words[0], words[0], "--json", cwd=folder).stdout)
    assert same["equal"]
    shown = heterps_here("checkpoint", "diff", *words, cwd=folder).stdout
    assert "clock 4 to 12" in shown
    assert "dense arrays differ" in shown


def test_rm_keeps_the_only_good_one_unless_forced(folder):
    damage(folder, NAMES[1])
    done = heterps_here("checkpoint", "rm", f"{CHECKPOINTS}/{NAMES[0]}", cwd=folder)
    assert (done.returncode, names(folder)) == (0, NAMES[1:])
    refused = heterps_here("checkpoint", "rm", f"{CHECKPOINTS}/{NAMES[2]}", cwd=folder)
    assert (refused.returncode, names(folder)) == (6, NAMES[1:])
    assert "no good checkpoint" in refused.stderr
    done = heterps_here("checkpoint", "rm", f"{CHECKPOINTS}/{NAMES[2]}", "--force", "--json", cwd=folder)
    assert json.loads(done.stdout) == {"removed": [NAMES[2]]}
    assert names(folder) == NAMES[1:2]


@pytest.mark.parametrize("place", ["run", "elsewhere/0000000004", f"{CHECKPOINTS}/../..", f"{CHECKPOINTS}/linked"])
def test_rm_removes_nothing_but_checkpoints_of_a_run(folder, place):
    shutil.copytree(folder / CHECKPOINTS / NAMES[0], folder / "elsewhere" / NAMES[0])
    (folder / CHECKPOINTS / "linked").symlink_to(folder / "elsewhere" / NAMES[0])
    (folder / CHECKPOINTS / "0000000099").symlink_to(folder / "elsewhere" / NAMES[0])
    before = sorted(folder.rglob("*"))
    for each in (place, f"{CHECKPOINTS}/0000000099"):
        refused = heterps_here("checkpoint", "rm", each, "--force", cwd=folder)
        assert refused.returncode == 6, refused
        assert "nothing was removed" in refused.stderr
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("launcher", ["inline", "local"])
def test_a_run_goes_back_to_an_older_checkpoint_and_equals_one_never_stopped(trained, folder, launcher):
    expected = load(trained / CHECKPOINTS / NAMES[2])
    options = ["--resume", "--from", "8" if launcher == "inline" else f"{CHECKPOINTS}/{NAMES[1]}"]
    done = heterps("train", "job.yaml", "--run", "run", "--launcher", launcher, *options, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "resumed at 128 of 192" in done.stdout
    assert names(folder) == [*NAMES[:2], f"{NAMES[2]}-2"], "the later past was not given up"
    found = load(folder / CHECKPOINTS / f"{NAMES[2]}-2")
    for name, table in expected.tables.items():
        rows, others = table.whole(), found.tables[name].whole()
        order, other = np.argsort(rows.keys), np.argsort(others.keys)
        np.testing.assert_array_equal(rows.values[order], others.values[other])
        np.testing.assert_array_equal(rows.state[order], others.state[other])


def test_from_is_refused_without_resume_and_for_what_is_no_checkpoint_of_the_run(folder):
    refused = heterps_here("train", "job.yaml", "--run", "other", "--from", "8", cwd=folder)
    assert refused.returncode == 2
    assert "add --resume" in refused.stderr
    for wrong in ("7", "run", f"elsewhere/{NAMES[0]}"):
        refused = heterps_here("train", "job.yaml", "--run", "run", "--resume", "--from", wrong, cwd=folder)
        assert refused.returncode == 6
        assert "heterps checkpoint ls run" in refused.stderr
    assert names(folder) == NAMES
