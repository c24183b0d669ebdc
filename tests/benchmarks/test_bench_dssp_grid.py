"""The grid of policies and rates: each case runs with every seed, and its tables have policies at their best rates."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from bench_file import BENCHMARKS, load_bench

GRID = load_bench("dssp/grid.py")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    found = {
        ("asp", 0.1): (50.0, 60.0, 90.0),
        ("asp", 0.3): (40.0, 55.0, None),
        ("asp", 1.0): (10.0, None, None),
        ("dssp:3:12", 0.3): (110.0, 120.0, 130.0),
        ("dssp:3:12+literal", 0.3): (30.0, 32.0, 35.0),
    }
    lines = [["digits", "in turn", 4, *case, seconds] for case, seconds in found.items()]
    (tmp_path / "grid.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path / "grid.jsonl"


def test_the_table_has_the_rate_with_the_smallest_median_and_says_which_seeds_missed(out: Path) -> None:
    assert "| asp |  | 55 (40-1 never) at 0.3 |  |" in GRID.table(out)


def test_pairs_are_compared_place_by_place_and_surely_means_every_seed(out: Path) -> None:
    lines = GRID.against(out).splitlines()
    assert "| dssp:3:12 | asp | in turn | 2.18 to 2.18 | 0 of 1 | 0 | 0 |" in lines  # a seed of asp never gets there
    assert "| dssp:3:12+literal | asp | in turn | 0.58 to 0.58 | 1 of 1 | 1 | 0 |" in lines


def test_a_case_is_trained_with_every_seed_and_not_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GRID, "EPOCHS", 1)
    monkeypatch.setattr(GRID, "RATES", {"asp": (0.3,)})
    monkeypatch.setattr(GRID, "WORKERS", (2,))
    monkeypatch.setattr(GRID, "SETS", {"gratings": 0.15})
    for _ in range(2):
        GRID.run(tmp_path / "grid.jsonl", ["gratings"], seeds=2)
    lines = [json.loads(line) for line in (tmp_path / "grid.jsonl").read_text().splitlines()]
    assert [line[:5] for line in lines] == [["gratings", kind, 2, "asp", 0.3] for kind in GRID.KINDS]
    assert all(len(line[5]) == 2 and min(line[5]) > 0 for line in lines)


def test_gratings_are_balanced_and_the_test_set_is_another() -> None:
    sets = {split: list(GRID.Gratings().read(split, 100)) for split in ("train", "test")}
    labels, pixels = ({s: np.concatenate([getattr(r, n) for r in sets[s]]) for s in sets} for n in ("labels", "pixels"))
    assert np.bincount(labels["train"][:, 0]).min() > 100
    assert pixels["train"].max() <= 16
    assert not (pixels["train"][:256] == pixels["test"]).all(axis=1).any()


def test_the_page_shows_what_is_kept() -> None:
    kept = BENCHMARKS / "dssp/grid.jsonl"
    page = (BENCHMARKS / "dssp/README.md").read_text(encoding="utf-8")
    assert GRID.table(kept).strip() in page
    assert GRID.against(kept).strip() in page
