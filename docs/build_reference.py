"""Write docs/reference/job.md from the models of a job, and commands.md from the command line itself (`make docs`)."""

from __future__ import annotations

import json
import re
import types
from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer.main
from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from heterps import errors
from heterps.cli import app
from heterps.config import Job

REFERENCE = Path(__file__).parent / "reference"
PAGE = REFERENCE / "job.md"
COMMANDS_PAGE = REFERENCE / "commands.md"
HEAD = """\
# The job file

Generated from `src/heterps/config/` by `make docs`; do not edit.

A job is one YAML (or JSON) file. Only `data.train` must be given: everything else has a default. A field that is not
listed here is an error, and so is a value outside what is allowed; the error names the file, the line, the field and
the value. `heterps config show job.yaml` prints a job with every default filled in.

```yaml
data:
  train: data/train
  test: data/test
model:
  factory: deepfm
```
"""
PLAIN = {str: "text", int: "whole number", float: "number", bool: "true or false", type(None): "null", Any: "anything"}
KINDS = {"sparse": "Optimizer", "dense": "Optimizer", "init": "Initializer"}
BOUNDS = {Gt: ("> {}", "gt"), Ge: (">= {}", "ge"), Lt: ("< {}", "lt"), Le: ("<= {}", "le")}


def render() -> str:
    """The whole page: a section for each model, in the order in which a reader meets them."""
    sections = [_section(title, model) for title, model in _walk("", Job)]
    return "\n".join([HEAD, *sections])


def _walk(path: str, model: type[BaseModel]) -> list[tuple[str, type[BaseModel]]]:
    found = [(path, model)]
    for name, field in model.model_fields.items():
        inner = f"{path}.{name}".strip(".")
        if get_origin(field.annotation) is dict:
            inner += ".<name>"
        known = {seen for _, seen in found}
        for child in _models(field.annotation):
            if child not in known:
                found += [step for step in _walk(inner, child) if step[1] not in known]
    return found


def _section(path: str, model: type[BaseModel]) -> str:
    about = cleandoc(model.__doc__ or "") if "__doc__" in vars(model) else ""
    title = f"`{path}`" if path else "Fields of a job"
    fields = dict(model.model_fields)
    if _is_tagged(model):
        noun = path.rsplit(".", 1)[-1]
        title = f"{KINDS.get(noun, noun.capitalize())} `kind: {fields.pop('kind').default}`"
        about = f"`{about}`" if "=" in about and "`" not in about else about
    rows = [_row(path, name, field) for name, field in fields.items()]
    if rows:
        rows = ["| field | allowed | default | meaning |", "|---|---|---|---|", *rows]
    return "\n".join([f"## {title}", "", *([about] if about else []), *(["", *rows] if about and rows else rows), ""])


def _is_tagged(model: type[BaseModel]) -> bool:
    """Whether `kind` selects this model among others; a resource's `kind` is a field like any other."""
    kind = model.model_fields.get("kind")
    return kind is not None and get_origin(kind.annotation) is Literal


def _row(path: str, name: str, field: FieldInfo) -> str:
    below = f"{path}.{name}".strip(".")
    allowed = _allowed(field.annotation, tuple(field.metadata)).replace(
        "see below", f"see [{below}](#{_anchor(below)})"
    )
    cells = (f"`{name}`", allowed, _default(field), field.description or "")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _anchor(path: str) -> str:
    """What GitHub makes of the heading."""
    return re.sub(r"[.<>]", "", path)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    value = field.default
    if isinstance(value, BaseModel):
        kind = {"kind": value.kind} if hasattr(value, "kind") else {}
        written = kind | value.model_dump(mode="json", exclude_defaults=True)
        return f"`{json.dumps(written)}`" if written else "its defaults"
    if isinstance(value, tuple) and len(value) > 3:
        return f"`[{json.dumps(value[0])}, ..., {json.dumps(value[-1])}]`"
    return f"`{json.dumps(value)}`"


