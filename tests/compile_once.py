"""Let one process of several compile a kernel, and the others wait for it and load it from numba's cache.

Without this, the processes of `pytest -n` compile each kernel of a fresh checkout at the same time, each for itself.
"""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Any

from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher

_compile = Dispatcher.compile


# The lock comes first: it is held while the kernels that a kernel calls take their turns. Threads would else wait for
# each other, one with this lock, the other with the turn of a kernel.
@global_compiler_lock
def _compile_in_turn(self: Any, signature: Any) -> Any:
    cache = getattr(self._cache, "_impl", None)
    if cache is None:  # not to be cached
        return _compile(self, signature)
    folder = Path(cache.locator.get_cache_path())
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f".{cache.filename_base}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        return _compile(self, signature)


Dispatcher.compile = _compile_in_turn
