"""`heterps serve` as its users meet it: scores over HTTP are the trainer's, and it begins and ends in order."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from served import ARROW, Served, served, stream
from trained_runs import own_scores, train_run

from heterps.cli import main
from heterps.serving.export import export

TOKEN = "0123456789abcdef0123"
MODEL = {"factory": "ctr_dnn", "args": {"embedding_dim": 4, "hidden": [8]}}
COLUMNS = {
    "label": "click",
    "dense": ["price", "age"],
    "slots": ["user", "item", "tags", "hour"],
    "features": {"price": ["log"], "hour": {"column": "time", "steps": [{"date": "hour"}]}},
}


def visits(num_rows: int, seed: int) -> pa.Table:
    """Samples with ids of all kinds: strings, 64-bit integers, lists, and gaps; a date; numbers."""
    draw = np.random.default_rng(seed)
    items = draw.integers(0, 20, num_rows) + 2**62
    tags = [draw.integers(0, 9, draw.integers(0, 4)).tolist() for _ in range(num_rows)]
    return pa.table(
        {
            "click": draw.integers(0, 2, num_rows),
            "price": pa.array(draw.exponential(5, num_rows), mask=draw.random(num_rows) < 0.1),
            "age": draw.integers(18, 90, num_rows),
            "user": pa.array([f"u{user}" for user in draw.integers(0, 30, num_rows)], mask=draw.random(num_rows) < 0.1),
            "item": items,
            "tags": pa.array(tags, pa.list_(pa.int64())),
            "time": draw.integers(1_700_000_000, 1_700_900_000, num_rows),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run and an export of it, `export`."""
    folder = tmp_path_factory.mktemp("serve")
    export(train_run(folder, visits(320, 1), MODEL, COLUMNS), folder / "export")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Served]:
    with served("export", "--max-body-mb", 1, cwd=folder) as one:
        yield one


ASKED = visits(70, 2)


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[float]:
    return list(map(float, own_scores(folder / "run", ASKED, folder)["score"]))


def test_scores_by_arrow_are_the_trainers(server: Served, expected: list[float]) -> None:
    version, scores = server.score(ASKED.drop(["click"]))
    assert version == server.version == "10"
    assert scores == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("shape", ["rows", "columns"])
def test_scores_by_json_are_the_trainers(server: Served, expected: list[float], shape: str) -> None:
    asked = ASKED.drop(["click"])
    content = {"rows": asked.to_pylist()} if shape == "rows" else {"columns": asked.to_pydict()}
    answer = server.client.post("/score", json=content).json()
    found = [row["score"] for row in answer["rows"]] if shape == "rows" else answer["columns"]["score"]
    assert answer["version"] == "10"
    assert found == pytest.approx(expected, abs=1e-6)


def test_unknown_ids_are_counted_for_each_request(server: Served) -> None:
    row = {"price": 1.0, "age": 30, "user": "u1", "item": 2**62, "tags": [1, 2], "time": 1_700_000_000}
    strange = {**row, "user": "nobody", "item": 5, "tags": [77, 78, 79]}
    for rows, unknown in (([row], 0), ([strange], 5), ([row, strange, strange], 10)):
        assert server.client.post("/score", json={"rows": rows}).json()["num_unknown"] == unknown


def test_it_says_what_it_serves(server: Served) -> None:
    model = server.client.get("/model").json()
    assert {column["name"]: column["type"].split()[-1] for column in model["columns"]} == {
        "price": "number", "age": "number", "user": "id", "item": "id", "tags": "id", "time": "date",
    }  # fmt: skip
    assert model["outputs"] == [{"name": "score", "width": None}]
    assert (model["version"], model["export"]) == ("10", "10")
    health = server.health()
    assert (health["ready"], health["version"], health["following"]) == (True, "10", None)
    assert "heterps_serve_version_clock 10.0" in server.client.get("/metrics").text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"usr": "u1"}, "Did you mean 'user'?"),
        ({"age": "old"}, "Row 0, column 'age'"),
        ({"item": 1.5}, "row 0, column item"),
        ({"time": "yesterday"}, "time"),
        ({"age": 1e300}, "row 0, column age"),
        ({"tags": [[1]]}, "Row 0, column 'tags'"),
    ],
)
def test_bad_rows_are_answered_with_what_is_wrong(server: Served, change: dict[str, Any], words: str) -> None:
    row = {**ASKED.drop(["click"]).slice(0, 1).to_pylist()[0], **change}
    answer = server.client.post("/score", json={"rows": [row]})
    assert answer.status_code == 422
    assert words.lower() in answer.json()["error"].lower()


