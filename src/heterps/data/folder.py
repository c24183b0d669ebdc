"""Write a data set to a folder atomically.

Files are written to a hidden folder beside the target, which is renamed to the target when it is complete.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from heterps.errors import ConfigError, StorageError

INFO_NAME = "dataset.json"
"""Name of the file that describes a data set. A folder with this file was written by heterps and may be replaced."""
HIDDEN_INFO_NAME = "_dataset.json"
"""Name of that file where it lies beside data files: readers of Parquet folders pass over names with an underscore."""


@contextmanager
def new_dataset(folder: str | Path, content: str, *, force: bool) -> Iterator[Path]:
    """Yield a folder to fill, which becomes `folder` if the context ends without an error.

    `content` describes the data set in error messages. Raises ConfigError if `folder` is not empty; with `force`, a
    data set that heterps wrote is replaced. After an error or an interrupt `folder` is unchanged.
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
    if not any((target / name).is_file() for name in (INFO_NAME, HIDDEN_INFO_NAME)):
        raise ConfigError(
            f"{target}: --force replaces only a data set that was made here, and this folder has no {INFO_NAME}. "
            "Choose another folder, or remove this one yourself."
        )


def _replace(source: Path, target: Path) -> None:
    """Rename `source` to `target`; an existing target is moved aside first and deleted last."""
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
