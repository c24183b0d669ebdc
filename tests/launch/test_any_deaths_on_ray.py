"""Actors of a run on Ray are killed, stopped and told to leave at drawn moments, the command too, which is resumed.

    pytest -m slow tests/launch/test_any_deaths_on_ray.py        every policy, with one to three stages

Ray is started by the command, and ends with it; where that was killed, agents of Ray take a while to notice. What is
drawn is that of test_any_deaths.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("ray")
from ends import wait_until
from leaks import marked_processes
from test_any_deaths import check, drawn, folder

__all__ = ["folder"]  # a fixture
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_leaks", "in_its_folder")]


@pytest.mark.parametrize("seed", range(12, 36))
def test_whoever_dies_on_ray_whenever_and_however_every_batch_is_trained_once(
    folder: Path, process_mark: str, seed: int
) -> None:
    check(folder, process_mark, "ray", drawn(seed))
    wait_until(lambda: not marked_processes(process_mark), "agents of a Ray whose driver was killed end")
