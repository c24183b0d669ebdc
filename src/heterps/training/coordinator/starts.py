"""How the workers of a layout start: on real units, or on emulated ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from heterps.config import Job
from heterps.training.protocol.emulated_units import EmulatedServer, StagePace
from heterps.training.protocol.layout import Layout
from heterps.training.worker.stage_work import WorkerStart
from heterps.wire.ports import Port


@dataclass(frozen=True)
class Emulated:
    """What units can do that are not here: those of a layout's stages and servers, by real seconds of an emulated one.

    folder  where the processes of the job keep the state of emulated ports
    """

    scale: float
    paces: Callable[[Layout], list[StagePace]]
    port: Callable[[str, Layout], Port | None] = lambda _, __: None
    server: Callable[[int], EmulatedServer] | None = None
    folder: str = ""


def start_of(
    job: Job, folder: str, emulated: Emulated | None, worker: str, layout: Layout, *, begins: bool = False
) -> WorkerStart:
    """Return who a worker of a layout is, of a job whose processes meet in `folder`; and whether the run `begins`."""
    number = layout.stage_of(worker)
    stage = layout.stages[number]
    device = "cpu" if emulated else job.cluster.resources[stage.resource].device
    port = emulated.port(worker, layout) if emulated else None
    place = (stage.workers.index(worker), len(stage.workers)) if begins else None
    firsts = tuple(s.first for s in layout.stages)
    return WorkerStart(worker, number, firsts, device, folder, stage.units, port, begins=place)
