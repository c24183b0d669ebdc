"""What holds for every command: an answer as JSON, and tables that fit 80 columns, without colour, when piped."""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from command import DEADLINE_S, heterps_here, started, wait_for
from elastic import replannable
from tiny import JOB

from heterps.cli import app
from heterps.yamlfile import dump_yaml

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
    "data images": "digits images{n}",
    "train": "job.yaml --run trained{n} --launcher local --workers 1",
    "checkpoint diff": "run/checkpoints/{first} run/checkpoints/{last}",
    "checkpoint rm": "run/checkpoints/{any}",
}
"""Commands that end by themselves, with the words of a small case."""
OF_JOBS = {"status": "run", "scale": "run --stage 1 --count 2", "replan": "run --price big={n}"}
"""Commands to a job that runs."""
OF_SERVERS = ("server stats", "server rebalance")
SERVES = {"server start": "job.yaml --address ipc://./ps-0", "serve": "exported --port 0", "ui": ". --port 0"}
"""Commands that print where they listen, and serve until they are stopped."""


def test_every_command_is_in_one_of_the_lists() -> None:
    assert sorted([*TABLES, *OF_JOBS, *OF_SERVERS, *SERVES]) == sorted(COMMANDS)


@pytest.fixture
def place(tiny_job: Path) -> Path:
    (tiny_job.parent / "cluster.yaml").write_text(
        "resources:\n  cpu: {device: cpu, usd_per_hour: 0.04, limit: 480}\nserver_resource: cpu\n"
    )
    tiny_job.write_text(f"{JOB}sync: asp\ncheckpoint: {{every_samples: 32, keep: 9}}\n")
    words = ("--run", "run", "--launcher", "local", "--workers", "1")
    trained = heterps_here("train", "job.yaml", *words, cwd=tiny_job.parent)
    assert trained.returncode == 0, trained.stderr
    return tiny_job.parent


def check(name: str, text: str) -> None:
    assert ESCAPE not in text, f"{name} prints colours into a pipe"
    for line in text.splitlines():
        is_table = re.search(r"\S {2,}\S|[─│█]", line) is not None  # sentences are wrapped by whoever shows them
        assert len(line) <= WIDTH or not is_table, f"{name} prints a line of {len(line)} columns: {line}"


def ask(name: str, words: str, place: Path) -> None:
    """Run a command as people do, and as programs do: `{n}` in its words is another number each time."""
    for n, as_json in ((1, False), (2, True)):
        kept = sorted(path.name for path in (place / "run/checkpoints").glob("0*"))
        names = {"first": kept[0], "last": kept[-1], "any": kept[len(kept) // 2]} if kept else {}
        asked = [*name.split(), *words.format(n=n, **names).split(), *(["--json"] if as_json else [])]
        end_s = time.monotonic() + DEADLINE_S
        while True:
            printed = heterps_here(*asked, cwd=place)
            if "another change is under way" not in printed.stderr or time.monotonic() > end_s:
                break  # a job carries out one change at a time, and says to ask again
        assert printed.returncode == 0, f"{name}: {printed.stderr}"
        if as_json:
            json.loads(printed.stdout)
        else:
            check(name, printed.stdout)


def test_what_commands_print_fits_80_columns_and_is_json_when_asked(place: Path) -> None:
    for name, words in TABLES.items():
        ask(name, words, place)


def test_what_is_said_of_a_job_that_runs_fits_80_columns_and_is_json_when_asked(tiny_job: Path) -> None:
    tiny_job.write_text(dump_yaml(replannable(tiny_job)))
    with started("train", "job.yaml", "--run", "run", cwd=tiny_job.parent) as job:
        lines = wait_for(job, " samples ")
        assert job.stdout is not None
        threading.Thread(target=job.stdout.read, daemon=True).start()  # so that it is not kept waiting
        check("train", "".join(lines))
        for name, words in OF_JOBS.items():
            ask(name, words, tiny_job.parent)


def test_what_servers_print_fits_80_columns_and_is_json_when_asked(tiny_job: Path) -> None:
    place = tiny_job.parent
    trained = heterps_here("train", "job.yaml", "--run", "run", cwd=place)
    assert trained.returncode == 0, trained.stderr
    assert heterps_here("export", "run", "--to", "exported", cwd=place).returncode == 0
    for name, words in SERVES.items():
        for as_json in (False, True):
            options = ["--json"] if as_json else []
            with started(*name.split(), *words.split(), *options, cwd=place) as server:
                assert server.stdout is not None
                told = server.stdout.readline()
                json.loads(told) if as_json else check(name, told)
                if name == "server start" and not as_json:
                    ask("server stats", "ipc://./ps-0", place)
                    joining = f"{name} job.yaml --address ipc://./ps-1 --join ipc://./ps-0".split()
                    with started(*joining, cwd=place) as other:
                        wait_for(other, "ps-1")
                        ask("server rebalance", "ipc://./ps-1", place)
                server.send_signal(signal.SIGINT)
                server.wait(60)
