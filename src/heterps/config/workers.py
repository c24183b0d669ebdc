"""The workers of a job: the number of lanes through them, and how they communicate with each other."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from heterps.config.base import Frozen


class Workers(Frozen):
    """The workers, which run the stages of the plan on the launchers `local` and `ray`."""

    channel: Literal["ipc", "memory"] = Field(
        "ipc",
        description="How workers run: `ipc` as processes, reached by sockets and shared memory; `memory` as threads of "
        "this process.",
    )
    lanes: PositiveInt | None = Field(
        None,
        description="Number of lanes through the stages. In BSP each lane takes a micro-batch of every batch, in the "
        "other policies whole batches, so that a gradient is about lanes - 1 updates old. Null: one lane a worker, and "
        "in a pipeline as many as keep all workers busy.",
    )
    shares: Literal["equal", "fitted"] = Field(
        "equal",
        description="How a batch of BSP is divided among the workers of a plan of one stage: `equal`, or `fitted` to "
        "how fast each worker is, which is measured, so that all are done at the same time.",
    )
    in_flight: PositiveInt | None = Field(
        None, description="Largest number of micro-batches under way in a worker; null: twice the number of stages."
    )
    dense: Literal["servers", "all_reduce"] = Field(
        "servers",
        description="How dense parameters are synchronised: by the servers, or (in BSP only) by an all-reduce of the "
        "gradients among the workers of each stage.",
    )
    values: Literal["fp32", "fp16", "bf16"] = Field(
        "fp32", description="Type to which float32 values are rounded in messages between stages."
    )
    deadline_s: PositiveFloat = Field(
        120.0, description="Seconds without a message after which a worker counts as lost."
    )
    replacements: NonNegativeInt = Field(
        6,
        description="Number of lost workers within an hour that are replaced while the others go on, without a return "
        "to a checkpoint. Beyond it, and where a model has buffers or `dense` is all_reduce, a lost worker ends the "
        "run or uses up one of its `restarts`.",
    )
    backoff_s: NonNegativeFloat = Field(
        1.0,
        description="Seconds to wait before the second worker that is lost within an hour is replaced; twice as long "
        "for each further one, up to a minute.",
    )
    restarts: NonNegativeInt | None = Field(
        None,
        description="Number of automatic restarts within an hour from the last checkpoint, with new workers and "
        "servers, when one of them is lost; the first at once, others after `backoff_s` and longer. Errors of the job "
        "(its model, its data) end the run at once. null: 3, but none before the first checkpoint; with a number, the "
        "run begins anew then.",
    )


class Emulation(Frozen):
    """Emulation of units that this machine lacks: a worker computes, then waits until the profile's time is over."""

    scale: PositiveFloat | None = Field(
        None, description="Real seconds per emulated second; null: as many as this machine needs to keep up."
    )
