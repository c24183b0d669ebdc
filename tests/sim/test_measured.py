"""Workers as a run has measured them: what its trace says is what is played."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from heterps.config import ASP
from heterps.errors import ConfigError, RunError
from heterps.sim import Scenario, Simulator, simulate
from heterps.sim.measured import read_measured
from heterps.sim.pace import advise_pace, advised_pace, compare_paces, default_paces
from heterps.sim.variants import parse_variant
from heterps.sync import parse_policy, record


def write_trace(run: Path, pushes: list[tuple[str, float]], name: str = "stage-1.jsonl", start: float = 5.0) -> Path:
    """A trace of ASP by hand: (worker, when it pushed), and it goes on at once."""
    workers = sorted({worker for worker, _ in pushes})
    lines = [{"version": 1, "policy": {"kind": "asp"}, "workers": workers, "now": start}]
    for worker, now in sorted(pushes, key=lambda push: push[1]):
        lines += [
            {"event": kind, "worker": worker, "now": now, "clock": 1, "lead": 0} for kind in ("pushed", "released")
        ]
    path = run / "traces" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def play(run: Path, scenario: Scenario, policy: str) -> None:
    """A run of a scenario, that leaves a trace as a real one does."""
    simulator = Simulator(scenario, policy)
    path = run / "traces" / "stage-1.jsonl"
    path.parent.mkdir(parents=True)
    with path.open("w") as file:
        record(simulator.policy, file)
        simulator.run()


def scenario_of(run: Path, **fields: object) -> Scenario:
    found = read_measured(run)
    return Scenario(workers=found.means, measured=tuple(found.seconds.values()), horizon_s=found.busy_s, **fields)


def test_an_iteration_is_from_the_go_ahead_to_the_push_and_the_first_is_left_out(tmp_path: Path) -> None:
    took = {"lane-2": [7.0, *[1.0, 3.0] * 6], "lane-10": [9.0, *[2.0] * 11]}
    pushes = [(lane, 5.0 + sum(seconds[: i + 1])) for lane, seconds in took.items() for i in range(len(seconds))]
    write_trace(tmp_path, pushes)
    found = read_measured(tmp_path)
    assert found.policy == ASP()
    assert found.seconds == {"lane-2": (1.0, 3.0) * 6, "lane-10": (2.0,) * 11}
    assert (found.means, found.busy_s) == ((2.0, 2.0), 24.0)


def test_waiting_is_no_part_of_an_iteration(tmp_path: Path) -> None:
    play(tmp_path, Scenario(workers="1.0,4.0", horizon_s=100.0), "bsp")
    assert read_measured(tmp_path).seconds == {"w0": (1.0,) * 24, "w1": (4.0,) * 24}


def test_the_longest_trace_of_the_first_stage_counts_and_a_line_that_is_being_written_does_not(tmp_path: Path) -> None:
    write_trace(tmp_path, [("lane-0", 5.0 + i) for i in range(1, 13)])
    write_trace(tmp_path, [("lane-0", 5.0 + 9 * i) for i in range(1, 99)], "stage-2.jsonl")
    later = write_trace(tmp_path, [("lane-0", 5.0 + 2 * i) for i in range(1, 40)], "stage-1.1.jsonl")
    later.write_text(later.read_text() + '{"event": "pus')
    assert read_measured(tmp_path).seconds == {"lane-0": (2.0,) * 38}


def test_a_run_without_a_trace_or_with_a_short_one_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no trace .*stage-1.jsonl. .*heterps train job.yaml --launcher local"):
        read_measured(tmp_path)
    path = write_trace(tmp_path, [("lane-0", 5.0 + i) for i in range(1, 6)])
    with pytest.raises(RunError, match=r"no worker has 11 iterations.* Train longer"):
        read_measured(tmp_path)
    path.write_text("")
    with pytest.raises(RunError, match="this trace is empty"):
        read_measured(tmp_path)
    path.write_text("{}\n")
    with pytest.raises(RunError, match=r"stage-1.jsonl:1: .*policy"):
        read_measured(tmp_path)


IN_TURN = Scenario(
    workers="4x1.0", jitter=0.1, horizon_s=1200.0,
    slowdowns=[{"worker": f"w{i % 4}", "from_s": 100.0 * i, "to_s": 100.0 * i + 30, "factor": 4.0} for i in range(12)],
)  # fmt: skip


@pytest.mark.parametrize("policy", ["bsp", "ssp:3", "ssp:15", "asp"])
def test_what_a_trace_of_bsp_predicts_of_a_policy_is_what_the_workers_do(tmp_path: Path, policy: str) -> None:
    scenario = Scenario(workers="3x1.0,1.6", jitter=0.3, horizon_s=2000.0)
    play(tmp_path, scenario, "bsp")
    predicted = [simulate(scenario_of(tmp_path, seed=seed), policy).pushes_per_s for seed in range(3)]
    assert statistics.fmean(predicted) == pytest.approx(simulate(scenario, policy).pushes_per_s, rel=0.04)


def test_slowness_of_one_after_the_other_is_hidden_and_that_of_all_at_once_is_not(tmp_path: Path) -> None:
    together = IN_TURN.model_copy(
        update={
            "slowdowns": tuple(s.model_copy(update={"worker": f"w{i}"}) for s in IN_TURN.slowdowns for i in range(4))
        }
    )
    gains = {}
    for name, scenario in (("in turn", IN_TURN), ("together", together)):
        play(tmp_path / name, scenario, "ssp:3")
        own, other = parse_policy("ssp:3"), parse_variant("dssp:3:12")
        gains[name] = compare_paces(scenario_of(tmp_path / name), [other], own, 5)[0]
    assert gains["in turn"].range[0] > 1.05
    assert gains["together"].range[1] < 1.03
    low, high = gains["in turn"].range
    assert low < gains["in turn"].gain < high, "seeds play other parts"


def test_of_policies_that_are_as_fast_the_one_with_the_smallest_bound_is_advised(tmp_path: Path) -> None:
    play(tmp_path, Scenario(workers="4x1.0", jitter=0.1, horizon_s=300.0), "asp")
    own = parse_policy("asp")
    scenario = scenario_of(tmp_path)
    paces = compare_paces(scenario, default_paces(own, scenario), own, 3)
    best = advised_pace(paces)
    assert [pace.policy for pace in paces][:2] == ["asp", "bsp"]
    assert best.policy == "ssp:1"
    assert best.gain > 0.95 > paces[1].gain
    says = " ".join(advise_pace(paces, own, 4))
    assert "Take ssp:1 with 4 lanes, with leads of 1 at most." in says
    assert "sync: ssp:1, workers: {lanes: 4}" in says
    assert "over 3 seeds" in says


def test_a_run_that_has_the_best_policy_keeps_it(tmp_path: Path) -> None:
    play(tmp_path, Scenario(workers="2x1.0", horizon_s=60.0), "bsp")
    own = parse_policy("bsp")
    scenario = scenario_of(tmp_path)
    paces = compare_paces(scenario, default_paces(own, scenario), own, 2)
    assert advise_pace(paces, own, 2) == ["Keep bsp with 2 lanes: no policy is more than 5% faster on these workers."]


def test_where_workers_differ_for_good_fitted_batches_are_advised(tmp_path: Path) -> None:
    """Of 1, 1 and 3 s they finish a round of three batches in 3 / (1 + 1 + 1/3) s, instead of 3 s."""
    play(tmp_path, Scenario(workers="2x1.0,3.0", jitter=0.05, horizon_s=200.0), "bsp")
    own, scenario = parse_policy("bsp"), scenario_of(tmp_path)
    paces = {pace.policy: pace for pace in compare_paces(scenario, default_paces(own, scenario), own, 3)}
    assert paces["bsp+fitted"].gain == pytest.approx(7 / 3, rel=0.06)
    assert paces["dssp:3:12"].gain < 1.3
    says = " ".join(advise_pace(list(paces.values()), own, 3))
    assert "Take bsp+fitted with 3 lanes, with leads of 0 at most." in says
    assert "sync: bsp, workers: {shares: fitted}" in says


def test_measured_seconds_are_of_every_worker_have_no_jitter_and_fit_with_their_batches() -> None:
    with pytest.raises(ConfigError, match="there must be 2, one for each"):
        Scenario(workers="2x1.0", measured=((1.0,),), horizon_s=9)
    with pytest.raises(ConfigError, match="no jitter"):
        Scenario(workers="1.0", measured=((1.0,),), jitter=0.1, horizon_s=9)
    scenario = Scenario(workers=(1.0, 3.0), measured=((0.5, 1.5), (3.0,)), horizon_s=9)
    fitted, sizes = parse_variant("bsp+fitted").fit(scenario, 4)
    assert sizes == {"w0": 3, "w1": 1}, "of a round of four samples"
    assert fitted.measured == ((0.375, 1.125), (0.75,)), "for their shares of it"
