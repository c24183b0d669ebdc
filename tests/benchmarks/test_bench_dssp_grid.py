"""The grid of policies and rates: every case is a run, and its table has each policy at its best rate."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from bench_file import load_bench

GRID = load_bench("dssp/grid.py")


def test_the_table_has_the_rate_with_the_smallest_median_and_says_which_seeds_missed(tmp_path: Path) -> None:
    found = {0.1: (50.0, 60.0, 90.0), 0.3: (40.0, 55.0, None), 1.0: (10.0, None, None)}
    lines = [
        {"images": "digits", "kind": "in turn", "workers": 4, "policy": "asp", "rate": rate, "seed": seed, "seconds": s}
        for rate, seconds in found.items()
        for seed, s in enumerate(seconds)
    ]
    (tmp_path / "grid.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shown = GRID.table(tmp_path / "grid.jsonl")
    assert "| asp |  | 55 (40-1 never) at 0.3 |  |" in shown


def test_a_run_adds_a_line_and_is_not_made_again(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(GRID, "EPOCHS", 1)
    case = GRID.Case("gratings", "for good", 2, "asp", 0.3, 0)
    for _ in range(2):
        GRID.run(tmp_path / "grid.jsonl", [case])
    (line,) = map(json.loads, (tmp_path / "grid.jsonl").read_text().splitlines())
    assert GRID.Case(*(line[name] for name in GRID.Case._fields)) == case
    assert 0 < line["best"] < 1


def test_gratings_are_balanced_and_the_test_set_is_another() -> None:
    sets = {split: list(GRID.Gratings().read(split, 100)) for split in ("train", "test")}
    labels, pixels = ({s: np.concatenate([getattr(r, n) for r in sets[s]]) for s in sets} for n in ("labels", "pixels"))
    assert np.bincount(labels["train"][:, 0]).min() > 100
    assert pixels["train"].max() <= 16
    assert not (pixels["train"][:256] == pixels["test"]).all(axis=1).any()


def test_every_policy_has_four_rates_at_every_place() -> None:
    cases = GRID.all_cases(seeds=5)
    assert len(set(cases)) == len(cases) == 2 * 2 * 3 * 6 * 4 * 5