def _allowed(annotation: Any, metadata: tuple[Any, ...] = ()) -> str:
    """A type in words: `whole number > 0`, `'fill', 'error' or 'skip'`, `list of text`."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _allowed(inner[0], (*inner[1:], *metadata))
    if origin in (Union, types.UnionType):
        models = _models(annotation)
        if models and all(map(_is_tagged, models)):
            return "one of: " + ", ".join(f"`kind: {model.model_fields['kind'].default}`" for model in models)
        return " or ".join(dict.fromkeys(_allowed(branch, metadata) for branch in inner))
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in inner)
    if origin is tuple:
        return f"list of {_allowed(inner[0])}"
    if origin is dict:
        return f"mapping of names to {_allowed(inner[1]).replace('see below', 'see the next table')}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "fields, see below"
    bounds = [_bound(mark) for constraint in metadata for mark in _flatten(constraint)]
    return " ".join([PLAIN[annotation], " and ".join(filter(None, bounds))]).strip()


def _flatten(constraint: Any) -> list[Any]:
    return list(constraint.metadata) if isinstance(constraint, FieldInfo) else [constraint]


def _bound(mark: Any) -> str:
    if type(mark) not in BOUNDS:
        return ""
    text, name = BOUNDS[type(mark)]
    value = getattr(mark, name)
    return text.format(f"2^{value.bit_length() - 1}" if isinstance(value, int) and value > 10**9 else value)


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in _models(inner)]


# --- commands --------------------------------------------------------------------------------------------------------

COMMANDS_HEAD = """\
# Commands

Generated from the command line itself by `make docs`; do not edit. `heterps COMMAND --help` shows the same.

Put `--debug` anywhere in a command to see the traceback of an error. Paths are taken from the working directory.

## Exit codes

| code | meaning |
|---|---|
"""
VALUES = {str: "text", int: "whole number", float: "number", bool: "", Path: "path"}
VALUES |= {list[kind]: f"{VALUES[kind]}, repeatable" for kind in (str, Path)}


def render_commands() -> str:
    """Every command with its arguments and options, after the table of exit codes that all of them share."""
    meanings = sorted(
        (int(code), text) for code, text in re.findall(r"(\d+)  (\S.*?)(?=  +|\n|$)", errors.__doc__ or "")
    )
    codes = "\n".join(f"| {code} | {text} |" for code, text in meanings)
    sections = [_command(name, command) for name, command in commands(typer.main.get_command(app)).items()]
    return "\n".join([COMMANDS_HEAD + codes, "", *sections])


def commands(group: Any, name: str = "heterps") -> dict[str, Any]:
    """Every command by its full name; groups are not commands."""
    found: dict[str, Any] = {}
    for word, command in group.commands.items():
        full = f"{name} {word}"
        found |= commands(command, full) if hasattr(command, "commands") else {full: command}
    return found


def _command(name: str, command: Any) -> str:
    arguments = [p for p in command.params if not p.opts[0].startswith("-")]
    shown = [_metavar(p) if p.required else f"[{_metavar(p)}]" for p in arguments]
    rows = ["| argument or option | value | default | meaning |", "|---|---|---|---|"]
    rows += [_parameter(p) for p in command.params]
    examples = re.findall(rf"{name} \S.*?(?=  |;|\n|$)", command.epilog)
    usage = " ".join([name, *shown, "[OPTIONS]"])
    return "\n".join(
        [f"## `{name}`", "", command.help, "", "```", usage, "```", "", *rows, "", "```", *examples, "```", ""]
    )


def _parameter(parameter: Any) -> str:
    is_option = parameter.opts[0].startswith("-")
    default = "" if parameter.default is None or parameter.default is False else f"`{parameter.default}`"
    cells = (
        f"`{parameter.opts[0] if is_option else _metavar(parameter)}`",
        VALUES[parameter.type_descriptor.annotation],
        "**required**" if parameter.required else default,
        parameter.help,
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _metavar(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


if __name__ == "__main__":
    REFERENCE.mkdir(exist_ok=True)
    PAGE.write_text(render(), encoding="utf-8")
    COMMANDS_PAGE.write_text(render_commands(), encoding="utf-8")
