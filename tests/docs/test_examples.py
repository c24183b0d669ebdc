"""What the pages show works: marked Python blocks run, commands exist with their options, links lead somewhere.

<!-- run -->            the next block is Python that is run, in a folder with the page's files and a small data set
<!-- file: NAME -->     the next block is written to that folder under this name
<!-- shown only: WHY -->  the next block cannot be run alone

Blocks without a language, or of `text` and `console`, are output, drawings and commands. Other YAML, JSON and TOML is
held to what it is a part of.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from pydantic import BaseModel
from typer.testing import CliRunner

from heterps.cli import UsageError, app
from heterps.config import Cluster, Job, Schema, load_cluster, load_job
from heterps.data.generate import generate
from heterps.launch import train
from heterps.sim import Scenario
from heterps.sim.scenario import load_scenario

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "benchmarks").rglob("*.md"))]
BLOCK = re.compile(r"<!-- (run|file: (?P<name>\S+)) -->\n```\w+\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"^(?P<before>[^\n]*)\n```(?P<language>\w+)\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE)
PARTS: tuple[type[BaseModel], ...] = (Job, Schema, Cluster, Scenario)
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
SHOWN_COMMAND = re.compile(r"^\$ (heterps .*)$", re.MULTILINE)
INLINE_COMMAND = re.compile(r"`(heterps [^`\n]*)`")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix().removeprefix("docs/")


def blocks(page: Path) -> list[re.Match[str]]:
    return list(BLOCK.finditer(page.read_text(encoding="utf-8")))


RUNNABLE = [page for page in PAGES if blocks(page)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows enough for the batches that the pages make."""
    folder = tmp_path_factory.mktemp("docs") / "data"
    generate(folder, 4000, 1000, 0)
    (folder / "criteo").symlink_to(folder)  # the README has it there
    return folder


