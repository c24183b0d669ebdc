"""Damaged files, given to the real commands, end in an error in words, in bounded time and memory, or do no harm."""

from __future__ import annotations

import sys
from pathlib import Path

import preloaded
import pytest

DRIVER = Path(__file__).parent / "damaged_files.py"
FEW = {"job": 40, "data": 16, "checkpoint": 8, "forged": 8}


def check(target: str, count: int, tmp_path: Path) -> None:
    words = [sys.executable, str(DRIVER), target, str(count)]
    done = preloaded.run(words, cwd=tmp_path, timeout=3000)
    assert done.returncode == 0, done.stdout[-200:] + done.stderr[-3000:]
    assert done.stdout.count(target) == count


@pytest.mark.parametrize("target", FEW)
def test_a_few_damaged_files_are_told_in_words(target: str, tmp_path: Path) -> None:
    check(target, FEW[target], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("target", FEW)
def test_many_damaged_files_are_told_in_words(target: str, tmp_path: Path) -> None:
    check(target, 50 * FEW[target], tmp_path)
