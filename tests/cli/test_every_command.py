"""What holds for every command: an answer as JSON, and tables that fit 80 columns, without colour, when piped."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from command import heterps_here
from tiny import JOB

from heterps.cli import app

WIDTH = 80
ESCAPE = "\x1b"


def commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    group = group or typer.main.get_command(app)
    for name, command in sorted(group.commands.items()):
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


COMMANDS = dict(commands())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_answers_as_json(name: str) -> None:
    assert any("--json" in parameter.opts for parameter in COMMANDS[name].params)


TABLES = {
    "data synth": "made{n} --rows 500 --test-rows 100",
    "data describe": "train.parquet",
    "data convert": "train.parquet converted{n}",
    "init": "train.parquet --out written{n}.yaml --label label",
    "config show": "job.yaml",
    "keys create": "keys{n}",
    "prices": "",
    "profile": "job.yaml --out profile.json --budget 0 --units parts",
    "plan": "profile.json cluster.yaml --throughput 1000 --samples 1e6 --compare --explain",
    "simulate": "--workers 1.0,2.3 --horizon 100 --compare bsp,ssp:3,dssp:3:12,asp",
    "report": "run",
    "checkpoint ls": "run",
    "checkpoint verify": "run",
    "predict": "run test.parquet --columns s,t",
    "vectors": "run --slot s --ids 1,2",
    "export": "run --to exported{n}",
    "trace": "run --out trace{n}.json",
}
"""Commands that end by themselves, with the words of a small case; the others need a job, or serve until stopped."""
ELSEWHERE = {"checkpoint diff", "checkpoint rm", "data images", "replan", "scale", "serve", "server rebalance"} | {
    "server start", "server stats", "status", "train", "ui",
}  # fmt: skip


def test_every_command_is_in_one_of_the_lists() -> None:
    assert {*TABLES, *ELSEWHERE} == {*COMMANDS}


@pytest.fixture
def place(tiny_job: Path) -> Path:
    (tiny_job.parent / "cluster.yaml").write_text(
        "resources:\n  cpu: {device: cpu, usd_per_hour: 0.04, limit: 480}\nserver_resource: cpu\n"
    )
    tiny_job.write_text(f"{JOB}sync: asp\n")
    words = ("--run", "run", "--launcher", "local", "--workers", "1")
    trained = heterps_here("train", "job.yaml", *words, cwd=tiny_job.parent)
    assert trained.returncode == 0, trained.stderr
    check("train", trained.stdout.partition("completed:")[2])  # without the lines of progress
    return tiny_job.parent


def check(name: str, text: str) -> None:
    assert ESCAPE not in text, f"{name} prints colours into a pipe"
    for line in text.splitlines():
        is_table = re.search(r"\S {2,}\S|[─│█]", line) is not None  # sentences are wrapped by whoever shows them
        assert len(line) <= WIDTH or not is_table, f"{name} prints a line of {len(line)} columns: {line}"


def test_what_commands_print_fits_80_columns_and_is_json_when_asked(place: Path) -> None:
    for name, words in TABLES.items():
        printed = heterps_here(*name.split(), *words.format(n=1).split(), cwd=place)
        assert printed.returncode == 0, f"{name}: {printed.stderr}"
        check(name, printed.stdout)
        told = heterps_here(*name.split(), *words.format(n=2).split(), "--json", cwd=place)
        assert told.returncode == 0, f"{name}: {told.stderr}"
        json.loads(told.stdout)
