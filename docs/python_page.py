"""Render docs/reference/python.md: every public name, as its source writes it and as its docstring explains it."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

import heterps

HEAD = """\
# Python

Generated from signatures and docstrings by `make docs`; do not edit. [How to use heterps from
Python](../how-to/python.md) has examples that run.

Names that are not here may change without a word. Errors that a user can mend are on [a page of their own](errors.md).
"""
MODULES = (heterps, heterps.nn, heterps.ps, heterps.sync)
WIDTH = 110


def render() -> str:
    """The whole page: a part for each public module, a section for each of its names."""
    parts = [HEAD]
    for module in MODULES:
        parts += [f"## {module.__name__}", ""]
        parts += [_section(f"{module.__name__}.{name}", value) for name, value in public(module).items()]
    return "\n".join(parts)


def public(module: Any) -> dict[str, Any]:
    """The names of a module that can be called or choose between values; constants and modules are left out."""
    found = {name: getattr(module, name) for name in module.__all__}
    return {name: value for name, value in found.items() if callable(value) or get_origin(value) is Literal}


def _section(name: str, value: Any) -> str:
    """A name with its call and docstring. The fields of a model are on the page of the job file already."""
    if get_origin(value) is Literal:
        return f"### {name}\n\nOne of {', '.join(f'`{choice!r}`' for choice in get_args(value))}.\n"
    about = _markdown(inspect.getdoc(value) or "")
    if inspect.isclass(value) and issubclass(value, BaseModel):
        about += "\n\nIts fields are those of [the job file](job.md)."
    else:
        about = f"```text\n{_call(name, value)}\n```\n\n{about}"
    rows = [_row(*member) for member in _members(value).items()] if inspect.isclass(value) else []
    table = ["", "| | |", "|---|---|", *rows] if rows else []
    return "\n".join([f"### {name}", "", about.strip(), *table, ""])


def _members(kind: type) -> dict[str, Callable[..., Any] | property]:
    """The public methods and properties that have a docstring; those of a base that is public itself are told there."""
    documented = {id(value) for module in MODULES for value in public(module).values() if value is not kind}
    found: dict[str, Any] = {}
    for base in kind.__mro__:
        if base.__module__.startswith("heterps") and id(base) not in documented:
            for name, value in vars(base).items():
                plain = getattr(value, "__func__", value)
                if not name.startswith("_") and (inspect.isfunction(plain) or isinstance(plain, property)):
                    found.setdefault(name, plain)
    return {name: value for name, value in found.items() if value.__doc__}


def _row(name: str, value: Callable[..., Any] | property) -> str:
    called = name if isinstance(value, property) else f"{name}({', '.join(_parameters(value, typed=False))})"
    first = inspect.cleandoc(value.__doc__ or "").split("\n\n")[0].replace("\n", " ")
    return f"| `{called}` | " + first.replace("|", "\\|") + " |"


def _call(name: str, value: Any) -> str:
    """The call as the source writes it: defaults by their names, and what is returned."""
    if inspect.isclass(value):
        words, returned = _parameters(value.__init__ if "__init__" in vars(value) else value, typed=True), ""
    else:
        words, annotation = _parameters(value, typed=True), inspect.signature(value).return_annotation
        returned = f" -> {annotation}"
    line = f"{name}({', '.join(words)}){returned}"
    return line if len(line) <= WIDTH else f"{name}(\n" + "".join(f"    {word},\n" for word in words) + f"){returned}"


def _parameters(function: Any, *, typed: bool) -> list[str]:
    """The parameters without self; of a class that has no __init__ of its own, such as a dataclass, the names alone."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, TypeError):  # made by a decorator: there is no source
        tree = None
    if not isinstance(tree, ast.FunctionDef):
        return [name for name in inspect.signature(function).parameters if name != "self"]
    given = tree.args
    plain = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(plain) - len(given.defaults)) + given.defaults
    words = [_word(arg, default, typed) for arg, default in zip(plain, defaults, strict=True)]
    if plain and plain[0].arg in ("self", "cls"):
        words.pop(0)
    if given.vararg:
        words.append("*" + _word(given.vararg, None, typed))
    elif given.kwonlyargs:
        words.append("*")
    words += [_word(arg, default, typed) for arg, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    return [*words, "**" + _word(given.kwarg, None, typed)] if given.kwarg else words


def _word(argument: ast.arg, default: ast.expr | None, typed: bool) -> str:
    is_typed = typed and argument.annotation is not None
    word = argument.arg + (f": {ast.unparse(argument.annotation)}" if is_typed and argument.annotation else "")
    equals = " = " if is_typed else "="
    return word if default is None else word + equals + ast.unparse(default)


def _markdown(docstring: str) -> str:
    """Prose stays prose; paragraphs that are aligned or indented, such as lists of parameters, stay as they are."""
    if "=" in docstring and "`" not in docstring and "\n" not in docstring:
        return f"`{docstring}`"  # the formula of an optimizer
    parts = []
    for paragraph in docstring.split("\n\n"):
        is_aligned = any(re.search(r"\S {2,}\S", line) or line[:4] == "    " for line in paragraph.split("\n"))
        parts.append(f"```text\n{textwrap.dedent(paragraph)}\n```" if is_aligned else paragraph)
    return "\n\n".join(parts).replace("\n```\n\n```text\n", "\n\n")
