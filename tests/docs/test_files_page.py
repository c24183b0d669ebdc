"""The page of files knows every field of the JSON that commands print."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from heterps.config import PAPER_CLUSTER
from heterps.data.generate import DatasetInfo, SplitInfo
from heterps.data.images.write import ImagesInfo, ImageSplit
from heterps.planning.explain import Explanation, LayerMove, NeighbourPlan, Sensitivity, Station
from heterps.planning.online import Attempt, Measurement
from heterps.planning.plan import Plan, PlannedServers, Stage
from heterps.planning.schedulers.base import TracePoint
from heterps.planning.trial import StageSeconds, Trial
from heterps.profiling.profile import Profile
from heterps.report.terminal.price_table import price_list, rented_list
from heterps.report.terminal.trials_table import trials_as_json
from heterps.sim import Scenario, simulate
from heterps.sim.pace import PolicyPace
from heterps.sim.scenario import Death, Join, Slowdown
from heterps.sync.trace import TraceHeader, TraceLine

SIMULATED = simulate(Scenario(workers="2x1.0", horizon_s=1.0), "bsp")
TRIED = Plan(
    method="rl", stages=(Stage(first=0, last=0, resource="cpu", count=1),),
    servers=PlannedServers(resource="cpu", count=0), throughput=1, hours=1, usd=1, bottleneck="",
)  # fmt: skip
ATTEMPT = Attempt(TRIED, Trial(TRIED, 1.0, (StageSeconds(1.0, 0.0),), num_batches=1, seconds=1.0))
PROFILE = Profile.model_validate(
    {"model": "m", "batch_size": 1, "layers": [{"name": "a", "costs": {"cpu": dict.fromkeys(
        ("compute_s", "sync_s", "input_s", "alpha", "beta"), 1)}}]}
)  # fmt: skip
MEASURED = trials_as_json(Measurement((ATTEMPT,), ATTEMPT, TRIED, PROFILE, 1.0, 0.0, 0.0))
PAGE = (Path(__file__).parents[2] / "docs/reference/files.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """From the heading to the next one of any depth."""
    return re.split(r"^#+ ", PAGE[PAGE.index(f"# {title}\n") :], flags=re.MULTILINE)[1]


@pytest.mark.parametrize(
    ("title", "names"),
    [
        ("plan.json", [name for model in (Plan, Stage, PlannedServers) for name in model.model_fields]),
        ("heterps plan --compare --json", ["chosen", "options", "method", "plan", "reason", "trace"]),
        ("heterps plan --compare --json", [field.name for field in fields(TracePoint)]),
        (
            "heterps plan --explain --json",
            [f.name for kind in (Explanation, Station, NeighbourPlan, LayerMove, Sensitivity) for f in fields(kind)],
        ),
        ("heterps plan --frontier --json", ["complete", "plans"]),
        ("heterps plan --measure --json", [*MEASURED, *MEASURED["trials"][0], *MEASURED["trials"][0]["measured"]]),
        ("Prices", [*price_list()[0], *rented_list(PAPER_CLUSTER)[0]]),
        ("Scenario", [name for model in (Scenario, Slowdown, Death, Join) for name in model.model_fields]),
        ("heterps simulate --json", [*SIMULATED.as_json(), *SIMULATED.workers[0].as_json(), "policies"]),
        (
            "heterps simulate --json",
            ["own", "lanes", "advised", "advice", "gain", *(f.name for f in fields(PolicyPace))],
        ),
        (
            "Trace",
            [*TraceHeader.model_fields, *TraceLine.model_fields, *get_args(TraceLine.model_fields["event"].annotation)],
        ),
        ("dataset.json", [name for model in (DatasetInfo, SplitInfo) for name in model.model_fields]),
        ("dataset.json", [name for model in (ImagesInfo, ImageSplit) for name in model.model_fields]),
    ],
)
def test_every_field_is_on_the_page(title: str, names: list[str]) -> None:
    told = {word for code in re.findall(r"`([^`]+)`", section(title)) for word in re.findall(r"\w+", code)}
    assert set(names) <= told, sorted(set(names) - told)
