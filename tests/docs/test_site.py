"""The pages make a site: no link that leads nowhere, no page that cannot be found, nothing fetched from elsewhere.

The test has Sphinx's plain theme, which takes half the time of the site's own; warnings are those of the pages.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).parents[2]
THEME = ("-D", "html_theme=basic")
FETCHED = re.compile(r"<(?:script|img|link|iframe|source)\b[^>]*?\b(?:src|href)=\"([^\"]*)\"|url\([\"']?([^\"')]*)")


def test_the_site_is_made_without_warnings_and_whole(tmp_path: Path) -> None:
    assert find_spec("furo"), "sphinx, myst-parser and furo are in the extra `dev`: make setup"
    site = tmp_path / "site"
    made = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q", *THEME, "-c", "docs", ".", str(site)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    pages = {page: page.read_text(encoding="utf-8") for page in sorted(site.rglob("*.html"))}
    sources = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")]
    assert len(sources) > 80
    for source in sources:
        assert (site / source.relative_to(ROOT)).with_suffix(".html") in pages
    for page, text in pages.items():
        check_links(site, page, text)


def check_links(site: Path, page: Path, text: str) -> None:
    """Links inside the site lead to files of it, and what a browser loads by itself is in the site."""
    for target in re.findall(r"\bhref=\"([^\"#?]+)", text):
        if not re.match(r"[a-z]+:", target):
            assert (page.parent / unquote(target)).exists(), f"{page.relative_to(site)} links to {target}"
    for fetched in FETCHED.findall(text):
        target = "".join(fetched)
        assert not re.match(r"(https?:)?//", target), f"{page.relative_to(site)} fetches {target}"
