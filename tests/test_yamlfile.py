"""Files become models, or errors that name the file and the line; nothing in a file is evaluated."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from heterps import yamlfile
from heterps.errors import ConfigError
from heterps.yamlfile import dump_yaml, parse, read_model


def read(text: str) -> dict[str, Any]:
    return parse(text, where="job.yaml", what="job file")[0]


class Holder(BaseModel):
    value: Any


def json_values(text: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    return st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
        max_leaves=10,
    )


printable = st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]))  # in JSON, YAML refuses or folds the others
odd_words = st.from_regex(r"[-+0-9.eExon_:~]{1,6}", fullmatch=True) | st.sampled_from(["yes", "<<", "=", "Off"])


@given(json_values(st.text()) | odd_words)
def test_what_is_dumped_reads_back_the_same(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    path = tmp_path_factory.mktemp("dump") / "file.yaml"
    path.write_text(dump_yaml(Holder(value=value)), encoding="utf-8", newline="")
    found = read_model(path, Holder, what="file").value
    assert found == value
    assert repr(found) == repr(value)  # 1 and 1.0 and True are equal, and not the same


@given(json_values(printable))
def test_json_reads_as_json(value: Any) -> None:
    assert read(Holder(value=value).model_dump_json()) == {"value": value}


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("1e-3", 0.001), ("1E3", 1000.0), (".5", 0.5), ("-7", -7), ("0x1f", 31), ("0o17", 15), ("017", 17), ("08", 8),
        ("true", True), ("False", False), ("null", None), ("~", None), ("", None), ("-.inf", -math.inf),
        ("yes", "yes"), ("no", "no"), ("on", "on"), ("2024-01-01", "2024-01-01"), ("12:30", "12:30"),
        ("1.2.3", "1.2.3"), ("'3'", "3"), ("!!str 3", "3"), ("!!float 3", 3.0),
    ],
)  # fmt: skip
def test_words_mean_what_yaml_1_2_says(word: str, value: object) -> None:
    found = read(f"x: {word}")["x"]
    assert (found, type(found)) == (value, type(value))


def test_every_field_has_its_line() -> None:
    _, lines = parse("a: 1\nb:\n  c: [x,\n      y]\n", where="f", what="file")
    assert lines[("a",)] == 1
    assert lines[("b",)] == 2
    assert lines[("b", "c")] == 3
    assert lines[("b", "c", 1)] == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"^job\.yaml: a job file is a mapping of fields to values; this one is empty\.$"),
        ("# nothing\n", "this one is empty"),
        ("- a\n- b\n", "this one holds a list"),
        ("hello", "this one holds a str"),
        ("a: 1\nb: [", r"^job\.yaml:2: this job file is not valid YAML: expected the node content"),
        ("a: 1\n\tb: 2", r"^job\.yaml:2: .* not valid YAML: found character '\\t'"),
        ("a: 1\n---\nb: 2", r"^job\.yaml:2: .* another document"),
        ("a: x\0y", r"^job\.yaml: this job file is not valid YAML: unacceptable character #x0000"),
        ("a: 1\nb: 2\na: 3", r"^job\.yaml:3: a is given twice; keep one of the two\.$"),
        ("a:\n  b: 1\n  b: 2", r"^job\.yaml:3: a\.b is given twice"),
        ('{"a": 1, "a": 2}', r"^job\.yaml:1: a is given twice"),
        ("a: 1\n2: 3", r"^job\.yaml:2: a field name must be text; put it in quotes"),
        ("a: 1\n[b]: 3", r"^job\.yaml:2: a field name must be text"),
        ("a: !!int x", r"^job\.yaml:1: a: 'x' is not of type int\.$"),
        ("a: &a {b: *a}", r"^job\.yaml:1: the file is nested more than 64 deep, or an alias holds itself"),
        ("a: " + "[" * 80 + "]" * 80, "nested more than 64 deep"),
        ("a: " + "[" * 2000, "nested too deeply"),
    ],
)
def test_text_that_is_no_job_is_an_error_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(text)


def test_an_alias_may_be_used_again() -> None:
    assert read("a: &a [1, 2]\nb: *a\nc: [*a, *a]") == {"a": [1, 2], "b": [1, 2], "c": [[1, 2], [1, 2]]}


@pytest.mark.parametrize(
    "value",
    [
        "!!python/object/apply:os.system [ls]",
        "!!python/name:os.system",
        "!thing 3",
        "!!binary aGk=",
        "!!set {a}",
        "!!omap []",
    ],
)
def test_tags_are_refused_and_nothing_is_built_from_them(value: str) -> None:
    with pytest.raises(ConfigError, match=r"^job\.yaml:2: b has the tag .*; only plain values, lists and mappings"):
        read(f"a: 1\nb: {value}")


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"nowhere\.yaml: there is no such job file\. Check the path; .* relative to /"
    ):
        read_model(tmp_path / "nowhere.yaml", Holder, what="job file")
    with pytest.raises(ConfigError, match="cannot read this job file: Is a directory"):
        read_model(tmp_path, Holder, what="job file")
    (tmp_path / "latin.yaml").write_bytes("a: é".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"this job file is not UTF-8 text \(byte 3\): save it as UTF-8"):
        read_model(tmp_path / "latin.yaml", Holder, what="job file")


def test_a_text_is_scanned_once_and_what_is_made_of_it_belongs_to_whoever_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scanned, compose = [], yaml.compose
    monkeypatch.setattr(yaml, "compose", lambda text, **rest: scanned.append(text) or compose(text, **rest))
    text = "a: [1, {b: 2}]  # a text that no other test has"
    first = read(text)
    first["a"][1]["b"] = 3
    assert read(text) == {"a": [1, {"b": 2}]}
    assert scanned == [text]
    monkeypatch.setattr(yamlfile, "KEPT_LENGTH", 3)
    assert read(text) == {"a": [1, {"b": 2}]}
    assert scanned == [text, text], "what is long is not kept"
