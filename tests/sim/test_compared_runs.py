"""Made-up runs side by side: who is soonest, what is too close to call, and why the others are later."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from virtual_runs import make_run

from heterps.config import Job, load_job
from heterps.sim.compare import advise, compare
from heterps.sim.variants import parse_variant


def test_a_row_has_the_seconds_and_samples_to_the_target_of_every_seed() -> None:
    runs = [
        make_run("bsp", 0.5, 0.9, 0.95, 0.93),
        make_run("bsp", 0.5, 0.7, 0.8, 0.97, seed=1),
        make_run("bsp", 0.6, 0.94, 0.8, 0.9, seed=2),
    ]
    (row,) = compare(runs, target=0.94).rows
    assert row.seconds == (30.0, 40.0, 20.0)
    assert row.samples == (300, 400, 200)
    assert row.median_s == 30.0
    assert row.range_s == (20.0, 40.0)
    assert row.best == (0.95, 0.97, 0.94)
    assert row.samples_per_s == 10.0
    assert row.step_s == 10.0
    assert 0 < row.wait_share < 0.5


def test_a_seed_that_never_reaches_the_target_leaves_no_median() -> None:
    comparison = compare([make_run("asp", 0.5, 0.9), make_run("asp", 0.5, 0.6, seed=1)], target=0.9)
    (row,) = comparison.rows
    assert row.seconds == (20.0, None)
    assert row.median_s is None
    assert row.range_s is None
    assert comparison.soonest is None


def test_without_a_target_it_is_what_all_have_nearly_reached() -> None:
    runs = [make_run("bsp", 0.8, 0.9), make_run("asp", 0.7, 0.8), make_run("ssp:3", 0.2, failed="the loss is nan")]
    comparison = compare(runs)
    assert comparison.target == pytest.approx(0.99 * 0.8)
    assert [row.label for row in comparison.rows] == ["bsp", "asp", "ssp:3"]


def test_a_quality_that_is_not_defined_is_never_the_best() -> None:
    (row,) = compare([make_run("bsp", math.nan, 0.6, math.nan)], target=0.5).rows
    assert row.best == (0.6,)
    assert row.seconds == (20.0,)


def test_nothing_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="nothing to compare"):
        compare([])


def test_advice_names_the_soonest_and_both_reasons_why_another_is_later() -> None:
    fast = make_run("asp", 0.5, 0.7, 0.9, step_s=5.0)
    slow = make_run("bsp", 0.6, 0.9, step_s=20.0)
    says = advise(compare([slow, fast], target=0.9))
    assert says[0] == "Take asp: it reaches accuracy 0.9 after 15 simulated seconds."
    assert says[1].startswith("bsp takes 2.67 times as long: it gets through 0.25 times the samples a second (its")
    assert "needs 0.67 times the samples for it" in says[1]
    assert len(says) == 2


def test_equal_rates_are_told_without_a_reason() -> None:
    same = advise(compare([make_run("asp", 0.9), make_run("asp+damped", 0.5, 0.6, 0.7, 0.9)], target=0.9))[1]
    assert same == (
        "asp+damped takes 4.00 times as long: it gets through as many samples a second, and needs 4.00 times the "
        "samples for it (it makes 57 updates in all, against 14, and its gradients miss 1.0 updates each, against 0.9)."
    )


def test_advice_does_not_part_what_seeds_do_not_part() -> None:
    near = [make_run("asp", 0.5, 0.9, seed=seed, step_s=step) for seed, step in enumerate((10.0, 14.0))]
    also = [make_run("ssp:3", 0.5, 0.9, seed=seed, step_s=step) for seed, step in enumerate((11.0, 15.0))]
    says = advise(compare(near + also, target=0.9))
    assert says[0].startswith("Take asp: it reaches accuracy 0.9 after 24 simulated seconds (20 to 28 over 2 seeds)")
    assert says[1].startswith("It cannot be told apart from ssp:3")
    assert len(says) == 2


def test_advice_tells_who_diverges_who_falls_short_and_who_wastes() -> None:
    runs = [
        make_run("bsp", 0.9, 0.9),
        make_run("asp", 0.5, failed="the loss of step 3 is nan."),
        make_run("ssp:3", 0.5, 0.6),
        make_run("bsp+backup:1", 0.5, 0.6, 0.7, 0.9, dropped=400),
    ]
    says = " ".join(advise(compare(runs, target=0.9)))
    assert "asp diverges: the loss of step 3 is nan." in says
    assert "ssp:3 does not reach it with 1 of 1 seeds: its best is 0.6" in says
    assert "50% of its samples go to waste, against 0%" in says


def test_advice_where_nobody_reaches_the_target_names_the_nearest() -> None:
    says = advise(compare([make_run("bsp", 0.5, 0.6), make_run("asp", 0.8)], target=0.9))
    assert says == [
        "No policy reaches accuracy 0.9 with every seed. asp comes nearest, with at least 0.8: lower the target, train "
        "longer or change the learning rate."
    ]


def test_advice_is_what_train_can_run_and_tells_what_would_be_sooner() -> None:
    runs = [make_run("asp+damped", 0.9), make_run("bsp+backup:1", 0.5, 0.9), make_run("asp", 0.5, 0.6, 0.6, 0.9)]
    comparison = compare(runs, target=0.9)
    assert (comparison.soonest.label, comparison.advised.label) == ("asp+damped", "asp")
    says = advise(comparison)
    assert says[0].startswith("Take asp: it reaches accuracy 0.9 after 40 simulated seconds")
    cannot = "but `heterps train` cannot run it: it can only be simulated."
    assert says[1:] == [
        f"asp+damped would take 0.25 times as long, {cannot}",
        f"bsp+backup:1 would take 0.50 times as long, {cannot}",
    ]


def test_where_only_what_cannot_be_run_reaches_the_target_that_is_said() -> None:
    says = advise(compare([make_run("asp+damped", 0.9), make_run("bsp", 0.5, 0.6)], target=0.9))
    assert says == [
        "No policy that `heterps train` can run reaches accuracy 0.9 with every seed. bsp comes nearest, with at least "
        "0.6: lower the target, train longer or change the learning rate."
    ]


@pytest.mark.parametrize("label", ["bsp", "asp", "ssp:3", "dssp:3:12", "dssp:3:12+elapsed"])
def test_what_is_advised_is_a_word_that_train_takes(label: str, tiny_job: Path) -> None:
    job = load_job(tiny_job)
    assert parse_variant(label).can_train
    Job.model_validate({**job.model_dump(), "sync": label})


@pytest.mark.parametrize("label", ["asp+damped", "asp+compensated:0.04", "bsp+summed", "bsp+backup:1"])
def test_what_train_refuses_is_not_advised(label: str) -> None:
    assert not parse_variant(label).can_train


def test_advice_to_fit_batches_says_by_which_fields_of_the_job(tiny_job: Path) -> None:
    says = advise(compare([make_run("bsp+fitted", 0.9), make_run("bsp", 0.5, 0.6)], target=0.9))
    assert says[0].endswith("In the job: sync: bsp, workers: {shares: fitted}.")
    Job.model_validate({**load_job(tiny_job).model_dump(), "sync": "bsp", "workers": {"shares": "fitted"}})


def test_the_default_target_is_within_reach_also_below_zero() -> None:
    runs = [make_run("bsp", -3.0, -2.0), make_run("asp", -3.0, -1.5)]
    assert compare(runs).target == pytest.approx(-2.0 / 0.99)
    assert all(row.median_s is not None for row in compare(runs).rows)
