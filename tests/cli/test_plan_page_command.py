"""The page of `heterps plan --html`: what is in the file, and that it loads nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from test_plan_command import ASKED, CLUSTER, PROFILE, run

from heterps.config import load_cluster
from heterps.planning import Option, PlanComparison, compare
from heterps.planning.api import make_problem
from heterps.planning.explain import neighbours
from heterps.planning.frontier import frontier
from heterps.profiling.profile import load_profile
from heterps.report.figures import rate, usd
from heterps.report.page.planned import render_plan_page

BAD = "<img src=x onerror=alert(1)>"


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    (tmp_path / "profile.json").write_text(json.dumps(PROFILE))
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    return [str(tmp_path / "profile.json"), str(tmp_path / "cluster.yaml")]


def write(files: list[str], capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, dict[str, object]]:
    """The page, and the JSON of the same command."""
    path = Path(files[0]).with_name("plan.html")
    code, out, err = run(capsys, *files, *words, "--html", str(path), "--json")
    assert code == 0, err
    return path.read_text(encoding="utf-8"), json.loads(out)


def test_the_page_has_the_plan_its_bill_and_every_plan_of_the_frontier(
    files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    page, told = write(files, capsys, *ASKED, "--frontier")
    plans = told["frontier"]["plans"]  # type: ignore[index]
    assert f"<strong>{usd(told['usd']).partition(' ')[0]} <small>USD" in page  # type: ignore[arg-type]
    assert f"Bottleneck: {told['bottleneck']}." in page
    assert "computed beforehand" in page
    for layer in ("embedding", "fc1"):
        assert f"<span>{layer}</span>" in page
    assert page.count('type="radio"') == len(plans) > 3
    for plan in plans:
        assert f'title="{rate(plan["throughput"])} samples/s for {usd(plan["usd"])}"' in page
    chosen = re.findall(r'title="([^"]*)" aria-label="[^"]*" checked', page)
    assert chosen == [f"{rate(told['throughput'])} samples/s for {usd(told['usd'])}"]  # type: ignore[arg-type]
    assert page.count("This is the chosen plan.") == 1
    assert page.count("Beside the chosen plan: ") == len(plans) - 1
    assert "<strong>Next cheaper:</strong>" in page
    assert "<strong>Next faster:</strong>" in page
    assert "The costs of v100 are estimates" in page
    assert "Schedules billed" in page, "how the quick methods searched is shown without --compare"


def test_the_page_is_one_file_without_a_script(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    page, told = write(files, capsys, *ASKED)
    assert "<script" not in page
    assert "http" not in page.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert "frontier" not in told, "the page alone does not change what is printed"


def test_a_plan_of_another_method_is_told_what_beats_it(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    page, told = write(files, capsys, *ASKED, "--method", "cpu")
    assert told["gap"]
    assert "<strong>Beaten by:</strong>" in page
    assert "This is the chosen plan." not in page, "it is not on the frontier"


def test_several_policies_are_on_the_page(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    page, _ = write(files, capsys, *ASKED, "--sync", "asp", "--batch-size", "2048,4096")
    assert "asp, batches of 2,048" in page
    assert "asp, batches of 4,096" in page
    assert "policy <code>asp</code>" in page


def test_names_with_html_are_shown_as_text(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    named = json.dumps(PROFILE | {"model": BAD}).replace('"fc1"', json.dumps(BAD)).replace('"v100"', json.dumps(BAD))
    Path(files[0]).write_text(named)
    Path(files[1]).write_text(CLUSTER.replace("v100:", f'"{BAD}":'))
    page, _ = write(files, capsys, *ASKED)
    assert "<img" not in page
    assert "&lt;img" in page


def test_a_folder_that_is_not_there_is_told_before_the_search(
    files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *files, *ASKED, "--html", "nowhere/plan.html")
    assert (code, out) == (7, "")
    assert "cannot write the page" in err


def test_the_searches_of_compared_methods_are_on_the_page(files: list[str]) -> None:
    problem = make_problem(load_profile(files[0]), load_cluster(files[1]), 20_000.0, 1e9)
    compared = compare(problem, others="quick")
    failed = Option("<brute>", None, "found no plan")
    compared = PlanComparison(compared.chosen, (*compared.options, failed))
    beside, found = neighbours(problem, compared.chosen), frontier(problem, 3)
    page = render_plan_page(problem, compared, beside, found)
    searched = [option for option in compared.options if option.trace]
    assert page.count("schedules billed</text>") == len(searched) > 3
    for option in searched:
        assert f'<th scope="row" data-head="Method">{option.method}</th>' in page
    assert '<th scope="row" data-head="Method">&lt;brute&gt;</th>' in page
    assert "found no plan" in page
