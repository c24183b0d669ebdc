"""Random problems with facts about machines, small enough for real_oracle.py to try every plan."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import assume
from hypothesis import strategies as st
from planning_oracle import COSTS, PRICES, SECONDS

from heterps.config import Cluster, Machine, Resource, Spot
from heterps.profiling.profile import LayerProfile, Overhead, Profile

FACTS = ("memory", "ports", "spot", "machines", "startup", "billing", "overhead", "whole", "zones", "disks")


@st.composite
def real_problems(
    draw: st.DrawFn, facts: Sequence[str] = FACTS, max_layers: int = 3, max_limit: int = 3
) -> tuple[Profile, Cluster, float]:
    """(profile, cluster, floor) with some of the facts about machines."""
    chosen = draw(st.sets(st.sampled_from(facts), min_size=1)) if len(facts) > 1 else set(facts)
    names = ["cpu", "gpu"]
    layers = []
    for number in range(draw(st.integers(1, max_layers))):
        sizes = st.sampled_from([0, 10**8, 10**9])
        layers.append(
            LayerProfile(
                name=f"layer{number}",
                server_s=(server_s := draw(st.just(0.0) | SECONDS)),
                server_fixed_s=server_s * draw(st.sampled_from([0.0, 0.5, 1.0])),
                input_bytes=draw(sizes),
                dense_bytes=draw(sizes),
                row_bytes=draw(sizes),
                activation_bytes=draw(sizes),
                costs={
                    name: draw(COSTS).model_copy(update={"corrected": "whole" in chosen and draw(st.booleans())})
                    for name in names
                },
            )
        )
    resources = {}
    for name in names:
        more: dict[str, object] = {}
        if "memory" in chosen:
            more["memory_gb"] = draw(st.sampled_from([1.0, 3.0, 8.0]))
        if "ports" in chosen:
            more["port_gbps"] = draw(st.sampled_from([1.0, 8.0, 100.0]))
        if "startup" in chosen:
            more["startup_s"] = draw(st.sampled_from([0.0, 60.0, 600.0]))
        if "billing" in chosen:
            more["billing_s"] = draw(st.sampled_from([0.0, 60.0, 3600.0]))
            more["minimum_s"] = draw(st.sampled_from([0.0, 600.0]))
        if "spot" in chosen and draw(st.booleans()):
            more["spot"] = Spot(
                usd_per_hour=draw(PRICES),
                limit=draw(st.integers(0, 2)),
                interruptions_per_hour=draw(st.sampled_from([0.0, 0.5, 3.0])),
                lost_s=draw(st.sampled_from([None, 375.0])),
            )
        if "zones" in chosen:
            more["zone"] = draw(st.sampled_from(["a", "b"]))
        if "disks" in chosen:
            more["disk_gb"] = draw(st.sampled_from([None, 0.5, 2.0]))
            more["disk_usd_per_gb_hour"] = draw(st.sampled_from([0.0, 0.1, 5.0]))
        device = "cpu" if name == "cpu" else "cuda"
        resources[name] = Resource(
            device=device, usd_per_hour=draw(PRICES), limit=draw(st.integers(1, max_limit)), **more
        )
    machines = {}
    if "machines" in chosen:
        units = draw(st.sampled_from([{"gpu": 2}, {"gpu": 2, "cpu": 3}, {"gpu": 1, "cpu": 1}, {"cpu": 3}]))
        machines["box"] = Machine(units=units, usd_per_hour=draw(PRICES), limit=draw(st.integers(1, 2)))
    overheads, whole_steps = None, None
    if "overhead" in chosen:
        names_of = ("worker_s", "message_s", "free_message_s", "free_fixed_s", "free_divided_s", "start_s")
        small = st.sampled_from([0.0, 0.0, 0.1, 0.7])
        overheads = {"local": Overhead(batch_s=draw(SECONDS), **{of: draw(small) for of in names_of})}
    if "whole" in chosen:
        whole_steps = {1: draw(st.sampled_from([0.9, 1.0, 1.5, 3.0]))}
        if overheads and draw(st.booleans()):
            overheads["inline"] = Overhead(batch_s=draw(st.sampled_from([0.1, 2.0])))
    profile = Profile(
        version=2, model="random", batch_size=100, layers=tuple(layers), overheads=overheads, whole_steps=whole_steps
    )
    floor = profile.batch_size / draw(st.sampled_from([1.0, 4.0, 20.0]) | st.floats(0.5, 60.0))
    egress: float | dict[str, dict[str, float]] = 0.0
    if "zones" in chosen:
        zones = {str(resource.zone) for resource in resources.values()}
        for machine in machines.values():
            assume(len({resources[name].zone for name in machine.units}) == 1)
        prices = st.sampled_from([0.0, 0.01, 1.0, 30.0])
        by_pair = {a: {b: draw(prices) for b in zones if b != a} for a in sorted(zones)}
        egress = draw(prices) if draw(st.booleans()) else by_pair
    cluster = Cluster(resources=resources, server_resource="cpu", machines=machines, egress_usd_per_gb=egress)
    return profile, cluster, floor
