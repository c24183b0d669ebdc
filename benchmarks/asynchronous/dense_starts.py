"""What does the start of the dense layers change: as torch has it, or by Glorot's rule with biases of 0?

    python benchmarks/asynchronous/dense_starts.py --folder /tmp/starts --seeds 2     # some ten minutes

Each example is trained in one process on 200,000 rows of its kind of data, both ways, with each seed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml
from torch import nn

from heterps.config import Job
from heterps.data.generate import generate
from heterps.launch import train

EXAMPLES = Path(__file__).parents[2] / "examples"
MODELS = {"ctr": "click", "match_net": "match", "two_emb": "click", "din": "history"}
"""Examples, and the kind of data that each is for."""


@contextmanager
def glorot() -> Iterator[None]:
    """Linear layers that are made meanwhile start by Glorot's rule, with biases of 0."""
    before = nn.Linear.reset_parameters

    def reset(layer: nn.Linear) -> None:
        nn.init.xavier_uniform_(layer.weight)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)

    nn.Linear.reset_parameters = reset  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Linear.reset_parameters = before  # type: ignore[method-assign]


def trained(model: str, data: Path, run: Path, seed: int) -> float:
    """The test AUC of an example on this data."""
    job = yaml.safe_load((EXAMPLES / f"{model}.yaml").read_text())
    job["data"] |= {"train": str(data / "train"), "test": str(data / "test")}
    job |= {"cluster": None, "seed": seed, "checkpoint": {"every_minutes": None}}
    given = {name: value for name, value in job.items() if value is not None}
    auc: float = train(Job.model_validate(given), run).summary["auc"]
    return auc


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="for data and runs")
    parser.add_argument("--models", choices=MODELS, nargs="*", default=list(MODELS))
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--seeds", type=int, default=2)
    asked = parser.parse_args(words)
    print("| model | seed | as torch | by Glorot's rule | |\n|---|--:|--:|--:|--:|")
    for model in asked.models:
        data = asked.folder / MODELS[model]
        if not data.exists():
            generate(data, rows=asked.rows, test_rows=asked.rows // 10, task=MODELS[model])
        for seed in range(asked.seeds):
            usual = trained(model, data, asked.folder / f"{model}-{seed}", seed)
            with glorot():
                other = trained(model, data, asked.folder / f"{model}-{seed}-glorot", seed)
            print(f"| {model} | {seed} | {usual:.4f} | {other:.4f} | {other - usual:+.4f} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
