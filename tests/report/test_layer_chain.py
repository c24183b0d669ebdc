"""A model as a chain of layers: stages, times, bars and colours, and names that are text."""

from __future__ import annotations

import re

from heterps.planning.plan import Plan, PlannedServers, Stage
from heterps.profiling.profile import Cost, LayerProfile, Profile
from heterps.report.page.layer_chain import planned_chain
from heterps.report.page.templates import render

STAGES = (
    Stage(first=0, last=1, resource="cpu", count=2),
    Stage(first=2, last=2, resource="v100", count=1),
    Stage(first=3, last=3, resource="cpu", count=1),
)
NAMES = ("embedding", "concat", "fc1", "<b>out</b>")
PLAN = Plan(
    method="exact", stages=STAGES, servers=PlannedServers(resource="cpu", count=1), throughput=1, hours=1, usd=1,
    bottleneck="", layers=NAMES,
)  # fmt: skip


def profile(names: tuple[str, ...] = NAMES) -> Profile:
    """A layer takes 4, 1, 2 and 0 ms; the costs of a V100 are estimates."""
    layers = []
    for name, seconds in zip(names, (0.004, 0.001, 0.002, 0.0), strict=True):
        times = {"compute_s": seconds, "sync_s": 0.003, "input_s": 0.0, "alpha": 1.0, "beta": 1.0}
        costs = {"cpu": Cost(**times), "v100": Cost(**times, estimated=True)}
        layers.append(LayerProfile(name=name, kind="linear", costs=costs, server_s=0.0))
    return Profile(model="m", batch_size=8, layers=tuple(layers))


def draw(plan: Plan, known: Profile | None, colours: dict[str, str] | None = None) -> str:
    chain = planned_chain(plan, known, colours)
    assert chain is not None
    values = {"model": "", "meaning": "", "chart": "", "rows": [], "estimated": "", "options": [], "batch_size": 8}
    page = render("frontier.html.j2", chain=chain, **values)
    return page[page.index('<ol class="chain">') :]


def test_layers_stand_in_the_boxes_of_their_stages_with_times_and_shares_of_the_longest() -> None:
    html = draw(PLAN, profile())
    assert re.findall("<strong>(.*?)</strong>", html) == ["Stage 1: 2 × cpu", "Stage 2: 1 × v100", "Stage 3: 1 × cpu"]
    assert re.findall("<span>(.*?)</span>", html) == ["embedding", "concat", "fc1", "&lt;b&gt;out&lt;/b&gt;"]
    assert re.findall(r"</span> ([\d.]+ ms)", html) == ["4.00 ms", "1.00 ms", "2.00 ms", "0.00 ms"]
    assert re.findall(r"width:([\d.]+)%", html) == ["100.0", "25.0", "50.0", "0.0"]
    assert "linear: computes 2.00 ms, moves parameters 3.00 ms, 0 B of weights, estimated" in html


def test_a_resource_that_comes_again_keeps_its_colour_and_colours_can_be_given() -> None:
    assert re.findall(r'<li class="(colour-\d)', draw(PLAN, None)) == ["colour-0", "colour-1", "colour-0"]
    given = draw(PLAN, None, {"v100": "colour-5", "cpu": "colour-2"})
    assert re.findall(r'<li class="(colour-\d)', given) == ["colour-2", "colour-5", "colour-2"]


def test_without_a_profile_of_these_layers_there_are_names_only() -> None:
    for known in (None, profile(("a", "b", "c", "d"))):
        html = draw(PLAN, known)
        assert "embedding" in html
        assert "ms" not in html.partition("</ol>\n<p")[0].replace("items", "")
        assert "width:" not in html


def test_a_plan_that_names_no_layers_has_a_chain_only_by_its_profile() -> None:
    nameless = PLAN.model_copy(update={"layers": None})
    assert planned_chain(nameless, None) is None
    assert "embedding" in draw(nameless, profile())
    longer = nameless.model_copy(update={"stages": (Stage(first=0, last=9, resource="cpu", count=1),)})
    assert planned_chain(longer, profile()) is None
