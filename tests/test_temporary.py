"""Temporary folders: gone with their context, and with the next one where their process was killed."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from command import started, wait_for

from heterps.temporary import temporary_folder, wait_for_owner

HOLD = """
import sys
from pathlib import Path
from heterps.temporary import owned_folder, temporary_name
with owned_folder(Path(temporary_name("ports-"))) as folder:
    (folder / "token").write_text("secret")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_is_private_and_goes_with_its_context_and_those_of_others_stay(root: Path) -> None:
    (root / "heterps-other").mkdir()
    with temporary_folder() as one, temporary_folder("trial-") as other:
        assert one.stat().st_mode & 0o077 == 0
        assert (one.is_dir(), other.name.startswith("heterps-trial-")) == (True, True)
    assert [path.name for path in root.iterdir()] == ["heterps-other"]


def test_folders_of_killed_processes_are_deleted_and_of_living_ones_not(root: Path) -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    killed, living = (Path(process.stdout.readline().strip()) for process in processes)
    processes[0].kill()
    processes[0].communicate()
    with temporary_folder():
        assert (killed.exists(), living.exists()) == (False, True)
    processes[1].communicate("")
    assert processes[1].returncode == 0
    assert not list(root.iterdir())


def test_who_waits_for_an_owner_keeps_the_folder_and_goes_on_while_there_is_one(root: Path) -> None:
    folder = root / "heterps-servers"
    hold = [sys.executable, "-c", HOLD.replace('Path(temporary_name("ports-"))', f"Path({str(folder)!r})")]
    first = subprocess.Popen(hold, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    first.stdout.readline()
    first.kill()
    first.communicate()
    waiting = threading.Thread(target=wait_for_owner, args=(folder, 30.0, 0.01))
    waiting.start()
    while is_free(folder / "owner"):
        assert waiting.is_alive()
    with temporary_folder():
        assert folder.exists(), "nobody takes it for abandoned"
    second = subprocess.Popen(hold, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    second.stdout.readline()
    assert waiting.is_alive()
    second.communicate("")  # it deletes the folder: nobody is needed any more
    waiting.join(20)
    assert not waiting.is_alive()


def is_free(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_who_waits_for_an_owner_gives_up_after_a_while(root: Path) -> None:
    folder = root / "heterps-servers"
    folder.mkdir()
    (folder / "owner").touch()
    wait_for_owner(folder, 0.05, 0.01)
    wait_for_owner(root / "heterps-gone", 1000.0)


def test_what_a_killed_run_left_is_cleared_by_the_next_start(tiny_job: Path, own_temporary_folder: Path) -> None:
    tiny_job.write_text(tiny_job.read_text().replace("batch_size: 16", "batch_size: 16\n  epochs: 100000"))
    folder = tiny_job.parent
    with started("train", "job.yaml", "--run", "run", cwd=folder) as process:
        wait_for(process, "64 samples")
        address = json.loads((folder / "run" / "control.json").read_text())["address"]
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    left = Path(address.removeprefix("ipc://")).parent
    assert (left.is_dir(), left.parent) == (True, own_temporary_folder)
    with started("train", "job.yaml", "--run", "run", "--resume", cwd=folder) as process:
        wait_for(process, "samples")
        assert not left.exists()
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        process.stdout.read()
        assert process.wait() == 130
    assert not list(own_temporary_folder.glob("heterps-*"))
    assert not (folder / "run" / "control.json").exists()
