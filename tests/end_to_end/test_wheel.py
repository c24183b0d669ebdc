"""A wheel built from the checkout has everything, and works outside of it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    command = ["pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run([sys.executable, "-m", *command], check=True, timeout=120)
    (built,) = folder.glob("heterps-*.whl")
    return built


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    listed = subprocess.run(
        ["git", "ls-files", "src/heterps"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert any(name.endswith(".j2") for name in listed)
    assert {name.removeprefix("src/") for name in listed} <= inside


@pytest.mark.slow
def test_an_installed_wheel_trains_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    """The environment is new; its other packages are those of this one, which are many gigabytes."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True, timeout=60)
    python = tmp_path / "env" / "bin" / "python"
    (site,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    install = ["pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run([sys.executable, "-m", *install], check=True, timeout=120)
    others = next(path for path in sys.path if path.endswith("site-packages"))
    (site / "others.pth").write_text(others + "\n")  # after the wheel; the .pth files in there are not read
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*words: str) -> str:
        done = subprocess.run(
            [str(python), *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert str(site) in run("-c", "import heterps; print(heterps.__file__)")
    run("-m", "heterps", "data", "synth", "data", "--rows", "2000", "--test-rows", "500")
    (tmp_path / "job.yaml").write_text(
        "data: {train: data/train, test: data/test, batch_size: 200}\nmodel: {args: {embedding_dim: 2, hidden: [4]}}\n"
    )
    run("-m", "heterps", "train", "job.yaml", "--run", "run", "--launcher", "local")
    assert "<html" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
