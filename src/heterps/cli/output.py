"""Standard output of commands with --json: JSON and nothing else, whatever a model or a library prints."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from typing import TextIO

_answers: list[TextIO] = []
"""Stack of the streams that `print_json` writes to while everything else goes to standard error; empty: stdout."""


@contextmanager
def json_alone() -> Iterator[None]:
    """While it is open, only `print_json` writes to standard output; other output goes to standard error."""
    with ExitStack() as opened:
        answers = sys.stdout
        try:
            is_descriptor = sys.stdout.fileno() == 1
        except (OSError, io.UnsupportedOperation):
            is_descriptor = False
        if is_descriptor:  # processes that a model starts, and code other than Python's, write to the descriptor
            sys.stdout.flush()
            answers = opened.enter_context(os.fdopen(os.dup(1), "w", encoding="utf-8"))
            os.dup2(2, 1)
            opened.callback(os.dup2, answers.fileno(), 1)
        opened.enter_context(redirect_stdout(sys.stderr))
        _answers.append(answers)
        opened.callback(_answers.pop)
        yield


def print_json(text: str) -> None:
    """Prints the answer of a command to standard output."""
    answers = _answers[-1] if _answers else sys.stdout
    answers.write(text + "\n")
    answers.flush()
