"""The Ray launcher without an address: Ray is started for the run, guarded by a token, and gone afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("ray")
from ray_cluster import descendants, staged_job, wait_gone
from tiny import JOB, write_tiny

from heterps.yamlfile import dump_yaml

STEPPED_S = 180.0
ENDED_S = 90.0

INTRUDER = "import ray, sys; ray.init(address=sys.argv[1], logging_level='CRITICAL')"


def gcs_address(pids: set[int]) -> str:
    """Where the head of the Ray that these processes are listens."""
    for pid in pids:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        if words[0].endswith("/raylet"):
            return next(word.partition("=")[2] for word in words if word.startswith("--gcs-address="))
    raise AssertionError("no raylet among them")


@pytest.mark.slow
def test_ctrl_c_saves_and_leaves_no_process_and_the_ray_of_a_run_admits_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_tiny(tmp_path / "train.parquet", 320)
    write_tiny(tmp_path / "test.parquet", 60)
    Path("job.yaml").write_text(JOB)
    job = staged_job(tmp_path / "job.yaml", ["cpu", "big"], [2], None)
    job = job.model_copy(update={"data": job.data.model_copy(update={"epochs": 100_000})})
    Path("staged.yaml").write_text(dump_yaml(job))
    command = [sys.executable, "-c", "from heterps.cli import main; main()", "train", "staged.yaml", "--run", "run"]
    with open("output", "wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    try:
        deadline = time.monotonic() + STEPPED_S
        while not Path("run/metrics.jsonl").exists():
            assert process.poll() is None, Path("output").read_text()
            assert time.monotonic() < deadline, Path("output").read_text()
            time.sleep(0.1)
        started = descendants(process.pid)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        intruder = [sys.executable, "-c", INTRUDER, gcs_address(started)]
        refused = subprocess.run(
            intruder, env={**environment, "HOME": str(tmp_path)}, capture_output=True, text=True, timeout=90
        )
        assert refused.returncode != 0
        assert "Authentication" in refused.stderr or "authentication" in refused.stderr
        started |= descendants(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        code = process.wait(ENDED_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert code == 130, Path("output").read_text()
    assert list(Path("run/checkpoints").iterdir())
    wait_gone(list(started))
