"""The pages in a real browser: clicked, changed, followed, stopped; usable by everybody, in every size and colour."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from browser import (
    DESKTOP,
    PHONE,
    browser,
    cut_off,
    is_too_wide,
    needs_browser,
    page_of,
    scrolled_out,
    serious,
    unnamed,
)
from command import heterps
from test_ui_command import ui
from test_ui_pages import RECORDED
from test_what_if import CLUSTER, PROFILE
from tiny import JOB, write_tiny
from virtual_runs import SCENARIO, make_run

import heterps.planning as planning
from heterps.config import load_cluster
from heterps.profiling.profile import load_profile
from heterps.report.figures import rate, usd
from heterps.report.page.virtual import render_virtual_page
from heterps.sim.compare import advise, compare

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = needs_browser
LIMIT_BYTES = 1_000_000


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a job, a profile and a cluster, and no run yet."""
    write_tiny(tmp_path / "train.parquet", 2000)
    write_tiny(tmp_path / "test.parquet", 60)
    (tmp_path / "profile.json").write_text(json.dumps(PROFILE))
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "job.yaml").write_text(f"{JOB}checkpoint: {{every_samples: 1000}}\n")
    (tmp_path / "runs").mkdir()
    return tmp_path


@pytest.fixture
def runs(place: Path) -> Path:
    """Two runs that are over: `inline`, which the what-if page plans for, and `workers`, with a timeline."""
    by_workers = ("--launcher", "local", "--workers", "2", "--sync", "asp")
    for name, words in {"inline": (), "workers": by_workers}.items():
        done = heterps("train", "job.yaml", "--run", f"runs/{name}", *words, cwd=place)
        assert done.returncode == 0, done.stderr
    job = place / "runs/inline/job.yaml"
    job.write_text(
        job.read_text().replace("batch_size: 16", f"batch_size: {PROFILE['batch_size']}").replace("cluster:", "was:", 1)
    )
    text = job.read_text()
    job.write_text(text[: text.index("was:")] + f"cluster: {place}/cluster.yaml\n" + _after(text, "was:"))
    shutil.copy(place / "profile.json", place / "runs/inline")
    plan = planning.plan(
        load_profile(place / "profile.json"), load_cluster(place / "cluster.yaml"), throughput=20_000, samples=1e9
    )
    plan.model_copy(update={"throughput": 20_000.0}).write(place / "runs/inline/plan.json")
    return place


def _after(text: str, word: str) -> str:
    """What follows a section of a YAML file."""
    lines = text[text.index(word) :].splitlines(keepends=True)[1:]
    while lines and lines[0].startswith((" ", "-")):
        lines.pop(0)
    return "".join(lines)


def test_names_and_logs_with_html_are_text_in_a_browser(place: Path) -> None:
    bad = "<img src=x onerror=alert(1)>"
    run = place / "runs" / bad
    shutil.copytree(RECORDED, run)
    (run / "logs").mkdir()
    (run / "logs/worker.log").write_text(f"{bad}<script>alert(2)</script>")
    named = json.dumps(PROFILE).replace('"fc1"', json.dumps(bad)).replace('"v100"', json.dumps(bad))
    (run / "profile.json").write_text(named)
    (place / "cluster.yaml").write_text(CLUSTER.replace("v100:", f'"{bad}":'))
    job = (run / "job.yaml").read_text().replace("name: ", f"name: {json.dumps(bad)} #", 1)
    (run / "job.yaml").write_text(f"{job}cluster: {place}/cluster.yaml\n")
    with ui(place) as client, browser() as found:
        name = quote(bad)
        for path in ("", f"?q={name}", f"run/{name}/", f"compare?run={name}&run=x", f"run/{name}/what-if"):
            with page_of(found, str(client.base_url.join(path))) as (page, _):
                page.on("dialog", lambda dialog: pytest.fail(f"{dialog.message}: a script ran"))
                page.locator("main").get_by_text(bad).first.wait_for()
                if path.endswith("what-if"):
                    page.locator("#frontier:not(.old) input").first.wait_for()
                assert page.locator("main img, main script").count() == 0


def test_a_page_of_another_server_on_this_machine_learns_and_changes_nothing(place: Path) -> None:
    ask = """async ([url, asked]) => {
        try { return await (await fetch(url, asked)).text(); } catch { return "nothing"; }
    }"""
    with ui(place) as client, browser() as found, hostile() as url:
        ours = str(client.base_url)
        with found.new_context() as context:
            page = context.new_page()
            page.goto(url)
            for target in (ours, ours.replace(client.base_url.path, "/"), f"{ours}metrics"):
                assert page.evaluate(ask, [target, {}]) == "nothing"
                assert page.evaluate(ask, [target, {"mode": "no-cors"}]) == "", "the browser hides the answer"
            page.set_content(f"<iframe src='{ours}'></iframe>")  # it waits until the frame is loaded, or refused
            assert "Runs" not in page.frames[-1].content()


