"""No code of ours can be made to run code of others: nothing unpickles, evaluates or loads unsafely."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"
MODULES = {"pickle", "cloudpickle", "dill", "jsonpickle", "marshal", "shelve", "joblib", "_pickle", "torch.package"}
NAMES = {"eval", "exec", "__import__", "builtins.eval", "builtins.exec", "builtins.__import__"}
NAMES |= {"torch.load", "torch.save", "torch.serialization.load", "torch.jit.load", "torch.hub.load"}
NAMES |= {
    f"yaml.{name}" for name in ("load", "load_all", "unsafe_load", "unsafe_load_all", "full_load", "full_load_all")
}
NAMES |= {"yaml.Loader", "yaml.UnsafeLoader", "yaml.FullLoader"}
NAMES |= {"numpy.load", "numpy.loads", "pandas.read_pickle", "pandas.to_pickle"}
NAMES |= {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"}


def dangers(code: str) -> list[str]:
    """What is forbidden in `code`: imports, names however they are bound, and `allow_pickle=`, `shell=` but False."""
    tree = ast.parse(code)
    found: list[str] = []
    bound = {"np": "numpy"}  # names of this file to what they stand for
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names if _is_forbidden(name.name)]
            bound |= {name.asname or name.name.split(".")[0]: name.name for name in node.names if name.asname}
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{name.name}" for name in node.names]
            found += [str(node.module)] if _is_forbidden(str(node.module)) else list(filter(_is_forbidden, names))
            bound |= {name.asname or name.name: full for name, full in zip(node.names, names, strict=True)}
        elif isinstance(node, ast.Call):
            found += [
                f"{word.arg}={ast.unparse(word.value)}"
                for word in node.keywords
                if word.arg in ("allow_pickle", "shell") and ast.unparse(word.value) != "False"
            ]
            if ast.unparse(node.func).endswith("import_module") and isinstance(node.args[0], ast.Constant):
                found += [str(node.args[0].value)] if _is_forbidden(str(node.args[0].value)) else []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            first, dot, rest = ast.unparse(node).partition(".")
            full = (bound.get(first, first) if dot else first) + dot + rest  # imports themselves are found above
            found += [full] if full in NAMES else []
    return found


def _is_forbidden(name: str) -> bool:
    """Whether a module, or a name in one, must not be imported."""
    parts = name.split(".")
    return name in NAMES or any(".".join(parts[:number]) in MODULES for number in range(1, len(parts) + 1))


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
        "import torch as t\nt.load('x')",
        "import yaml as y\nread = y.unsafe_load",
        "list(map(eval, texts))",
        "import builtins\nbuiltins.exec('1')",
        "importlib.import_module('pickle')",
        "from torch import package",
        "import torch.package",
        "torch.jit.load(path)",
        "yaml.compose(text, Loader=yaml.UnsafeLoader)",
        "frame = pandas.read_pickle(path)",
    ],
)
def test_the_search_finds_what_is_forbidden(code: str) -> None:
    assert len(dangers(code)) == 1


def test_the_search_lets_other_things_pass() -> None:
    assert dangers("import yaml\nyaml.compose(t)\nmodel.eval()\njson.load(f)\nload(x)\nrun(x, shell=False)") == []
