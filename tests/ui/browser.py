"""Debian's Chromium, driven by playwright: pages that report what went wrong in them, and what axe finds."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
AXE = (Path(__file__).parent / "axe" / "axe.min.js").read_text(encoding="utf-8")
PHONE, DESKTOP = (390, 844), (1280, 900)
ANSWER_MS = 60_000
needs_browser = pytest.mark.skipif(
    CHROMIUM is None and not os.environ.get("CI"), reason="needs a browser: apt-get install chromium"
)
"""Skips tests where there is no browser, but for continuous integration (CI is set), where they fail."""


@dataclass
class Seen:
    """What a page did besides showing itself. `hosts` are those that it asked for something."""

    errors: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)


@contextmanager
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    assert CHROMIUM is not None, "CI is set, and pages are not tested without a browser: apt-get install chromium"
    with tempfile.TemporaryDirectory() as home, sync_playwright() as driver:
        found = driver.chromium.launch(
            executable_path=CHROMIUM, args=list(FLAGS), env={"HOME": home, "PATH": "/usr/bin:/bin"}
        )
        try:
            yield found
        finally:
            found.close()


@contextmanager
def page_of(found: Browser, url: str, size: tuple[int, int] = DESKTOP) -> Iterator[tuple[Page, Seen]]:
    """A page that is open in a window of its own. It must have no error, and ask nobody but its own host."""
    context = found.new_context(viewport={"width": size[0], "height": size[1]})
    try:
        page, seen = context.new_page(), Seen()
        page.set_default_timeout(ANSWER_MS)
        page.on("console", lambda told: seen.errors.append(told.text) if told.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: seen.errors.append(str(error)))
        page.on("request", lambda asked: seen.hosts.add(urlsplit(asked.url).netloc))
        page.goto(url)
        yield page, seen
        assert seen.errors == []
        assert seen.hosts - {""} <= {urlsplit(url).netloc}, "it asks others"
    finally:
        context.close()


def scrolled_out(page: Page) -> list[str]:
    """Return the names of tables of figures that are wider than their place, though they have a form for phones."""
    found: list[str] = page.evaluate("""() => [...document.querySelectorAll(".stacked")].filter(
        table => table.scrollWidth > table.clientWidth
    ).map(table => table.getAttribute("aria-label"))""")
    return found


def cut_off(page: Page) -> list[str]:
    """Return the texts of pictures that do not fit between the left and the right edge of theirs."""
    found: list[str] = page.evaluate("""() => [...document.querySelectorAll("svg text")].filter(text => {
        const own = text.getBoundingClientRect(), all = text.ownerSVGElement.getBoundingClientRect();
        return own.width > 0 && (own.left < all.left - 1 || own.right > all.right + 1);
    }).map(text => text.textContent)""")
    return found


def serious(page: Page) -> list[str]:
    """What axe finds serious or critical: the rule, and the first places."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE + "; undefined")
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{one['impact']} {one['id']}: {one['help']}: {[node['html'][:120] for node in one['nodes']][:3]}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]


def is_too_wide(page: Page) -> bool:
    """Whether the page as a whole has to be moved sideways."""
    return bool(page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))


def unnamed(page: Page) -> list[str]:
    """Return what the keyboard reaches and a screen reader has no name for: the beginning of each."""
    found: list[str] = page.evaluate("""() => [...document.querySelectorAll("[tabindex='0']")].filter(
        (each) => each.tagName !== "PRE" && !each.getAttribute("aria-label")
    ).map((each) => each.outerHTML.slice(0, 80))""")
    return found
