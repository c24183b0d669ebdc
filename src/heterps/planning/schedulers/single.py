"""Methods `cpu` and `gpu`: all layers on one resource, the cheapest with a CPU device, or with another device."""

from __future__ import annotations

import numpy as np

from heterps.devices import is_cpu
from heterps.errors import PlanInfeasible
from heterps.planning.cost import Problem
from heterps.planning.schedulers.base import OneProposal


class Single(OneProposal):
    """The scheduler of the methods `cpu` and `gpu`."""

    def __init__(self, problem: Problem, *, on_cpu: bool) -> None:
        devices = [problem.cluster.resources[name].device for name in problem.resources]
        chosen = [t for t, device in enumerate(devices) if is_cpu(device) == on_cpu]
        if not chosen:
            have = ", ".join(f"{name} ({device})" for name, device in zip(problem.resources, devices, strict=True))
            raise PlanInfeasible(
                f"method {'cpu' if on_cpu else 'gpu'} needs a resource whose device is {'' if on_cpu else 'not '}cpu; "
                f"the cluster rents {have}. Add one, or choose another method."
            )
        super().__init__(np.repeat(np.array(chosen, np.int16)[:, None], problem.num_layers, axis=1))
