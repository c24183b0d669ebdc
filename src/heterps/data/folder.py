"""The folder of a data set: all of it or nothing.

What is written goes to a hidden folder beside the one that was named, and is renamed to it when all is there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from heterps.errors import ConfigError, StorageError

INFO_NAME = "dataset.json"
"""Tells what the data set is. A folder that has one was made here, and may be replaced."""


@contextmanager
def new_dataset(folder: str | Path, content: str, *, force: bool) -> Iterator[Path]:
    """A folder to fill, which becomes `folder` when the block ends well. `content` says, in errors, what goes there.

    Raises a ConfigError where `folder` holds anything, unless `force` and it is a data set made here, which is then
    replaced. After an error or an interrupt nothing is left, and what was in `folder` is as it was.
    """
    target = Path(folder)
    _check_target(target, force)
    partial = target.with_name(f".{target.absolute().name}.partial-{os.getpid()}")
    try:
        partial.mkdir(parents=True)
        yield partial
        _replace(partial, target)
    except OSError as error:
        raise StorageError(
            f"{target}: cannot write the data set of {content}: {error}. "
            "Nothing was kept. Free some space, check the permissions, or choose another folder."
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _check_target(target: Path, force: bool) -> None:
    if target.exists() and not target.is_dir():
        raise ConfigError(f"{target}: this is a file; name a folder for the data set.")
    if not target.exists() or not any(target.iterdir()):
        return
    if not force:
        raise ConfigError(f"{target}: this folder is not empty. Choose another, or replace the data set with --force.")
    if not (target / INFO_NAME).is_file():
        raise ConfigError(
            f"{target}: --force replaces only a data set that was made here, and this folder has no {INFO_NAME}. "
            "Choose another folder, or remove this one yourself."
        )


def _replace(source: Path, target: Path) -> None:
    """Rename `source` to `target`; what was there is moved aside first and deleted last."""
    old = source.with_name(source.name + "-old")
    if target.exists():
        target.rename(old)
    try:
        source.rename(target)
    except OSError:
        if old.exists():
            old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)
