"""Provisioners by name: how many units and servers a schedule gets.

base     the contract           exact   the cheapest counts         newton   the paper's method
ratio    the paper's baselines  kernels compiled loops of those that are not exact

To add one, write a function with the contract of base.Provisioner and a line here. Read first: base.py, then exact.py.
"""

from __future__ import annotations

from heterps.planning.provisioners import kernels
from heterps.planning.provisioners.base import Provisioner
from heterps.planning.provisioners.exact import exact
from heterps.planning.provisioners.newton import newton
from heterps.planning.provisioners.ratio import sta_ps_ratio, sta_ratio
from heterps.plugins import Registry

_BUILT_IN: dict[str, Provisioner] = {
    "exact": exact,
    "newton": newton,
    "sta-ratio": sta_ratio,
    "sta-ps-ratio": sta_ps_ratio,
}
PROVISIONERS: Registry[Provisioner] = Registry("provisioner", _BUILT_IN)


def find_provisioner(name: str) -> Provisioner:
    """Return a provisioner, compiled, so that searches do not include the time for it. Raises ConfigError."""
    found = PROVISIONERS.find(name)
    if name != "exact":
        kernels.compile_all()
    return found
