"""Every test of this folder runs on hosts of its own."""

from __future__ import annotations

import pytest
from hosts import why_not


@pytest.fixture(autouse=True)
def hosts_are_possible() -> None:
    """Skip a test where this machine cannot have hosts, and say why."""
    if reason := why_not():
        pytest.skip(reason)
