"""Random planning problems, much more varied than those of problems.py, to train a policy on (pretrain.py)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from heterps.config import Cluster, Resource
from heterps.planning.cost import Problem
from heterps.planning.schedulers.features import fastest_s
from heterps.profiling.profile import Cost, LayerProfile, Profile

Floats = npt.NDArray[np.float64]

BATCH_SIZE = 4096
COMPUTE_MS = {"embedding": 3.0, "linear": 30.0, "activation": 1.5, "concat": 1.0, "interaction": 8.0}
SYNC_MS = {"embedding": 0.3, "linear": 0.06}
SERVER_MS = {"embedding": 1.0, "linear": 0.05}
INPUT_MS = 0.6
"""What layers take on a CPU core, on average; the other times are 0."""


def random_problem(rng: np.random.Generator, num_layers: int, num_resources: int) -> Problem:
    """A made-up model on a made-up cluster of CPUs and GPUs, with a floor between 1/60 and 2/3 of the fastest pace.

    Layers differ by orders of magnitude, resources by up to 16 times in compute and in their link; prices follow speed
    loosely; a quarter of the limits are low. Some problems have no plan.
    """
    kinds = _kinds(rng, num_layers)
    on_core = _on_core(rng, kinds)
    is_gpu = rng.random(num_resources) < rng.uniform(0.2, 0.8)
    is_gpu[:2] = [False, True][:num_resources]
    gpu_speed, gpu_price, cpu_price = (
        np.exp(rng.uniform(*np.log(ends))) for ends in ((15, 250), (0.4, 5), (0.02, 0.1))
    )
    least_alpha = 1 - rng.uniform(0, 0.5)
    resources: dict[str, Resource] = {}
    costs: list[dict[str, Cost]] = [{} for _ in kinds]
    for i, gpu in enumerate(is_gpu):
        speed, link = 2.0 ** rng.uniform(-2, 2, size=2)
        name = f"{'gpu' if gpu else 'cpu'}-{i}"
        price = (gpu_price if gpu else cpu_price) * np.sqrt(speed * link) * 2.0 ** rng.uniform(-0.5, 0.7)
        limit = (32 if gpu else 480) * rng.uniform(0.05, 1) / speed
        limit *= rng.uniform(0.02, 0.3) if rng.random() < 0.25 else 1.0
        device = "cuda" if gpu else "cpu"
        resources[name] = Resource(device=device, usd_per_hour=float(price), limit=max(1, int(limit)))
        drawn = _costs(rng, kinds, on_core, gpu_speed if gpu else None, speed, link, least_alpha)
        for layer, cost in zip(costs, drawn, strict=True):
            layer[name] = cost
    layers = tuple(
        LayerProfile(name=f"layer{i}", kind=kind, server_s=float(on_core["server"][i]), costs=costs[i])
        for i, kind in enumerate(kinds)
    )
    profile = Profile(model="random", batch_size=BATCH_SIZE, layers=layers)
    cluster = Cluster(resources=resources, server_resource=next(iter(resources)))
    fastest = fastest_s(Problem(profile, cluster, 1.0, samples=1e9))
    tau = fastest * np.exp(rng.uniform(np.log(1.5), np.log(60)))
    return Problem(profile, cluster, BATCH_SIZE / tau, samples=1e9)


def _kinds(rng: np.random.Generator, num_layers: int) -> list[str]:
    kinds = ["embedding"]
    while len(kinds) < num_layers:
        drawn = rng.choice(["embedding", "linear", "concat", "interaction"], p=[0.25, 0.5, 0.12, 0.13])
        kinds += ["linear", "activation"] if drawn == "linear" and rng.random() < 0.8 else [str(drawn)]
    return kinds[:num_layers]


def _on_core(rng: np.random.Generator, kinds: list[str]) -> dict[str, Floats]:
    """Draw what each layer takes on a CPU core, in seconds: compute, sync, input and server."""

    def drawn(means: dict[str, float], own: float, common: float) -> Floats:
        mean = np.array([means.get(kind, 0.0) for kind in kinds])
        seconds: Floats = mean * np.exp(rng.normal(0, own, len(kinds)) + rng.normal(0, common)) * 1e-3
        return seconds

    return {
        "compute": drawn(COMPUTE_MS, rng.uniform(0.2, 1.2), 0.7),
        "sync": drawn(SYNC_MS, 1.0, 1.0),
        "input": drawn(dict.fromkeys(COMPUTE_MS, INPUT_MS), 0.7, 0.7),
        "server": drawn(SERVER_MS, 0.8, 1.0),
    }


def _costs(
    rng: np.random.Generator,
    kinds: list[str],
    on_core: dict[str, Floats],
    gpu_speed: float | None,
    speed: float,
    link: float,
    least_alpha: float,
) -> list[Cost]:
    """Draw the costs of the layers on one resource, a GPU if `gpu_speed` is given: that of dense layers."""
    num = len(kinds)
    dense = np.array([kind not in ("embedding", "concat") for kind in kinds])
    by_kind = np.ones(num) if gpu_speed is None else np.where(dense, gpu_speed, rng.uniform(0.5, 2))
    taste = 2.0 ** rng.normal(0, rng.uniform(0, 0.5), num)  # no device is as good at every layer
    sync_slower, input_slower = (1.0, 1.0) if gpu_speed is None else (rng.uniform(1, 4), rng.uniform(1, 2.5))
    rough = np.where(rng.random(num) < 0.6, rng.uniform(0.9, 1, num), rng.uniform(0, 1, num))
    alpha = rough if rng.random() < 0.5 else rng.uniform(least_alpha, 1, num)
    whole = 0.0 if rng.random() < 0.6 else rng.uniform(0, 1)  # dense weights travel whole to every unit
    beta = np.where(np.array(kinds) == "linear", whole, rng.uniform(0.6, 1, num))
    columns = {
        "compute_s": on_core["compute"] / (by_kind * speed * taste),
        "sync_s": on_core["sync"] / link * sync_slower,
        "input_s": on_core["input"] / link * input_slower,
        "alpha": alpha,
        "beta": beta,
    }
    return [Cost(**{name: float(column[i]) for name, column in columns.items()}) for i in range(num)]
