"""Read YAML and JSON files into validated models, with errors that name the file, the line, the field and the value.

    text --(plain parser)--> plain data --(pydantic)--> model
               |                               |
               +--> {field path: line} --------+--> "job.yaml:12: data.batch_size: must be greater than 0 (got -1)."

Nothing is evaluated: text, numbers, true, false, null, lists and mappings are read, and no other tag. Unquoted words
mean what YAML 1.2 and JSON say: `1e-3` is a number, `no` and `2024-01-01` are text. A key written twice is an error.
Files are small (MAX_BYTES), shallow (MAX_DEPTH) and stay small when their aliases are expanded (MAX_VALUES), so that no
file can keep the parser busy or fill the memory. `heterps.validation` words the messages about invalid values.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from heterps.errors import ConfigError
from heterps.validation import FieldPath, dotted, explain

M = TypeVar("M", bound=BaseModel)
Lines = dict[FieldPath, int]

MAX_BYTES = 8_000_000
"""Largest file that is read."""
MAX_DEPTH = 64
"""Deepest nesting of lists and mappings."""
MAX_VALUES = 200_000
"""Most values of a file, where a value that is used through an alias counts at each use."""
KEPT_LENGTH = 250_000
"""Longest text whose nodes are kept, in characters."""

KNOWN_FILES: dict[str, tuple[set[str], str]] = {  # role: the fields that identify it, and the commands that take it
    "job file": ({"data"}, "`heterps train`, `heterps profile` and `heterps config show` take job files"),
    "plan": ({"stages", "servers"}, "`heterps train JOB --plan PLAN` takes plans"),
    "comparison of plans": ({"chosen", "options"}, "write the chosen plan to a file with `heterps plan ... --out`"),
    "cluster file": ({"resources", "server_resource"}, "`heterps plan PROFILE CLUSTER` takes it second"),
    "scenario": ({"workers"}, "`heterps simulate --scenario SCENARIO` takes it"),
    "profile": ({"batch_size", "layers"}, "`heterps plan PROFILE CLUSTER` takes it first"),
}

TAG = "tag:yaml.org,2002:"
SCALARS: dict[str, tuple[str, str, Callable[[str], Any]]] = {  # name: pattern, first characters, value of the text
    "null": (r"~|null|Null|NULL|", "~nN\0", lambda _: None),
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF", lambda text: text.lower() == "true"),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789", lambda text: int(text, _base(text))),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
        lambda text: float(text.replace(".i", "i").replace(".I", "I").replace(".n", "n").replace(".N", "N")),
    ),
}


def _base(text: str) -> int:
    return {"0x": 16, "0o": 8}.get(text[:2], 10)


class PlainLoader(yaml.SafeLoader):
    """Resolves unquoted words by the core schema of YAML 1.2."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 (as PyYAML declares it)


class PlainDumper(yaml.SafeDumper):
    """Quotes text that YAML 1.1 or YAML 1.2 would take for something else."""


def _write_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Double-quote text with line breaks that only YAML 1.1 knows: they would be lost without the escapes."""
    style = '"' if any(character in "\x85\u2028\u2029" for character in text) else None
    return dumper.represent_scalar(TAG + "str", text, style=style)


PlainDumper.add_representer(str, _write_text)

for _name, (_pattern, _first, _) in SCALARS.items():
    for _side in (PlainLoader, PlainDumper):
        _side.add_implicit_resolver(TAG + _name, re.compile(f"^(?:{_pattern})$"), [c.strip("\0") for c in _first])


def read_model(path: str | Path, model: type[M], *, what: str) -> M:
    """Read the YAML or JSON file at `path` as a `model`. `what` names the file's role in errors ("job file")."""
    path = Path(path)
    data, lines = parse(read_text(path, what=what), where=str(path), what=what)
    check_role(data, where=str(path), what=what)
    return validate(data, model, where=str(path), lines=lines)


def read_text(path: Path, *, what: str) -> str:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise ConfigError(f"{path}: a {what} has at most {MAX_BYTES:,} bytes; this file has more.")
        return text.decode("utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: there is no such {what}. Check the path; it is taken relative to {Path.cwd()}."
        ) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot read this {what}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: this {what} is not UTF-8 text (byte {error.start}): save it as UTF-8.") from None


