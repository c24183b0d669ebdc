"""A model as a chain of layers: each with its name, kind and time, in the colour of its stage or resource.

 stage 1: cpu                      stage 2: v100
+-----------+   +-----------+     +-----------+         A group is a run of neighbours with one label.
| embedding | > | concat    |  >  | fc1       |         The bar below a time is its share of the longest.
| 1.20 ms   |   | 0.05 ms   |     | 0.60 ms   |         Long chains wrap; everything is text, for screen readers too.
| =======   |   | .         |     | ===       |
+-----------+   +-----------+     +-----------+
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup

from heterps.planning.plan import Plan
from heterps.profiling.profile import LayerProfile, Profile
from heterps.report.figures import batch_time
from heterps.report.page.panel import tag
from heterps.report.terminal.profile_table import size

NUM_COLOURS = 6
"""Number of colours that style.css has for resources; further ones start over."""


@dataclass(frozen=True)
class ChainLayer:
    """One layer of a chain. `seconds` are of one batch; None where they are not known."""

    name: str
    kind: str
    seconds: float | None
    group: str
    """The label of its stage or resource; neighbours with the same label stand under one heading."""
    note: str = ""
    """More about the layer, as a tooltip."""


def layer_chain(layers: Sequence[ChainLayer], colours: Mapping[str, str] | None = None) -> Markup:
    """The chain as HTML. `colours` maps groups to classes such as `colour-0`; None: in the order in which they come."""
    groups = dict.fromkeys(layer.group for layer in layers)
    classes = colours or {group: f"colour-{i % NUM_COLOURS}" for i, group in enumerate(groups)}
    longest = max((layer.seconds for layer in layers if layer.seconds), default=0.0)
    return tag(
        "ol",
        *(
            tag(
                "li",
                tag("h3", group) if group else "",
                tag("ol", *(_box(layer, longest) for layer in some)),
                class_=classes.get(group, "colour-0"),
            )
            for group, some in groupby(layers, lambda layer: layer.group)
        ),
        class_="chain",
    )


def planned_chain(plan: Plan, profile: Profile | None, colours: Mapping[str, str] | None = None) -> Markup | None:
    """The layers of a plan by stage, with times where the profile is of these layers. None where it names none.

    `colours` maps resources to classes; None: in the order in which they come.
    """
    names = plan.layers or (None if profile is None else tuple(layer.name for layer in profile.layers))
    if names is None or len(names) != plan.stages[-1].last + 1:
        return None
    if profile is not None and tuple(layer.name for layer in profile.layers) != tuple(names):
        profile = None
    resources = dict.fromkeys(stage.resource for stage in plan.stages)
    known = colours or {resource: f"colour-{i % NUM_COLOURS}" for i, resource in enumerate(resources)}
    layers, classes = [], {}
    for number, stage in enumerate(plan.stages, 1):
        group = f"Stage {number}: {stage.count:,} × {stage.resource}"
        classes[group] = known.get(stage.resource, "colour-0")
        for index in range(stage.first, stage.last + 1):
            profiled = None if profile is None else profile.layers[index]
            layers.append(_planned_layer(names[index], profiled, stage.resource, group))
    return layer_chain(layers, classes)


def _planned_layer(name: str, layer: LayerProfile | None, resource: str, group: str) -> ChainLayer:
    cost = None if layer is None else layer.costs.get(resource)
    if layer is None or cost is None:
        return ChainLayer(name, "" if layer is None else layer.kind, None, group)
    note = f"computes {batch_time(cost.compute_s)}, moves parameters {batch_time(cost.sync_s)}"
    note += f", {size(layer.weight_bytes)} of weights{', estimated' if cost.estimated else ''}"
    return ChainLayer(name, layer.kind, cost.compute_s, group, note)


def _box(layer: ChainLayer, longest: float) -> Markup:
    parts = [tag("strong", layer.name), tag("span", layer.kind)]
    if layer.seconds is not None:
        share = layer.seconds / longest if longest else 0.0
        parts += [tag("span", batch_time(layer.seconds)), tag("i", style=f"width:{share:.1%}")]
    return tag("li", *parts, **({"title": layer.note} if layer.note else {}))
