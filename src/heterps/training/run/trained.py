"""Find the checkpoint that a path stands for.

a run                  job.yaml, checkpoints/    its best checkpoint, where validation kept one, else the newest
a checkpoint           manifest.json             itself
what heterps.save made manifest.json             itself
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from heterps.checkpoint import latest, of_clock
from heterps.errors import RunError


def find_checkpoint(path: str | Path) -> Path:
    """Return the checkpoint that `path` stands for; RunError where there is none."""
    path = Path(path)
    folder = path / "checkpoints"
    if not folder.is_dir() and not (path / "job.yaml").is_file():
        if path.is_dir() and not (path / "manifest.json").exists():
            raise RunError(f"{path} is neither a run, nor a checkpoint, nor a model that heterps.save wrote.")
        return path
    newest = latest(folder)
    if newest is None:
        raise RunError(f"{path} has no checkpoint yet, so there is no model to use. Wait for the first one.")
    with suppress(OSError, ValueError, LookupError, TypeError):  # a damaged one is found when it is loaded
        clock = json.loads((newest / "progress.json").read_bytes())["validation"]["best"]["clock"]
        return of_clock(folder, clock) or newest
    return newest
