"""The application answers as HTTP says, in one version a request, and tells its senders what is wrong."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps.serving.app import Service, make_app
from heterps.serving.batching import Batcher, RequestQueue
from heterps.serving.payload import ARROW, JSON, Columns
from heterps.serving.scoring import score_tables
from heterps.serving.serve_metrics import ServeMetrics

ROWS = {"rows": [{"price": 1.5, "item": 4}, {"price": 2.0, "item": -1}]}
SCORES = [6.0, -2.0]  # of ROWS by the model below


class Model:
    """Multiplies price and item. Items below 0 are unknown; an item 666 is refused, 999 breaks it; it can be held."""

    def __init__(self) -> None:
        self.version = "7"
        self.calls: list[int] = []
        self.may_go = threading.Event()
        self.may_go.set()

    def __call__(self, table: Any) -> tuple[Any, str, Any]:
        self.calls.append(table.num_rows)
        assert self.may_go.wait(10)
        version, items = self.version, table["item"].to_pylist()
        if 666 in items:
            raise ValueError(f"row {items.index(666)}, column item: 666 is not wanted.")
        if 999 in items:
            raise RuntimeError("a secret of ours")
        scores = [price * item for price, item in zip(table["price"].to_pylist(), items, strict=True)]
        return pa.table({"score": scores}), version, np.array([item < 0 for item in items], np.int64)


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def service(model: Model) -> Iterator[Callable[..., Service]]:
    made: list[Service] = []

    def make(queue: int = 8, **options: Any) -> Service:
        metrics = ServeMetrics()
        batcher = Batcher(lambda tables: score_tables(model, tables, metrics), RequestQueue(100, 0.002, queue))
        columns = Columns({"price": True, "item": False}, ("click",))
        made.append(
            Service(columns, batcher, metrics, lambda: {"columns": 2}, lambda: {"version": model.version}, **options)
        )
        return made[-1]

    yield make
    model.may_go.set()
    for one in made:
        one.batcher.close()


def ask(service: Service, *asked: Any, **options: Any) -> Any:
    """Send one request to the application, in this process."""

    async def send() -> Any:
        transport = httpx.ASGITransport(make_app(service), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(*asked, **options)

    return asyncio.run(send())


def post(service: Service, content: Any, **options: Any) -> Any:
    return ask(service, "POST", "/score", json=content, **options)


def stream(table: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


TABLE = pa.table({"price": [1.5, 2.0], "item": [4, -1]})


def test_rows_are_scored_with_version_and_unknown_keys(service: Callable[..., Service]) -> None:
    answer = post(service(), ROWS)
    assert answer.status_code == 200
    assert answer.json() == {"version": "7", "num_unknown": 1, "rows": [{"score": score} for score in SCORES]}
    assert answer.headers["x-heterps-version"] == "7"
    assert answer.headers["x-heterps-unknown-keys"] == "1"


@pytest.mark.parametrize(
    ("accept", "kind"),
    [(None, ARROW), ("*/*", ARROW), (JSON, JSON), (f"text/html, {JSON};q=0.5", JSON), ("application/*", ARROW)],
)
def test_the_kind_of_the_answer_is_asked_for(service: Callable[..., Service], accept: str | None, kind: str) -> None:
    headers = {"Content-Type": ARROW, **({} if accept is None else {"Accept": accept})}
    answer = ask(service(), "POST", "/score", content=stream(TABLE), headers=headers)
    assert answer.headers["content-type"].startswith(kind)
    if kind == JSON:
        assert answer.json()["columns"] == {"score": SCORES}
    else:
        read = pa.ipc.open_stream(answer.content).read_all()
        assert read["score"].to_pylist() == SCORES
        assert read.schema.metadata[b"version"] == b"7"


def test_json_rows_can_be_answered_with_arrow(service: Callable[..., Service]) -> None:
    answer = post(service(), ROWS, headers={"Accept": ARROW})
    assert pa.ipc.open_stream(answer.content).read_all()["score"].to_pylist() == SCORES


@pytest.mark.parametrize(
    ("asked", "options", "status", "word"),
    [
        (("GET", "/"), {}, 404, "POST /score"),
        (("POST", "/score/"), {}, 404, "POST /score"),
        (("GET", "/score"), {}, 405, "GET"),
        (("DELETE", "/health"), {}, 405, "DELETE"),
        (("POST", "/score"), {"content": b"x"}, 415, "Content-Type"),
        (("POST", "/score"), {"content": b"x", "headers": {"Content-Type": "text/csv"}}, 415, "text/csv"),
        (("POST", "/score"), {"json": ROWS, "headers": {"Content-Encoding": "gzip"}}, 415, "gzip"),
        (("POST", "/score"), {"json": ROWS, "headers": {"Accept": "text/csv"}}, 406, "Accept"),
        (("POST", "/score"), {"json": {"rows": 1}}, 400, "rows"),
        (("POST", "/score"), {"content": b"x", "headers": {"Content-Type": ARROW}}, 400, "Arrow"),
        (("POST", "/score"), {"json": {"rows": [{"item": 1}]}}, 422, "price"),
        (("POST", "/score"), {"json": {"rows": [{"price": 1, "item": 666}]}}, 422, "row 0, column item"),
    ],
)
def test_wrong_requests_are_answered_with_json_that_says_what(
    service: Callable[..., Service], asked: Any, options: Any, status: int, word: str
) -> None:
    answer = ask(service(), *asked, **options)
    assert answer.status_code == status
    assert word in answer.json()["error"]
    assert answer.headers["content-type"] == JSON


def test_our_own_faults_are_500_without_a_word_of_the_inside(service: Callable[..., Service]) -> None:
    one = service()
    answer = post(one, {"rows": [{"price": 1, "item": 999}]})
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text
    assert post(one, ROWS).status_code == 200


def test_large_bodies_are_refused_by_their_head_and_by_their_length(service: Callable[..., Service]) -> None:
    one = service(max_body_mb=0.001)
    many = {"rows": [ROWS["rows"][0]] * 100}
    assert post(one, many).status_code == 413

    async def pieces() -> Any:  # no Content-Length
        for _ in range(20):
            yield b" " * 100

    answer = ask(one, "POST", "/score", content=pieces(), headers={"Content-Type": JSON})
    assert answer.status_code == 413
    assert "1,048 bytes" in answer.json()["error"]
    assert post(one, ROWS).status_code == 200


def test_large_requests_are_scored_on_the_side(service: Callable[..., Service]) -> None:
    many = {"columns": {"price": [1.0] * 20_000, "item": list(range(1000, 21_000))}}
    assert post(service(), many).json()["columns"]["score"] == [float(item) for item in range(1000, 21_000)]


def test_a_body_that_does_not_come_is_not_waited_for(service: Callable[..., Service]) -> None:
    async def pieces() -> Any:
        yield b"{"
        await asyncio.sleep(5)

    answer = ask(service(deadline_s=0.05), "POST", "/score", content=pieces(), headers={"Content-Type": JSON})
    assert answer.status_code == 408


def test_only_those_who_know_the_token_may_ask(service: Callable[..., Service]) -> None:
    one = service(token="a-long-enough-token")
    for path in ("/score", "/health", "/metrics", "/model", "/"):
        for given_token in (None, "Bearer", "Bearer a-long-enough-toke", "Basic a-long-enough-token", "Bearer \xff"):
            headers = {} if given_token is None else {"Authorization": given_token.encode("latin-1")}
            answer = ask(one, "GET", path, headers=headers)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
    assert post(one, ROWS, headers={"Authorization": "Bearer a-long-enough-token"}).status_code == 200
    assert post(one, ROWS, headers={"Authorization": "bearer a-long-enough-token"}).status_code == 200


# --- many at once ----------------------------------------------------------------------------------------------------


def together(service: Service, work: Callable[[Any], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        transport = httpx.ASGITransport(make_app(service), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await work(client)

    return asyncio.run(run())


def one_row(item: int) -> dict[str, Any]:
    return {"json": {"rows": [{"price": 1.0, "item": item}]}}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


def test_requests_are_joined_and_each_gets_its_own_rows_and_its_own_error(
    service: Callable[..., Service], model: Model
) -> None:
    one = service()

    async def work(client: Any) -> Any:
        model.may_go.clear()
        first = asyncio.create_task(client.post("/score", **one_row(1)))
        await until(lambda: model.calls == [1])
        others = [asyncio.create_task(client.post("/score", **one_row(item))) for item in (2, 666, -3)]
        await until(lambda: one.batcher.num_waiting == 3)
        model.may_go.set()
        return await asyncio.gather(first, *others)

    first, second, bad, third = together(one, work)
    assert [answer.json()["rows"][0]["score"] for answer in (first, second, third)] == [1.0, 2.0, -3.0]
    assert [answer.json()["num_unknown"] for answer in (first, second, third)] == [0, 0, 1]
    assert bad.status_code == 422
    assert "row 0" in bad.json()["error"]
    assert model.calls == [1, 3, 1, 1, 1]


def test_a_request_that_breaks_the_model_breaks_no_other(service: Callable[..., Service], model: Model) -> None:
    one = service()

    async def work(client: Any) -> Any:
        model.may_go.clear()
        first = asyncio.create_task(client.post("/score", **one_row(1)))
        await until(lambda: model.calls == [1])
        others = [asyncio.create_task(client.post("/score", **one_row(item))) for item in (2, 999, 3)]
        await until(lambda: one.batcher.num_waiting == 3)
        model.may_go.set()
        return await asyncio.gather(first, *others)

    answers = together(one, work)
    assert [answer.status_code for answer in answers] == [200, 200, 500, 200]
    assert "secret" not in answers[2].text


def test_more_requests_than_may_wait_are_sent_away_at_once(service: Callable[..., Service], model: Model) -> None:
    one = service(queue=2)

    async def work(client: Any) -> Any:
        model.may_go.clear()
        first = asyncio.create_task(client.post("/score", **one_row(1)))
        await until(lambda: model.calls == [1])
        others = [asyncio.create_task(client.post("/score", **one_row(item))) for item in (2, 3)]
        await until(lambda: one.batcher.num_waiting == 2)
        refused = await client.post("/score", **one_row(4))
        metrics = (await client.get("/metrics")).text
        model.may_go.set()
        return refused, metrics, await asyncio.gather(first, *others)

    refused, metrics, others = together(one, work)
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "1"
    assert "wait" in refused.json()["error"]
    assert "heterps_serve_queue_requests 2.0" in metrics
    assert [answer.status_code for answer in others] == [200, 200, 200]


def test_a_request_that_waits_too_long_is_refused(service: Callable[..., Service], model: Model) -> None:
    one = service(deadline_s=0.05)
    model.may_go.clear()
    answer = post(one, ROWS)
    assert answer.status_code == 503
    assert "0.05 s" in answer.json()["error"]


def test_no_request_is_scored_by_two_versions(service: Callable[..., Service], model: Model) -> None:
    one = service()

    async def work(client: Any) -> Any:
        async def change() -> None:
            for version in range(50):
                model.version = str(version)
                await asyncio.sleep(0)

        changing = asyncio.create_task(change())
        answers = await asyncio.gather(*(client.post("/score", **one_row(item)) for item in range(8)))
        await changing
        return answers

    for answer in together(one, work):
        assert answer.headers["x-heterps-version"] == answer.json()["version"]


# --- what it says of itself ------------------------------------------------------------------------------------------


def test_health_says_when_it_stops(service: Callable[..., Service]) -> None:
    one = service()
    assert ask(one, "GET", "/health").json() == {"ready": True, "version": "7"}
    one.batcher.close()
    assert ask(one, "GET", "/health").status_code == 503
    assert ask(one, "GET", "/model").json() == {"columns": 2}
    assert post(one, ROWS).status_code == 503


def test_metrics_count_requests_rows_and_unknown_keys(service: Callable[..., Service]) -> None:
    one = service()
    one.metrics.version(7, is_new=False)
    for content in (ROWS, ROWS, {"rows": 1}):
        post(one, content)
    ask(one, "GET", "/anything/that/somebody/tries")
    answer = ask(one, "GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    found = dict(line.rsplit(" ", 1) for line in answer.text.splitlines() if not line.startswith("#"))
    assert found['heterps_serve_requests_total{code="200",path="/score"}'] == "2.0"
    assert found['heterps_serve_requests_total{code="400",path="/score"}'] == "1.0"
    assert found['heterps_serve_requests_total{code="404",path="other"}'] == "1.0"
    assert found["heterps_serve_rows_total"] == "4.0"
    assert found["heterps_serve_unknown_keys_total"] == "2.0"
    assert found["heterps_serve_batch_rows_count"] == "2.0"
    assert found['heterps_serve_request_seconds_count{path="/score"}'] == "3.0"
    assert found["heterps_serve_version_clock"] == "7.0"
    assert float(found["heterps_serve_version_age_seconds"]) >= 0
    assert found["heterps_serve_queue_requests"] == "0.0"


values = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.integers(), max_size=2))
bodies = st.one_of(
    st.binary(max_size=50),
    st.lists(st.dictionaries(st.sampled_from(["price", "item", "click", "x"]), values), max_size=3).map(
        lambda rows: json.dumps({"rows": rows}).encode()
    ),
)


@settings(max_examples=150)
@given(st.lists(bodies, min_size=8, max_size=8), st.sampled_from([JSON, ARROW, "", "x/y"]))
def test_whatever_is_sent_the_answer_is_scores_or_4xx(sent: list[bytes], kind: str) -> None:
    """Scores come from a model that takes any rows, so that every 5xx would be a fault of the application."""
    metrics = ServeMetrics()

    def score(table: Any) -> tuple[Any, str, Any]:
        return pa.table({"score": np.zeros(table.num_rows)}), "1", np.zeros(table.num_rows, np.int64)

    batcher = Batcher(lambda tables: score_tables(score, tables, metrics), RequestQueue(100, 0.0, 8))
    columns = Columns({"price": True, "item": False}, ("click",))
    one = Service(columns, batcher, metrics, dict, dict)

    async def work(client: Any) -> Any:
        return [await client.post("/score", content=body, headers={"Content-Type": kind}) for body in sent]

    try:
        answers = together(one, work)
    finally:
        batcher.close()
    for answer in answers:
        assert answer.status_code in (200, 400, 415, 422), answer.text
        assert answer.status_code == 200 or answer.json().keys() == {"error"}
