"""`make demo`: the whole of heterps in a few minutes, told step by step. Every step is a command you could type.

python examples/demo.py [ROWS] does the same on fewer rows.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.panel import Panel

from heterps.cli import main as heterps
from heterps.config import load_job
from heterps.training.run.folder import choose_folder

JOB, CLUSTER = Path("examples/ctr.yaml"), Path("examples/cluster.yaml")
DATA, PROFILE, PLAN = Path("data/criteo"), Path("demo/profile.json"), Path("demo/plan.json")
ROWS = int(sys.argv[1]) if len(sys.argv) > 1 else 500_000
TEST_ROWS = ROWS // 10
THROUGHPUT, SAMPLES = 200_000, 1_000_000_000

console = Console(highlight=False)


def step(number: int, title: str, why: str, command: str) -> None:
    """Say what comes and why, show the command, and run it here."""
    console.print()
    console.print(
        Panel(f"{why}\n\n[bold cyan]$ heterps {command}[/]", title=f"[bold]{number}. {title}", title_align="left")
    )
    try:
        heterps(shlex.split(command))
    except SystemExit as end:
        if end.code:
            sys.exit(end.code)


def main() -> None:
    began = time.monotonic()
    PROFILE.parent.mkdir(exist_ok=True)
    console.print(
        "\n[bold]heterps trains large sparse models on the cheapest mix of machines that is fast enough.[/]\n"
        f"The job: a click-through-rate model, {SAMPLES:,} samples to learn from, at least {THROUGHPUT:,} of them "
        "a second, and a price list: CPU cores at 0.04 USD an hour, V100s at 2.42."
    )
    if not (DATA / "dataset.json").exists():
        step(
            1,
            "Data",
            "Real logs are not ours to ship. These rows look like Criteo's: 13 numbers, 26 slots of ids, many rare. "
            "A planted teacher draws the labels, so we know the best AUC that any model can reach.",
            f"data synth {DATA} --rows {ROWS} --test-rows {TEST_ROWS} --seed 0",
        )
    step(
        2,
        "Profile",
        "How long does each layer take, on a core of this machine and on a V100? There is no V100 here, "
        "so that column is a roofline estimate, and everything made from it is marked with ~.",
        f"profile {JOB} --out {PROFILE} --budget 8",
    )
    step(
        3,
        "Plan",
        "Which layers should run on which resource, and how many units of each, for the least money? "
        "Every method plans; the tick is at the one that was asked for.",
        f"plan {PROFILE} {CLUSTER} --throughput {THROUGHPUT} --samples {SAMPLES} --out {PLAN}",
    )
    run = choose_folder(load_job(JOB), resume=False)
    step(
        4,
        "Train",
        "The same job, inline: this process is worker and server, and the cores here do all the work. "
        "Ctrl-C would save and stop; --resume would go on with the very next batch.",
        f"train {JOB} --run {run}",
    )
    step(
        5,
        "Predict",
        "What does the trained model say of rows that it has not seen? A score is the probability of a click. "
        "`heterps export` would write a folder that scores without heterps, and `heterps serve` answers over HTTP.",
        f"predict {run} {DATA / 'test'} --columns label,C1,C2",
    )
    summary = json.loads((run / "summary.json").read_text())
    plan = json.loads(PLAN.read_text())
    stages = " → ".join(f"{stage['resource']}×{stage['count']}" for stage in plan["stages"])
    console.print(
        Panel(
            f"[bold]Asked[/]     {SAMPLES:,} samples at {THROUGHPUT:,} samples/s or more, for the least money.\n"
            f"[bold]Planned[/]   {stages}, servers on {plan['servers']['resource']}×{plan['servers']['count']}: "
            f"{plan['usd']:,.2f} USD in {plan['hours']:.1f} hours; {plan['bottleneck']} decides the speed.\n"
            f"[bold]Trained[/]   {summary['samples']:,} samples here to a test AUC of {summary['auc']:.4f}; "
            f"the teacher that drew the labels has {summary['teacher_auc']:.4f}.\n"
            f"[bold]Predicted[/] {summary['predicted_throughput']:,.0f} samples/s for this machine; "
            f"[bold]measured[/] {summary['measured_throughput']:,.0f}.\n"
            f"[bold]Look at[/]   {run / 'report.html'} in a browser.",
            title=f"[bold]In short, after {time.monotonic() - began:.0f} s",
            title_align="left",
        )
    )


if __name__ == "__main__":
    main()
