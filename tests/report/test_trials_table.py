from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from heterps.planning.online import Attempt, Measurement
from heterps.planning.plan import Plan, PlannedServers, Stage
from heterps.planning.trial import StageSeconds, Trial
from heterps.profiling.profile import Cost, LayerProfile, Profile
from heterps.report.terminal.trials_table import show_trials, trials_as_json

COST = Cost(compute_s=1, sync_s=0, input_s=0, alpha=1, beta=1)
PROFILE = Profile(
    model="m",
    batch_size=16,
    layers=tuple(LayerProfile(name=name, costs={"cpu": COST}) for name in ("embedding", "deep.linear1", "deep.logit")),
)


def make_plan(count: int) -> Plan:
    return Plan(
        method="rl", servers=PlannedServers(resource="cpu", count=1), throughput=1000.0, hours=1.0, usd=2.0,
        bottleneck="cpu",
        stages=(
            Stage(first=0, last=0, resource="cpu", count=count),
            Stage(first=1, last=2, resource="v100", count=1),
        ),
    )  # fmt: skip


def attempt(count: int, throughput: float, *, keeps: bool = True, emulated: bool = False, late: float = 0.0) -> Attempt:
    plan = make_plan(count)
    stages = (StageSeconds(0.1, 0.01, 0.02), StageSeconds(0.05, 0.01, 0.07))
    return Attempt(plan, Trial(plan, throughput, stages, 8, 1.0, emulated, late), 1.25, 2.5, keeps)


def found(*attempts: Attempt, stopped_by: str | None = None) -> Measurement:
    return Measurement(attempts, attempts[0], make_plan(1), PROFILE, 0.8, 0.25, 0.03, stopped_by)


def shown(measurement: Measurement, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    show_trials(console, measurement, PROFILE, throughput=900)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_every_trial_has_its_prediction_beside_it_and_the_best_is_ticked(width: int) -> None:
    text = shown(found(attempt(1, 800.0), attempt(2, 1250.0)), width)
    lines = text.splitlines()
    assert all(len(line) <= width for line in lines)
    first, second = (next(line for line in lines if f"cpu×{count} [embedding]" in line) for count in (1, 2))
    assert first.startswith("✓")
    assert first.split()[-5:] == ["1,000", "800", "+25.0%", "2.00", "2.50"]
    assert not second.startswith("✓")
    assert second.split()[-3:-2] == ["-20.0%"]


def test_the_verdict_names_the_predicted_optimum_and_how_far_predictions_were_off() -> None:
    text = " ".join(shown(found(attempt(1, 800.0))).split())
    assert "Best: 2.50 USD in 1.2 hours at 800 samples/s (measured; 900 asked)." in text
    assert "2.00 USD at 1,000 samples/s (trial 1, measured 800)." in text
    assert "off by 25.0% on average with the profile as given, and are by 3.0% with the corrected one" in text
    assert "runs reach 80% of their slowest stage" in text
    assert "(not tried)" in " ".join(shown(found(attempt(2, 800.0))).split())
    assert "emulated" not in text


def test_a_best_plan_below_the_floor_is_said_to_be_the_fastest() -> None:
    text = " ".join(shown(found(attempt(1, 800.0, keeps=False))).split())
    assert "↓800" in text
    assert "No plan that was tried keeps the throughput that was asked: this is the fastest." in text


def test_emulation_and_a_machine_too_slow_for_it_are_told() -> None:
    text = " ".join(shown(found(attempt(1, 800.0, emulated=True), attempt(2, 9.0, emulated=True, late=0.4))).split())
    assert "(measured, emulated; 900 asked)" in text
    assert "say nothing of real units" in text
    assert "Trial 2: this machine was too slow" in text
    assert "Trial 1: this machine" not in text


def test_failures_and_interrupts_are_told() -> None:
    failed = Attempt(make_plan(3), None, reason="worker-1.0 died")
    text = " ".join(shown(found(attempt(1, 1000.0), failed, stopped_by="SIGINT")).split())
    assert "Trial 2 failed: worker-1.0 died" in text
    assert "Ended by SIGINT before all trials were done." in text


def test_json_has_every_trial_and_is_plain() -> None:
    failed = Attempt(make_plan(3), None, reason="worker-1.0 died")
    fields = trials_as_json(found(attempt(1, 800.0, emulated=True), failed))
    assert json.loads(json.dumps(fields)) == fields
    assert fields["emulated"] is True
    assert fields["chosen"]["throughput"] == 800.0
    assert fields["chosen"]["measured"] == "emulated trial"
    first, second = fields["trials"]
    assert first["plan"]["throughput"] == 1000.0
    assert first["error"] == pytest.approx(0.25)
    assert first["measured"]["stages"][1] == {"compute_s": 0.05, "communicate_s": 0.01, "wait_s": 0.07}
    assert second["measured"] is None
    assert second["reason"] == "worker-1.0 died"
