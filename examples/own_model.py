"""A model class of your own, trained and asked: python examples/own_model.py [ROWS]

Ids go into SparseEmbedding, whose tables grow as ids come; the rest is plain PyTorch.
"""

import sys
from pathlib import Path

import torch
from torch import nn

import heterps
from heterps.data.generate import generate

ROWS = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
DATA = Path(f"data/clicks-{ROWS}")  # label, 13 numbers I1 to I13, 26 slots of ids C1 to C26
SLOTS = [f"C{number}" for number in range(1, 27)]


class WideAndDeep(nn.Module):
    """One weight for every id, and a small network over vectors of the ids and the numbers."""

    def __init__(self, dim: int = 8, hidden: int = 64) -> None:
        super().__init__()
        self.wide = heterps.nn.SparseEmbedding(SLOTS, 1)
        self.rows = heterps.nn.SparseEmbedding(SLOTS, dim)
        self.deep = nn.Sequential(nn.Linear(len(SLOTS) * dim + 13, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, dense, slots):  # float32 [batch, 13], heterps.nn.Slots
        deep = self.deep(torch.cat([self.rows(slots).flatten(1), dense], 1))
        return (deep + self.wide(slots).sum(1)).squeeze(1)  # a logit for each sample


if __name__ == "__main__":  # workers import this file too, if there are any
    if not DATA.exists():
        generate(DATA, ROWS, ROWS // 10)
    run = heterps.train(
        name="wide-and-deep",
        model=WideAndDeep,
        model_args={"dim": 8},
        data=DATA / "train",
        test=DATA / "test",
        dense=[f"I{number}" for number in range(1, 14)],
        slots=SLOTS,
        batch_size=512,
        optimizers={"dense": {"kind": "adam", "lr": 0.002}},
    )
    print(f"test AUC {run.summary['auc']:.4f}; the teacher has {run.summary['teacher_auc']:.4f}")
    with run.load() as model:
        print("first scores of the test set:", model.predict(DATA / "test")[:3].round(3))
