"""Where results go, looked at before what they take is spent."""

from __future__ import annotations

from pathlib import Path

from heterps.errors import StorageError


def check_folder(path: Path, what: str) -> None:
    """Raises StorageError where a `what` cannot be written to `path`: no such folder, or the path itself is one."""
    if not path.parent.is_dir():
        raise StorageError(
            f"{path}: cannot write the {what}: there is no folder {path.parent}. Make it first, or name another file."
        )
    if path.is_dir():
        raise StorageError(f"{path}: cannot write the {what}: this is a folder. Name a file in it.")
