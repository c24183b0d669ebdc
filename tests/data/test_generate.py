import errno
import threading

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import log_loss, roc_auc_score, root_mean_squared_error

from heterps.data import generate as module
from heterps.data.generate import generate, load_info
from heterps.data.reader import Reader
from heterps.data.synthetic import CARDINALITIES, Teacher, make_rows
from heterps.errors import ConfigError, StorageError


@pytest.fixture(autouse=True)
def _small_files(monkeypatch):
    monkeypatch.setattr(module, "ROWS_PER_GROUP", 500)
    monkeypatch.setattr(module, "ROWS_PER_FILE", 1000)


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_files_row_groups_and_what_is_known_about_them(tmp_path):
    written = []
    info = generate(tmp_path / "data", 2300, 700, seed=4, progress=written.append)
    assert sum(written) == 3000
    assert list(files(tmp_path / "data")) == [
        "dataset.json",
        "test/part-00000.parquet",
        *(f"train/part-0000{i}.parquet" for i in range(3)),
    ]
    groups = pq.ParquetFile(tmp_path / "data/train/part-00000.parquet").metadata
    assert [groups.row_group(i).num_rows for i in range(groups.num_row_groups)] == [500, 500]
    assert (info.seed, info.train.rows, info.train.files, info.test.rows) == (4, 2300, 3, 700)
    assert info.possible_ids == CARDINALITIES.sum()
    assert load_info(tmp_path / "data") == info


def test_the_teacher_s_figures_are_those_of_scikit_learn(tmp_path):
    info = generate(tmp_path / "data", 3000, 0, seed=1)
    rows = make_rows(1, 0, 3000)
    probability = Teacher.of(1).probability(rows.score)
    label = rows.draw < probability
    assert info.train.teacher_auc == pytest.approx(roc_auc_score(label, probability), abs=1e-5)
    assert info.train.teacher_log_loss == pytest.approx(log_loss(label, probability))
    assert info.train.base_rate == pytest.approx(label.mean())
    assert info.train.distinct_ids == sum(len(np.unique(rows.ids[s][rows.ids_valid[s]])) for s in range(26))
    assert info.test is None


def test_the_reader_gives_back_the_rows(tmp_path):
    generate(tmp_path / "data", 1200, 0)
    rows = make_rows(0, 0, 1200)
    batch, _ = next(Reader(str(tmp_path / "data/train"), batch_size=1200, shuffle=False).read())
    assert (batch.dense == np.where(rows.dense_valid, rows.dense, 0).T).all()
    assert (batch.label == (rows.draw < Teacher.of(0).probability(rows.score))).all()
    assert len(np.unique(batch.slots.keys.reshape(1200, 26)[:, 8])) == 3  # C9 has three ids and no null


@pytest.mark.parametrize("task", module.TASKS)
def test_bytes_depend_on_the_seed_and_not_on_threads(tmp_path, task):
    for name, seed, num_threads in (("a", 0, 1), ("b", 0, 3), ("c", 1, 1)):
        generate(tmp_path / name, 2300, 700, seed, task=task, num_threads=num_threads)
    a, b, c = (files(tmp_path / name) for name in "abc")
    assert a == b
    assert all(a[name] != c[name] for name in a)


@pytest.mark.parametrize("task", module.TASKS)
def test_a_longer_data_set_starts_with_the_shorter_one(tmp_path, task):
    generate(tmp_path / "short", 1000, 500, task=task)
    generate(tmp_path / "long", 2000, 500, task=task)
    short, long = files(tmp_path / "short"), files(tmp_path / "long")
    assert all(short[name] == long[name] for name in short if name != "dataset.json")


def test_an_unknown_task_is_refused_with_the_list_of_tasks(tmp_path):
    with pytest.raises(ConfigError, match="no task 'clicks'; choose one of: click, match, words"):
        generate(tmp_path / "data", 10, 0, task="clicks")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_empty_is_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not empty"):
        generate(tmp_path, 10, 0)
    with pytest.raises(ConfigError, match=r"no dataset\.json"):
        generate(tmp_path, 10, 0, force=True)
    with pytest.raises(ConfigError, match="this is a file"):
        generate(tmp_path / "thesis.txt", 10, 0)
    assert files(tmp_path) == {"thesis.txt": b"mine"}