def parse(text: str, *, where: str, what: str) -> tuple[dict[str, Any], Lines]:
    """Parse text into plain data and the line of every field. JSON is a subset of YAML, so one parser serves both."""
    lines: Lines = {}
    try:
        root = _compose(text) if len(text) <= KEPT_LENGTH else _compose.__wrapped__(text)
        data = _construct(root, (), lines, where) if root is not None else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise ConfigError(f"{where}{line}: this {what} is not valid YAML: {error.problem or error.context}.") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{where}: this {what} is not valid YAML: {str(error).splitlines()[0]}.") from None
    except RecursionError:
        raise ConfigError(f"{where}: this {what} is nested too deeply, or an alias (*name) holds itself.") from None
    if not isinstance(data, dict):
        found = "is empty" if data is None else f"holds a {type(data).__name__}"
        raise ConfigError(f"{where}: a {what} is a mapping of fields to values; this one {found}.")
    return data, lines


def check_role(data: dict[str, Any], *, where: str, what: str) -> None:
    """Raise ConfigError if `data` is not a `what` but another kind of heterps file, by its fields."""
    own, _ = KNOWN_FILES.get(what, (set(), ""))
    if own <= set(data):
        return
    for other, (signs, use) in KNOWN_FILES.items():
        if signs <= set(data):
            raise ConfigError(f"{where}: this is a {other}, and a {what} is wanted here: {use}.")


def validate(data: object, model: type[M], *, where: str, lines: Lines | None = None) -> M:
    """Return `data` as a `model`; raises ConfigError with one line for each problem."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        known = lines or {}
        problems = [f"{where}{_line(path, known)}: {text}" for path, text in explain(error, model, data)]
        raise ConfigError("\n".join(problems)) from None


def dump_yaml(model: BaseModel) -> str:
    """Write the model as YAML with every field, including defaults; `read_model` gives the same model back."""
    data = model.model_dump(mode="json")
    text: str = yaml.dump(data, Dumper=PlainDumper, sort_keys=False, allow_unicode=True, width=100)
    return text


@functools.lru_cache(maxsize=8)
def _compose(text: str) -> yaml.Node | None:
    """Return the nodes of a text. Those of the last texts are kept: pages of `heterps ui` read files of a run often."""
    root: yaml.Node | None = yaml.compose(text, Loader=PlainLoader)
    return root


def _construct(node: yaml.Node, path: FieldPath, lines: Lines, where: str) -> Any:
    line = lines[path] = node.start_mark.line + 1
    if len(path) > MAX_DEPTH:
        raise ConfigError(f"{where}:{line}: the file is nested more than {MAX_DEPTH} deep, or an alias holds itself.")
    if len(lines) > MAX_VALUES:
        raise ConfigError(
            f"{where}:{line}: the file has more than {MAX_VALUES:,} values, with each alias (*name) counted at each "
            "use: write it with fewer values or aliases."
        )
    if isinstance(node, yaml.MappingNode) and node.tag == TAG + "map":
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key_line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != TAG + "str":
                raise ConfigError(f"{where}:{key_line}: a field name must be text; put it in quotes if it is a name.")
            key = key_node.value
            if key in result:
                raise ConfigError(f"{where}:{key_line}: {dotted((*path, key))} is given twice; keep one of the two.")
            result[key] = _construct(value_node, (*path, key), lines, where)
            lines[(*path, key)] = key_line
        return result
    if isinstance(node, yaml.SequenceNode) and node.tag == TAG + "seq":
        return [_construct(item, (*path, i), lines, where) for i, item in enumerate(node.value)]
    name = node.tag.removeprefix(TAG)
    if isinstance(node, yaml.ScalarNode) and name == "str":
        return node.value
    if isinstance(node, yaml.ScalarNode) and name in SCALARS:
        try:
            return SCALARS[name][2](node.value)
        except ValueError:
            raise ConfigError(f"{where}:{line}: {dotted(path)}: {node.value!r} is not of type {name}.") from None
    raise ConfigError(
        f"{where}:{line}: {dotted(path) or 'the file'} has the tag {node.tag!r}; only plain values, lists and mappings "
        "are read."
    )


def _line(path: FieldPath, lines: Lines) -> str:
    """The line of a field as `:LINE`; a missing field has none, so the nearest enclosing one is given."""
    while path and path not in lines:
        path = path[:-1]
    return f":{lines[path]}" if path in lines else ""
