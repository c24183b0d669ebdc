"""Training on the simulated clock: every gradient is of the weights that its worker would have had."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from one_weight import OneWeight, gradient, sample

from heterps.config import SGD, Job, Model, Optimizers, Schema, load_job
from heterps.data.reader import Position, Reader
from heterps.errors import ConfigError
from heterps.model import build_model
from heterps.sim import Scenario, Simulator
from heterps.sim.course import Course, Curve, Point, VirtualRun
from heterps.sim.played import why_not_as_job
from heterps.sim.scenario import ENDLESS
from heterps.sim.supply import Supply
from heterps.sim.variants import parse_variant, parse_variants
from heterps.sim.virtual import Training, train_virtually
from heterps.training.metrics.metrics import Metrics
from heterps.training.model.objectives import Objectives
from heterps.training.model.trainer import Trainer

EVERY_STEP = Course(points=10**6)
ROWS = [(1.0, 1.0), (0.5, 0.0), (-1.0, 0.0), (2.0, 1.0), (0.25, 1.0), (1.5, 0.0), (-0.5, 1.0), (1.0, 0.0)]
RATE = 0.1
STARTS = {0: 0, 1: 0, 2: 1, 3: 2, 4: 3, 5: 4, 6: 5, 7: 6}
"""Of workers of 1.0 and 2.3 s under ASP: row, and how many updates the weights have had that its gradient is of."""
PUSHED = (0, 2, 1, 3, 5, 4, 6, 7)
"""And the rows in the order of their pushes, each of which is an update."""


def scenario(workers: str, **fields: Any) -> Scenario:
    return Scenario(**{"workers": workers, "iterations": ENDLESS, **fields})


def job_of(path: Path, **changes: Any) -> Job:
    """The tiny job; `changes` of `data` are made inside it."""
    job = load_job(path)
    data = job.data.model_copy(update=changes.pop("data", {}))
    return job.model_copy(update={"data": data, **changes})


def ordinary(job: Job, batch_size: int) -> list[float]:
    """The loss on the test set after each step of plain training in one process."""
    columns = job.data.columns
    reader = Reader(job.data.train, columns, batch_size=batch_size, seed=job.seed)
    assert job.data.test is not None
    test = [batch for batch, _ in Reader(job.data.test, columns, batch_size=60, shuffle=False).read()]
    losses = []
    model = build_model(job.model, columns, job.seed)
    with Trainer(model, job.optimizers, seed=job.seed, columns=columns) as trainer:
        for epoch in range(job.data.epochs):
            for batch, _ in reader.read(Position(epoch=epoch)):
                trainer.step(batch)
                losses.append(trainer.evaluate(test).loss)
    return losses


@pytest.mark.parametrize("policy", ["asp", "bsp"])
def test_labels_of_other_kinds_are_simulated_too(tiny_job: Path, policy: str) -> None:
    columns = Schema(labels={"label": {"loss": "huber", "delta": 0.3}}, dense=("a", "b"), slots=("s", "t"))
    job = job_of(tiny_job, data={"columns": columns})
    run = train_virtually(job, scenario("1.0"), parse_variant(policy), EVERY_STEP)
    assert [point.loss for point in run.points] == pytest.approx(ordinary(job, job.data.batch_size), rel=1e-6)
    assert run.measure == "R²"


def test_asp_with_one_worker_is_ordinary_training_to_the_bit(tiny_job: Path) -> None:
    job = job_of(tiny_job, data={"epochs": 2})
    run = train_virtually(job, scenario("1.0"), parse_variant("asp"), EVERY_STEP)
    assert [point.loss for point in run.points] == ordinary(job, job.data.batch_size)
    assert [point.now_s for point in run.points] == list(accumulate(([1.0] * 12 + [0.5]) * 2)), (
        "the last is half a batch"
    )
    assert run.points[-1].samples == run.samples == 400


@pytest.mark.parametrize("workers", ["4x1.0", "1.0,2.3,0.7,1.1"])
@pytest.mark.parametrize("as_job", [True, False])
def test_bsp_of_four_workers_is_one_process(tiny_job: Path, workers: str, as_job: bool) -> None:
    job = job_of(tiny_job, data={"batch_size": 36, "epochs": 2})
    run = train_virtually(job, scenario(workers, jitter=0.2), parse_variant("bsp"), EVERY_STEP, as_job=as_job)
    assert [point.loss for point in run.points] == pytest.approx(ordinary(job, 36), rel=1e-5)
    assert run.sim.updates == 12


@pytest.mark.parametrize("policy", ["bsp", "asp", "ssp:2"])
def test_both_simulators_find_the_same_losses_at_the_same_times(tiny_job: Path, policy: str) -> None:
    job, unequal = job_of(tiny_job, data={"batch_size": 20, "epochs": 2}), scenario("1.0,2.3", jitter=0.2)
    runs = [train_virtually(job, unequal, parse_variant(policy), EVERY_STEP, as_job=as_job) for as_job in (True, False)]
    losses, times = ([[getattr(point, of) for point in run.points] for run in runs] for of in ("loss", "now_s"))
    if policy != "ssp:2":  # two that are released at one moment draw their batches in another order
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert times[0] == pytest.approx(times[1])
    assert runs[0].sim.staleness == runs[1].sim.staleness


def test_fitted_batches_train_as_equal_ones_and_end_sooner(tiny_job: Path) -> None:
    """Real workers are measured for eight rounds first."""
    job = job_of(tiny_job, data={"batch_size": 20, "epochs": 2})
    fitted, foreseen, equal = (
        train_virtually(job, scenario("1.0,4.0"), parse_variant(word), EVERY_STEP, as_job=as_job)
        for word, as_job in (("bsp+fitted", True), ("bsp+fitted", False), ("bsp", True))
    )
    for run in (fitted, foreseen, equal):
        assert [point.loss for point in run.points] == pytest.approx(ordinary(job, 20), rel=1e-5)
    assert equal.sim.end_s == pytest.approx(20 * 2.0)
    assert fitted.sim.end_s == pytest.approx(8 * 2.0 + 12 * 0.8)
    assert foreseen.sim.end_s == pytest.approx(20 * 0.8)


@pytest.mark.parametrize("policy", ["bsp", "asp", "dssp:1:4"])
def test_a_worker_that_joins_or_is_replaced_is_played_as_in_a_real_run(tiny_job: Path, policy: str) -> None:
    job = job_of(tiny_job, data={"batch_size": 20, "epochs": 4})
    changes = {"joins": [{"at_s": 7.0, "workers": "0.5"}], "deaths": [{"worker": "w1", "at_s": 3.2, "noticed_s": 0.4}]}
    coming_and_going = scenario("1.0,1.0", **changes, replaced_s=1.5)
    assert why_not_as_job(job, coming_and_going, [parse_variant(policy)]) == ""
    run = train_virtually(job, coming_and_going, parse_variant(policy), EVERY_STEP)
    assert run.failed is None
    assert run.samples == 800
    assert [worker.joined_s for worker in run.sim.workers] == [0.0, 0.0, 7.0]
    assert all(worker.pushes > 2 for worker in run.sim.workers)
    if policy == "bsp":
        assert [point.loss for point in run.points] == pytest.approx(ordinary(job, 20), rel=1e-5)


@pytest.mark.parametrize(
    ("fields", "policies", "why"),
    [
        ({}, "asp,asp+damped,bsp+backup:1", "`heterps train` cannot run asp+damped, bsp+backup:1"),
        ({"deaths": [{"worker": "w1", "at_s": 3}]}, "asp", "workers that die are gone for good"),
        ({"deaths": [{"worker": "w1", "at_s": 3}], "replaced_s": 400}, "asp", "after more than 240 s"),
        ({"iterations": 5}, "asp", "workers leave after 5 iterations"),
    ],
)
def test_what_no_real_run_does_is_named(tiny_job: Path, fields: dict[str, Any], policies: str, why: str) -> None:
    assert why in why_not_as_job(load_job(tiny_job), scenario("3x1.0", **fields), parse_variants(policies))


class Play:
    """Rows of ROWS, one a batch, on the model of one weight. `weights` are those after each update, with their time."""

    def __init__(self, workers: str, policy: str, optimizers: Optimizers | None = None, **fields: Any) -> None:
        model = OneWeight()
        self.weights: list[float] = []
        variant = parse_variant(policy)

        def evaluate() -> Metrics:
            self.weights.append(float(model.weight.detach()))
            metrics = Objectives().metrics()
            metrics.update(np.array([0.0, 1.0], np.float32), np.array([0.0, 1.0], np.float32))
            return metrics

        played = scenario(workers, **fields)
        with Trainer(model, optimizers or Optimizers(dense=SGD(lr=RATE))) as trainer:
            curve = Curve(1, evaluate)
            sizes = dict.fromkeys(played.seconds, 1)
            self.training = Training(trainer, Supply((sample(*row) for row in ROWS), 1), variant, sizes, curve)
            self.sim = Simulator(played, variant.policy, hooks=self.training).run()
        self.times = [point.now_s for point in curve.points]


def test_a_gradient_is_of_the_weights_at_its_start_and_applied_at_its_push() -> None:
    """1.0   |0-----|2-----|3-----|5-----|6-----|
    2.3   |1-------------|4-------------|7-------------|     at 2.3 the gradient of row 1, of the first weights
    """
    w = [0.5]
    for row in PUSHED:
        w.append(w[-1] - RATE * gradient(w[STARTS[row]], *ROWS[row]))
    play = Play("1.0,2.3", "asp")
    assert play.times == pytest.approx([1.0, 2.0, 2.3, 3.0, 4.0, 4.6, 5.0, 6.9])
    assert play.weights == pytest.approx(w[1:], rel=1e-6)
    assert play.sim.staleness == {0: 3, 1: 3, 2: 2}


def test_who_waits_goes_on_with_the_newest_weights() -> None:
    """Without a lead both start together; the gradient of the fast one is applied before it waits."""
    w = [0.5]
    starts = {0: 0, 1: 0, 2: 2, 3: 2, 4: 4, 5: 4, 6: 6, 7: 6}
    for row in (0, 1, 3, 2, 5, 4, 7, 6):  # at the end of a wait the slow one takes first: its push released both
        w.append(w[-1] - RATE * gradient(w[starts[row]], *ROWS[row]))
    play = Play("1.0,2.3", "ssp:0")
    assert play.times == pytest.approx([1.0, 2.3, 3.3, 4.6, 5.6, 6.9, 7.9, 9.2])
    assert play.weights == pytest.approx(w[1:], rel=1e-6)


def test_a_round_of_bsp_applies_the_mean_of_gradients_of_the_same_weights() -> None:
    w = [0.5]
    for first in range(0, 8, 2):
        w.append(w[-1] - RATE * (gradient(w[-1], *ROWS[first]) + gradient(w[-1], *ROWS[first + 1])) / 2)
    play = Play("1.0,2.3", "bsp")
    assert play.weights == pytest.approx(w[1:], rel=1e-6)
    assert play.times == pytest.approx([2.3, 4.6, 6.9, 9.2])


def test_summed_rounds_go_twice_as_far_with_two_workers() -> None:
    w = [0.5]
    for first in range(0, 8, 2):
        w.append(w[-1] - RATE * (gradient(w[-1], *ROWS[first]) + gradient(w[-1], *ROWS[first + 1])))
    assert Play("1.0,2.3", "bsp+summed").weights == pytest.approx(w[1:], rel=1e-6)


def test_a_damped_rate_is_divided_by_the_updates_that_a_gradient_missed() -> None:
    w = [0.5]
    for version, row in enumerate(PUSHED):
        staleness = version - STARTS[row]
        w.append(w[-1] - RATE / max(staleness, 1) * gradient(w[STARTS[row]], *ROWS[row]))
    assert Play("1.0,2.3", "asp+damped").weights == pytest.approx(w[1:], rel=1e-6)


def test_a_compensated_gradient_is_moved_to_the_weights_that_it_meets() -> None:
    w = [0.5]
    for row in PUSHED:
        then = w[STARTS[row]]
        g = gradient(then, *ROWS[row])
        w.append(w[-1] - RATE * (g + 2.0 * g * g * (w[-1] - then)))
    play = Play("1.0,2.3", "asp+compensated:2")
    assert play.weights == pytest.approx(w[1:], rel=1e-6)
    assert play.weights != pytest.approx(Play("1.0,2.3", "asp").weights, rel=1e-4)


def test_gradients_that_come_too_late_for_their_round_are_dropped_and_counted() -> None:
    """Those of the slow worker, of rows 1, 4 and 7: when each comes, the round that it was started in is over."""
    play = Play("1.0,2.3", "bsp+backup:1")
    w = [0.5]
    for row in (0, 2, 3, 5, 6):
        w.append(w[-1] - RATE * gradient(w[-1], *ROWS[row]))
    assert play.weights == pytest.approx(w[1:], rel=1e-6)
    assert play.times == pytest.approx([1.0, 2.0, 3.0, 4.0, 5.0])
    assert play.training.dropped_samples == play.sim.dropped == 3


def test_what_a_dead_worker_had_is_trained_by_another() -> None:
    """Row 1 dies with its worker at 1.5 and is taken again at 4.0, when that is noticed and a worker starts."""
    play = Play("1.0,2.3", "asp", deaths=[{"worker": "w1", "at_s": 1.5, "noticed_s": 2.0}])
    w = [0.5]
    for row in (0, 2, 3, 4, 1, 5, 6, 7):
        w.append(w[-1] - RATE * gradient(w[-1], *ROWS[row]))
    assert play.weights == pytest.approx(w[1:], rel=1e-6)


def test_a_round_goes_on_without_a_dead_worker() -> None:
    play = Play("1.0,2.3", "bsp", deaths=[{"worker": "w1", "at_s": 3.0, "noticed_s": 1.0}])
    first = 0.5 - RATE * (gradient(0.5, *ROWS[0]) + gradient(0.5, *ROWS[1])) / 2
    second = first - RATE * gradient(first, *ROWS[3])  # row 2 was the dead one's: the last push of a round takes first
    assert play.weights[:2] == pytest.approx([first, second], rel=1e-6)
    assert play.times[:2] == pytest.approx([2.3, 4.0])
    assert len(play.weights) == 1 + 6


def test_divergence_is_a_result(tiny_job: Path) -> None:
    job = job_of(tiny_job, optimizers=Optimizers(dense=SGD(lr=1e30), sparse=SGD(lr=1e30)))
    run = train_virtually(job, scenario("1.0,2.3"), parse_variant("asp"), EVERY_STEP)
    assert run.failed is not None
    assert "finite" in run.failed or "nan" in run.failed
    assert run.samples < 200
    assert run.reaches(0.0) is None


@pytest.mark.parametrize("policy", ["bsp", "bsp+fitted", "asp+damped", "asp+compensated", "ssp:2", "dssp:1:4"])
def test_a_seed_repeats_a_run_to_the_bit_and_another_does_not(tiny_job: Path, policy: str) -> None:
    job = job_of(tiny_job)
    runs = [
        train_virtually(job, scenario("1.0,2.3,1.4", jitter=0.3, seed=seed), parse_variant(policy), EVERY_STEP)
        for seed in (5, 5, 6)
    ]
    assert runs[0] == runs[1]
    assert runs[0].points != runs[2].points


def rates(play: Play, starts: dict[int, int], pushed: tuple[int, ...]) -> list[float]:
    """The learning rate that each update was made with."""
    w = [0.5, *play.weights]
    return [(w[i] - w[i + 1]) / gradient(w[starts[row]], *ROWS[row]) for i, row in enumerate(pushed)]


def test_rates_fall_by_samples_or_by_updates() -> None:
    """Two workers: by samples the rate halves after four under either policy; by updates, two of which are as many
    samples in BSP, it halves in ASP when half as many samples have been seen."""
    rows = {"samples": {"every": 4}, "updates": {"every": 2, "unit": "updates"}}
    by = {
        unit: Optimizers.model_validate({"dense": {"kind": "sgd", "lr": RATE}, "schedule": {"kind": "step", **fields}})
        for unit, fields in rows.items()
    }
    asp = {unit: rates(Play("1.0,2.3", "asp", by[unit]), STARTS, PUSHED) for unit in by}
    assert asp["samples"] == pytest.approx([RATE] * 4 + [RATE / 2] * 4, rel=1e-4)
    assert asp["updates"] == pytest.approx([r for i in range(4) for r in [RATE / 2**i] * 2], rel=1e-4)
    for unit in by:
        w = [0.5, *Play("1.0,2.3", "bsp", by[unit]).weights]
        steps = [(gradient(w[i], *ROWS[2 * i]) + gradient(w[i], *ROWS[2 * i + 1])) / 2 for i in range(4)]
        bsp = [(w[i] - w[i + 1]) / step for i, step in enumerate(steps)]
        assert bsp == pytest.approx([RATE, RATE, RATE / 2, RATE / 2], rel=1e-4)


def test_the_callers_random_state_and_threads_stay_as_they_were(tiny_job: Path) -> None:
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        train_virtually(job_of(tiny_job), scenario("1.0"), parse_variant("asp"), Course(points=1))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(torch.get_rng_state(), before)


def test_points_come_at_equal_steps_of_samples_and_at_the_end(tiny_job: Path) -> None:
    told: list[Point] = []
    run = train_virtually(job_of(tiny_job), scenario("1.0"), parse_variant("ssp:1"), Course(points=3), told.append)
    assert [point.samples for point in run.points] == [80, 144, 200]  # the first batch beyond 66, 132 and 198
    assert list(run.points) == told
    assert run.measure == "AUC"
    assert run.best == max(point.quality for point in run.points)


def test_a_horizon_ends_a_run_early_and_has_its_points(tiny_job: Path) -> None:
    job = job_of(tiny_job, data={"epochs": 50})
    run = train_virtually(job, scenario("2x1.0", horizon_s=10.25), parse_variant("asp"), Course(points=5))
    assert run.sim.end_s == 10.25
    assert run.sim.pushes == 21
    assert run.samples == 19 * 16 + 2 * 8, "two halves of a batch, each in half the time, were among them"
    assert len(run.points) == 5


def test_epochs_of_the_course_replace_those_of_the_job(tiny_job: Path) -> None:
    run = train_virtually(job_of(tiny_job), scenario("1.0"), parse_variant("asp"), Course(epochs=3, points=2))
    assert run.samples == 600


def test_a_job_without_a_test_set_is_refused(tiny_job: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.test"):
        train_virtually(job_of(tiny_job, data={"test": None}), scenario("1.0"), parse_variant("asp"))


def test_a_run_is_the_same_after_its_way_as_json(tiny_job: Path) -> None:
    import json

    run = train_virtually(job_of(tiny_job), scenario("1.0,2.3"), parse_variant("asp+damped"), Course(points=3))
    assert VirtualRun.from_json(json.loads(json.dumps(run.as_json()))) == run


def test_running_statistics_of_a_model_are_those_of_the_moment_at_which_it_is_evaluated(tiny_job: Path) -> None:
    job = job_of(tiny_job, model=Model(factory="one_weight:Normed"), optimizers=Optimizers(dense=SGD(lr=0.1)))
    run = train_virtually(job, scenario("1.0"), parse_variant("bsp"), EVERY_STEP)
    assert [point.loss for point in run.points] == pytest.approx(ordinary(job, job.data.batch_size))