def test_bodies_that_are_too_large_are_refused(server: Served) -> None:
    answer = server.client.post("/score", content=b" " * 1_100_000, headers={"Content-Type": "application/json"})
    assert answer.status_code == 413


def test_a_short_body_with_a_great_many_rows_is_refused(server: Served) -> None:
    none = pa.Array.from_buffers(pa.null(), 2**31 - 1, [None])  # takes no memory
    nulls = pa.table({name: none for name in ASKED.column_names if name != "click"})
    answer = server.client.post("/score", content=stream(nulls), headers={"Content-Type": ARROW})
    assert answer.status_code == 413
    assert "20,000 rows" in answer.json()["error"]


def test_more_connections_than_may_be_open_are_refused(folder: Path) -> None:
    with served("export", "--queue", 1, "--max-rows", 2, cwd=folder) as one:
        many = {"rows": ASKED.drop(["click"]).slice(0, 3).to_pylist()}
        assert one.client.post("/score", json=many).status_code == 413
        with ExitStack() as opened:
            port = httpx.URL(one.url).port or 0
            for _ in range(2 + 64):
                opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            assert httpx.get(f"{one.url}/health", timeout=30).status_code == 503
        deadline = time.monotonic() + 30
        while httpx.get(f"{one.url}/health", timeout=30).status_code != 200:
            assert time.monotonic() < deadline


values = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=4),
    st.lists(st.one_of(st.integers(), st.text(max_size=2), st.none()), max_size=3),
)  # fmt: skip
names = ["price", "age", "user", "item", "tags", "time"]


