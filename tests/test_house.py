"""Rules of the whole package: a light start, help with examples, errors with exit codes, a name for each class."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import typer.main

import heterps
from heterps import errors
from heterps.cli import app, main

ROOT = Path(__file__).parent.parent


def commands(group: Any, name: str = "heterps") -> dict[str, Any]:
    """Every command by its full name; groups are not commands."""
    found: dict[str, Any] = {}
    for word, command in group.commands.items():
        full = f"{name} {word}"
        found |= commands(command, full) if hasattr(command, "commands") else {full: command}
    return found


COMMANDS = commands(typer.main.get_command(app))


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_help_of_every_command_says_what_it_does_and_shows_an_example(name: str) -> None:
    command = COMMANDS[name]
    assert command.help
    assert re.search(rf"Examples?:\s+{name}", command.epilog or command.help), (
        f"{name} --help has no example that starts with its name"
    )
    for parameter in command.params:
        assert getattr(parameter, "help", None), f"{name}: {parameter.name} has no help"


def test_the_command_line_starts_without_heavy_imports() -> None:
    heavy = ["torch", "numba", "pyarrow", "scipy", "sklearn", "numpy"]
    code = f"import sys, heterps.cli; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_commands_to_a_running_job_start_without_torch() -> None:
    code = "import sys, heterps.training.run.control, heterps.report.terminal.running; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_package_runs_as_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "heterps", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"heterps {heterps.__version__}"


def test_the_version_is_a_release_number() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", heterps.__version__)


def test_every_error_is_documented_and_its_exit_code_is_in_the_table() -> None:
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__]
    assert len(kinds) > 5
    for kind in kinds:
        assert issubclass(kind, errors.HeterpsError)
        assert kind.__doc__
        assert re.search(rf"\b{kind.exit_code}  ", errors.__doc__ or ""), f"{kind.__name__}: {kind.exit_code}"


def test_every_module_says_what_it_is() -> None:
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text(encoding="utf-8").strip()
        assert not text or text.startswith('"""'), f"{path} has no docstring"


def test_version_is_printed_without_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"heterps {heterps.__version__}\n"


def test_every_console_is_made_in_one_place() -> None:
    """Where it is told not to put emoji in the place of `:boom:`."""
    makers = [path.name for path in (ROOT / "src").rglob("*.py") if re.search(r"\bConsole\(", path.read_text("utf-8"))]
    assert makers == ["consoles.py"]


def test_every_file_of_tests_has_a_name_of_its_own() -> None:
    """They are modules without packages: of two with one name pytest collects the first only, and stops."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_every_public_class_has_a_name_of_its_own() -> None:
    classes: Counter[str] = Counter()
    for path in (ROOT / "src").rglob("*.py"):
        classes.update(re.findall(r"^class ([A-Za-z]\w*)", path.read_text(encoding="utf-8"), re.MULTILINE))
    assert len(classes) > 500
    assert not [name for name, times in classes.items() if times > 1]


def packages() -> list[Path]:
    return sorted(path.parent for path in (ROOT / "src" / "heterps").rglob("__init__.py"))


@pytest.mark.parametrize("package", packages(), ids=lambda path: path.name)
def test_the_docstring_of_a_package_names_all_that_is_in_it_and_what_to_read_first(package: Path) -> None:
    about = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))) or ""
    inside = {path.stem for path in package.glob("*.py")} | {path.parent.name for path in package.glob("*/__init__.py")}
    unnamed = [name for name in sorted(inside - {"__init__", "__main__"}) if not re.search(rf"\b{name}\b", about)]
    assert unnamed == []
    assert re.search(r"\bRead\s+first: ", about) or len(inside) <= 6, "many modules, and none is said to be the first"
