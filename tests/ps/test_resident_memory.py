"""A table ten times its memory, in a process of its own: what the system counts stays near the budget."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BUDGET = 32 << 20


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell")
def test_training_and_saving_a_table_ten_times_its_memory_stays_near_the_budget(tmp_path: Path) -> None:
    script = Path(__file__).parent / "resident_memory.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), str(BUDGET)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["rows"] * (16 + 8 * 120) >= 10 * BUDGET * 0.99
    assert BUDGET // 2 < found["counted"] <= BUDGET
    most = 2 * BUDGET + (16 << 20)  # batches, parts of the file, and an index that is being replaced by a larger one
    assert found["trained"] < most
    assert found["saved"] < most + (16 << 20)  # a few copies of a part
