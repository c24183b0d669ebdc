"""A job on workers while it runs: the bar of a training run, and below it each stage, refreshed a few times a second.

train ━━━━━━━━━━╸━━━━━━━━━━━━━━ 24,576/60,000 32,476/s, emulated 0:31 loss 0.5125  AUC 0.7501
stage     workers  samples/s  compute  communicate  wait                queue
1 cpu           3     32,476       5%           3%   93%  █▒··········    0.2
2 v100          1     32,476      91%           3%    6%  ███████████·    3.0
bottleneck stage 2 (v100)  staleness 0  0.0013 USD so far, in 1.8 s, emulated
EMULATED: ...
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import RenderableType
from rich.progress import Progress
from rich.text import Text

from heterps.report.emulated import MARK, banner, is_emulated, late_stages, seconds_word
from heterps.report.figures import duration, usd
from heterps.report.stage_figures import bottleneck, busiest, title
from heterps.report.terminal.stage_table import stage_table

View = dict[str, Any]
"""What Observer.staged is given: `seconds`, `stages`, `staleness`, `usd` and, of emulated units, `emulated`."""


class StagedBar(Progress):
    """A progress bar, and under it the newest `view` of the stages, if there is one."""

    view: View | None = None

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self.view is not None:
            yield from stage_lines(self.view)


def stage_lines(view: View) -> list[RenderableType]:
    """The table of the stages, and what holds for all of them."""
    stages = view["stages"]
    slowest = bottleneck(stages)
    words = [f"bottleneck {title(stages, slowest)}"] if slowest is not None else []
    words.append(f"staleness {view['staleness']:.3g}")
    words.append(f"{usd(view['usd'])} so far, in {duration(view['seconds'])}{seconds_word(view)}")
    lines: list[RenderableType] = [stage_table(stages), Text("  ".join(words))]
    if late := late_stages(view):
        named = ", ".join(title(stages, number) for number in late)
        lines.append(
            Text.assemble(("late: ", "bold yellow"), f"this machine is too slow for {named}; raise emulation.scale")
        )
    if is_emulated(view):
        lines.append(
            Text.assemble((MARK, "bold yellow"), (f": {banner(view)}; the time left beside the bar is real", "dim"))
        )
    return lines


def staged_words(line: dict[str, Any]) -> list[str]:
    """What a line of metrics.jsonl says about stages, phrase by phrase; nothing of a run without stages."""
    if "stages" not in line:
        return []
    words = [usd(line["usd"]), busiest(line["stages"]), f"staleness {line['staleness']:.3g}"]
    if is_emulated(line):
        words.append(f"{MARK} (scale {line['emulated']['scale']:g})")
    if late := late_stages(line):
        words.append("late: " + ", ".join(title(line["stages"], number) for number in late))
    return [word for word in words if word]
