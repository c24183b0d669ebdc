"""Make the pictures of README and docs/ from real runs: python docs/screenshots.py

It needs Debian's chromium and playwright (in the extra `dev`), and a few minutes: data, a profile, a run, its pages.

    docs/report.png    the report of the run
    docs/what-if.png   the what-if page of the same run, after a price was changed
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

DOCS = Path(__file__).parent
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
WIDTH, HEIGHT = 1120, 1300
JOB = """name: ctr
model: {factory: ctr_dnn, args: {embedding_dim: 16, hidden: [256, 128]}}
data: {train: data/criteo/train, test: data/criteo/test, batch_size: 1024}
optimizers: {sparse: {kind: adagrad, lr: 0.05, sample_gradient: 0.3}, dense: {kind: adam, lr: 0.001}}
profile: profile.json
cluster: examples/cluster.yaml
"""


def heterps(place: Path, words: str) -> None:
    subprocess.run([sys.executable, "-m", "heterps", *words.split()], cwd=place, check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        place = Path(folder)
        os.symlink(DOCS.parent / "examples", place / "examples")
        (place / "job.yaml").write_text(JOB.replace("profile: profile.json\n", ""))
        heterps(place, "data synth data/criteo --rows 500000 --test-rows 50000")
        heterps(place, "profile job.yaml --out profile.json --budget 8")
        (place / "job.yaml").write_text(JOB)
        heterps(place, "train job.yaml --run runs/ctr")
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.goto((place / "runs/ctr/report.html").as_uri())
        page.screenshot(path=DOCS / "report.png")
        words = [sys.executable, "-m", "heterps", "ui", "runs", "--port", "0", "--json"]
        with subprocess.Popen(words, cwd=place, stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            page.goto(f"{json.loads(server.stdout.readline())['url']}run/ctr/what-if")
            for name, text in {"throughput": "1000000", "samples": "1000000000", "price.v100": "1.5"}.items():
                page.locator(f"input[name='{name}']").fill(text)
            page.locator("#frontier:not(.old) input").first.wait_for()
            page.screenshot(path=DOCS / "what-if.png")
            server.send_signal(signal.SIGINT)
        browser.close()


if __name__ == "__main__":
    main()
