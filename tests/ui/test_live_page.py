"""The page of a job that trains, in a real browser: followed, lost and found again, changed, stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from browser import ANSWER_MS, DESKTOP, PHONE, browser, is_too_wide, needs_browser, page_of, serious
from command import processes_of, started, wait_for
from elastic import replannable
from test_browser import place
from test_ui_command import ui

from heterps.planning.plan import load_plan
from heterps.yamlfile import dump_yaml

if TYPE_CHECKING:
    from playwright.sync_api import Dialog, Locator, Page

pytestmark = needs_browser
__all__ = ["place"]  # a fixture


@contextmanager
def training(folder: Path, *words: str, epochs: int = 1_000_000) -> Iterator[subprocess.Popen[str]]:
    """The job of a folder on workers, in the run `live`, once it trains."""
    text = (folder / "job.yaml").read_text()
    (folder / "job.yaml").write_text(text.replace("batch_size: 16", f"batch_size: 16\n  epochs: {epochs}"))
    with started("train", "job.yaml", "--run", "runs/live", "--launcher", "local", *words, cwd=folder) as job:
        wait_for(job, " samples ")
        drain(job)
        yield job


def drain(job: subprocess.Popen[str]) -> None:
    """Read all that a command prints, so that it is not kept waiting."""
    assert job.stdout is not None
    threading.Thread(target=job.stdout.read, daemon=True).start()


def samples_of(page: Page) -> Locator:
    """The samples that a page says a job has trained on by now."""
    tile = page.locator(".now .tile", has=page.get_by_role("heading", name="Samples", exact=True))
    return tile.locator("strong")


def turn(page: Page, *, hidden: bool) -> None:
    """Tell a page that its tab is in the background, or in front again."""
    page.evaluate(
        """hidden => {
            Object.defineProperty(document, "hidden", { configurable: true, value: hidden });
            document.dispatchEvent(new Event("visibilitychange"));
        }""",
        hidden,
    )


def test_a_page_in_the_background_asks_for_nothing_and_is_up_to_date_when_it_is_seen(place: Path) -> None:
    from playwright.sync_api import expect

    with (
        training(place, "--workers", "1") as job,
        ui(place) as client,
        browser() as found,
        page_of(found, str(client.base_url.join("run/live/"))) as (page, _),
    ):
        samples, asked = samples_of(page), list[str]()
        expect(samples).not_to_have_text(samples.inner_text(), timeout=ANSWER_MS)
        turn(page, hidden=True)
        shown = samples.inner_text()
        page.on("request", lambda request: asked.append(request.url))
        page.wait_for_timeout(2500)
        assert (asked, samples.inner_text()) == ([], shown)
        os.kill(job.pid, signal.SIGINT)
        assert job.wait(60) == 130
        assert page.get_by_text("The job has ended.").count() == 0
        turn(page, hidden=False)
        page.get_by_text("The job has ended.").wait_for()
        page.get_by_text("stopped by SIGINT").first.wait_for()
        assert len(asked) > 0


def test_a_live_run_is_followed_scaled_and_stopped(place: Path) -> None:
    from playwright.sync_api import expect

    with training(place, "--workers", "1") as job, ui(place) as client, browser() as found:
        with page_of(found, str(client.base_url)) as (page, _):
            page.get_by_role("link", name="live").click()
            page.get_by_role("heading", name="Now: ").wait_for()
            assert page.get_by_text("running", exact=True).is_visible()
            samples = samples_of(page)
            expect(samples).not_to_have_text(samples.inner_text(), timeout=60_000)
            for width, height in (PHONE, DESKTOP):
                page.set_viewport_size({"width": width, "height": height})
                assert not is_too_wide(page), width
                for scheme in ("light", "dark"):
                    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
                    assert serious(page) == [], (width, scheme)
            asked: list[str] = []
            page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.accept())[1])
            page.get_by_role("spinbutton", name="Workers").fill("2")
            page.get_by_role("button", name="Scale").click()
            page.get_by_text("stage 1 from 1 to 2 workers").first.wait_for()
            page.get_by_role("button", name="Stop and save").click()
            page.get_by_text("The job has ended.").wait_for()
            page.get_by_text("stopped by SIGINT").first.wait_for()
            assert page.get_by_role("button", name="Stop and save").count() == 0
            assert [question.partition("?")[0] for question in asked] == [
                "Change the number of workers", "Stop live",
            ]  # fmt: skip
        assert job.wait(60) == 130


def test_a_run_is_followed_to_its_end_and_what_its_reader_did_stays(place: Path) -> None:
    from playwright.sync_api import expect

    with ui(place) as client, browser() as found, training(place, "--workers", "1", epochs=20) as job:
        with page_of(found, str(client.base_url.join("run/live/")), PHONE) as (page, _):
            checkpoints = page.locator("summary", has_text="checkpoint")
            samples = samples_of(page)
            checkpoints.focus()
            checkpoints.press("Enter")
            stages = page.locator(".now .scroll")
            stages.evaluate("each => { each.scrollLeft = 40; }")
            shown = samples.inner_text()
            expect(samples).not_to_have_text(shown, timeout=ANSWER_MS)
            expect(checkpoints).to_be_focused()
            assert stages.evaluate("each => each.scrollLeft") == 40
            page.get_by_text("The job has ended.").wait_for(timeout=2 * ANSWER_MS)
            expect(page.locator("details", has=checkpoints)).to_have_attribute("open", "")
            expect(page.locator("h1 .status")).to_have_text("completed")
            assert page.get_by_role("heading", name="Test AUC").is_visible()
            assert page.locator(".tile", has_text="20 epochs").locator("strong").inner_text() == "40,000"
            assert page.get_by_role("button").count() == 0, "there is nothing left to change"
        assert job.wait(60) == 0


def test_ten_pages_of_a_browser_follow_a_run_to_its_end_and_each_can_change_it(place: Path) -> None:
    with training(place, "--workers", "1") as job, ui(place) as client, browser() as found:
        url = str(client.base_url.join("run/live/"))
        with page_of(found, url) as (first, _):
            pages = [first, *(first.context.new_page() for _ in range(9))]  # more than connections to a host
            for page in pages[1:]:
                page.goto(url)
            for page in pages:
                page.get_by_role("heading", name="Now: ").wait_for()
            seventh = pages[6]
            seventh.on("dialog", lambda dialog: dialog.accept())
            seventh.get_by_role("spinbutton", name="Workers").fill("2")
            seventh.get_by_role("button", name="Scale").click()
            seventh.get_by_text("stage 1 from 1 to 2 workers").first.wait_for()
            seventh.get_by_role("button", name="Stop and save").click()
            for page in pages:
                page.get_by_text("The job has ended.").wait_for()
                page.get_by_text("stopped by SIGINT").first.wait_for()
        assert job.wait(60) == 130


def test_a_page_shows_a_fault_and_follows_again_when_its_server_is_back(place: Path) -> None:
    from playwright.sync_api import expect

    (place / "token").write_text("a-token-that-stays")
    (place / "token").chmod(0o600)
    with training(place, "--workers", "2", "--sync", "asp") as job, browser() as found:
        with ExitStack() as first:
            client = first.enter_context(ui(place, "--port", "0", "--token-file", "token"))
            url = str(client.base_url.join("run/live/"))
            with page_of(found, url) as (page, seen):
                samples = samples_of(page)
                samples.wait_for()
                os.kill(processes_of(job.pid, "worker_process")[0], signal.SIGKILL)
                faults = page.locator("section", has=page.get_by_role("heading", name="Faults, recoveries"))
                faults.get_by_text("SIGKILL").first.wait_for()
                first.close()
                page.get_by_text("No connection: trying again.").wait_for()
                assert all("net::ERR_" in error for error in seen.errors)
                shown = samples.inner_text()
                with ui(place, "--port", str(client.base_url.port), "--token-file", "token"):
                    expect(samples).not_to_have_text(shown, timeout=ANSWER_MS)
                    expect(page.locator("#said")).to_have_text("")
                    page.on("dialog", lambda dialog: dialog.accept())
                    page.get_by_role("button", name="Stop and save").click()
                    page.get_by_text("The job has ended.").wait_for()
                seen.errors.clear()
        assert job.wait(60) == 130


def test_a_live_run_is_planned_again_from_its_page(place: Path) -> None:
    (place / "job.yaml").write_text(dump_yaml(replannable(place / "job.yaml")))
    with started("train", "job.yaml", "--run", "runs/live", cwd=place) as job, ui(place) as client, browser() as found:
        wait_for(job, "starting 1 worker")
        drain(job)
        with page_of(found, str(client.base_url.join("run/live/"))) as (page, _):
            page.get_by_role("heading", name="Now: ").wait_for()
            asked: list[str] = []
            sent: list[str] = []
            page.on("request", lambda request: sent.append(request.post_data or "") if request.method == "POST" else 0)
            answers = iter((False, True))

            def answer(dialog: Dialog) -> None:
                asked.append(dialog.message)
                dialog.accept() if next(answers) else dialog.dismiss()

            page.on("dialog", answer)
            page.get_by_label("USD an hour of big").fill("0.01")
            page.get_by_role("button", name="Plan again").click()
            page.get_by_role("button", name="Plan again").click()
            page.get_by_text("for the samples that are left").first.wait_for()
            assert [question.partition("?")[0] for question in asked] == 2 * ["Plan again with these prices and limits"]
            page.get_by_role("rowheader", name="1 big").first.wait_for()
            assert [json.loads(text)["price.big"] for text in sent] == ["0.01"]
            assert json.loads(sent[0]).keys() > {"price.cpu", "limit.cpu"}, "all that the page shows is asked for"
            page.get_by_role("link", name="What if?").click()
            assert page.locator("input[name='price.big']").input_value() == "0.01", "as the job is planned now"
        assert load_plan(place / "runs/live/plan.json").stages[0].resource == "big"
        assert (place / "runs/live/plan-2.json").exists(), "planned once: the first question was answered with no"
        assert not (place / "runs/live/plan-3.json").exists()
