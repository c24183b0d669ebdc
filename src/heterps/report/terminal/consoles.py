"""The consoles that all commands print to."""

from __future__ import annotations

from rich.console import Console


def make_console(*, stderr: bool = False, soft_wrap: bool = False) -> Console:
    """A console that prints names and numbers as they are: no highlighting, and no emoji for `:boom:` in a name."""
    return Console(stderr=stderr, highlight=False, emoji=False, soft_wrap=soft_wrap)
