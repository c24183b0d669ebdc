"""What commands leave behind: JSON alone on standard output with --json, and files where the user wants them."""

from __future__ import annotations

import inspect
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, TextIO

from heterps.errors import StorageError

_answers: list[TextIO] = []
"""Stack of the streams that `print_json` writes to while everything else goes to standard error; empty: stdout."""


def examples(*commands: str, note: str = "") -> str:
    """The end of a command's help: examples of it, one a line, and a note below them."""
    lines = ["Examples:", *(f"  {command}" for command in commands), *([note] if note else [])]
    return "\n" + "\n\n".join(lines) + "\n"


def unwrapped(docstring: str | None) -> str:
    """A docstring as the help of a command: its paragraphs, which a terminal breaks into lines of its own width."""
    paragraphs = inspect.cleandoc(docstring or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


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


def print_json(answer: Any, indent: int | None = None) -> None:
    """Prints the answer of a command to standard output: text as it is, other values as JSON."""
    stream = _answers[-1] if _answers else sys.stdout
    stream.write((answer if isinstance(answer, str) else json.dumps(answer, indent=indent)) + "\n")
    stream.flush()


def check_folders(**files: Path | None) -> None:
    """Raises StorageError where a file that is wanted cannot be written: no such folder, or the path itself is one."""
    for what, path in files.items():
        if path is not None and not path.parent.is_dir():
            raise StorageError(
                f"{path}: cannot write the {what}: there is no folder {path.parent}. Make it first, or name another "
                "file."
            )
        if path is not None and path.is_dir():
            raise StorageError(f"{path}: cannot write the {what}: this is a folder. Name a file in it.")


def write_file(path: Path | None, what: str, write: Callable[[Path], None], advice: str = "Name another file") -> None:
    """Writes a file, if a path was given. Raises StorageError with the advice when that fails."""
    try:
        if path is not None:
            write(path)
    except OSError as error:
        raise StorageError(f"{path}: cannot write the {what}: {error.strerror}. {advice}.") from None
