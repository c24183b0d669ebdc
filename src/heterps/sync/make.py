"""Policies by name: from keyword arguments, from values of a job, and from words of a command line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from heterps.config.sync import ASP, BSP, DSSP, PREDICTORS, SSP, PolicyConfig
from heterps.errors import ConfigError
from heterps.sync.dynamic import Dynamic
from heterps.sync.literal import LiteralDynamic
from heterps.sync.policy import OnEvent, Policy
from heterps.sync.rounds import Rounds
from heterps.sync.stale import Stale
from heterps.yamlfile import validate

KINDS: dict[str, type[BSP] | type[ASP] | type[SSP] | type[DSSP]] = {"bsp": BSP, "asp": ASP, "ssp": SSP, "dssp": DSSP}
NUMBERS = {"bsp": (), "asp": (), "ssp": ("lower",), "dssp": ("lower", "spread")}
EXAMPLES = "write bsp, bsp+backup:1, asp, ssp:3, dssp:3:12, dssp:3:12+elapsed, dssp:3:12+hysteresis:1 or so"


def make_policy(
    kind: str | PolicyConfig,
    workers: Iterable[str],
    *,
    now: float = 0.0,
    on_event: OnEvent | None = None,
    **options: Any,
) -> Policy:
    """A policy for `workers`, who all start their first iteration at `now`.

    `kind` is bsp, asp, ssp or dssp, with `options` as the fields of `heterps.config.sync` (an SSP's `lower` may be
    called `s`), or a word such as dssp:3:12, or a value. `on_event` is given every Event. Raises ConfigError.
    """
    config = _configure(kind, options)
    names = list(workers)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"policy {config.label}: the worker {twice!r} is given twice. Give each a name of its own.")
    if isinstance(config, BSP):
        return Rounds(config, names, now=now, on_event=on_event)
    if isinstance(config, DSSP):
        return (LiteralDynamic if config.literal else Dynamic)(config, names, now=now, on_event=on_event)
    bound = config.lower if isinstance(config, SSP) else None
    return Stale(config, names, bound=bound, now=now, on_event=on_event)


def parse_policy(text: str) -> PolicyConfig:
    """The policy that a word of a command line names: KIND[:NUMBER...][+OPTION[:NUMBER]...]. Raises ConfigError."""
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


def _configure(kind: str | PolicyConfig, options: dict[str, Any]) -> PolicyConfig:
    config = parse_policy(kind) if isinstance(kind, str) else kind
    if not options:
        return config
    if isinstance(config, SSP) and "s" in options:
        options = {("lower" if name == "s" else name): value for name, value in options.items()}
    given = config.model_dump(exclude_unset=True) | {"kind": config.kind} | options
    return validate(given, type(config), where=f"policy {config.kind}")


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
