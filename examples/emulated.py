"""A plan for CPU cores and V100s, run on a laptop without a V100: python examples/emulated.py [ROWS]

Run it from the folder above examples/. Each step is a command that you could type.

    profile  -->  plan: which layers on which machines  -->  train, with every unit emulated by a process here
"""

import subprocess
import sys
from pathlib import Path

ROWS = sys.argv[1] if len(sys.argv) > 1 else "20000"
JOB, CLUSTER = "examples/emulated.yaml", "examples/laptop.yaml"


def heterps(words: str) -> None:
    """Show a command, and run it."""
    print(f"\n$ heterps {words}", flush=True)
    subprocess.run([sys.executable, "-m", "heterps", *words.split()], check=True)


if not Path("data/criteo").exists():
    heterps(f"data synth data/criteo --rows {ROWS} --test-rows 5000")
heterps(f"profile {JOB} --out profile.json --budget 4")
heterps(f"plan profile.json {CLUSTER} --throughput 200000 --samples 1e9 --method exact --out plan.json")
heterps(f"train {JOB} --launcher local --plan plan.json --profile profile.json --emulate")
