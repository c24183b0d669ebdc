"""YAML and JSON files that become validated models, with errors that name the file, the line, the field and the value.

    text --(safe loader)--> plain data --(pydantic)--> model
               |                              |
               +--> {field path: line} -------+--> "job.yaml:12: data.batch_size: ..."

Nothing here evaluates anything: only plain scalars, lists and mappings are read. A key written twice is an error.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from heterps.errors import ConfigError

M = TypeVar("M", bound=BaseModel)
FieldPath = tuple[str | int, ...]
Lines = dict[FieldPath, int]


def read_model(path: str | Path, model: type[M], *, what: str) -> M:
    """The `model` that the YAML or JSON file at `path` holds. `what` names the file's role in errors ("job file")."""
    path = Path(path)
    text = read_text(path, what=what)
    data, lines = parse(text, where=str(path), what=what)
    return validate(data, model, where=str(path), lines=lines)


def read_text(path: Path, *, what: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: there is no such {what}. Check the path; it is taken relative to {Path.cwd()}."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot read this {what}: {error}.") from error


def parse(text: str, *, where: str, what: str) -> tuple[dict[str, Any], Lines]:
    """Plain data and the line of every field. JSON is a subset of YAML, so one parser serves both."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        lines: Lines = {}
        data = _construct(root, (), lines, where) if root is not None else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise ConfigError(f"{where}{line}: this {what} is not valid YAML: {error.problem or error.context}.") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{where}: this {what} is not valid YAML: {error}.") from None
    if not isinstance(data, dict):
        found = "is empty" if data is None else f"holds a {type(data).__name__}"
        raise ConfigError(f"{where}: a {what} is a mapping of fields to values; this one {found}.")
    return data, lines


def validate(data: object, model: type[M], *, where: str, lines: Lines | None = None) -> M:
    """`data` as a `model`, or a ConfigError with a line for each thing wrong with it."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = [_describe(problem, model, where, lines or {}) for problem in error.errors()]
        raise ConfigError("\n".join(dict.fromkeys(problems))) from None


def _construct(node: yaml.Node, path: FieldPath, lines: Lines, where: str) -> Any:
    lines[path] = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        result: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = yaml.SafeLoader("").construct_object(key_node)
            line = key_node.start_mark.line + 1
            if isinstance(key, (list, dict)):
                raise ConfigError(f"{where}:{line}: a field name must be a word, not a {type(key).__name__}.")
            if key in result:
                raise ConfigError(f"{where}:{line}: {_dotted((*path, key))} is given twice; keep one of the two.")
            result[key] = _construct(value_node, (*path, key), lines, where)
            lines[(*path, key)] = line
        return result
    if isinstance(node, yaml.SequenceNode):
        return [_construct(item, (*path, i), lines, where) for i, item in enumerate(node.value)]
    return yaml.SafeLoader("").construct_object(node)


def _describe(problem: Any, model: type[BaseModel], where: str, lines: Lines) -> str:
    """One problem that pydantic found, as `file:line: field: what is wrong (got ...). What is allowed.`"""
    path: FieldPath = tuple(problem["loc"])
    known = path
    while known and known not in lines:  # a missing field has no line of its own: show where its parent starts
        known = known[:-1]
    line = f":{lines[known]}" if known in lines else ""
    field = _dotted(path) or "the file"
    if problem["type"] == "missing":
        return f"{where}{line}: {field} is missing; it has no default, so write it."
    if problem["type"] == "extra_forbidden":
        names = _fields_at(model, path[:-1])
        near = get_close_matches(str(path[-1]), names, n=1)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        return f"{where}{line}: {field} is not a field. {hint}Allowed here: {', '.join(names) or 'nothing'}."
    message = problem["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ").rstrip(".")
    return f"{where}{line}: {field}: {message} (got {_short(problem['input'])})."


def _fields_at(model: type[BaseModel], path: FieldPath) -> list[str]:
    """The field names of the model that `path` leads to; union tags and list indices on the way are passed over."""
    current = [model]
    for part in path:
        below = [m for c in current if part in c.model_fields for m in _models_in(c.model_fields[str(part)].annotation)]
        current = below or [m for m in current if part in _tags(m)] or current
    return sorted({name for m in current for name in m.model_fields})


def _tags(model: type[BaseModel]) -> tuple[Any, ...]:
    """The values of the `kind` that selects this model in a union."""
    return getattr(model.model_fields["kind"].annotation, "__args__", ()) if "kind" in model.model_fields else ()


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for inner in getattr(annotation, "__args__", ()) for m in _models_in(inner)]


def _dotted(path: FieldPath) -> str:
    return ".".join(str(part) for part in path)


def _short(value: object) -> str:
    text = json.dumps(value, default=str) if not isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def dump_yaml(model: BaseModel, *, comment: Callable[[str], str] | None = None) -> str:
    """The model as YAML, every field written out, defaults included."""
    text: str = yaml.safe_dump(model.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=100)
    return text if comment is None else comment(text)
