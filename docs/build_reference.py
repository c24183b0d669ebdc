"""Write the generated pages of docs/reference (`make docs`), each from what the code says of itself.

job.md        the models of a job            errors.md     the classes of errors
commands.md   the command line               metrics.md    what Prometheus is told
python.md     signatures and docstrings, by python_page.py
"""

from __future__ import annotations

import json
import re
import types
from collections.abc import Callable
from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import python_page
import typer.main
from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from heterps import errors
from heterps.cli import app
from heterps.config import Job
from heterps.ps.server.stats import MirrorStats, ServerStats, TableStats, TierStats
from heterps.report.exposition import text_of
from heterps.report.prometheus import OF_JOBS, OF_STAGES, OF_TRAFFIC, RunFacts, exposition
from heterps.report.prometheus_servers import ServerFacts, server_families
from heterps.report.stage_figures import DOINGS
from heterps.serving.serve_metrics import ServeMetrics

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


# --- errors ----------------------------------------------------------------------------------------------------------

ERRORS_HEAD = """\
# Errors

Generated from `src/heterps/errors.py` by `make docs`; do not edit.

The text of an error says what is wrong, where, and what to do. A command prints it without a traceback (`--debug`
shows one) and ends with the [exit code](commands.md#exit-codes). In Python all of these are in `heterps.errors`, and
`except heterps.errors.HeterpsError` catches them all. An error below another is a special case of it.

| error | exit code | meaning |
|---|---:|---|
"""


def render_errors() -> str:
    """Every class of errors below the class that it is a special case of."""
    return ERRORS_HEAD + "\n".join(_errors_below(errors.HeterpsError, 0)) + "\n"


def _errors_below(kind: type[errors.HeterpsError], depth: int) -> list[str]:
    row = f"| {'&emsp;' * depth}`{kind.__name__}` | {kind.exit_code} | {' '.join((kind.__doc__ or '').split())} |"
    below = [one for one in vars(errors).values() if isinstance(one, type) and kind in one.__bases__]
    return [row, *(line for one in below for line in _errors_below(one, depth + 1))]


# --- metrics ---------------------------------------------------------------------------------------------------------

METRICS_HEAD = """\
# Metrics

Generated from what is told to Prometheus by `make docs`; do not edit. Figures of training are fields of
[`metrics.jsonl`](files.md#metricsjsonl), and `heterps status RUN --json` prints those of a run that is under way.
"""
RUNS_HEAD = """\
## Runs

[`heterps train --metrics`](../how-to/ui.md#prometheus) tells these of its job, and `heterps ui` under `/metrics` of
all runs of its folder; `docs/monitoring/grafana.json` draws them.
A run that is over is told only as not running.
"""
SERVERS_HEAD = """\
## Servers

A running job tells these of its servers, under every launcher, and [`heterps server start
--metrics`](../how-to/servers.md#prometheus) of a server that was started by hand, with an empty `run`;
`docs/monitoring/grafana.json` draws them. Figures of disks are told of tables with [tiers](../how-to/tiers.md), those
of mirrors by each server that has [one](../how-to/servers.md#a-server-that-dies-is-replaced).
"""
SERVED_HEAD = """\
## A model that is served

[`heterps serve`](../how-to/serve.md) tells these under `/metrics`.
"""


def render_metrics() -> str:
    """Every family of figures, as it is told of a run with one stage and of a server that has answered once."""
    stage = {"resource": "cpu"} | dict.fromkeys([*(field for field, _ in OF_STAGES.values()), *DOINGS], 1)
    traffic = {"keys_bytes": 1} | dict.fromkeys((field for field, _ in OF_TRAFFIC.values()), 1)
    status = {"stages": [stage], "traffic": traffic} | dict.fromkeys((field for field, _ in OF_JOBS.values()), 1)
    runs = exposition([RunFacts("a", True, status, 1.0, 1)])
    served = ServeMetrics()
    served.request("/score", 200, 0.1)
    sections = {RUNS_HEAD: runs, SERVERS_HEAD: _told_of_a_server(), SERVED_HEAD: served.text(0)}
    return "\n".join([METRICS_HEAD, *(f"{head}\n{_families(text)}" for head, text in sections.items())])


def _told_of_a_server() -> bytes:
    table = TableStats(1, 1, 1, 1, 1, 1, tiers=TierStats(1, 1, 1, 1, 1, 1, 1.0, free_bytes=1))
    kept = {"held": 0, "kept": 0, "waits_for": [], "dropped": {"later": 1}, "silence_s": {"worker-1.0": 1.0}}
    counted = {"workers": 1, "requests": 1, "repeats": 0, "rows_per_s": 1.0, "latency_s": {}}
    stats = ServerStats("server-0", 0, 1, 0, 1, **counted, **kept, tables={"embedding": table}, octaves=[1])
    stats.mirror = MirrorStats("server-0.1", True, 1, 0, 0, 0.0)
    return text_of(server_families([ServerFacts(stats)]))


def _families(text: bytes) -> str:
    """A table of the families in the text format of Prometheus, each with the labels of its first sample."""
    rows = ["| name | type | labels | meaning |", "|---|---|---|---|"]
    for block in text.decode().split("# HELP ")[1:]:
        (name, meaning), kind = block.split("\n")[0].split(" ", 1), block.split("\n")[1].split()[-1]
        labels = dict.fromkeys(re.findall(r'(\w+)="', block))
        if not name.endswith("_created"):  # a sample that the client adds to every counter
            rows.append(
                f"| `{name}` | {kind} | {', '.join(f'`{word}`' for word in labels if word != 'le')} | {meaning} |"
            )
    return "\n".join([*rows, ""])


PAGES: dict[Path, Callable[[], str]] = {
    PAGE: render,
    COMMANDS_PAGE: render_commands,
    REFERENCE / "python.md": python_page.render,
    REFERENCE / "errors.md": render_errors,
    REFERENCE / "metrics.md": render_metrics,
}

if __name__ == "__main__":
    REFERENCE.mkdir(exist_ok=True)
    for page, rendered in PAGES.items():
        page.write_text(rendered(), encoding="utf-8")
