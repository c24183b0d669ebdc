"""Data and jobs that several rooms train."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from leaks import no_leaks, own_temporary_folder, process_mark  # noqa: F401 fixtures
from tiny import JOB, write_tiny


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is made of data files goes to a folder of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def criteo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A synthetic data set as `heterps data synth` makes it: 40,000 rows in train/, 8,000 in test/, dataset.json."""
    from heterps.data.generate import generate

    folder = tmp_path_factory.mktemp("criteo")
    generate(folder, 40_000, 8_000, 0)
    return folder


@pytest.fixture
def tiny_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job of 200 rows in the working directory, whose profile takes no time."""
    monkeypatch.setattr("heterps.launch.QUICK_PROFILE_S", 0.0)
    monkeypatch.setattr("heterps.profiling.job.READING_S", 0.0)
    monkeypatch.setattr("heterps.profiling.servers.MOST_ROWS", 1000)
    monkeypatch.chdir(tmp_path)
    write_tiny(tmp_path / "train.parquet", 200)
    write_tiny(tmp_path / "test.parquet", 60)
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path / "job.yaml"