@pytest.fixture
def folder(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with the synthetic data in it; what is imported from it is forgotten after."""
    (tmp_path / "data").symlink_to(data)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_model", raising=False)
    return tmp_path


def write_files(page: Path, folder: Path) -> list[Path]:
    written = [folder / block["name"] for block in blocks(page) if block["name"]]
    for block in blocks(page):
        if block["name"]:
            (folder / block["name"]).write_text(block["body"], encoding="utf-8")
    return written


def run_blocks(page: Path) -> None:
    """Each block in a namespace of its own: a reader may copy any one of them."""
    text = page.read_text(encoding="utf-8")
    for block in blocks(page):
        if not block["name"]:
            line = text[: block.start("body")].count("\n")
            code = compile("\n" * line + block["body"], str(page), "exec")  # errors name the line of the page
            exec(code, {"__name__": "__main__"})


@pytest.mark.parametrize("page", RUNNABLE, ids=name_of)
def test_marked_blocks_run(page: Path, folder: Path) -> None:
    write_files(page, folder)
    run_blocks(page)


@pytest.mark.parametrize("page", RUNNABLE, ids=name_of)
def test_job_and_cluster_files_are_valid(page: Path, folder: Path) -> None:
    for path in write_files(page, folder):
        if path.suffix == ".yaml":
            read = load_scenario if "scenario" in path.name else load_cluster if "cluster" in path.name else load_job
            read(path)


def test_every_job_of_the_tutorial_trains(folder: Path) -> None:
    page = ROOT / "docs" / "tutorial.md"
    jobs = [path for path in write_files(page, folder) if path.suffix == ".yaml" and path.name != "cluster.yaml"]
    run_blocks(page)  # makes logs.parquet
    assert len(jobs) == 4
    for job in jobs:
        finished = train(load_job(job), folder / "runs" / job.stem)
        assert finished.summary["status"] in ("completed", "stopped early")


def check_yaml(body: str) -> None:
    """It is a part of a job, of its columns, of a cluster or of a scenario, and valid there."""
    found = yaml.safe_load(body)
    model = next((model for model in PARTS if found.keys() <= model.model_fields.keys()), None)
    assert model is not None, f"{sorted(found)} are fields of nothing that heterps reads"
    if model is Job:
        found["data"] = {"train": "data/train"} | found.get("data", {})
    model.model_validate(found)


CHECKS: dict[str, Callable[[str], object]] = {"yaml": check_yaml, "json": json.loads, "toml": tomllib.loads}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_is_run_or_checked_or_says_why_not(page: Path) -> None:
    for block in CODE.finditer(page.read_text(encoding="utf-8")):
        if not block["before"].startswith("<!-- ") and block["language"] not in ("text", "console"):
            assert block["language"] in CHECKS, f"mark it as run, file or shown only:\n{block['body']}"
            CHECKS[block["language"]](block["body"])


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_imports_of_blocks_that_are_only_shown_exist(page: Path) -> None:
    for module, names in re.findall(r"^from (heterps\S*) import (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
        for name in names.split(", "):
            assert hasattr(import_module(module), name.split(" as ")[0]), f"{name_of(page)}: {module} has no {name}"


def shown_commands() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        in_prose = INLINE_COMMAND.findall(FENCE.sub("", text))
        found += [(name_of(page), command) for command in [*SHOWN_COMMAND.findall(text), *in_prose]]
    return sorted(set(found))


def is_placeholder(word: str) -> bool:
    return word in ("...", "|") or word.isupper()


@pytest.mark.parametrize(("page", "line"), shown_commands())
def test_commands_exist_with_their_options(page: str, line: str) -> None:
    words = [word for word in shlex.split(line, comments=True)[1:] if not is_placeholder(word) and word != "--debug"]
    command: Any = typer.main.get_command(app)
    while words and hasattr(command, "commands") and not words[0].startswith("--"):
        assert words[0] in command.commands, f"{page}: there is no `heterps {words[0]}`"
        command = command.commands[words.pop(0)]
    known = {"--help"} | {option for parameter in command.params for option in parameter.opts}
    for word in words:
        if word.startswith("--"):
            assert word in known, f"{page}: `{line}`: there is no {word}"


def test_whole_command_lines_are_complete() -> None:
    """What stands after a $ must parse as it is: no argument missing, no value of the wrong type."""
    group: Any = typer.main.get_command(app)
    lines = [line for page in PAGES for line in SHOWN_COMMAND.findall(page.read_text(encoding="utf-8"))]
    assert len(lines) > 10
    for line in lines:
        words, command = shlex.split(line, comments=True)[1:], group
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        try:
            command.make_context(line, words)
        except UsageError as error:
            pytest.fail(f"{line}: {error.format_message()}")


def test_tables_of_simulated_workers_are_those_of_the_commands(folder: Path) -> None:
    page = ROOT / "docs" / "how-to" / "choose-a-policy.md"
    write_files(page, folder)
    text = page.read_text(encoding="utf-8")
    shown = re.findall(r"^\$ heterps (simulate --(?:workers|scenario) .*)\n((?:[^$`].*\n)+)", text, re.MULTILINE)
    shown = [(command, table) for command, table in shown if "--job" not in command]
    assert len(shown) == 2
    for command, table in shown:
        printed = CliRunner().invoke(app, command.split()).output
        lines = [line.rstrip() for line in printed.splitlines()]
        assert lines[: table.count("\n")] == [line.rstrip() for line in table.splitlines()], command


def benchmark_commands() -> list[tuple[str, str]]:
    """Commands of benchmarks on all pages, in blocks and in prose, which may be broken over two lines."""
    found = []
    for page in PAGES:
        text = re.sub(r"\s*\\\n\s*", " ", page.read_text(encoding="utf-8"))
        found += [(name_of(page), line) for line in re.findall(r"python (benchmarks/[^`\n|;&#]*)", text)]
    return sorted(set(found))


@pytest.mark.parametrize(("page", "line"), benchmark_commands())
def test_commands_of_benchmarks_exist_with_their_options(page: str, line: str) -> None:
    script, *words = line.split()
    text = (ROOT / script).read_text(encoding="utf-8")
    for imported in re.findall(r"^from (\w+) import", text, re.MULTILINE):  # what a script has from beside it
        beside = (ROOT / script).with_name(f"{imported}.py")
        text += beside.read_text(encoding="utf-8") if beside.is_file() else ""
    for option in re.findall(r"(?:^|\s)(--[a-z][\w-]*)", " ".join(words)):
        assert f'"{option}"' in text, f"{page}: `python {line}`: there is no {option}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        assert "://" in target or (page.parent / target).exists(), f"{name_of(page)} links to {target}"


EXTERNAL = re.compile(r"https://[a-z0-9-]+(\.[a-z0-9-]+)+(/[A-Za-z0-9._~/%+=&?#-]*)?")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_to_other_sites_are_whole_addresses(page: Path) -> None:
    """Tests ask no other host, so only the form is checked: https, a host with a dot, no space and no stray sign."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([a-z]+://[^)]*)\)|<([a-z]+://[^>]*)>", text):
        assert EXTERNAL.fullmatch("".join(target)), f"{name_of(page)} links to {''.join(target)}"


def test_every_example_is_on_the_page_of_examples_and_every_script_and_job_is_run_by_a_test() -> None:
    page = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    users = [*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "examples").glob("*.py")]
    tests = "".join(path.read_text(encoding="utf-8") for path in users)
    for path in sorted((ROOT / "examples").iterdir()):
        if path.suffix in (".py", ".yaml"):
            assert f"examples/{path.name}" in page
            assert re.search(rf'["/]{path.stem}[".]', tests), f"no test names {path.name}"