@settings(max_examples=80)
@given(st.lists(st.fixed_dictionaries(dict.fromkeys(names, values)), min_size=1, max_size=3))
def test_any_values_are_scored_or_refused(server: Served, rows: list[dict[str, Any]]) -> None:
    body = json.dumps({"rows": rows}).encode()
    answer = server.client.post("/score", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (200, 400, 422), answer.text
    assert "Traceback" not in server.log.read_text()


kinds = st.sampled_from(
    [pa.int8(), pa.uint64(), pa.float16(), pa.float32(), pa.bool_(), pa.string(), pa.large_binary(), pa.null(),
     pa.timestamp("ns"), pa.date32(), pa.time64("us"), pa.duration("s"), pa.decimal128(10, 2), pa.list_(pa.float32()),
     pa.list_(pa.string(), 2), pa.struct([("x", pa.int8())]), pa.dictionary(pa.int8(), pa.string()),
     pa.large_list(pa.list_(pa.int8())), pa.map_(pa.string(), pa.int8()), pa.string_view()]
)  # fmt: skip


@settings(max_examples=80)
@given(st.fixed_dictionaries(dict.fromkeys(names, kinds)))
def test_any_types_of_arrow_are_scored_or_refused(server: Served, types: dict[str, Any]) -> None:
    table = pa.table({name: pa.nulls(2, kind) for name, kind in types.items()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    answer = server.client.post("/score", content=sink.getvalue().to_pybytes(), headers={"Content-Type": ARROW})
    assert answer.status_code in (200, 422), answer.text


def test_a_bounded_load_is_answered_in_full(server: Served, expected: list[float]) -> None:
    """Eight callers at once, each with its own rows: everyone gets the scores of its rows, and requests were joined."""
    rows = ASKED.drop(["click"])

    def ask(caller: int) -> None:
        with httpx.Client(base_url=server.url, timeout=60) as client:
            one = Served(server.process, server.url, server.version, client, server.log)
            for turn in range(20):
                first = (caller * 20 + turn) % 60
                _, scores = one.score(rows.slice(first, 5))
                assert scores == pytest.approx(expected[first : first + 5], abs=1e-6)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(8)))
    figures = server.client.get("/metrics").text.splitlines()
    found = dict(line.rsplit(" ", 1) for line in figures if line.startswith("heterps_serve_batch_requests"))
    assert float(found["heterps_serve_batch_requests_sum"]) > float(found["heterps_serve_batch_requests_count"])


# --- begin and end ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_it_ends_after_the_requests_under_way(folder: Path, number: signal.Signals, code: int) -> None:
    body = json.dumps({"rows": ASKED.drop(["click"]).to_pylist()}).encode()
    head = f"POST /score HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    with served("export", cwd=folder, HETERPS_TOKEN=TOKEN) as one:
        assert httpx.get(f"{one.url}/health").status_code == 401
        with socket.create_connection(("127.0.0.1", httpx.URL(one.url).port or 0), timeout=30) as asking:
            asking.sendall(head.encode() + body[:100])
            for _ in range(3):  # answered after the server has seen the head above
                assert one.health()["ready"]
            one.process.send_signal(number)
            while takes_connections(one.url):
                pass
            asking.sendall(body[100:])
            answer = b"".join(iter(lambda: asking.recv(65_536), b""))
        assert one.process.wait(30) == code
        assert answer.startswith(b"HTTP/1.1 200 OK")
        assert len(json.loads(answer.partition(b"\r\n\r\n")[2])["rows"]) == len(ASKED)
        assert one.log.read_text() == ""


def takes_connections(url: str) -> bool:
    try:
        httpx.get(f"{url}/health")
    except httpx.TransportError:
        return False
    return True


def ended(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[object, str]:
    with pytest.raises(SystemExit) as end:
        main(["serve", *map(str, words)])
    return end.value.code, capsys.readouterr().err


def test_what_cannot_be_served_is_said_in_a_sentence(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HETERPS_TOKEN", raising=False)
    good = folder / "export"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        cases = [
            ((tmp_path / "none", "--port", 0), 6, "none: there is no such folder"),
            ((tmp_path, "--port", 0), 6, "manifest.json"),
            ((good, "--host", "0.0.0.0"), 2, "a token is needed"),
            ((good, "--port", port), 2, "--port"),
            ((good, "--token-file", tmp_path / "none"), 2, "token"),
            ((good, "--follow", "runs/a", "--increments", "b"), 2, "one of the two"),
            ((good, "--queue", 0), 2, "--queue"),
            ((good, "--follow", "runs/a", "--every-s", 7200), 2, "--every-s"),
        ]
        for words, code, text in cases:
            found, error = ended(capsys, *words)
            assert found == code, error
            assert text in error
            assert "Traceback" not in error


def test_a_damaged_export_is_refused(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for path in (folder / "export").iterdir():
        (damaged / path.name).write_bytes(path.read_bytes()[:-1] if path.name == "rows.parquet" else path.read_bytes())
    code, error = ended(capsys, damaged, "--port", 0)
    assert code == 6
    assert "rows.parquet is damaged" in error


@pytest.mark.parametrize("command", ["serve", "predict"])
@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ImportError("No module named 'onnxruntime'"), "No module named 'onnxruntime'. Install it"),
        (PermissionError(13, "Permission denied"), "Permission denied. Export"),
        (pa.ArrowInvalid("Parquet magic bytes not found"), "magic bytes not found. Export"),
        (RuntimeError("a graph of a newer torch\n  at line 1"), "cannot be opened: a graph of a newer torch. Export"),
    ],
)
def test_whatever_keeps_an_export_from_opening_is_said_in_a_sentence(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    command: str, error: Exception, words: str,
) -> None:  # fmt: skip
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr("heterps.serving.score.read_rows", refuse)
    options = ["--port", "0"] if command == "serve" else ["none.parquet"]
    with pytest.raises(SystemExit) as end:
        main([command, str(folder / "export"), *options])
    told = " ".join(capsys.readouterr().err.split())
    assert end.value.code == 6, told
    assert words in told
    assert "Traceback" not in told
