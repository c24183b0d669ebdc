"""The what-if page: its answers are those of the planner for the changed cluster, and bad values get a sentence."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_ui_pages import RECORDED, get

import heterps.planning as planning
from heterps.config import Cluster, Machine, Resource, Spot, load_cluster
from heterps.errors import ConfigError
from heterps.planning.frontier import frontier
from heterps.planning.plan import load_plan
from heterps.planning.schedulers import METHODS
from heterps.planning.variants import POLICIES
from heterps.profiling.profile import Profile, load_profile
from heterps.report.figures import rate, usd
from heterps.ui.what_if import Basis, frontier_part, parse_question, read_basis, searches_part

FLOOR, SAMPLES = 20_000.0, 1e9
BAD = "<img src=x onerror=alert(1)>"
CLUSTER = """
resources:
  cpu:  {device: cpu,  usd_per_hour: 0.04, limit: 480}
  v100: {device: cuda, usd_per_hour: 2.42, limit: 32}
server_resource: cpu
"""


def cost(compute_s: float, sync_s: float) -> dict[str, float]:
    return {"compute_s": compute_s, "sync_s": sync_s, "input_s": 0.003, "alpha": 0.97, "beta": 0.93}


PROFILE = {
    "version": 1, "model": "ctr_dnn", "batch_size": 4096,
    "layers": [
        {"name": "embedding", "server_s": 0.004, "input_bytes": 850_000, "activation_bytes": 6_800_000,
         "dense_bytes": 0, "row_bytes": 7_000_000, "costs": {"cpu": cost(0.012, 0.02), "v100": cost(0.01, 0.11)}},
        {"name": "fc1", "server_s": 0.001, "input_bytes": 6_800_000, "activation_bytes": 650_000,
         "dense_bytes": 2_500_000, "row_bytes": 0, "costs": {"cpu": cost(2.0, 0.002), "v100": cost(0.01, 0.002)}},
    ],
}  # fmt: skip


@pytest.fixture(autouse=True)
def with_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first search of a fresh checkout compiles kernels."""
    monkeypatch.setattr("heterps.ui.what_if.LONGEST_S", 600.0)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A run with a profile, and one whose model could not be profiled."""
    for name in ("known", "unknown"):
        shutil.copytree(RECORDED, tmp_path / "runs" / name)
    folder = tmp_path / "runs/known"
    for place in (tmp_path, folder):
        (place / "profile.json").write_text(json.dumps(PROFILE))
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    with (folder / "job.yaml").open("a") as file:
        file.write(f"cluster: {tmp_path}/cluster.yaml\n")
    plan = planning.plan(*given(tmp_path), throughput=FLOOR, samples=SAMPLES)
    plan.model_copy(update={"throughput": FLOOR}).write(folder / "plan.json")
    return tmp_path / "runs"


def given(folder: Path) -> tuple[Profile, Cluster]:
    return load_profile(folder / "profile.json"), load_cluster(folder / "cluster.yaml")


def at_price(folder: Path, v100: float) -> tuple[Profile, Cluster]:
    profile, cluster = given(folder)
    dear = {**cluster.resources, "v100": cluster.resources["v100"].model_copy(update={"usd_per_hour": v100})}
    return profile, cluster.model_copy(update={"resources": dear})


def ask(runs: Path, part: str = "plan", **changed: str) -> dict[str, str]:
    answer = get(runs, f"/run/known/what-if/{part}", params={name.replace("__", "."): v for name, v in changed.items()})
    assert answer.status_code == (409 if "error" in answer.json() and part in ("frontier", "searches") else 200)
    told: dict[str, str] = answer.json()
    return told


CHANGES: list[tuple[dict[str, str], dict[str, dict[str, Any]], dict[str, Any]]] = [
    ({}, {}, {}),
    ({"price__v100": "100"}, {"v100": {"usd_per_hour": 100.0}}, {}),
    ({"limit__v100": "0"}, {"v100": {"limit": 0}}, {}),
    ({"limit__cpu": "12", "price__cpu": "0.5"}, {"cpu": {"limit": 12, "usd_per_hour": 0.5}}, {}),
    ({"memory__v100": "0.001"}, {"v100": {"memory_gb": 0.001}}, {}),
    ({"port__cpu": "1e-3"}, {"cpu": {"port_gbps": 0.001}}, {}),
    ({"throughput": "900000"}, {}, {"throughput": 900_000.0}),
    ({"deadline": "0.3"}, {}, {"deadline": 0.3}),
    ({"samples": "2000"}, {}, {"samples": 2000.0}),
    ({"sync": "asp"}, {}, {"sync": "asp"}),
    ({"spot__v100": "0.5", "spots__v100": "8"}, {"v100": {"spot": Spot(usd_per_hour=0.5, limit=8)}}, {}),
    (
        {"spot__cpu": "0.01", "spots__cpu": "9", "interruptions__cpu": "2"},
        {"cpu": {"spot": Spot(usd_per_hour=0.01, limit=9, interruptions_per_hour=2.0)}},
        {},
    ),
    ({"sync": "bsp", "throughput": "30000"}, {}, {"sync": "bsp", "throughput": 30_000.0}),
]


@pytest.mark.parametrize(("changed", "resources", "asked"), CHANGES)
def test_answers_are_those_of_the_planner(
    runs: Path, changed: dict[str, str], resources: dict[str, Any], asked: dict[str, Any]
) -> None:
    profile, cluster = given(runs.parent)
    new = {name: one.model_copy(update=resources.get(name, {})) for name, one in cluster.resources.items()}
    cluster = cluster.model_copy(update={"resources": new})
    plan = planning.plan(profile, cluster, **{"throughput": FLOOR, "samples": SAMPLES} | asked)
    html = ask(runs, **changed)["html"]
    assert (html == ask(runs)["html"]) == (changed == {}), "each of the changes changes something"
    figures = re.findall(r"<h3>(?:Cost|Samples/s)</h3><strong>([^ <]*)", html)
    assert figures == [usd(plan.usd).partition(" ")[0], rate(plan.throughput)]
    assert f"Bottleneck: {plan.bottleneck}." in html
    for stage in plan.stages:
        assert f"<strong>{stage.count:,} × {stage.resource}</strong>" in html


def test_any_policy_takes_the_cheapest_and_shows_the_others(runs: Path) -> None:
    one = given(runs.parent)
    plans = {sync: planning.plan(*one, throughput=FLOOR, samples=SAMPLES, sync=sync) for sync in POLICIES}
    html = ask(runs, sync="any")["html"]
    assert f"<h3>Cost</h3><strong>{usd(min(plan.usd for plan in plans.values())).partition(' ')[0]}" in html
    for sync, plan in plans.items():
        assert re.search(rf'<th scope="row">{sync}, batches of 4,096</th>.*?<td>{re.escape(usd(plan.usd))}</td>', html)


def test_the_plans_next_to_it_are_told_in_an_answer_of_their_own(runs: Path) -> None:
    told = ask(runs, "next")["html"]
    assert "Next cheaper:" in told
    assert "Next faster:" in told
    assert "Next faster:" not in ask(runs)["html"]
    assert ask(runs, "next", price__v100="100")["html"] != told


def test_the_frontier_is_that_of_the_changed_cluster(runs: Path) -> None:
    profile, cluster = given(runs.parent)
    few = {**cluster.resources, "v100": cluster.resources["v100"].model_copy(update={"limit": 2})}
    problem = planning.api.make_problem(profile, cluster.model_copy(update={"resources": few}), FLOOR, SAMPLES)
    plans = frontier(problem).plans
    html = ask(runs, "frontier", limit__v100="2")["html"]
    told = re.findall(r'type="radio".* title="([^"]*)"', html)
    assert told == [f"{rate(plan.throughput)} samples/s for {usd(plan.usd)}" for plan in plans]


def test_every_method_tells_its_plan_and_its_search(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heterps.ui.what_if.METHOD_S", 0.1)
    html = ask(runs, "searches", price__v100="100")["html"]
    cheapest = planning.plan(*at_price(runs.parent, 100.0), throughput=FLOOR, samples=SAMPLES)
    for method in METHODS:
        assert f'<th scope="row" data-head="Method">{method}</th>' in html
    cost = re.escape(usd(cheapest.usd))
    assert re.search(rf'>exact</th><td data-head="Cost">{cost}</td>.*the cheapest', html)
    assert html.count("schedules billed</text>") > 3, "pictures of searches"


@pytest.mark.parametrize("part", [frontier_part, searches_part])
def test_a_search_that_nobody_waits_for_is_given_up(runs: Path, part: Callable[..., str]) -> None:
    with pytest.raises(ConfigError, match="nobody waits"):
        part(read_basis(runs / "known"), {}, lambda: True)


def test_no_plan_is_explained_as_the_planner_explains_it(runs: Path) -> None:
    told = ask(runs, throughput="1e9")["error"]
    with pytest.raises(planning.api.PlanInfeasible) as error:
        planning.plan(*given(runs.parent), throughput=1e9, samples=SAMPLES)
    assert told == str(error.value)
    page = get(runs, "/run/known/what-if", params={"limit.cpu": "0"}).text
    assert "raise the limit of cpu from 0" in page
    assert 'name="limit.cpu" value="0"' in page


@pytest.mark.parametrize(
    ("field", "text", "said"),
    [
        ("price.cpu", "cheap", "price.cpu: give a number (got 'cheap')."),
        ("price.cpu", "", "price.cpu: give a number"),
        ("price.cpu", "-1", "resources.cpu.usd_per_hour: must be at least 0"),
        ("price.cpu", "inf", "give a number"),
        ("price.cpu", "1e300", "give a number from"),
        ("limit.v100", "2.5", "resources.v100.limit: must be a whole number"),
        ("limit.v100", "1e12", "give 1,000,000 or less"),
        ("memory.v100", "0", "memory_gb: must be greater than 0"),
        ("throughput", "", "a throughput, or a deadline"),
        ("throughput", "0", "throughput must be a number above 0"),
        ("deadline", "-2", "deadline must be a number of hours above 0"),
        ("samples", "nan", "samples: give a number"),
        ("sync", "always", "there is no policy 'always'"),
        ("spot.v100", "0.1", "resources.v100.spot.limit is missing"),
        ("spots.v100", "1e7", "spots.v100: give 1,000,000 or less"),
        ("colour", "red", "there is no field 'colour'"),
        ("price.tpu", "1", "there is no field 'price.tpu'"),
    ],
)
def test_a_bad_value_gets_a_sentence(runs: Path, field: str, text: str, said: str) -> None:
    for part in ("plan", "next", "frontier"):
        answer = get(runs, f"/run/known/what-if/{part}", params={field: text})
        assert answer.status_code == (409 if part == "frontier" else 200)
        assert said in answer.json()["error"]
    assert get(runs, "/run/known/what-if", params={field: text}).status_code == 200


def test_the_page_has_a_field_for_all_that_may_change_and_the_run_links_to_it(runs: Path) -> None:
    assert 'href="what-if"' in get(runs, "/run/known/").text
    page = get(runs, "/run/known/what-if").text
    for name, value in read_basis(runs / "known").fields.items():
        assert f'name="{name}" value="{value}"' in page
    assert 'name="throughput" value="20000"' in page
    assert 'name="samples" value="1000000000"' in page
    sent = get(runs, "/run/known/what-if", params={"price.cpu": "0.07"}).text
    assert 'name="price.cpu" value="0.07"' in sent
    assert "<h2>Bill</h2>" in sent, "a browser without a script gets the plan with the page"


def test_a_run_without_a_profile_has_no_such_page(runs: Path) -> None:
    assert "what-if" not in get(runs, "/run/unknown/").text
    answer = get(runs, "/run/unknown/what-if")
    assert answer.status_code == 409
    assert "the run has no profile" in answer.json()["error"]
    (runs / "known/profile.json").write_text("{")
    assert "known/profile.json" in ask(runs)["error"]


@pytest.mark.parametrize("named", [False, True], ids=["own", "named"])
def test_every_run_has_such_a_page_wherever_the_pages_are_served_from(tiny_job: Path, *, named: bool) -> None:
    """A job that names no profile, and one whose path to it is relative to where it was trained."""
    from command import heterps

    folder = tiny_job.parent
    if named:
        done = heterps("profile", "job.yaml", "--out", "made.json", "--budget", "0.2", cwd=folder)
        assert done.returncode == 0, done.stderr
        tiny_job.write_text(f"{tiny_job.read_text()}profile: made.json\n")
    done = heterps("train", "job.yaml", "--run", "runs/known", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert 'href="what-if"' in get(folder / "runs", "/run/known/").text
    basis = read_basis(folder / "runs/known")
    lacking = {name for name in basis.cluster.resources if basis.profile.source(basis.cluster, name) is None}
    assert all(basis.fields[f"limit.{name}"] == "0" for name in lacking)
    for changed in ({"throughput": "10"}, {"throughput": "10", "price__cpu": "7"}):
        assert "<h2>Bill</h2>" in ask(folder / "runs", **changed).get("html", ""), "there is a plan"


def test_machines_have_fields_and_blank_ones_stay_unlimited() -> None:
    cluster = Cluster(
        resources={"cpu": Resource(device="cpu", usd_per_hour=1 / 3, limit=4, memory_gb=2.0)},
        machines={"box.large": Machine(units={"cpu": 4}, usd_per_hour=1.0, limit=2)},
        server_resource="cpu",
    )
    basis = Basis(cluster, Profile.model_validate(PROFILE), load_plan(RECORDED / "plan.json"))
    assert parse_question(basis, basis.fields).cluster == cluster, "numbers lose nothing"
    asked = parse_question(basis, {"price.box.large": "3", "memory.cpu": " ", "port.box.large": "25", "sync": " "})
    assert asked.cluster.machines["box.large"].usd_per_hour == 3
    assert asked.cluster.machines["box.large"].port_gbps == 25
    assert asked.cluster.resources["cpu"].memory_gb is None
    assert asked.sync is None
    with pytest.raises(ConfigError, match="give 1,000 or less"):
        parse_question(basis, {"limit.box.large": "1001"})
    assert asked.throughput == 38_100, "what the plan of the run promises, with three digits"
    assert asked.samples == 500_000


def test_names_with_html_are_shown_as_text(runs: Path) -> None:
    (runs / "known").rename(runs / BAD)
    named = json.dumps(PROFILE).replace('"fc1"', json.dumps(BAD)).replace('"v100"', json.dumps(BAD))
    (runs / BAD / "profile.json").write_text(named)
    (runs.parent / "cluster.yaml").write_text(CLUSTER.replace("v100:", f'"{BAD}":'))
    page = get(runs, f"/run/{BAD}/what-if", params={"price.cpu": "0.05", "sync": BAD}).text
    parts = [get(runs, f"/run/{BAD}/what-if/{part}").json()["html"] for part in ("plan", "next", "frontier")]
    for text in (page, *parts):
        assert "<img" not in text
        assert text is parts[1] or "&lt;img" in text


def test_the_page_is_as_strict_as_the_others(runs: Path) -> None:
    answer = get(runs, "/run/known/what-if")
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert "<script>" not in answer.text
    assert "onclick" not in answer.text
    for path in ("/run/known/what-if", "/run/known/what-if/plan", "/run/known/what-if/frontier"):
        assert get(runs, path, "wrong").status_code == 403
