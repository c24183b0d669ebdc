"""Pages from templates: Python computes the values, a template beside this file says what the page looks like."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from heterps.errors import StorageError
from heterps.report.figures import duration, plural, rate, ratio, usd


def render(template: str, **values: object) -> str:
    """The text of a template of this folder. Values are escaped, and one that the template misses is an error."""
    return _environment().get_template(template).render(values)


@cache
def asset(name: str) -> str:
    """The text of a file of this folder that pages of `heterps ui` load: a style sheet or the script."""
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def write_text(path: Path, text: str, what: str) -> None:
    """Writes a page or a picture to a file. Raises StorageError when the file cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{path}: cannot write the {what}: {error.strerror}. Name another file.") from None


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader(__package__, ""), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    made.globals.update(plural=plural)
    made.filters.update(duration=duration, rate=rate, ratio=ratio, usd=usd)
    return made
