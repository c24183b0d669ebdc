"""Models trained by heterps are as good as the same in plain PyTorch, on small data; README.md has larger figures."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "quality"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch):
    """The benchmark's module; `plain` and `run` are forgotten after."""
    monkeypatch.syspath_prepend(FOLDER)
    for name in ("run", "plain"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import run

    yield run
    for name in ("run", "plain"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("name", "bad", "noise"), [("ctr_dnn", 0.70, 0.025), pytest.param("ratings", 1.13, 0.04, marks=pytest.mark.slow)]
)
def test_quality_is_that_of_plain_pytorch(bench, tmp_path: Path, name: str, bad: float, noise: float) -> None:
    """`bad` is what a model with a mistake in its features or labels gets: 1.17 is the deviation of ratings."""
    (ours,), (theirs,), teacher = bench.compare(bench.CASES[name], 20_000, 1, tmp_path)
    assert ours == pytest.approx(theirs, abs=noise)
    for found in (ours, theirs):
        assert min(bad, teacher) < found < max(bad, teacher)


def test_the_readme_has_every_model(bench) -> None:
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    for name, case in bench.CASES.items():
        assert f"| {name} | {case.task} |" in readme
