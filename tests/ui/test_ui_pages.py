"""The pages of `heterps ui` over run folders: what they show, what they find, and who gets nothing."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from pathlib import Path

import httpx
import pytest
from staged_run import STAGES, staged, staged_line

from heterps.report.prometheus import NAMES, RunFacts, exposition
from heterps.ui.app import make_app

RECORDED = Path(__file__).parents[1] / "report" / "run"
TOKEN = "a-token-of-the-tests"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two runs that are over, one of which was killed, and a folder that is none."""
    for name in ("first", "second"):
        shutil.copytree(RECORDED, tmp_path / "runs" / name)
    (tmp_path / "runs/second/summary.json").unlink()
    (tmp_path / "runs/notes").mkdir()
    return tmp_path / "runs"


def get(folder: Path, path: str, token: str = TOKEN, **request: object) -> httpx.Response:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(make_app(folder, TOKEN), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.request(str(request.pop("method", "GET")), f"/{token}{path}", **request)  # type: ignore[arg-type]

    return asyncio.run(ask())


def test_the_list_has_every_run_with_what_came_of_it(runs: Path) -> None:
    page = get(runs, "/").text
    summary = json.loads((RECORDED / "summary.json").read_text())
    assert f'<td><span class="good">{summary["status"]}</span></td><td>AUC {summary["auc"]:.4f}</td>' in page
    assert '<td><span class="open">unfinished</span></td>' in page
    assert 'href="run/first/"' in page
    assert "notes" not in page


def test_a_run_that_has_just_begun_has_no_figures_yet(runs: Path) -> None:
    first = json.loads((runs / "second/metrics.jsonl").read_text().splitlines()[0])
    begun = dict.fromkeys(first) | {"samples": 0, "seconds": 0.0}
    (runs / "second/metrics.jsonl").write_text(json.dumps(begun) + "\n")
    assert "undefined" not in get(runs, "/").text


def test_an_address_without_its_last_slash_leads_to_the_page(runs: Path) -> None:
    answer = get(runs, "/run/first")
    assert (answer.status_code, answer.headers["location"]) == (307, "first/")


@pytest.mark.parametrize(
    ("search", "found"),
    [("first", ["first"]), ("unfinished", ["second"]), ("auc", ["first", "second"]), ("auc fir", ["first"]), ("x", [])],
)
def test_a_search_finds_runs_that_have_all_its_words(runs: Path, search: str, found: list[str]) -> None:
    page = get(runs, "/", params={"q": search}).text
    assert [name for name in ("first", "second") if f"run/{name}/" in page] == found
    assert found or "No run has these words." in page


def test_a_run_that_has_changed_is_read_again(runs: Path) -> None:
    from heterps.ui.runs import RunList

    listed = RunList(runs)
    before = {line.name: line for line in listed.lines()}
    with (runs / "second/metrics.jsonl").open("a") as file:
        last = json.loads((runs / "second/metrics.jsonl").read_text().splitlines()[-1])
        file.write(json.dumps(last | {"samples": last["samples"] + 7}) + "\n" + '{"half a li')
    after = {line.name: line for line in listed.lines()}
    assert after["second"].samples == before["second"].samples + 7
    assert after["first"] is before["first"]


def test_a_folder_that_is_a_run_is_the_only_one(runs: Path) -> None:
    assert "run/first/" in get(runs / "first", "/").text


def test_a_thousand_runs_are_listed_and_older_ones_are_found(runs: Path) -> None:
    for number in range(1000):
        folder = runs / f"run-{number}"
        folder.mkdir()
        shutil.copy(RECORDED / "summary.json", folder)
        (folder / "job.yaml").touch()
    page = get(runs, "/").text
    assert page.count('type="checkbox"') == 500
    assert "502 older runs not shown: search for them." in page
    assert "run/run-123/" in get(runs, "/", params={"q": "run-123"}).text


def test_the_page_of_a_run_is_its_report_with_checkpoints_and_logs(runs: Path) -> None:
    (runs / "first/checkpoints/0000000007").mkdir(parents=True)
    (runs / "first/logs").mkdir()
    (runs / "first/logs/worker-1.0.log").write_text("x" * 5000 + "\na last line\n")
    answer = get(runs, "/run/first/")
    page = answer.text
    assert "Predicted and measured" in page
    assert "0000000007" in page
    assert "a last line" in page
    assert "xxx" not in page, "only the end of a log is shown"
    assert 'data-events="events"' not in page, "nothing changes any more"
    assert "Stop and save" not in page
    assert len(page) < 1_000_000


def test_names_and_logs_with_html_are_shown_as_text(runs: Path) -> None:
    bad = "<script>alert(1)</script>"
    name = "<img src=x onerror=alert(1)>"
    (runs / "first").rename(runs / name)
    (runs / name / "logs").mkdir()
    (runs / name / "logs/worker.log").write_text(bad)
    job = (runs / name / "job.yaml").read_text()
    (runs / name / "job.yaml").write_text(job.replace("name: ", f"name: '{bad}' #", 1))
    listed, shown = get(runs, "/").text, get(runs, f"/run/{name}/").text
    compared = get(runs, "/compare", params={"run": [name, "second", bad]}).text
    for page in (listed, shown, compared):
        assert "<script>alert" not in page
        assert "<img" not in page
    assert "&lt;script&gt;alert(1)" in shown


def test_runs_side_by_side_show_figures_curves_and_different_fields(runs: Path) -> None:
    job = (runs / "second/job.yaml").read_text()
    (runs / "second/job.yaml").write_text(job + "seed: 3\nthreads: 2\n")
    page = get(runs, "/compare", params={"run": ["first", "second", "third"]}).text
    assert "2 runs side by side" in page
    assert "third: there is no such run." in page
    assert '<th scope="row">seed</th><td>0</td><td>3</td>' in page
    assert '<th scope="row">threads</th><td>–</td><td>2</td>' in page, "values as jobs have them, not as Python has"
    assert "AUC: 2 lines over samples" in page
    assert "Choose runs in the list first." in get(runs, "/compare").text


def test_eight_long_runs_side_by_side_and_many_stages_for_long_are_small_pages(runs: Path) -> None:
    lines = [json.loads(line) for line in (RECORDED / "metrics.jsonl").read_text().splitlines()]
    every = [dict(lines[i % len(lines)], samples=100 * (i + 1), seconds=float(i + 1)) for i in range(2000)]
    text = "".join(json.dumps(line) + "\n" for line in every)
    for number in range(8):
        shutil.copytree(RECORDED, runs / f"long-{number}")
        (runs / f"long-{number}/metrics.jsonl").write_text(text)
    page = get(runs, "/compare", params={"run": [f"long-{number}" for number in range(8)]}).text
    assert "8 runs side by side" in page
    assert page.count("at 200,000 samples") >= 8, "the last point of each is shown"
    assert len(page.encode()) < 1_000_000
    summary = staged(json.loads((RECORDED / "summary.json").read_text())) | {"stages": 24 * STAGES[:1]}
    (runs / "long-0/summary.json").write_text(json.dumps(summary))
    staged_text = "".join(json.dumps(staged_line(line, stages=24 * STAGES[:1])) + "\n" for line in every)
    (runs / "long-0/metrics.jsonl").write_text(staged_text)
    page = get(runs, "/run/long-0/").text
    assert page.count("20% compute") == 24, "each stage has its chart"
    assert len(page.encode()) < 1_000_000


@pytest.mark.parametrize("path", ["/", "/run/first/", "/metrics", "/ui.js", "/run/first/events", "/run/first/stop"])
@pytest.mark.parametrize("token", ["", "wrong", TOKEN[:-1], f"{TOKEN}x", "%2e%2e"])
def test_who_does_not_know_the_token_gets_nothing(runs: Path, token: str, path: str) -> None:
    for method in ("GET", "POST"):
        answer = get(runs, path, token, method=method)
        assert answer.status_code == 403
        assert "first" not in answer.text


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, 200),
        ({"host": "127.0.0.1:8765"}, 200),
        ({"host": "localhost:8765"}, 200),
        ({"host": "[::1]:8765"}, 200),
        ({"host": "127.0.0.1:8765", "origin": "http://127.0.0.1:8765"}, 200),
        ({"host": "evil.example"}, 403),  # a name that was made to lead to 127.0.0.1
        ({"host": "localhost.evil.example:8765"}, 403),
        ({"host": "127.0.0.1.evil.example"}, 403),
        ({"host": ""}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "http://127.0.0.1:9999"}, 403),  # another server of this machine
        ({"origin": "null"}, 403),  # a file, or a frame in a box
    ],
)
def test_pages_of_others_get_nothing_even_with_the_token(runs: Path, headers: dict[str, str], code: int) -> None:
    for path in ("/", "/run/first/", "/run/first/events", "/metrics"):
        answer = get(runs, path, headers=headers)
        assert answer.status_code == code
        assert "access-control-allow-origin" not in answer.headers
        assert code == 200 or "first" not in answer.text
    asked = get(runs, "/run/first/stop", method="POST", json={}, headers=headers)
    assert asked.status_code == (409 if code == 200 else 403)


