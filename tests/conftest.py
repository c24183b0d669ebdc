"""Data and jobs that several rooms train."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import compile_once  # noqa: F401 processes of tests wait for each other's kernels
import preloaded
import pytest
import quick_profiles  # noqa: F401 in this process
from hypothesis import settings
from leaks import no_leaks, own_temporary_folder, process_mark  # noqa: F401 fixtures
from tiny import JOB, write_tiny

preloaded.begin()
# The same examples every time, however slow the machine is; `pytest --hypothesis-profile=default` draws others.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("soak", max_examples=20_000, deadline=None, print_blob=True)
settings.load_profile("fixed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give slow tests longer before they count as hanging."""
    for item in items:
        if item.get_closest_marker("slow") is not None:
            item.add_marker(pytest.mark.timeout(3600))


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is made of data files goes to a folder of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module", autouse=True)
def quick_collections() -> None:
    """Let the garbage collector leave alone what is there before a file of tests: tests that look for leaks collect."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def criteo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A synthetic data set as `heterps data synth` makes it: 40,000 rows in train/, 8,000 in test/, dataset.json."""
    from heterps.data.generate import generate

    folder = tmp_path_factory.mktemp("criteo")
    generate(folder, 40_000, 8_000, 0)
    return folder


@pytest.fixture
def tiny_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job of 200 rows in the working directory."""
    monkeypatch.chdir(tmp_path)
    write_tiny(tmp_path / "train.parquet", 200)
    write_tiny(tmp_path / "test.parquet", 60)
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path / "job.yaml"