def test_an_empty_folder_is_used_and_force_replaces_a_data_set(tmp_path):
    (tmp_path / "data").mkdir()
    generate(tmp_path / "data", 100, 50)
    generate(tmp_path / "data", 200, 0, force=True)
    assert load_info(tmp_path / "data").train.rows == 200
    assert not (tmp_path / "data/test").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def no_space(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("where", ["first row group", "last file", "description"])
def test_a_full_disk_leaves_nothing_new_and_the_old_data_set_whole(tmp_path, monkeypatch, where):
    generate(tmp_path / "data", 100, 0)
    before = files(tmp_path)
    if where == "description":
        monkeypatch.setattr("pathlib.Path.write_text", no_space)
    else:
        write_table, left = pq.ParquetWriter.write_table, [0 if where == "first row group" else 5]

        def write(*args, **options):
            if not left[0]:
                no_space()
            left[0] -= 1
            write_table(*args, **options)

        monkeypatch.setattr(pq.ParquetWriter, "write_table", write)
    with pytest.raises(StorageError, match=r"No space left on device.*Nothing was kept"):
        generate(tmp_path / "data", 2300, 700, force=True)
    assert files(tmp_path) == before


def test_a_target_that_cannot_be_renamed_keeps_the_old_data_set(tmp_path, monkeypatch):
    generate(tmp_path / "data", 100, 0)
    before = files(tmp_path)
    rename = module.Path.rename

    def refuse(self, target):
        if ".partial" in self.name and not self.name.endswith("-old"):
            raise PermissionError("permission denied")
        return rename(self, target)

    monkeypatch.setattr(module.Path, "rename", refuse)
    with pytest.raises(StorageError, match="permission denied"):
        generate(tmp_path / "data", 200, 0, force=True)
    assert files(tmp_path) == before


def test_an_interrupt_leaves_no_file_and_no_thread(tmp_path):
    def interrupt(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(tmp_path / "data", 5000, 0, progress=interrupt)
    assert not list(tmp_path.iterdir())
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("generate")]


def test_the_teacher_of_numbers_has_an_rmse_and_no_auc(tmp_path):
    info = generate(tmp_path / "data", 3000, 0, seed=1, task="ratings")
    drawn = module.TASKS["ratings"](1).draw(0, 3000, np.zeros(10_000, bool))
    assert info.train.teacher_rmse == pytest.approx(root_mean_squared_error(drawn.label, drawn.expected))
    assert info.train.base_rate == pytest.approx(drawn.label.mean())
    assert (info.train.teacher_auc, info.train.teacher_log_loss) == (None, None)


@pytest.mark.parametrize("task", ["click", "feed", "history", "ratings"])
def test_text_has_the_rows_of_parquet(tmp_path, task):
    for kind in ("parquet", "tsv"):
        generate(tmp_path / kind, 1200, 0, task=task, files=kind)
    assert [path.name for path in sorted((tmp_path / "tsv/train").iterdir())] == ["part-00000.tsv", "part-00001.tsv"]
    expected = pq.read_table(tmp_path / "parquet/train").to_pylist()
    found = [
        line.split("\t") for path in sorted(tmp_path.glob("tsv/train/*")) for line in path.read_text().splitlines()
    ]
    names, rows = found[0], [line for line in found if line != found[0]]
    assert names == list(expected[0])
    assert len(rows) == 1200
    for row, values in zip(rows[::97], expected[::97], strict=True):
        for text, value in zip(row, values.values(), strict=True):
            if isinstance(value, list):
                assert text == "|".join(map(str, value))
            elif isinstance(value, float):
                assert float(text) == pytest.approx(value, rel=1e-5)
            else:
                assert text == ("" if value is None else str(value))


def test_other_kinds_of_files_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="files of 'csv' cannot be written; choose one of: parquet, tsv"):
        generate(tmp_path / "data", 10, 0, files="csv")
    assert not (tmp_path / "data").exists()