@pytest.mark.parametrize("name", ["nobody", "notes", "..%2fruns", "%2e%2e", "/etc"])
def test_only_runs_of_the_folder_are_shown(runs: Path, name: str) -> None:
    assert get(runs, f"/run/{name}/").status_code == 404


def test_pages_load_nothing_from_elsewhere_and_tell_nobody_their_address(runs: Path) -> None:
    answer = get(runs, "/run/first/")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-store"
    for path in ("/", "/run/first/", "/style.css", "/ui.js"):
        text = get(runs, path).text.replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert "http://" not in text
        assert "https://" not in text


@pytest.mark.parametrize(
    ("body", "kind", "code"),
    [
        ("stage=1", "application/x-www-form-urlencoded", 415),
        ("{}", "text/plain", 415),
        ("nonsense", "application/json", 400),
        ("[]", "application/json", 400),
        (" " * 70_000, "application/json", 413),
        ("{}", "application/json", 409),
    ],
)
def test_what_is_asked_of_a_job_is_checked(runs: Path, body: str, kind: str, code: int) -> None:
    answer = get(runs, "/run/first/stop", method="POST", content=body, headers={"content-type": kind})
    assert answer.status_code == code
    assert answer.json()["error"]


def test_a_job_that_does_not_run_cannot_be_changed(runs: Path) -> None:
    for action in ("stop", "scale", "replan"):
        asked = {"stage": 1, "count": 2}
        answer = get(runs, f"/run/first/{action}", method="POST", json=asked)
        assert answer.status_code == 409
        assert "first is not running" in answer.json()["error"]
    assert get(runs, "/run/first/delete", method="POST", json={}).status_code == 404


