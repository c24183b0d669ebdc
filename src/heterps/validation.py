"""Turn pydantic's errors into messages for the author of a file: the field, the rule, the value, the nearest name."""

from __future__ import annotations

import json
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ValidationError

FieldPath = tuple[str | int, ...]

SECRET = "secret"
"""Type of errors about values that are not to be shown."""

RULES = {  # pydantic's error type: the rule, with the error's own numbers filled in
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "finite_number": "must be a finite number",
    "literal_error": "must be {expected}",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must not be empty",
} | {
    f"{name}_{problem}": f"must be {rule}"
    for name, rule in {
        "int": "a whole number",
        "float": "a number",
        "bool": "true or false",
        "string": "text",
        "list": "a list",
        "tuple": "a list",
        "dict": "a mapping of fields to values",
        "model": "a mapping of fields to values",
    }.items()
    for problem in ("type", "parsing", "parsing_size", "from_float")
}


def explain(error: ValidationError, model: type[BaseModel], data: object) -> list[tuple[FieldPath, str]]:
    """Return, for each invalid field of `data`, its path and a sentence: `field: rule (got value).`"""
    problems = [(_within(problem["loc"], data), problem) for problem in error.errors()]
    sentences: list[tuple[FieldPath, str]] = []
    wrong: dict[FieldPath, list[Any]] = {}  # problems by value; a value that allows several types may have several
    for path, problem in problems:
        if problem["type"] in ("missing", "extra_forbidden", "union_tag_invalid", "union_tag_not_found"):
            sentences.append(_unknown_or_missing(path, problem, model))
        else:
            wrong.setdefault(path, []).append(problem)
    for path, found in wrong.items():
        # If a value has one of the allowed types but breaks its rule, complaints about the other types are noise.
        telling = [problem for problem in found if not problem["type"].endswith("_type")]
        if telling or not any(_is_below(other, path) for other in wrong):
            rules = list(dict.fromkeys(map(rule_of, telling or found)))
            either = " or ".join([rules[0], *(rule.removeprefix("must be ") for rule in rules[1:])])
            if found[0]["type"] == SECRET:
                sentences.append((path, f"{dotted(path)}: {either}."))
            elif not path and found[0]["type"] == "value_error":  # fields contradict each other: the rule names them
                sentences.append((path, f"{either}."))
            else:
                value = found[0]["input"]
                is_told = isinstance(value, str) and repr(value) in either
                got = "" if is_told else f" (got {_short(value)})"
                sentences.append((path, f"{dotted(path) or 'the file'}: {either}{got}."))
    return sentences


def dotted(path: FieldPath) -> str:
    return ".".join(map(str, path))


def _unknown_or_missing(path: FieldPath, problem: Any, model: type[BaseModel]) -> tuple[FieldPath, str]:
    kind, place = problem["type"], problem["loc"]
    if kind == "missing":
        return path, f"{dotted(path)} is missing; it has no default, so write it."
    if kind == "extra_forbidden":
        names = sorted({name for m in _models_at(model, place[:-1]) for name in m.model_fields})
        near = get_close_matches(str(path[-1]), names, n=1)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        return path, f"{dotted(path)} is not a field. {hint}Allowed here: {', '.join(names)}."
    tags = ", ".join(tag for m in _models_at(model, place) for tag in _tags(m))
    named = problem["ctx"]["discriminator"].strip("'")
    path = (*path, "kind" if named.endswith("()") else named)  # a function looks at the kind
    if kind == "union_tag_not_found":
        return path, f"{dotted(path)} is missing; write one of: {tags}."
    return path, f"{dotted(path)}: must be one of: {tags} (got {_short(problem['ctx']['tag'])})."


def rule_of(problem: Any) -> str:
    """The rule that a value breaks, from one of pydantic's errors: `must be at least 1`."""
    if rule := RULES.get(problem["type"]):
        return rule.format(**{name: _plain(value) for name, value in problem.get("ctx", {}).items()})
    message: str = problem["msg"]
    return message.removeprefix("Value error, ").rstrip(".")


def _plain(value: object) -> object:
    """Write 0.0 as 0: pydantic gives the bound of a float field as a float."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _within(place: FieldPath, data: Any) -> FieldPath:
    """The path as the author wrote it: pydantic's location without its names for the branches of a union."""
    path: FieldPath = ()
    for i, part in enumerate(place):
        is_branch = "[" in str(part)  # as in function-after[check(), str]
        if isinstance(data, dict) and (part in data or (i == len(place) - 1 and not is_branch)):
            path, data = (*path, part), data.get(part)
        elif isinstance(data, list) and isinstance(part, int):
            path, data = (*path, part), data[part]
    return path


def _is_below(path: FieldPath, other: FieldPath) -> bool:
    return len(path) > len(other) and path[: len(other)] == other


def _models_at(model: type[BaseModel], place: FieldPath) -> list[type[BaseModel]]:
    """The models that are allowed at pydantic's location `place`; a tag in it selects one of a union."""
    current = [model]
    for part in place:
        below = [m for c in current if part in c.model_fields for m in _models_in(c.model_fields[str(part)].annotation)]
        current = below or [m for m in current if part in _tags(m)] or current
    return current


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for inner in getattr(annotation, "__args__", ()) for m in _models_in(inner)]


def _tags(model: type[BaseModel]) -> tuple[str, ...]:
    """The values of the `kind` of this model, or of the `loss` of a label, which select it in a union."""
    tag = next((model.model_fields[name] for name in ("kind", "loss") if name in model.model_fields), None)
    return getattr(tag.annotation, "__args__", ()) if tag is not None else ()


def _short(value: object) -> str:
    text = json.dumps(value, default=str) if not isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
