"""`heterps config show`, and what every command shares: errors without a traceback, exit codes, --debug."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from heterps.cli import app, main
from heterps.config import load_job
from heterps.errors import ConfigError, PlanInfeasible, StorageError


@pytest.fixture(autouse=True)
def _in_a_folder_with_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text("data: {train: x, epochs: 2}\nmodel: {args: {hidden: [8, 4], rate: 1e-3}}\n")


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert isinstance(end.value.code, int)
    return end.value.code


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_show_prints_the_whole_job_and_loads_back_as_the_same(
    options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("config", "show", "job.yaml", *options) == 0
    shown = capsys.readouterr().out
    assert "batch_size" in shown
    Path("shown.yaml").write_text(shown)
    assert load_job("shown.yaml") == load_job("job.yaml")
    if options:
        assert json.loads(shown)["data"]["epochs"] == 2


def test_a_bad_job_is_one_paragraph_on_stderr_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    Path("job.yaml").write_text("data: {train: x}\nseed: [-1]\n")
    assert run("config", "show", "job.yaml") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "error: job.yaml:2: seed: must be a whole number (got [-1]).\n"


def test_a_missing_job_says_where_it_looked(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("config", "show", "nowhere.yaml") == 2
    assert "nowhere.yaml: there is no such job file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [("--debug", "config", "show", "bad.yaml"), ("config", "show", "bad.yaml", "--debug")]
)
def test_debug_anywhere_shows_the_traceback(words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError):
        main(words)


@pytest.mark.parametrize(
    "words", [("nonsense",), ("config", "shwo"), ("config", "show"), ("config", "show", "job.yaml", "--jsno")]
)
def test_wrong_usage_is_exit_code_2_and_says_what_is_wrong(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == 2
    assert re.search(r"No such (command|option)|Missing argument", capsys.readouterr().err)


def test_an_error_of_usage_shows_how_the_command_is_called(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("scale") == 2
    assert capsys.readouterr().err == (
        "error: Missing argument 'RUN'.\nUsage: heterps scale RUN [OPTIONS]. `heterps scale --help` tells more.\n"
    )


@pytest.mark.parametrize(
    "error", [PlanInfeasible("no plan"), StorageError("disk [red]full[/] [3]"), PlanInfeasible("my_models:boom: no")]
)
def test_the_error_decides_the_exit_code_and_its_text_is_shown_as_it_is(
    error: PlanInfeasible | StorageError, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("heterps.cli.config.load_job", fail)
    assert run("config", "show", "job.yaml") == error.exit_code
    assert capsys.readouterr().err == f"error: {error}\n"


def test_help_names_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    assert "3 no feasible plan" in " ".join(capsys.readouterr().out.split())
    assert app.info.name == "heterps"


def leaves(command: Any, *words: str) -> Iterator[tuple[str, Any]]:
    """Every command that is not a group of others, by its words."""
    if inner := getattr(command, "commands", None):
        for name, found in inner.items():
            yield from leaves(found, *words, name)
    else:
        yield " ".join(words), command


def test_every_command_answers_in_json_if_asked() -> None:
    options = {
        words: [name for option in found.params for name in option.opts] for words, found in leaves(get_command(app))
    }
    assert len(options) > 20
    assert [words for words, names in options.items() if "--json" not in names] == []