def test_prometheus_is_told_what_runs(runs: Path) -> None:
    text = get(runs, "/metrics").text
    assert 'heterps_job_running{run="first"} 0.0' in text
    assert "heterps_job_samples{" not in text, "a run that is over has no figures of now"


def test_every_figure_of_a_job_has_its_name_for_prometheus() -> None:
    stage = {"resource": "cpu", "workers": 2, "samples_per_s": 5.0, "compute": 0.5, "communicate": 0.2, "wait": 0.3,
             "queue": 1.0}  # fmt: skip
    status = {"samples": 4, "total": 9, "seconds": 2.5, "usd": 0.1, "usd_per_hour": 3.0, "staleness": 1.5, "auc": 0.7,
              "log_loss": 0.4, "stages": [stage, stage], "restarts": 1, "recoveries": 2, "silence_s": 0.5,
              "skipped_batches": 0}  # fmt: skip
    status["traffic"] = {"rows_bytes": 7, "caching_saved_bytes": 3, "calls": 9, "requests": 4, "retries": 0}
    text = exposition([RunFacts("a", True, status, 12.0, 10**9), RunFacts("b", True, None, None, None)]).decode()
    assert [name for name in NAMES if f"\n{name}{{" not in text] == []
    assert 'heterps_stage_time_share{doing="wait",run="a",stage="2"} 0.3' in text
    assert 'heterps_traffic_bytes{kind="rows",run="a"} 7.0' in text
    assert 'heterps_traffic_saved_bytes{by="caching",run="a"} 3.0' in text
    assert 'heterps_job_answers{run="b"} 0.0' in text
    assert 'heterps_checkpoint_age_seconds{run="a"} 12.0' in text


