"""Provisioners by name. A new one is a function that keeps base.Provisioner's contract, and a line."""

from __future__ import annotations

from difflib import get_close_matches

from heterps.errors import ConfigError
from heterps.planning.provisioners.base import Provisioner
from heterps.planning.provisioners.exact import exact

PROVISIONERS: dict[str, Provisioner] = {"exact": exact}


def find_provisioner(name: str) -> Provisioner:
    if name not in PROVISIONERS:
        near = get_close_matches(name, PROVISIONERS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"there is no provisioner {name!r}.{hint} Provisioners: {', '.join(PROVISIONERS)}.")
    return PROVISIONERS[name]
