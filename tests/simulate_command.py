"""`heterps simulate` in this process: its exit code, what it prints, and its figures."""

from __future__ import annotations

import json
from typing import Any

import pytest

from heterps.cli import main


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["simulate", *words])
    captured = capsys.readouterr()
    assert isinstance(stop.value.code, int)
    return stop.value.code, captured.out, captured.err


def figures(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    code, out, err = run(capsys, *words, "--json")
    assert (code, err) == (0, "")
    shown: dict[str, Any] = json.loads(out)
    return shown
