"""The consoles that all commands print to."""

from __future__ import annotations

from rich.console import Console


def make_console(*, stderr: bool = False, soft_wrap: bool = False) -> Console:
    """Prints names and numbers as they are: no colours by guess, and no emoji for `:boom:` in `my_models:boom:`."""
    return Console(stderr=stderr, highlight=False, emoji=False, soft_wrap=soft_wrap)
