"""What score.py reads from CSV and TSV is what the reader of training data reads, whatever the format says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from heterps.config import Data, Format, Job, Schema
from heterps.data.columns import find_id_kinds
from heterps.data.sources import open_dataset
from heterps.serving.export import inputs_of
from heterps.serving.score_files import read_samples
from heterps.serving.score_inputs import Samples

BOTH = {"dense": ["x"], "slots": ["s"]}
BUCKETS = {"bucket": {"column": "s", "steps": [{"bucketise": [1.5, 10]}]}}


def manifest_inputs(schema: Schema, format: Format) -> dict[str, Any]:
    job = Job(data=Data(train="none", columns=schema, format=format))
    inputs: dict[str, Any] = json.loads(json.dumps(inputs_of(job)))
    return inputs


def decoded(table: pa.Table, inputs: dict[str, Any]) -> list[Any]:
    """The numbers of a table, and the keys and lengths of each slot."""
    samples = Samples(table, inputs)
    return [samples.dense(), *(part for slot in inputs["slots"] for part in samples.keys(slot))]


def assert_same(found: pa.Table, expected: pa.Table, inputs: dict[str, Any]) -> None:
    for one, other in zip(decoded(found, inputs), decoded(expected, inputs), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("text", "format", "columns"),
    [
        pytest.param("s\na||b|NULL\n\nb\n", {"lists": {"s": "|"}}, {"slots": ["s"]}, id="nulls in lists of text"),
        pytest.param("s\na|-|b\n-\n", {"lists": {"s": "|"}, "nulls": ["-"]}, {"slots": ["s"]}, id="own nulls"),
        pytest.param("s\n1||3\n\n2\n", {"lists": {"s": "|"}}, {"slots": ["s"]}, id="nulls in lists of integers"),
        pytest.param("s\n18446744073709551615|3\n", {"lists": {"s": "|"}}, {"slots": ["s"]}, id="large integers"),
        pytest.param("s\n1.0|3.0\n2.0\n", {"lists": {"s": "|"}}, {"slots": ["s"]}, id="whole floats"),
        pytest.param("s\ntrue|false\n", {"lists": {"s": "|"}}, {"slots": ["s"]}, id="booleans"),
        pytest.param("s\n1|20\n", {"lists": {"s": "|"}, "types": {"s": "string"}}, {"slots": ["s"]}, id="named type"),
        pytest.param("s\n01\n20\n", {"types": {"s": "integer"}}, {"slots": ["s"]}, id="named type of one value"),
        pytest.param(
            "s\n1|20||3\n5\n", {"lists": {"s": "|"}}, {"slots": ["bucket"], "features": BUCKETS}, id="buckets of lists"
        ),
        pytest.param(
            "v\n0.5;-1;\n1;2;3\n\n", {"lists": {"v": ";"}}, {"dense": ["v"], "widths": {"v": 3}}, id="dense lists"
        ),
        pytest.param("1;2\n3;4\n", {"names": ["x", "s"], "delimiter": ";"}, BOTH, id="names"),
        pytest.param('x,s\n1,"a\n2,a"b\n', {"quotes": False}, BOTH, id="quotes are ordinary"),
        pytest.param('x,s\n1,"a\nb"\n2,"a,""b"\n', {}, BOTH, id="lines and quotes in quotes"),
        pytest.param("x\ts\n1\ta,b\n", {"kind": "tsv"}, BOTH, id="tabs"),
    ],
)  # fmt: skip
def test_text_is_read_as_in_training(text: str, format: Any, columns: Any, tmp_path: Path) -> None:
    path, options = tmp_path / "asked.csv", Format.model_validate(format)
    path.write_text(text)
    dataset = open_dataset(str(path), options)
    schema = find_id_kinds(dataset, Schema.model_validate({"dense": [], "slots": [], **columns}).without_labels())
    inputs = manifest_inputs(schema, options)
    file = dataset.files[0]
    (found,) = read_samples(path, inputs)
    assert_same(found, file.read(0, tuple(file.schema.names)), inputs)


@pytest.mark.parametrize(("kind", "ids"), [("string", ["7", "08", None]), ("integer", [7, 8, None])])
@pytest.mark.parametrize("separator", [None, "|"])
def test_the_kind_of_a_slot_is_that_of_the_column_it_is_made_of(
    kind: str, ids: list[Any], separator: str | None, tmp_path: Path
) -> None:
    schema = Schema(dense=(), slots=("liked",), features={"liked": {"column": "s"}}, id_kinds={"liked": kind})
    inputs = manifest_inputs(schema, Format(lists={} if separator is None else {"s": separator}, nulls=("-",)))
    (tmp_path / "asked.csv").write_text("s\n7\n08\n-\n" if separator is None else "s\n7|08|-\n")
    (found,) = read_samples(tmp_path / "asked.csv", inputs)
    assert_same(found, pa.table({"s": ids if separator is None else [ids]}), inputs)


def test_values_of_a_tsv_file_have_tabs_between_them(tmp_path: Path) -> None:
    (tmp_path / "asked.tsv").write_text("s\tt\na,b\t1\n")
    (found,) = read_samples(tmp_path / "asked.tsv", manifest_inputs(Schema(dense=(), slots=("s", "t")), Format()))
    assert found.to_pydict() == {"s": ["a,b"], "t": [1]}
