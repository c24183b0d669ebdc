"""Provisioners by name. A new one is a function that keeps base.Provisioner's contract, and a line."""

from __future__ import annotations

from difflib import get_close_matches

from heterps.errors import ConfigError
from heterps.planning.provisioners import kernels
from heterps.planning.provisioners.base import Provisioner
from heterps.planning.provisioners.exact import exact
from heterps.planning.provisioners.newton import newton
from heterps.planning.provisioners.ratio import sta_ps_ratio, sta_ratio

PROVISIONERS: dict[str, Provisioner] = {
    "exact": exact,
    "newton": newton,
    "sta-ratio": sta_ratio,
    "sta-ps-ratio": sta_ps_ratio,
}


def find_provisioner(name: str) -> Provisioner:
    """The provisioner, compiled, so that no search is charged for that. The exact one's kernels are the planner's."""
    if name not in PROVISIONERS:
        near = get_close_matches(name, PROVISIONERS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"there is no provisioner {name!r}.{hint} Provisioners: {', '.join(PROVISIONERS)}.")
    if name != "exact":
        kernels.compile_all()
    return PROVISIONERS[name]
