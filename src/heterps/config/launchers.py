"""Launchers: what each can do. A job asks here, and no other code tells them apart by name.

A launcher itself is a fleet (training/coordinator/fleet.py), which `launch/by_plan.py` opens by its name.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

LauncherName = Literal["inline", "local", "ray"]


class Launcher(NamedTuple):
    """What a launcher can do.

    has_workers    it runs the stages of a plan on workers; otherwise one process has all layers, and follows no plan
    keeps_servers  servers that it starts can outlive a command that is killed, and wait for the next one
    is_measured    what it costs besides the layers can be measured on this machine alone
    is_spread      at an address (`ray_address`) its workers are on other machines
    """

    has_workers: bool = True
    keeps_servers: bool = False
    is_measured: bool = False
    is_spread: bool = False


LAUNCHERS: dict[str, Launcher] = {
    "inline": Launcher(has_workers=False, is_measured=True),
    "local": Launcher(keeps_servers=True, is_measured=True),
    "ray": Launcher(is_spread=True),
}


def has_workers(launcher: str | None) -> bool:
    """Whether the launcher of this name runs workers; a run that names none, or one that is not known, has some."""
    return LAUNCHERS.get(launcher or "", Launcher()).has_workers
