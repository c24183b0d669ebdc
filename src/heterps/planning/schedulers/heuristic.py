"""The heuristic of AIBox (Zhao et al., CIKM 2019): data-heavy layers on the CPU, the rest on the GPU.

    embedding   fc1   fc2   fc3        a layer is data-heavy when it is an embedding, or when on the CPU it takes longer
       cpu      gpu   gpu   gpu        to move its parameters (sync_s) than to compute (compute_s)

AIBox has one kind of each. If the cluster has several, every pair of a CPU and a GPU is tried. A layer that cannot run
on its resource goes to the other of the two.
"""

from __future__ import annotations

import numpy as np

from heterps.devices import is_cpu
from heterps.errors import PlanInfeasible
from heterps.planning.cost import Problem
from heterps.planning.schedulers.base import OneProposal
from heterps.profiling.profile import LayerProfile


class AIBox(OneProposal):
    """The scheduler of method `heuristic`."""

    def __init__(self, problem: Problem, seed: int) -> None:  # noqa: ARG002 - nothing here is random
        devices = [problem.cluster.resources[name].device for name in problem.resources]
        cpus = [t for t, device in enumerate(devices) if is_cpu(device)]
        gpus = [t for t, device in enumerate(devices) if not is_cpu(device)]
        if not (cpus and gpus):
            have = ", ".join(f"{name} ({device})" for name, device in zip(problem.resources, devices, strict=True))
            raise PlanInfeasible(
                "method heuristic divides the layers between a resource whose device is cpu and one whose device is "
                f"not; the cluster rents {have}. Add the other, or choose another method."
            )
        pairs = [_schedule(problem, cpu, gpu) for cpu in cpus for gpu in gpus]
        super().__init__(np.array(pairs, np.int16))


def is_data_heavy(layer: LayerProfile, cpu: str) -> bool:
    cost = layer.costs.get(cpu)
    return layer.kind == "embedding" or (cost is not None and cost.sync_s > cost.compute_s)


def _schedule(problem: Problem, cpu: int, gpu: int) -> list[int]:
    on_cpu, on_gpu = problem.resources[cpu], problem.resources[gpu]
    return [
        cpu if on_gpu not in layer.costs or (is_data_heavy(layer, on_cpu) and on_cpu in layer.costs) else gpu
        for layer in problem.profile.layers
    ]
