"""Usage errors of the command line in the form of every other error: the option, the value, the rule."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from heterps.validation import rule_of


def explain_usage(error: Any) -> str:
    """A sentence for a UsageError of the command line, and a line that shows how the command is called."""
    sentence = _sentence(error)
    context = getattr(error, "ctx", None)
    if context is None:
        return sentence
    path = context.command_path
    words = [path, *(_shown(p) for p in context.command.params if not p.opts[0].startswith("-"))]
    is_group = hasattr(context.command, "commands")
    usage = " ".join([*words, *(["COMMAND"] if is_group else []), "[OPTIONS]"])
    return f"{sentence}\nUsage: {usage}. `{path} --help` tells more."


def _sentence(error: Any) -> str:
    cause = error.__cause__ or error.__context__
    if not isinstance(cause, ValidationError) or error.param is None:
        sentence: str = error.format_message().rstrip(".")
        return sentence if sentence.endswith("?") else f"{sentence}."
    problem = cause.errors()[0]
    return f"{error.param.opts[0]} {problem['input']}: {rule_of(problem)}."


def _shown(argument: Any) -> str:
    name = str(argument.metavar or argument.name.upper())
    return name if argument.required else f"[{name}]"
