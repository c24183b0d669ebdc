"""The short form of policies in command lines and job files: KIND[:NUMBER...][+OPTION[:NUMBER]...]."""

from __future__ import annotations

from typing import Any, get_args

from heterps.config.sync import POLICIES, PolicyConfig
from heterps.errors import ConfigError
from heterps.yamlfile import validate

EXAMPLES = "write bsp, bsp+backup:1, asp, ssp:3, dssp:3:12, dssp:3:12+elapsed, dssp:3:12+fastest+lower or so"


def parse_policy(text: str) -> PolicyConfig:
    """Parse the short form of a policy: KIND[:NUMBER...][+OPTION[:NUMBER]...]. Raises ConfigError."""
    head, *extras = text.strip().lower().split("+")
    kind, *numbers = head.split(":")
    if kind not in POLICIES:
        raise ConfigError(f"there is no policy {kind!r} among {', '.join(POLICIES)}: {EXAMPLES}.")
    settings = POLICIES[kind]
    names = settings.numbers
    if len(numbers) > len(names):
        takes = f"takes {' and '.join(names)} only" if names else "takes no number"
        raise ConfigError(f"policy {text!r}: {kind} {takes}: {EXAMPLES}.")
    fields: dict[str, Any] = {"kind": kind}
    fields |= {name: _number(text, name, word) for name, word in zip(names, numbers, strict=False)}
    for extra in extras:
        name, value = _option(text, settings, kind, extra)
        if name in fields:
            raise ConfigError(f"policy {text!r}: {name} is given twice; keep one of the two.")
        fields[name] = value
    return validate(fields, settings, where=f"policy {text}")


def _option(text: str, settings: type[PolicyConfig], kind: str, extra: str) -> tuple[str, Any]:
    """The field that an option sets, and its value: `hysteresis:1` a number, `literal` true, `ema` one of its words."""
    name, _, word = extra.partition(":")
    options = {field_name: field.annotation for field_name, field in settings.options().items()}
    if options.get(name) is int:
        return name, _number(text, name, word)
    if options.get(name) is bool and not word:
        return name, True
    for field_name, words in options.items():
        if name in get_args(words) and not word:
            return field_name, name
    raise ConfigError(f"policy {text!r}: {kind} has no option {extra!r}: {EXAMPLES}.")


def _number(text: str, name: str, word: str) -> int:
    if not (word.isascii() and word.isdigit()):
        raise ConfigError(f"policy {text!r}: {name} must be a whole number, at least 0 (got {word!r}): {EXAMPLES}.")
    return int(word)
