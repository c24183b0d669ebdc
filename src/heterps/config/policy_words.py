"""The short form of policies in command lines and job files: KIND[:NUMBER...][+OPTION[:NUMBER]...]."""

from __future__ import annotations

from typing import Any

from heterps.config.sync import ASP, BSP, DSSP, PREDICTORS, SSP, PolicyConfig
from heterps.errors import ConfigError
from heterps.yamlfile import validate

KINDS: dict[str, type[BSP] | type[ASP] | type[SSP] | type[DSSP]] = {"bsp": BSP, "asp": ASP, "ssp": SSP, "dssp": DSSP}
NUMBERS = {"bsp": (), "asp": (), "ssp": ("lower",), "dssp": ("lower", "spread")}
EXAMPLES = "write bsp, bsp+backup:1, asp, ssp:3, dssp:3:12, dssp:3:12+elapsed, dssp:3:12+hysteresis:1 or so"


def parse_policy(text: str) -> PolicyConfig:
    """Parse the short form of a policy: KIND[:NUMBER...][+OPTION[:NUMBER]...]. Raises ConfigError."""
    head, *extras = text.strip().lower().split("+")
    kind, *numbers = head.split(":")
    if kind not in KINDS:
        raise ConfigError(f"policy {text!r}: there is no policy {kind!r}: {EXAMPLES}.")
    names = NUMBERS[kind]
    if len(numbers) > len(names):
        takes = f"takes {' and '.join(names)} only" if names else "takes no number"
        raise ConfigError(f"policy {text!r}: {kind} {takes}: {EXAMPLES}.")
    fields: dict[str, Any] = {"kind": kind}
    fields |= {name: _number(text, name, word) for name, word in zip(names, numbers, strict=False)}
    for extra in extras:
        name, value = _option(text, kind, extra)
        if name in fields:
            raise ConfigError(f"policy {text!r}: {name} is given twice; keep one of the two.")
        fields[name] = value
    return validate(fields, KINDS[kind], where=f"policy {text}")


def _option(text: str, kind: str, extra: str) -> tuple[str, Any]:
    name, _, word = extra.partition(":")
    if (kind, name) in (("bsp", "backup"), ("dssp", "hysteresis")):
        return name, _number(text, name, word)
    if kind == "dssp" and not word:
        if name in PREDICTORS:
            return "predictor", name
        if name == "literal":
            return "literal", True
    raise ConfigError(f"policy {text!r}: {kind} has no option {extra!r}: {EXAMPLES}.")


def _number(text: str, name: str, word: str) -> int:
    if not (word.isascii() and word.isdigit()):
        raise ConfigError(f"policy {text!r}: {name} must be a whole number, at least 0 (got {word!r}): {EXAMPLES}.")
    return int(word)
