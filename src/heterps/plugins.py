"""Registries: tables of named extensions, to which packages outside heterps can add entries.

    registry["exact"]      a built-in entry: no plugin is loaded
    registry["mine"]       an unknown name: plugins are loaded first, once per process
    list(registry)         all names: plugins are loaded first

A plugin is a function without arguments that calls `heterps.register_scheduler`, `register_format`, `register_policy`
or `register_device`. An installed package names it as an entry point, so that the command line and every process of a
run find it:

    [project.entry-points."heterps.plugins"]
    mine = "my_package:register"

Loading a plugin imports and runs code of a package that was installed in this Python environment. No file that heterps
reads can name code to load this way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from importlib.metadata import entry_points
from threading import RLock
from typing import TypeVar

from heterps.errors import ConfigError

GROUP = "heterps.plugins"
T = TypeVar("T")

_lock = RLock()
_is_loaded = False


class Registry(Mapping[str, T]):
    """Entries of one kind by name: the built-in ones first, then those of plugins in the order of their names."""

    def __init__(self, what: str, builtin: Mapping[str, T]) -> None:
        self._what = what
        self._entries = dict(builtin)

    def add(self, name: str, entry: T) -> None:
        """Add an entry; ConfigError if the name is taken by another one."""
        if self._entries.setdefault(name, entry) != entry:
            raise ConfigError(f"there is already a {self._what} {name!r}: register yours with another name.")

    def find(self, name: str) -> T:
        """Return the entry; raises ConfigError, which lists the names and says which is the nearest."""
        if name in self:
            return self[name]
        near = get_close_matches(name, self, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        names = f"{self._what.capitalize()}s: {', '.join(self)}."
        raise ConfigError(f"there is no {self._what} {name!r}.{hint} {names}")

    def __getitem__(self, name: str) -> T:
        if name not in self._entries:
            load_plugins()
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        load_plugins()
        return iter(self._entries)

    def __len__(self) -> int:
        load_plugins()
        return len(self._entries)


def load_plugins() -> None:
    """Call every installed plugin, once per process; ConfigError names one that cannot be loaded."""
    global _is_loaded
    with _lock:
        if _is_loaded:
            return
        _is_loaded = True  # before the plugins run: they may look into a registry themselves
        for plugin in sorted(entry_points(group=GROUP), key=lambda found: found.name):
            try:
                plugin.load()()
            except Exception as error:
                _is_loaded = False
                raise ConfigError(
                    f"the plugin {plugin.name} ({plugin.value}) cannot be loaded: {type(error).__name__}: "
                    f"{str(error).rstrip('.')}. Mend the package that it belongs to, or uninstall it."
                ) from error