def test_a_price_and_a_slider_change_the_plan(runs: Path) -> None:
    profile, cluster = load_profile(runs / "profile.json"), load_cluster(runs / "cluster.yaml")

    def planned(v100: float, throughput: float) -> list[str]:
        new = {**cluster.resources, "v100": cluster.resources["v100"].model_copy(update={"usd_per_hour": v100})}
        plan = planning.plan(profile, cluster.model_copy(update={"resources": new}), throughput=throughput, samples=1e9)
        return [usd(plan.usd).partition(" ")[0], rate(plan.throughput)]

    with ui(runs) as client, browser() as found:
        with page_of(found, str(client.base_url.join("run/inline/"))) as (page, _):
            page.get_by_role("link", name="What if?").click()

            def shown() -> list[str]:
                """Cost and samples/s, once the answer to the last change is there."""
                page.locator("#plan:not(.old) .tile").first.wait_for()
                page.locator("#frontier:not(.old) input").first.wait_for()
                tiles = page.locator("#plan .tile strong").all_inner_texts()
                return [tile.partition(" ")[0] for tile in tiles[:2]]

            assert shown() == planned(2.42, 20_000)
            page.get_by_label("USD an hour of v100").first.fill("100")
            assert shown() == planned(100, 20_000)
            slider = page.locator("input[type=range][aria-label='Least samples/s']")
            slider.focus()
            for _ in range(3):
                slider.press("PageUp")
            asked = float(page.locator("input[name=throughput]").input_value())
            assert asked > 20_000
            assert shown() == planned(100, asked)
            page.locator("#frontier input").last.check()
            page.get_by_label("Limit of cpu").first.fill("0")
            page.get_by_text("raise the limit of cpu from 0").wait_for()
            page.get_by_role("link", name="As in the run").click()
            assert shown() == planned(2.42, 20_000)
        with page_of(found, str(client.base_url)) as (page, _):
            page.get_by_label("Search").fill("inl")
            page.get_by_role("button", name="Search").click()
            page.get_by_label("Compare inline").wait_for()
            assert page.get_by_label("Compare workers").count() == 0
            page.get_by_role("link", name="All runs").click()
            for name in ("inline", "workers"):
                page.get_by_label(f"Compare {name}").check()
            page.get_by_role("button", name="Compare the chosen runs").click()
            page.get_by_role("heading", name="2 runs side by side").wait_for()
            assert page.get_by_role("columnheader", name="workers").first.is_visible()


@contextmanager
def hostile() -> Iterator[str]:
    """The address of an empty page of another server."""

    class Empty(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Empty) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture
def all_pages(runs: Path) -> Iterator[dict[str, str]]:
    """The address of one page of each kind."""
    words = ("--throughput", "20000", "--samples", "1e9", "--compare", "--html", "plan.html")
    done = heterps("plan", "profile.json", "cluster.yaml", *words, cwd=runs)
    assert done.returncode == 0, done.stderr
    done = heterps(
        "simulate", "--workers", "1,2", "--horizon", "50", "--compare", "bsp,asp", "--html", "sim.html", cwd=runs
    )
    assert done.returncode == 0, done.stderr
    done = heterps("plan", "profile.json", "cluster.yaml", *words[:5], "--plot", "plot.html", cwd=runs)
    assert done.returncode == 0, done.stderr
    compared = compare(trained := [make_run("bsp", 0.5, 0.9), make_run("asp", 0.6, 0.8)], target=0.9)
    (runs / "virtual.html").write_text(render_virtual_page("job", SCENARIO, trained, compared, advise(compared)))
    with ui(runs) as client:
        ours = {"list": "", "run": "run/workers/", "compare": "compare?run=inline&run=workers"}
        ours |= {"what-if": "run/inline/what-if", "no plan": "run/inline/what-if?limit.cpu=0&limit.v100=0"}
        ours |= {"none found": "?q=nothing", "none compared": "compare?run=nothing"}
        files = {"report": "runs/workers/report.html", "plan": "plan.html", "simulation": "sim.html"}
        files |= {"plot": "plot.html", "virtual": "virtual.html"}
        yield {name: str(client.base_url.join(path)) for name, path in ours.items()} | {
            name: (runs / path).as_uri() for name, path in files.items()
        }


def another_plan_is_shown_when_its_point_is_chosen(page: Page) -> None:
    """The file has no script: a point of the frontier shows its chain, and the arrow keys go on."""
    points = page.locator(".points input")
    last = points.count() - 1
    shown = page.locator(".alternatives > div:visible")
    assert shown.count() == 1
    before = shown.inner_text()
    points.nth(last).check()
    assert shown.count() == 1
    assert page.locator(f".at-{last}").is_visible()
    assert shown.locator(".chain").inner_text() != ""
    assert shown.inner_text() != before
    points.nth(last).press("ArrowLeft")
    assert page.locator(f".at-{last - 1}").is_visible()
    assert not page.locator(f".at-{last}").is_visible()


def a_timeline_is_wider_when_it_is_zoomed(page: Page) -> None:
    timeline = page.locator(".timeline").first
    drawn = timeline.locator(".scroll svg")

    def width() -> float:
        return float(drawn.evaluate("each => each.getBoundingClientRect().width"))

    whole = width()
    timeline.get_by_label("4×").check()
    assert width() == pytest.approx(4 * whole, rel=0.02)
    timeline.get_by_label("4×").press("ArrowRight")
    assert width() == pytest.approx(16 * whole, rel=0.02)
    assert not is_too_wide(page), "only the picture is moved sideways"
    timeline.get_by_label("1×").check()


def test_everybody_can_use_every_page_in_light_and_dark_on_phone_and_desktop(all_pages: dict[str, str]) -> None:
    with browser() as found:
        for name, url in all_pages.items():
            with page_of(found, url) as (page, _):
                if name == "what-if":
                    page.locator("#frontier:not(.old) input").first.wait_for()
                if name == "plan":
                    another_plan_is_shown_when_its_point_is_chosen(page)
                if name == "report":
                    a_timeline_is_wider_when_it_is_zoomed(page)
                assert len(page.content().encode()) < LIMIT_BYTES
                assert unnamed(page) == [], name
                for width, height in (PHONE, DESKTOP):
                    page.set_viewport_size({"width": width, "height": height})
                    assert not is_too_wide(page), (name, width)
                    assert cut_off(page) == [], (name, width)
                    assert scrolled_out(page) == [], (name, width)
                    for scheme in ("light", "dark"):
                        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
                        assert serious(page) == [], (name, width, scheme)
