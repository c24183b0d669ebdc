"""Create policies by name: from keyword arguments, from the values of a job, and from the command line's short form."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any

from heterps.config.policy_words import parse_policy
from heterps.config.sync import SSP, PolicyConfig
from heterps.errors import ConfigError
from heterps.sync.policy import OnEvent, Policy
from heterps.yamlfile import validate


def make_policy(
    kind: str | PolicyConfig,
    workers: Iterable[str],
    *,
    now: float = 0.0,
    on_event: OnEvent | None = None,
    **options: Any,
) -> Policy:
    """Create a policy for `workers`, which all start their first iteration at time `now`, in seconds.

    `kind` is bsp, asp, ssp or dssp, with `options` as the fields of `heterps.config.sync` (an SSP's `lower` may be
    called `s`); or a short form such as dssp:3:12; or a config value. `on_event` is called with every Event. Raises
    ConfigError.
    """
    config = _configure(kind, options)
    names = list(workers)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"policy {config.label}: the worker {twice!r} is given twice. Give each a name of its own.")
    module, _, name = config.made_by.partition(":")
    policy: Policy = getattr(import_module(module), name)(config, names, now=now, on_event=on_event)
    return policy


def _configure(kind: str | PolicyConfig, options: dict[str, Any]) -> PolicyConfig:
    config = parse_policy(kind) if isinstance(kind, str) else kind
    if not options:
        return config
    if isinstance(config, SSP) and "s" in options:
        options = {("lower" if name == "s" else name): value for name, value in options.items()}
    given = config.model_dump(exclude_unset=True) | {"kind": config.kind} | options
    return validate(given, type(config), where=f"policy {config.kind}")
