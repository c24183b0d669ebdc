"""Provisioners by name. To add one, write a function with the contract of base.Provisioner and a line here."""

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
    """Return a provisioner, compiled, so that searches do not include the time for it. Raises ConfigError."""
    if name not in PROVISIONERS:
        near = get_close_matches(name, PROVISIONERS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"there is no provisioner {name!r}.{hint} Provisioners: {', '.join(PROVISIONERS)}.")
    if name != "exact":
        kernels.compile_all()
    return PROVISIONERS[name]
