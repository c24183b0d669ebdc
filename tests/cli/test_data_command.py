import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from heterps.cli import main


def run(capsys, *words):
    """Exit code, stdout and stderr of a command."""
    with pytest.raises(SystemExit) as caught:
        main([str(word) for word in words])
    out, err = capsys.readouterr()
    return caught.value.code, out, err


@pytest.fixture
def folder(tmp_path, capsys):
    assert run(capsys, "data", "synth", tmp_path / "data", "--rows", 300, "--test-rows", 100)[0] == 0
    return tmp_path / "data"


def test_synth_prints_what_it_stores(tmp_path, capsys):
    words = ("--rows", 300, "--test-rows", 100, "--seed", 3)
    code, out, err = run(capsys, "data", "synth", tmp_path / "data", *words, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == json.loads((tmp_path / "data/dataset.json").read_text())
    assert json.loads(out)["train"]["rows"] == 300


def test_synth_shows_the_teacher(tmp_path, capsys):
    code, out, _ = run(capsys, "data", "synth", tmp_path / "data", "--rows", 300, "--test-rows", 0)
    info = json.loads((tmp_path / "data/dataset.json").read_text())
    assert code == 0
    assert f"{info['train']['teacher_auc']:.4f}" in out
    assert "300 rows in" in out
    header = next(line for line in out.splitlines() if "split" in line)
    assert header.endswith(" ids ┃")  # one line


@pytest.mark.parametrize("task", ["match", "words"])
def test_synth_writes_other_tasks(tmp_path, capsys, task):
    code, out, _ = run(capsys, "data", "synth", tmp_path / "data", "--task", task, "--rows", 300, "--test-rows", 0)
    assert code == 0
    assert task in out
    assert json.loads((tmp_path / "data/dataset.json").read_text())["task"] == task


@pytest.mark.parametrize("task", ["click", "words", "ratings"])
def test_synth_with_a_larger_skew_has_fewer_ids_and_says_so(tmp_path, capsys, task):
    found = {}
    for skew in (None, 0, 1, 2.5):
        words = ("--task", task, "--rows", 2000, "--test-rows", 0, *(() if skew is None else ("--skew", skew)))
        code, out, _ = run(capsys, "data", "synth", tmp_path / f"data-{skew}", *words, "--json")
        assert code == 0
        assert json.loads(out)["skew"] == skew
        found[skew] = json.loads(out)["train"]["distinct_ids"]
    assert found[0] > found[1] > found[2.5]
    assert found[0] > found[None] > found[2.5]


def test_synth_with_the_skew_of_its_task_writes_the_same_bytes(tmp_path, capsys):
    for name, words in (("a", ()), ("b", ("--skew", 1.13))):
        assert run(capsys, "data", "synth", tmp_path / name, "--rows", 500, "--test-rows", 0, *words)[0] == 0
    a, b = ((tmp_path / name / "train/part-00000.parquet").read_bytes() for name in "ab")
    assert a == b


def test_synth_refuses_a_folder_in_use_without_force(folder, capsys):
    code, _, err = run(capsys, "data", "synth", folder, "--rows", 50)
    assert code == 2
    assert "--force" in err
    assert run(capsys, "data", "synth", folder, "--rows", 50, "--test-rows", 0, "--force")[0] == 0


def test_synth_refuses_numbers_out_of_range(tmp_path, capsys):
    code, _, err = run(capsys, "data", "synth", tmp_path / "data", "--rows", 0)
    assert code == 2
    assert "--rows" in err


def test_describe_shows_columns(folder, capsys):
    code, out, _ = run(capsys, "data", "describe", folder / "train")
    assert code == 0
    assert "300 rows; files: 1; row groups: 1" in out
    assert "C26" in out


def test_a_label_that_is_no_column_is_told_with_the_nearest(folder, capsys):
    for words in (("data", "describe", folder / "train"), ("init", folder, "--out", folder / "job.yaml")):
        code, out, err = run(capsys, *words, "--label", "C99")
        assert (code, out) == (4, "")
        assert "there is no column 'C99'. Did you mean 'C9'? There are: label, I1" in err


def test_a_wrong_command_is_a_question_without_a_full_stop(capsys):
    assert "No such command 'descibe'. Did you mean 'describe'?\n" in run(capsys, "data", "descibe")[2]


def test_describe_prints_json(folder, capsys):
    code, out, _ = run(capsys, "data", "describe", folder / "test" / "*.parquet", "--json")
    described = json.loads(out)
    assert code == 0
    assert (described["rows"], len(described["columns"])) == (100, 40)
    assert 0 < described["label_mean"] < 1


def test_bad_data_ends_with_its_exit_code_and_no_traceback(folder, capsys):
    code, out, err = run(capsys, "data", "describe", folder)
    assert (code, out) == (4, "")
    assert "holds no data file" in err
    assert "Traceback" not in err


def test_describe_fits_80_columns_and_judges_the_label(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    rows = "".join(f"{i % 2},{i * 1000003},{-i / 7e5},,word{i}\n" for i in range(1000))
    name = "a_column_with_a_name_that_is_longer_than_most"
    (tmp_path / "a.csv").write_text(f"clicked,{name},x,none,title\n{rows}")
    code, out, _ = run(capsys, "data", "describe", tmp_path / "a.csv", "--label", "clicked")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert "Every value of none is missing: leave it out." in out
    assert "The label clicked can be trained: its values are 0 or 1." in out


def test_convert_writes_parquet(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("1;2\n3;4\n")
    words = ("data", "convert", tmp_path / "a.txt", tmp_path / "out", "--format")
    assert "2 rows with 2 columns" in run(capsys, *words, "kind: csv, delimiter: ;, names: [a, b]")[1]
    code, out, err = run(capsys, *words, "{kind: csv, delimiter: ;, names: [a, b]}", "--force", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == json.loads((tmp_path / "out/_dataset.json").read_text())
    code, _, err = run(capsys, *words, "kind: cvs")
    assert code == 2
    assert "kind: must be" in " ".join(err.split())


@pytest.mark.parametrize("command", ["synth", "describe", "images", "convert"])
def test_help_shows_an_example(command, capsys):
    assert f"heterps data {command}" in run(capsys, "data", command, "--help")[1]


# --- images ----------------------------------------------------------------------------------------------------------


def test_images_are_written_and_shown_with_the_columns_of_a_job(tmp_path, capsys):
    code, out, _ = run(capsys, "data", "images", "digits", tmp_path / "digits")
    assert code == 0
    assert "1,541" in out
    assert "columns: {num_classes: 10, dense: [image], widths: {image: 64}, slots: []}" in out


def test_images_print_what_they_store(tmp_path, capsys):
    code, out, err = run(capsys, "data", "images", "digits", tmp_path / "digits", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == json.loads((tmp_path / "digits/dataset.json").read_text())


def test_images_from_a_bad_file_end_with_the_byte_and_no_traceback(tmp_path, capsys):
    (tmp_path / "mine.bin").write_bytes(bytes(3000))
    code, out, err = run(capsys, "data", "images", "cifar10", tmp_path / "mine.bin", tmp_path / "out")
    assert (code, out) == (4, "")
    assert "mine.bin: byte 0: a record of cifar10 has 3,073 bytes" in " ".join(err.split())
    assert "Traceback" not in err


def test_images_take_one_source_and_one_folder(tmp_path, capsys):
    code, _, err = run(capsys, "data", "images", "cifar10", "a", "b", "c")
    assert code == 2
    assert "one SOURCE and one OUT" in err
    assert run(capsys, "data", "images", "digits")[0] == 2


def test_describe_names_what_lists_hold(tmp_path, capsys):
    table = pa.table({"label": [0, 1], "genres": pa.array([["a"], ["b", "c"]])})
    pq.write_table(table, tmp_path / "lists.parquet")
    code, out, _ = run(capsys, "data", "describe", tmp_path / "lists.parquet")
    assert code == 0
    assert "list<string>" in out
    assert all(len(line.rstrip()) <= 80 for line in out.splitlines())
