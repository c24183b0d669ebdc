"""One torch thread for a test, as a worker has: sums are added in one order, and small matrices are quicker than on
two, far quicker where tests run side by side. A conftest.py that imports the fixture has it for every test below it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from heterps.threads import torch_threads


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    with torch_threads(1):
        yield
