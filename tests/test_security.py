"""No code of ours can be made to run code of others: nothing unpickles, evaluates or loads unsafely."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"
MODULES = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "_pickle"}
CALLS = {"eval", "exec", "torch.load", "torch.save", "yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load"}
CALLS |= {"os.system", "os.popen", "np.load", "numpy.load"}


def dangers(code: str) -> list[str]:
    """What is forbidden in `code`: imports and calls by name, and `allow_pickle=`, `shell=` other than False."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names if name.name.split(".")[0] in MODULES]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            found += [module] if module.split(".")[0] in MODULES else []
            found += [f"{module}.{name.name}" for name in node.names if f"{module}.{name.name}" in CALLS]
        elif isinstance(node, ast.Call):
            found += [ast.unparse(node.func)] if ast.unparse(node.func) in CALLS else []
            found += [
                f"{word.arg}={ast.unparse(word.value)}"
                for word in node.keywords
                if word.arg in ("allow_pickle", "shell") and ast.unparse(word.value) != "False"
            ]
    return found


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_file_unpickles_or_evaluates(path: Path) -> None:
    assert dangers(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "import os, cloudpickle as c",
        "from pickle import loads",
        "from torch import load",
        "import torch\ntorch.load('x', weights_only=True)",
        "yaml.load(text, Loader=L)",
        "def f():\n    return eval('1')",
        "exec('1')",
        "np.load(path)",
        "numpy.savez(x, allow_pickle=True)",
        "subprocess.run('ls', shell=True)",
    ],
)
def test_the_search_finds_what_is_forbidden(code: str) -> None:
    assert len(dangers(code)) == 1


def test_the_search_lets_other_things_pass() -> None:
    assert dangers("import yaml\nyaml.compose(t)\nmodel.eval()\njson.load(f)\nload(x)\nrun(x, shell=False)") == []