def test_all_pages_of_a_run_are_sent_one_event_and_wait_for_no_look_that_is_recent(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from heterps.ui import watch

    now_s = 100.0
    monkeypatch.setattr(watch.time, "monotonic", lambda: now_s)
    watched = watch.Watched("first", runs / "first")
    assert watched.recent is None, "nobody has looked"
    look = watched.look()
    assert watched.recent is look
    assert watched.look() is look
    head, _, rest = look.event.decode().partition("data: ")
    assert head == f"event: body\nid: {look.digest}\n"
    assert rest.removesuffix("\n\n").replace("\ndata: ", "\n") == "\n".join(look.html.splitlines())
    now_s += 1000.0
    assert watched.recent is None
    assert watched.look() is not look


def test_a_page_is_told_each_second_how_the_job_stands_and_at_once_that_it_has_ended(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from heterps.ui import watch

    now_s = 100.0
    status: dict[str, object] = {"total": 9000, "seconds": 2.0, "usd": 0.1, "usd_per_hour": 3.0, "samples": 1000}
    monkeypatch.setattr(watch.time, "monotonic", lambda: now_s)
    monkeypatch.setattr(watch.time, "thread_time", lambda: now_s)  # a look takes no time
    monkeypatch.setattr(watch, "ask_status", lambda _: (status["samples"] != 9000, dict(status)))
    watched = watch.Watched("first", runs / "first")
    look = watched.look()
    watched._pause_s = 60.0  # as of a page that is large
    told = []
    for status["samples"] in (2000, 3000):
        now_s += watch.EVERY_S
        glance = watched.glance()
        assert glance is watched.glance(), "asked once, however many pages show it"
        told.append(glance.event.decode())
        assert glance.is_running
    assert [f"<strong>{n:,}</strong>" in text for n, text in zip((2000, 3000), told, strict=True)] == [True, True]
    assert all(text.startswith("event: now\ndata: <section") and "\nid:" not in text for text in told)
    assert len(told[0]) < len(look.event) / 5
    assert watched.look() is look, "the whole page is not made anew so soon"
    assert watched.news(look.digest) == watch.RETRY + watched.glance().event
    assert watched.news("") == watch.RETRY + look.event, "a page that has seen nothing gets the whole"
    status["samples"], now_s = 9000, now_s + watch.EVERY_S
    watched.refresh()
    assert not watched.look().is_running
    assert watched.news(look.digest) == watch.RETRY + watched.look().event + watch.END
    assert watched.news(watched.look().digest) == watch.RETRY + watch.END, "what was seen is not sent again"


def test_a_job_that_is_busy_keeps_no_page_waiting(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from heterps.ui import app, watch

    answers, asked = threading.Event(), []

    def refresh(watched: watch.Watched) -> None:
        asked.append(watched.name)
        answers.wait(60)

    monkeypatch.setattr(app, "HELD_S", 0.01)
    monkeypatch.setattr(watch.Watched, "refresh", refresh)

    async def ask() -> list[str]:
        transport = httpx.ASGITransport(make_app(runs, TOKEN))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            told = await asyncio.gather(*(client.get(f"/{TOKEN}/run/first/events") for _ in range(20)))
            answers.set()
            shutil.rmtree(runs / "first")
            assert (await client.get(f"/{TOKEN}/run/first/events")).status_code == 404, "it is not remembered for ever"
        return [answer.text for answer in told]

    assert asyncio.run(ask()) == 20 * [watch.RETRY.decode()]
    assert asked == ["first"], "one thread waits for it, however many pages ask"
