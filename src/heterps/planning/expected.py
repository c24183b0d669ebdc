"""What to expect of a plan for rented machines: the interval of its throughput, and the terms it rests on.

seconds between two batches = compute + communication or servers of the bottleneck + the rest
                              (the rest is below 0 where they overlap, above 0 where batches wait for each other)

error    of the layers' times   between runs   of a sum that no run has tested   of times from data sheets
         Cost.error             DRIFT          UNTESTED, unless trials reached   ESTIMATED, if the plan has such
"""

from __future__ import annotations

from heterps.planning.cost import Problem
from heterps.planning.explain import bottleneck, stations
from heterps.planning.plan import Plan
from heterps.planning.prediction import DRIFT, ESTIMATED, UNTESTED, Prediction, combined, layers_error


def expected(problem: Problem, plan: Plan) -> Prediction | None:
    """Predict a run by a plan of this problem. None by the paper's bill, which knows neither policies nor machines."""
    if problem.conditions is None or not plan.is_predicted:
        return None
    found = stations(problem, plan)
    slowest = bottleneck(found, plan)
    is_server = slowest is found[-1] and len(found) > len(plan.stages)
    seconds = problem.profile.batch_size / plan.throughput
    is_tested = problem.reached != 1.0
    layers = [
        layer.costs[stage.resource]
        for stage in plan.stages
        for layer in problem.profile.layers[stage.first : stage.last + 1]
    ]
    parts = [layers_error(layers), DRIFT]
    parts += [] if is_tested else [UNTESTED]
    parts += [ESTIMATED] if plan.estimated else []
    basis = "trials of such plans" if is_tested else "the sum of the layers, which no run has tested"
    if plan.estimated:
        basis += f", and estimates for {', '.join(plan.estimated)}"
    return Prediction(
        compute_s=0.0 if is_server else slowest.compute_s,
        servers_s=slowest.compute_s if is_server else 0.0,
        network_s=slowest.comm_s,
        overhead_s=seconds - slowest.compute_s - slowest.comm_s,
        error=combined(*parts),
        basis=basis,
    )
