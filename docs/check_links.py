"""Ask other sites whether the links of the pages still lead somewhere: `make links`, from the root.

It ends with a sentence: all links lead somewhere (exit code 0), some do not, or nothing was asked, because no site
answers from here (1). Links between pages are checked by `make site`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NOT_ASKED = ("unchecked", "ignored", "local")
WORKS = ("working", "redirected")
ANSWER = re.compile(r"\d{3} ")
"""What Sphinx says of a broken link begins so where its site has answered: 404 Client Error."""


def check(source: Path, settings: Path, out: Path) -> list[dict[str, Any]]:
    """Return what became of each link of the pages, by Sphinx. RuntimeError where the pages cannot be read."""
    words = [sys.executable, "-m", "sphinx", "-b", "linkcheck", "-q", "-E", "-c", settings, source, out]
    done = subprocess.run(words, capture_output=True, text=True)
    try:
        return [json.loads(line) for line in (out / "output.json").read_text(encoding="utf-8").splitlines()]
    except FileNotFoundError:
        raise RuntimeError(f"Sphinx ended with exit code {done.returncode}:\n{done.stderr}") from None


def verdict(links: Sequence[dict[str, Any]]) -> tuple[int, str]:
    """Return the exit code, and what to say of the links."""
    asked = [link for link in links if link["status"] not in NOT_ASKED]
    broken = [link for link in asked if link["status"] not in WORKS]
    silent = [link for link in broken if not ANSWER.match(link["info"])]
    if asked and len(silent) == len(asked):
        return 1, (
            f"No link was checked: none of the sites that {len(asked)} links lead to answers from here. Run it where "
            f"the network is open. The first: {silent[0]['uri']}"
        )
    told = [
        f"{link['filename']}:{link['lineno']}: {link['uri']}: {'no answer' if link in silent else link['info'][:3]}"
        for link in broken
    ]
    if told:
        return 1, "\n".join([*told, f"{len(told)} of {len(asked)} links lead nowhere."])
    return 0, f"All {len(asked)} links to other sites lead somewhere."


def main() -> None:
    source, settings, out = map(Path, sys.argv[1:] or (".", "docs", "docs/_build/links"))
    code, sentence = verdict(check(source, settings, out))
    sys.stdout.write(f"{sentence}\n")
    sys.exit(code)


if __name__ == "__main__":
    main()
