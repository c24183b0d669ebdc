import pytest

from heterps.report.meaning import MEASURES, against_teacher, compare, usd_per_billion

SUMMARY = {
    "status": "completed",
    "samples": 1_000_000,
    "seconds": 50.0,
    "predicted_throughput": 25_000.0,
    "measured_throughput": 20_000.0,
    "predicted_usd": 0.8,
    "measured_usd": 1.0,
}


def verdicts(**changes):
    return {c.title: c.verdict for c in compare({**SUMMARY, **changes})}


def judge(field, value):
    return next(m for m in MEASURES if m.field == field).judge(value)


def test_the_error_is_measured_over_predicted_less_one():
    throughput, time, cost = compare(SUMMARY)
    assert throughput.error == pytest.approx(-0.2)
    assert (time.predicted, time.measured, time.error) == (40.0, 50.0, pytest.approx(0.25))
    assert cost.error == pytest.approx(0.25)


def test_the_verdict_says_in_which_direction_the_prediction_was_wrong():
    assert verdicts() == {"Samples/s": "20.0% slower", "Time": "25.0% longer", "Cost": "25.0% dearer"}
    assert verdicts(measured_throughput=25_010.0)["Samples/s"] == "as predicted"
    assert verdicts(measured_usd=0.4)["Cost"] == "50.0% cheaper"
    assert verdicts(measured_usd=2.4)["Cost"] == "3.0 times the prediction"


def test_a_run_without_a_prediction_is_not_judged():
    assert set(verdicts(predicted_throughput=0.0, predicted_usd=0.0).values()) == {"no prediction"}


def test_a_stopped_run_is_compared_with_the_cost_of_the_samples_it_trained():
    _, time, cost = compare({**SUMMARY, "status": "stopped by SIGINT", "predicted_usd": 80.0})
    assert time.predicted == 40.0
    assert cost.predicted == pytest.approx(0.8)  # 40 s at the 1 USD for 50 s that the plan's units cost


def test_a_run_stopped_before_its_first_step_is_compared_with_nothing():
    nothing = {"status": "stopped by SIGINT", "samples": 0, "seconds": 0.0, "measured_usd": 0.0}
    assert [c.error for c in compare({**SUMMARY, **nothing, "measured_throughput": 0.0})] == [-1.0, None, None]
    assert usd_per_billion({**SUMMARY, **nothing}) == ""


PREDICTED = {"compute_s": 0.010, "servers_s": 0.004, "network_s": 0.002, "overhead_s": 0.001}


@pytest.mark.parametrize(
    ("launcher", "measured", "told"),
    [
        (
            "local",
            {"compute_s": 0.010, "servers_s": 0.003, "network_s": 0.012, "overhead_s": 0.001},
            {"Compute": 0.0, "Servers": -0.25, "Network": 5.0, "Overhead": 0.0},
        ),
        (
            "local",  # nobody has counted the seconds of servers
            {"compute_s": 0.020, "network_s": 0.003, "overhead_s": 0.002},
            {"Compute": 1.0, "Network": -0.5, "Overhead": 1.0},
        ),
        ("inline", {"compute_s": 0.007, "overhead_s": 0.006}, {"Compute, tables": -0.5, "Overhead": 1.0}),
    ],
)
def test_each_term_that_was_measured_is_checked_and_together_they_are_the_batch(launcher, measured, told):
    terms = {"launcher": launcher, "predicted_terms": PREDICTED, "measured_terms": measured}
    checks = compare({**SUMMARY, **terms})[3:]
    assert {check.title: check.error for check in checks} == {title: pytest.approx(off) for title, off in told.items()}
    assert sum(check.predicted for check in checks) == pytest.approx(sum(PREDICTED.values()))
    assert sum(check.measured for check in checks) == pytest.approx(sum(measured.values()))


def test_a_cost_is_given_in_a_unit_that_runs_share():
    assert usd_per_billion(SUMMARY) == "1,000.00 USD a billion samples"


def test_the_auc_is_placed_between_chance_and_the_teacher():
    assert against_teacher({"auc": 0.75, "teacher_auc": 0.8}) == "83% of the way from chance to teacher 0.8000"
    assert against_teacher({"auc": 0.49999, "teacher_auc": 0.8}) == "no better than chance; the teacher has 0.8000"
    assert against_teacher({"auc": 0.75}) is None
    assert against_teacher({"auc": None, "teacher_auc": 0.8}) is None


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("calibration", 1.019, "good"),
        ("calibration", 0.981, "good"),
        ("calibration", 1.05, "fair: predicts 5.0% too many"),
        ("calibration", 0.7, "poor: predicts 30.0% too few"),
        ("normalised_entropy", 0.87, "13.0% better"),
        ("normalised_entropy", 1.2, "it has not learned"),
        ("auc", 0.5, "no better than a coin"),
        ("auc", 0.776, "77.6% of pairs"),
    ],
)
def test_a_metric_comes_with_a_word_on_what_is_good(field, value, words):
    assert words in judge(field, value)


def test_an_rmse_is_placed_beside_that_of_the_teacher():
    found = against_teacher({"rmse": 0.95, "loss": 0.9, "teacher_rmse": 0.87, "teacher_auc": None})
    assert found == "the teacher has 0.8700, the best that is possible"
    assert against_teacher({"rmse": 0.95, "loss": 0.9, "teacher_auc": None}) is None
