"""A file of benchmarks/ as a module."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def load_bench(file: str) -> ModuleType:
    """Import a file by its path in benchmarks/, under a name of its own: several are called bench.py."""
    name = "bench_" + file.removesuffix(".py").replace("/", "_")
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
