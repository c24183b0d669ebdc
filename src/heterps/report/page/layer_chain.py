"""A model as a chain of layers: each with its name and time, in a box that is its stage, in the colour of its resource.

 2 × cpu   1.25 ms  slowest           1 × v100   0.60 ms
+-------------------------------+    +---------------+
| embedding        concat       |    | fc1           |      The bar below a time is its share of the longest.
| 1.20 ms =======  0.05 ms .    |    | 0.60 ms ===   |      Everything is text, for screen readers too.
+-------------------------------+    +---------------+

chain.html.j2 draws it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from heterps.planning.plan import Plan, Stage
from heterps.profiling.profile import LayerProfile, Profile
from heterps.report.figures import batch_time
from heterps.report.terminal.profile_table import size

NUM_COLOURS = 6
"""Number of colours that style.css has for resources; further ones start over."""


@dataclass(frozen=True)
class ChainLayer:
    """A layer. `told` is more about it, as a tooltip; `share` is that of the longest bar, None without one."""

    name: str
    seconds: str = ""
    told: str = ""
    share: float | None = None


@dataclass(frozen=True)
class ChainStage:
    """A stage, or the servers, which have no layers."""

    colour: str
    title: str
    layers: tuple[ChainLayer, ...]
    seconds: str = ""
    is_slowest: bool = False

    @property
    def has_times(self) -> bool:
        return any(layer.seconds for layer in self.layers)


def planned_chain(
    plan: Plan, profile: Profile | None, colours: Mapping[str, str] | None = None
) -> list[ChainStage] | None:
    """The layers of a plan by stage, with times where the profile is of these layers. None where it names none.

    `colours` maps resources to classes of style.css; None: in the order in which they come.
    """
    names = plan.layers or (None if profile is None else tuple(layer.name for layer in profile.layers))
    if names is None or len(names) != plan.stages[-1].last + 1:
        return None
    if profile is not None and tuple(layer.name for layer in profile.layers) != tuple(names):
        profile = None
    known = colours or colours_of(stage.resource for stage in plan.stages)
    times = {} if profile is None else {stage: _seconds(profile, stage) for stage in plan.stages}
    longest_s = max((max(seconds, default=0.0) for seconds in times.values()), default=0.0)
    return [
        ChainStage(
            known.get(stage.resource, "colour-0"),
            f"Stage {number}: {stage.count:,} × {stage.resource}",
            tuple(
                _layer(names[index], None if profile is None else profile.layers[index], stage.resource, longest_s)
                for index in range(stage.first, stage.last + 1)
            ),
        )
        for number, stage in enumerate(plan.stages, 1)
    ]


def colours_of(resources: Iterable[str]) -> dict[str, str]:
    """Classes of style.css for resources, in the order in which they come."""
    return {name: f"colour-{number % NUM_COLOURS}" for number, name in enumerate(dict.fromkeys(resources))}


def _seconds(profile: Profile, stage: Stage) -> list[float]:
    costs = [layer.costs.get(stage.resource) for layer in profile.layers[stage.first : stage.last + 1]]
    return [cost.compute_s for cost in costs if cost is not None]


def _layer(name: str, layer: LayerProfile | None, resource: str, longest_s: float) -> ChainLayer:
    cost = None if layer is None else layer.costs.get(resource)
    if layer is None or cost is None:
        return ChainLayer(name, told="" if layer is None else layer.kind)
    told = f"{layer.kind}{': ' if layer.kind else ''}computes {batch_time(cost.compute_s)}, "
    told += f"moves parameters {batch_time(cost.sync_s)}, {size(layer.weight_bytes)} of weights"
    told += ", estimated" if cost.estimated else ""
    return ChainLayer(name, batch_time(cost.compute_s), told, cost.compute_s / longest_s if longest_s else 0.0)
