"""The workers of a job: how many paths there are through them, and how they speak with each other."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from heterps.config.base import Frozen


class Workers(Frozen):
    """Workers run the stages of the plan, on the launchers `local` and `ray`."""

    channel: Literal["ipc", "memory"] = Field(
        "ipc",
        description="Workers are processes, reached by sockets and shared memory, or threads of this one.",
    )
    lanes: PositiveInt | None = Field(
        None,
        description="Paths through the stages. In BSP each takes a micro-batch of every batch, in the other policies "
        "whole batches of its own. None: as many as keep all workers busy.",
    )
    in_flight: PositiveInt | None = Field(
        None, description="Micro-batches that a worker may have under way at once; none: twice the number of stages."
    )
    dense: Literal["servers", "all_reduce"] = Field(
        "servers",
        description="Where dense parameters are kept in step: on the servers, or (in BSP) on the workers of each "
        "stage, which add up their gradients among themselves.",
    )
    values: Literal["fp32", "fp16", "bf16"] = Field(
        "fp32", description="What float32 values are rounded to on their way between stages."
    )
    deadline_s: PositiveFloat = Field(120.0, description="After so long without news of a worker it counts as lost.")
    restarts: NonNegativeInt = Field(
        0,
        description="How often the run goes on by itself from its last checkpoint, with new workers and servers, when "
        "one of them is lost. Errors of the job (its model, its data) end it at once.",
    )


class Emulation(Frozen):
    """Units that are not on this machine: a worker computes for real, then waits until the profile's time is over."""

    scale: PositiveFloat | None = Field(
        None, description="Real seconds for each emulated one; none: as many as this machine needs to keep up."
    )
