"""Bounds by values of units, and searches, where units are sold in offers that are limited."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from heterps.config import Cluster, Machine, Resource, Spot
from heterps.config.policy_words import parse_policy
from heterps.planning import offer_chains
from heterps.planning.chain_kernels import count_units
from heterps.planning.cost import Problem
from heterps.planning.kernels import traffic_of
from heterps.planning.market import cover
from heterps.planning.optimum import with_floor
from heterps.planning.real import Conditions
from heterps.planning.schedulers.base import SearchBudget, search
from heterps.planning.schedulers.brute import Brute
from heterps.planning.schedulers.exact import Exact
from heterps.profiling.profile import Cost, LayerProfile, Profile


@pytest.mark.parametrize("risk", [0.0, 30.0], ids=["on demand", "risky"])
@pytest.mark.parametrize("seed", range(6))
def test_no_values_of_units_raise_the_bound_above_the_least_cover(seed: int, risk: float) -> None:
    """Spot units up to a limit, machines of several units, billing steps, start-up and traffic, at any tau."""
    problem = problem_of_offers(seed, risk)
    rng, found, hi = np.random.default_rng(seed), offer_chains.OfferChains(problem), problem.tau_max
    for width in (1.0, 1.1, 3.0):
        least = min(least_cover(problem, tau) for tau in np.geomspace(hi / width, hi, 9))
        for size in (0.0, 0.3, 1.0, 3.0, 10.0):
            found.values = problem.prices * (1 + size * rng.random(3)) + 0.01 * size * rng.random(3)
            assert found.bound(hi / width, hi, math.inf) <= least * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_the_best_values_come_near_the_least_cover(seed: int) -> None:
    problem = problem_of_offers(seed, 0.0)
    found, tau = offer_chains.OfferChains(problem), problem.tau_max
    servers, least = found._servers(tau), least_cover(problem, tau)
    assert servers is not None
    known = found.bound(tau, tau, math.inf)
    raised = found._raise_bound(tau, math.inf if math.isinf(least) else 2 * least, servers)
    assert known * (1 - 1e-9) <= raised <= least * (1 + 1e-9)
    assert raised >= 0.75 * least, "the rest is due to parts of machines and mixes of chains"


def problem_of_offers(seed: int, risk: float) -> Problem:
    """Five layers on three resources, with offers of few units each."""
    rng = np.random.default_rng(seed)
    layers = tuple(
        LayerProfile(
            name=f"layer{i}", server_s=0.2, input_bytes=10**7, dense_bytes=10**6, row_bytes=10**7,
            costs={
                name: Cost(compute_s=s, sync_s=0.02, input_s=0.01, alpha=0.95, beta=0.9)
                for name, s in zip("abc", rng.uniform(0.3, 4.0, 3) * (1.0, 0.2, 0.1), strict=True)
            },
        )
        for i in range(5)
    )  # fmt: skip
    spot = Spot(usd_per_hour=0.3, limit=3, interruptions_per_hour=risk)
    resources = {
        "a": Resource(usd_per_hour=0.05, limit=20, zone="x", billing_s=60, port_gbps=10),
        "b": Resource(device="cuda", usd_per_hour=1.0, limit=6, spot=spot, startup_s=100, zone="y", port_gbps=10),
        "c": Resource(device="cuda", usd_per_hour=2.0, limit=0, spot=spot, zone="x", port_gbps=10),
    }
    box = Machine(units={"c": 4, "a": 8}, usd_per_hour=float(rng.uniform(3, 7)), limit=2)
    cluster = Cluster(resources=resources, machines={"box": box}, server_resource="a", egress_usd_per_gb=0.002)
    profile = Profile(version=2, model="offers", batch_size=100, layers=layers)
    return Problem(profile, cluster, 160.0, samples=1e6, conditions=Conditions(parse_policy("asp")))


def least_cover(problem: Problem, tau: float) -> float:
    """Of all schedules: the least weight of offers that have the units for tau, written from the definition."""
    given, best = problem.kernel_inputs._replace(tau_max=tau), math.inf
    for schedule in itertools.product(range(len(problem.resources)), repeat=problem.num_layers):
        chosen, units = np.array(schedule, np.int16), np.zeros(len(problem.resources), np.int64)
        count_units(given, chosen, units)
        if (units <= problem.limits).all():
            traffic = float(traffic_of(given, chosen))
            offers = problem.market.offers
            best = min(best, cover(offers, units, tau, traffic, np.zeros(len(offers.usd), np.int64)))
    return best


@pytest.mark.parametrize("floor", [60.0, 110.0, 160.0, 230.0])
@pytest.mark.parametrize("seed", range(4))
def test_a_search_among_offers_finds_the_cheapest_plan(
    seed: int, floor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offer_chains, "SMALL", 0)  # as in large problems, values come before labels
    problem = with_floor(problem_of_offers(seed, 2.0), floor)
    exact = search(problem, Exact(problem, seed=0), SearchBudget())
    brute = search(problem, Brute(problem, seed=0), SearchBudget())
    assert exact.usd == pytest.approx(brute.usd, rel=1e-3), "billing has steps"
    assert exact.bound_usd <= brute.usd * (1 + 1e-9)
    assert exact.bound_usd >= exact.usd * (1 - 1e-3) or math.isinf(exact.usd)
