"""Data that several rooms train on, made once a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from heterps.data.generate import generate


@pytest.fixture(scope="session")
def criteo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A synthetic data set as `heterps data synth` makes it: 40,000 rows in train/, 8,000 in test/, dataset.json."""
    folder = tmp_path_factory.mktemp("criteo")
    generate(folder, 40_000, 8_000, 0)
    return folder
