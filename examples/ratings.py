"""From a raw log of ratings to a validated model, in Python: python examples/ratings.py [ROWS]

The same as examples/ratings.yaml, and it makes the data if it is not there. Which columns are numbers, ids and dates,
and what is made of them, is guessed from the files, and is in job.yaml of the run: `dense`, `slots`, `features` say it.
"""

import sys
from pathlib import Path

import heterps
from heterps.data.generate import generate

ROWS = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
DATA = Path(f"data/ratings-{ROWS}")  # user, item, rating, time, age, year, genres: a line a rating, with tabs

if not DATA.exists():
    generate(DATA, ROWS, ROWS // 10, task="ratings", files="tsv")
run = heterps.train(
    name="ratings",
    model="deepfm",
    model_args={"embedding_dim": 8, "hidden": [64, 32]},
    data=DATA / "train",
    test=DATA / "test",
    validation={"share": 0.05, "newest": "time"},
    format={"lists": {"genres": "|"}},
    labels={"rating": "mse"},
    batch_size=512,
    epochs=4,
    validate={"every_samples": ROWS // 2, "patience": 3},
    optimizers={"dense": {"kind": "adam", "lr": 0.002}},
)
best, end = run.summary["validation"]["best"], run.summary
print(f"validation RMSE {best['rmse']:.4f} after {best['samples']:,} samples; test RMSE {end['rmse']:.4f}")
print(f"the teacher, which no model can beat: {end['teacher_rmse']:.4f}. See {run.folder}/report.html")
