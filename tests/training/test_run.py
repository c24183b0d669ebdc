"""The run folder: what may be created, resumed, rewound, and what a full disk says."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from heterps.config import SGD, Checkpoint, Data, Job, Model, Optimizers, Resource, load_job
from heterps.errors import RunError, StorageError
from heterps.training.run.folder import Run, choose_folder

JOB = Job(name="ctr", model=Model(args={"hidden": (8, 4)}), data=Data(train="train.parquet", epochs=2))


def change(job, **fields):
    """The job with some fields changed; `data__epochs` is `data.epochs`."""
    for name, value in fields.items():
        outer, _, inner = name.partition("__")
        if inner:
            value = getattr(job, outer).model_copy(update={inner: value})
        job = job.model_copy(update={outer: value})
    return job


@pytest.fixture
def run(tmp_path):
    run = Run(tmp_path / "runs" / "ctr-1")
    run.create(JOB)
    return run


def test_a_new_run_holds_the_whole_job(run):
    assert load_job(run.folder / "job.yaml").model_dump(mode="json") == JOB.model_dump(mode="json")
    assert [path.name for path in run.folder.iterdir()] == ["job.yaml"]


def test_an_empty_folder_is_as_good_as_none(tmp_path):
    (tmp_path / "empty").mkdir()
    Run(tmp_path / "empty").create(JOB)


def test_a_folder_in_use_is_refused(run, tmp_path):
    with pytest.raises(RunError, match=r"not empty. Go on with that run by --resume, or name another folder"):
        run.create(JOB)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="not empty"):
        Run(tmp_path / "file").create(JOB)


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="Check the folder and its permissions"):
        Run(tmp_path / "file" / "run").create(JOB)


# --- resume ----------------------------------------------------------------------------------------------------------


def test_the_same_job_may_resume(run):
    run.resume(JOB)  # its tuple of `hidden` is a list in job.yaml


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"seed": 1}, "seed"),
        ({"data__batch_size": 7}, "data.batch_size"),
        ({"data__shuffle": False}, "data.shuffle"),
        ({"model": Model(factory="deepfm")}, "model.factory, model.args.hidden"),
        ({"optimizers": Optimizers(sparse=SGD(lr=0.05))}, "optimizers.sparse.kind"),
        ({"metrics_every_samples": 5}, "metrics_every_samples"),
    ],
)
def test_another_job_is_refused_by_the_fields_that_differ(run, fields, named):
    before = (run.folder / "job.yaml").read_text()
    with pytest.raises(RunError, match=f"a run of another job: {named}.* differ. Start a new run with --run"):
        run.resume(change(JOB, **fields))
    assert (run.folder / "job.yaml").read_text() == before


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "other"},
        {"checkpoint": Checkpoint(every_samples=5, keep=3)},
        {"cluster": JOB.cluster.model_copy(update={"resources": {"cpu": Resource(usd_per_hour=1, limit=1)}})},
        {"profile": "profile.json"},
        {"threads": 7},
        {"data__test": "test.parquet"},
        {"data__train": "other.parquet"},  # for a run that is done with its own: positions.py sees to it
        {"data__epochs": 5},
        {"data__prefetch": 9},
    ],
)
def test_what_does_not_decide_the_steps_may_change_and_is_kept(run, fields):
    job = change(JOB, **fields)
    run.resume(job)
    assert load_job(run.folder / "job.yaml").model_dump(mode="json") == job.model_dump(mode="json")


def test_a_folder_without_a_run_cannot_be_resumed(tmp_path):
    with pytest.raises(RunError, match=r"holds no run to resume .* Leave out --resume"):
        Run(tmp_path).resume(JOB)


# --- metrics ---------------------------------------------------------------------------------------------------------


def line(samples):
    return {"samples": samples, "seconds": 0.5, "auc": None, "rows": 3, "table_bytes": 96}


def test_metrics_are_rewound_to_what_was_known(run):
    assert run.metrics() == []
    lines = [line(samples) for samples in (100, 200, 300)]
    for one in lines:
        run.add_metrics(one)
    run.rewind_metrics(200)
    assert run.metrics() == lines[:2]
    run.add_metrics(lines[2])
    assert run.metrics() == lines


def test_a_line_that_a_full_disk_cut_short_is_dropped(run):
    run.add_metrics(line(100))
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write('{"samples": 2')
    assert run.metrics() == [line(100)]
    run.rewind_metrics(500)
    run.add_metrics(line(200))
    assert run.metrics() == [line(100), line(200)]


def test_damage_inside_the_metrics_is_reported_with_the_file(run):
    run.add_metrics(line(100))
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write("\0\0\0\n")
    with pytest.raises(RunError, match=r"metrics\.jsonl:2: this line is damaged"):
        run.metrics()


# --- a disk that refuses ---------------------------------------------------------------------------------------------


@pytest.fixture
def refuse(monkeypatch):
    """From now on the disk answers every write with this error."""

    def refuse(number):
        def fail(*args, **options):
            raise OSError(number, "the disk says no")

        monkeypatch.setattr(Path, "open", fail)
        monkeypatch.setattr(Path, "write_text", fail)

    return refuse


@pytest.mark.parametrize("write", [lambda run: run.add_metrics({"samples": 1}), lambda run: run.write("x", "text")])
@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "the disk is full. Free some room, then go on with --resume"),
        (errno.EDQUOT, "the disk is full"),
        (errno.EACCES, "cannot be written: the disk says no. Check the folder and its permissions"),
    ],
)
def test_a_write_that_fails_is_a_storage_error(run, refuse, write, number, message):
    refuse(number)
    with pytest.raises(StorageError, match=message) as caught:
        write(run)
    assert caught.value.exit_code == 7


def test_a_file_that_could_not_be_replaced_is_as_it_was(run, monkeypatch):
    before = (run.folder / "job.yaml").read_text()

    def fail(*args):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr("heterps.training.run.folder.os.replace", fail)
    with pytest.raises(StorageError):
        run.write("job.yaml", "half")
    assert (run.folder / "job.yaml").read_text() == before
    assert [path.name for path in run.folder.iterdir()] == ["job.yaml"]


# --- the folder's name -----------------------------------------------------------------------------------------------


def test_folders_are_numbered_after_the_last(tmp_path):
    assert choose_folder(JOB, resume=False, root=tmp_path / "none") == tmp_path / "none" / "ctr-1"
    for name in ("ctr-2", "ctr-10", "ctr-x", "ctr-dnn-77", "other-99"):
        (tmp_path / name).mkdir()
    assert choose_folder(JOB, resume=False, root=tmp_path).name == "ctr-11"
    assert choose_folder(JOB, resume=True, root=tmp_path).name == "ctr-10"


@pytest.mark.parametrize("name", ["a/b", "[ab]*", "../up", "with space", "über"])
def test_any_name_makes_folders_that_are_numbered(tmp_path, name):
    job = change(JOB, name=name)
    first = choose_folder(job, resume=False, root=tmp_path)
    Run(first).create(job)
    assert first.parent == tmp_path
    assert choose_folder(job, resume=True, root=tmp_path) == first
    assert choose_folder(job, resume=False, root=tmp_path) == first.with_name(first.name[:-1] + "2")


def test_without_a_run_there_is_nothing_to_resume(tmp_path):
    with pytest.raises(RunError, match=r"no run of 'ctr' in .* to resume. Leave out --resume, or name it with --run"):
        choose_folder(JOB, resume=True, root=tmp_path)
