"""What a history is worth: four models on the same data, which see more and more of it. See README.md.

python benchmarks/sequences/run.py [--rows 200000]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from heterps.config import Job
from heterps.data.generate import generate
from heterps.launch import train

HISTORY = {"dense": [], "slots": ["user", "item", "history"], "same_ids": {"history": "item"}}
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {  # what it sees: factory, arguments, columns
    "no history": ("ctr_dnn", {"hidden": [200, 80]}, {"dense": [], "slots": ["user", "item"]}),
    "the sum of the history": ("ctr_dnn", {"hidden": [200, 80]}, HISTORY),
    "each item beside this item": ("din", {"max_length": 30}, HISTORY),
    "the same, and the order": ("bst", {"max_length": 30}, HISTORY),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory() as folder:
        info = generate(Path(folder) / "data", rows, 20_000, task="history")
        assert info.test is not None
        print("| model | looks at | AUC | samples/s |\n|---|---|---:|---:|")
        for sees, (factory, args, columns) in MODELS.items():
            job = Job.model_validate(
                {
                    "model": {"factory": factory, "args": args},
                    "data": {
                        "train": f"{folder}/data/train",
                        "test": f"{folder}/data/test",
                        "columns": columns,
                        "batch_size": 256,
                    },
                    "optimizers": {"dense": {"kind": "adam", "lr": 0.002}},
                }
            )
            summary = train(job, Path(folder) / sees).summary
            print(f"| `{factory}` | {sees} | {summary['auc']:.3f} | {summary['samples_per_s']:,.0f} |", flush=True)
        print(f"| the teacher | | {info.test.teacher_auc:.3f} | |")


if __name__ == "__main__":
    main()
