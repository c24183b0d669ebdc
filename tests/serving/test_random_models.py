"""Models of random parts score the same as they were trained, predicted, exported and after an increment."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from random_models import ACTIVATIONS, NORMS
from shop import shop_table
from trained_runs import assert_equal, own_scores, train_further, train_run

import heterps
from heterps.checkpoint import latest
from heterps.config import load_job
from heterps.serving.export import export
from heterps.serving.score import Scorer

COLUMNS = {
    "label": "click",
    "dense": ["price", "age"],
    "slots": ["user", "item", "tags", "hour"],
    "features": {"price": ["log", "standardise"], "hour": {"column": "time", "steps": [{"date": "hour"}]}},
}

embeddings = st.fixed_dictionaries(
    {
        "slots": st.lists(st.sampled_from(COLUMNS["slots"]), min_size=1, max_size=4, unique=True),
        "dim": st.integers(1, 5),
        "pooling": st.sampled_from(["sum", "mean"]),
        "tables": st.sampled_from(["one", "per_slot"]),
    }
)
sequences = st.none() | st.fixed_dictionaries(
    {"dim": st.integers(1, 4), "max_length": st.integers(1, 3), "keep": st.sampled_from(["newest", "oldest"])}
)
layers = st.lists(st.integers(1, 9) | st.sampled_from([*ACTIVATIONS, *NORMS, "dropout"]), max_size=5)
models = st.fixed_dictionaries(
    {"embeddings": st.lists(embeddings, min_size=1, max_size=2), "sequence": sequences, "pairs": st.booleans(),
     "layers": layers}
)  # fmt: skip
EXAMPLES = {
    "suppress_health_check": [HealthCheck.too_slow],
    "deadline": None,
    "derandomize": True,
    "phases": [Phase.explicit, Phase.generate],  # to shrink takes longer than to read
}


def check_scores(args: dict[str, Any], format: str) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        model = {"factory": "random_models:RandomNet", "args": args}
        run = train_run(folder / "job", shop_table(128, 1), model, COLUMNS)
        asked = shop_table(60, 2, new_ids=4)
        scorer = check_version(run, folder / "full", asked, folder, format)
        job = load_job(run / "job.yaml")
        train_further(run, job, latest(run / "checkpoints"), epoch=1)
        export(run, folder / "next", since=scorer.version, format=format)
        scorer.apply(folder / "next")
        assert_equal(scorer.score(asked), own_scores(run, asked, folder))


def check_version(run: Path, to: Path, asked: Any, folder: Path, format: str) -> Scorer:
    """Export the newest version of a run, and compare its scores with those of the model and of `predict`."""
    expected = own_scores(run, asked, folder)
    with heterps.load(run) as model:
        np.testing.assert_allclose(model.predict(asked), expected["score"], atol=1e-6)
    export(run, to, format=format)
    scorer = Scorer(to)
    assert_equal(scorer.score(asked), expected)
    return scorer


@settings(max_examples=3, **EXAMPLES)
@given(models)
def test_a_random_model_scores_the_same_everywhere(args: dict[str, Any]) -> None:
    check_scores(args, "torch")


@pytest.mark.slow
@settings(max_examples=60, **EXAMPLES)
@given(models, st.sampled_from(["torch", "onnx"]))
def test_many_random_models_score_the_same_everywhere(args: dict[str, Any], format: str) -> None:
    check_scores(args, format)
