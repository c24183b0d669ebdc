"""Vectors by original id, and nearest neighbours, of a run: in Python and by the command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch import Tensor, nn

import heterps
from heterps.checkpoint import latest, load
from heterps.cli import main
from heterps.data.keys import make_keys
from heterps.errors import ConfigError, DataError, HeterpsError
from heterps.nn import Slots, SparseEmbedding
from heterps.serving.export import export

ITEMS = list(range(30))


@pytest.fixture(scope="module")
def model(shop: Path) -> Iterator[Any]:
    with heterps.load(shop) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def rows(shop: Path) -> dict[int, list[float]]:
    """The rows of the only table, by key, straight from the checkpoint."""
    path = latest(shop / "checkpoints")
    assert path is not None
    table = load(path).tables["embedding"].whole()
    return dict(zip(table.keys.tolist(), table.values.tolist(), strict=True))


def row(rows: dict[int, list[float]], slot: str, one: Any) -> list[float]:
    (key,) = make_keys(np.array([one]), slot).tolist()
    return rows[key]


def test_a_vector_is_the_row_of_the_id(model: Any, rows: dict[int, list[float]]) -> None:
    users = model.vectors("user", ["u3", "u1", "u3"])
    assert users.dtype == np.float32
    assert users.tolist() == [row(rows, "user", one) for one in ("u3", "u1", "u3")]
    expected = [row(rows, "item", one) for one in (4, 11)]
    for ids in ([4, 11], ["4", "11"], np.array([4, 11]), pa.array([4, 11]), pd.Series([4, 11])):
        assert model.vectors("item", ids).tolist() == expected
    assert model.vectors("item", 4).tolist() == expected[:1]
    assert model.vectors("tags", [3]).tolist() == [row(rows, "tags", 3)]
    assert model.vectors("item", []).shape == (0, 4)


def test_ids_without_a_row_are_refused_or_told(model: Any) -> None:
    with pytest.raises(DataError, match=r"2 of 3 ids of item have no row: 777, 888\. .*unknown='nan'"):
        model.vectors("item", [777, 4, 888])
    found = model.vectors("item", [777, 4], unknown="nan")
    assert np.isnan(found).all(axis=1).tolist() == [True, False]
    initial = model.vectors("item", [777], unknown="initial")
    slots = heterps.bags({"user": ["u0"], "item": [777], "tags": [[1]], "hour": [1]})
    assert np.array_equal(model.module.embedding(slots)[0, 1].detach().numpy(), initial[0])


def test_neighbours_are_those_of_a_search_by_hand(model: Any, shop: Path) -> None:
    vectors = model.vectors("item", ITEMS).astype(np.float64)
    for by in ("cosine", "dot"):
        scores = vectors @ vectors[4]
        if by == "cosine":
            scores /= np.linalg.norm(vectors, axis=1) * np.linalg.norm(vectors[4])
        expected = sorted((other for other in ITEMS if other != 4), key=lambda other: -scores[other])[:5]
        for among in (ITEMS, [*ITEMS, 999], shop.parent / "train.parquet", pd.DataFrame({"item": ITEMS})):
            found = model.neighbours("item", 4, k=5, among=among, by=by)
            assert [near.id for near in found] == expected
            assert [near.score for near in found] == pytest.approx(scores[expected], rel=1e-5)
    assert [near.id for near in model.neighbours("item", "4", among=[4, 5, 999])] == [5]
    other = model.neighbours("item", 4, 3, among={"thing": ITEMS}, column="thing")
    assert len(other) == 3


@pytest.mark.parametrize(("slot", "num"), [("item", 30), ("user", 40), ("tags", 9)])
def test_all_ids_of_a_column_are_written_once(model: Any, shop: Path, tmp_path: Path, slot: str, num: int) -> None:
    path = tmp_path / "vectors.parquet"
    assert model.vectors_to_parquet(slot, shop.parent / "train.parquet", path) == num
    table = pq.read_table(path)
    assert table.column_names == [slot, "vector"]
    assert table.schema.field("vector").type == pa.list_(pa.float32(), 4)
    ids = table.column(slot).to_pylist()
    assert len(set(ids)) == num
    assert np.array_equal(np.array(table.column("vector").to_pylist(), np.float32), model.vectors(slot, ids))


def test_ids_of_a_column_that_have_no_row_are_left_out(model: Any, shop: Path, tmp_path: Path) -> None:
    seen = set(pq.read_table(shop.parent / "test.parquet").column("item").to_pylist())  # 5 to 34
    assert model.vectors_to_parquet("item", shop.parent / "test.parquet", tmp_path / "v.arrow") == len(seen) - 5
    assert model.vectors_to_parquet("item", {"item": [999]}, tmp_path / "none.parquet") == 0
    assert pq.read_table(tmp_path / "none.parquet").num_rows == 0


class WideAndDeep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = SparseEmbedding(["a", "b"], 1)
        self.deep = SparseEmbedding(["a", "b"], 3)

    def forward(self, dense: Tensor, slots: Slots) -> Tensor:
        del dense
        return self.wide(slots).sum((1, 2)) + self.deep(slots).prod(1).sum(1)


def test_slots_that_share_ids_share_vectors_and_the_widest_table_is_meant(tmp_path: Path) -> None:
    ids = np.arange(60) % 6
    run = heterps.train(
        folder=tmp_path / "run", model=WideAndDeep(), data={"a": ids, "b": ids[::-1], "label": ids % 2}, label="label",
        slots=["a", "b"], same_ids={"b": "a"}, batch_size=20,
    )  # fmt: skip
    with run.load(model=WideAndDeep) as model:
        assert np.array_equal(model.vectors("a", [1, 2]), model.vectors("b", ["1", "2"]))
        assert model.vectors("a", [1]).shape == (1, 3)
        assert model.vectors("a", [1], table="wide").shape == (1, 1)
        with pytest.raises(ConfigError, match="no rows in table x, but in"):
            model.vectors("a", [1], table="x")


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda model: model.vectors("nothing", [1]), "nothing is no slot of the model. Its slots: user, item, tags"),
        (lambda model: model.vectors("hour", [1]), "hour has no original ids"),
        (lambda model: model.vectors("item", ["a"]), "ids of item are of kind integer"),
        (lambda model: model.vectors("item", [None]), "ids of item are of kind integer"),
        (lambda model: model.vectors("user", pa.array([1])), "type int64, but ids of user are of kind string"),
        (lambda model: model.vectors("item", [1], unknown="zero"), "unknown is error, nan or initial"),
        (lambda model: model.neighbours("item", 1, among=[2], by="l2"), "by cosine or dot, not 'l2'"),
        (lambda model: model.neighbours("item", 1, among={"x": [2]}), "there is no column item. It has: x"),
        (lambda model: model.neighbours("item", 1, among={"item": ["2"]}), "ids of item are of kind integer"),
    ],
)
def test_what_cannot_be_is_refused(model: Any, call: Any, sentence: str) -> None:
    with pytest.raises(HeterpsError) as refused:
        call(model)
    assert sentence in str(refused.value)


# --- the command -----------------------------------------------------------------------------------------------------


def command(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["vectors", *map(str, words)])
    said = capsys.readouterr()
    assert ended.value.code == code, said.err
    return said.err if code else said.out


@pytest.mark.parametrize("kind", ["run", "export"])
def test_the_command_shows_and_writes_vectors_and_neighbours(
    model: Any, shop: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    path = shop if kind == "run" else export(shop, tmp_path / "export").folder
    answer = json.loads(command(capsys, path, "--slot", "item", "--ids", "4, 11", "--json"))
    assert np.array_equal(np.array(list(answer.values()), np.float32), model.vectors("item", [4, 11]))
    assert list(answer) == ["4", "11"]
    assert "u3" in command(capsys, path, "--slot", "user", "--ids", "u3")
    train = shop.parent / "train.parquet"
    words = (path, "--slot", "item", "--ids", "4", "--neighbours", 3, "--among", train)
    near = json.loads(command(capsys, *words, "--json"))
    assert near == {"4": [{"id": n.id, "cosine": n.score} for n in model.neighbours("item", 4, 3, among=train)]}
    shown = command(capsys, *words, "--by", "dot")
    assert "near 4" in shown
    assert max(map(len, shown.splitlines())) <= 80
    out = tmp_path / "items.parquet"
    said = json.loads(command(capsys, path, "--slot", "item", "--among", train, "--out", out, "--json"))
    assert said == {"out": str(out), "ids": 30, "written": 30, "dim": 4}
    assert pq.read_table(out).num_rows == 30
    hour = command(capsys, path, "--slot", "hour", "--ids", "1", code=2)
    assert "hour has no original ids" in " ".join(hour.split())
    test = shop.parent / "test.parquet"
    told = command(capsys, path, "--slot", "item", "--among", test, "--out", out)
    assert "5 ids have no row, and are left out" in " ".join(told.split())


def test_the_command_refuses_what_it_cannot_do(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "name ids with --ids" in command(capsys, shop, "--slot", "item", code=2)
    assert "give both --ids and --among" in command(
        capsys, shop, "--slot", "item", "--ids", "1", "--neighbours", "2", code=2
    )
    for more in ((), ("--neighbours", 2, "--among", shop.parent / "train.parquet"), ("--out", "one.parquet")):
        said = " ".join(command(capsys, shop, "--slot", "item", "--ids", "777", *more, code=4).split())
        assert "have no row: 777" in said
        assert said.endswith("or their rows were evicted. Leave them out of --ids."), "no word of options in Python"
    assert "is no slot" in command(capsys, shop, "--slot", "thing", "--ids", "1", code=2)
    assert "--among is for --neighbours" in command(
        capsys, shop, "--slot", "item", "--ids", "1", "--among", "x", code=2
    )
