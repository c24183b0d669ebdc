"""The command line as benchmarks use it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def heterps(folder: Path, *words: object) -> str:
    """Run a command of heterps in `folder`, and return what it prints; an error ends the benchmark."""
    command = [sys.executable, "-m", "heterps", *map(str, words)]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"heterps {' '.join(map(str, words))} ended with exit code {done.returncode}")
    return done.stdout
