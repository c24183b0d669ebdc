"""Every test of this folder computes on one torch thread, and divides small models among threads where asked."""

import pytest
from one_thread import one_torch_thread

from heterps.training.model import replicas

__all__ = ["one_torch_thread"]


@pytest.fixture(autouse=True)
def divide_small_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "LEAST_WORK", 0)
