"""`heterps keys create`: a private file, said where, and never the secret on the screen."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from heterps.cli import main
from heterps.wire.keys import load_keys


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["keys", *words])
    return int(end.value.code or 0)


def test_a_key_is_made_and_its_secret_is_not_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("create", str(tmp_path / "keys")) == 0
    path = tmp_path / "keys" / "job.key"
    shown = capsys.readouterr()
    assert str(path) in shown.out
    assert load_keys(path).secret not in shown.out + shown.err
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_program_is_told_where_the_key_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("create", str(tmp_path), "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"key": str(tmp_path / "job.key")}


def test_a_key_that_is_there_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("create", str(tmp_path)) == 0
    assert run("create", str(tmp_path)) == 2
    assert "exists already" in capsys.readouterr().err
