"""Share decoded row groups among the readers of one machine: each is decoded once, by whichever reader comes first.

    reader 1   |== decodes 0 ==|== decodes 2 ==|maps 1|              a block of three row groups
    reader 2   |== decodes 1 ==|.. waits for 2 |maps 0|maps 2|

    FOLDER/0.3.1/       row group 1 of block 3 of epoch 0: a file for each array, and what was missing
    FOLDER/0.3.1.lock   held by the reader that decodes it, and free again if that reader dies

In BSP every worker of the first stage has a part of every batch, and so needs a part of every block. Readers are never
further apart than they read ahead, so the last few blocks are enough to keep. A reader that comes later, or cannot use
the folder, decodes for itself: sharing saves time, and no result depends on it.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps.data.decode import Block, DecodeCounts

_INDEX = "index.json"
Decoded = tuple[Block, DecodeCounts]


class SharedRows:
    """The decoded row groups in `folder`, whose parent only this user should be able to enter.

    num_blocks  number of blocks that are kept
    """

    def __init__(self, folder: Path, num_blocks: int) -> None:
        self._folder, self._num_blocks = folder, num_blocks
        self._is_parent_ours = not folder.parent.exists()

    def decode(
        self, block: tuple[int, int], count: int, decode: Callable[[list[int]], Iterable[Decoded]], at_once: int = 1
    ) -> list[Decoded]:
        """Return the `count` row groups of a block, which is named by its epoch and number.

        `decode` decodes row groups by their numbers. It is given those that no other reader has decoded or is decoding,
        at most `at_once` of them at a time. What it raises is raised here; the next reader then tries them again.
        """
        self._forget_before(block)
        paths = [self._folder / ".".join(map(str, (*block, number))) for number in range(count)]
        found: dict[int, Decoded] = {}
        while missing := [number for number in range(count) if number not in found]:
            with ExitStack() as locks:
                taken = [missing[at] for at in self._lock([paths[number] for number in missing], at_once, locks)]
                found |= {number: decoded for number in taken if (decoded := _read(paths[number])) is not None}
                new = [number for number in taken if number not in found]
                for number, decoded in zip(new, decode(new) if new else (), strict=True):
                    found[number] = decoded
                    _write(paths[number], *decoded)
        return [found[number] for number in range(count)]

    def close(self) -> None:
        """Remove the folder. Readers that still use it make it anew."""
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._is_parent_ours:
            with suppress(OSError):  # others use it
                self._folder.parent.rmdir()

    def _lock(self, paths: Sequence[Path], at_once: int, locks: ExitStack) -> list[int]:
        """Lock up to `at_once` paths that no other reader holds, or wait for the first if all are held; their indices.

        All of them count as locked where there can be no locks.
        """
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            free: list[int] = []
            for at, path in enumerate(paths):
                if len(free) < at_once and _try_lock(path, locks):
                    free.append(at)
            return free if free or not _try_lock(paths[0], locks, must_wait=True) else [0]
        except OSError:
            return list(range(len(paths)))

    def _forget_before(self, block: tuple[int, int]) -> None:
        """Remove the row groups of all but the last few blocks up to this one."""
        with suppress(OSError):
            by_block: dict[tuple[int, ...], list[Path]] = {block: []}
            for path in self._folder.iterdir():
                by_block.setdefault(tuple(map(int, path.name.split(".")[:2])), []).append(path)
            before = sorted(other for other in by_block if other <= block)
            for path in (path for other in before[: -self._num_blocks] for path in by_block[other]):
                if path.suffix == ".lock":
                    path.unlink(missing_ok=True)
                else:
                    shutil.rmtree(path, ignore_errors=True)  # whoever has mapped its files keeps them


def _try_lock(path: Path, locks: ExitStack, *, must_wait: bool = False) -> bool:
    lock = os.open(f"{path}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX if must_wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return False
    locks.callback(os.close, lock)
    return True


def _write(path: Path, block: Block, counts: DecodeCounts) -> None:
    """Write a decoded row group, whole or not at all. A folder that is full or gone costs time, and nothing else."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        partial.mkdir()
        arrays = {name: values for field in fields(Block) if (values := getattr(block, name := field.name)) is not None}
        for name, values in arrays.items():
            values.tofile(partial / name)
        shapes = {name: (values.dtype.str, values.shape) for name, values in arrays.items()}
        (partial / _INDEX).write_text(json.dumps({"counts": asdict(counts), "arrays": shapes}), encoding="utf-8")
        partial.rename(path)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)


def _read(path: Path) -> Decoded | None:
    """Map a decoded row group; None where there is none. Kernels take the arrays as they take new ones."""
    try:
        index = json.loads((path / _INDEX).read_text(encoding="utf-8"))
        arrays: dict[str, Any] = {field.name: None for field in fields(Block)}
        arrays |= {name: _map(path / name, *shape) for name, shape in index["arrays"].items()}
        return Block(**arrays), DecodeCounts(**index["counts"])
    except OSError:
        return None


def _map(path: Path, dtype: str, shape: Sequence[int]) -> NDArray[Any]:
    """Map an array. NumPy's own files would name type and shape as Python source, whose parser fails now and then
    while other threads parse too (python/cpython#106905)."""
    if 0 in shape:
        return np.empty(shape, dtype)
    return np.memmap(path, dtype, "c", shape=tuple(shape)).view(np.ndarray)
