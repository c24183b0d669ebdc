"""The parameter servers of a job, and how its workers speak with them."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from heterps.config.base import Frozen, Name

Chance = Annotated[float, Field(ge=0, le=1)]


class Faults(Frozen):
    """What goes wrong on the way of a message, to see that a job bears it. Chances are by message."""

    drop: Chance = Field(0.0, description="Chance that a message is lost.")
    double: Chance = Field(0.0, description="Chance that a message is delivered twice.")
    delay_s: NonNegativeFloat = Field(0.0, description="Messages are late by up to so many seconds, in order.")
    reorder: Chance = Field(0.0, description="Chance that later messages may overtake this one, which is held back.")
    reorder_s: PositiveFloat = Field(0.02, description="For how long at most it is held back.")
    corrupt: Chance = Field(0.0, description="Chance that one bit of a message is flipped.")
    cut: Chance = Field(0.0, description="Chance that a message breaks the way to its receiver for a while.")
    cut_s: PositiveFloat = Field(1.0, description="How long a way stays broken; what is sent in that time is lost.")


class ValueCoding(Frozen):
    """How the values of a table travel. What the servers hold is float32 whatever this says."""

    values: Literal["fp32", "fp16", "bf16"] = Field("fp32", description="Rounded to this on the way, to nearest even.")
    compression: Literal["lz4", "zstd"] | None = Field(None, description="Of the values on the way; none: as they are.")
    least_bytes: NonNegativeInt = Field(4096, description="Smaller frames are not compressed.")


class Servers(Frozen):
    """Parameter servers: the tables live in processes of their own, a shard each."""

    count: PositiveInt | None = Field(
        None,
        description="Servers that are started for the run, on this machine; none: one, unless there are addresses.",
    )
    channel: Literal["ipc", "memory"] = Field(
        "ipc",
        description="How started servers are reached: processes by sockets and shared memory, or threads of this one.",
    )
    addresses: tuple[Name, ...] = Field(
        (), description="Of servers that run already (`heterps server start`), in their order; none are started then."
    )
    key: Name | None = Field(None, description="Key file of the job (`heterps keys create`); tcp addresses need it.")
    coding: ValueCoding = Field(ValueCoding(), description="How values travel.")
    codings: dict[Name, ValueCoding] = Field({}, description="The same for single tables, by their names.")
    staleness: NonNegativeInt = Field(
        0,
        description="By how many pushes rows may be behind. 0: by none, and training is exact. Above, rows of the next "
        "batch are pulled while this one is computed, and copies of hot rows are used again as long as they may.",
    )
    cache_bytes: NonNegativeInt = Field(64 << 20, description="Memory of a worker for such copies, for each table.")
    deadline_s: PositiveFloat = Field(60.0, description="After so long without an answer of a server the run ends.")
    retry_s: PositiveFloat = Field(1.0, description="After so long a server is asked again; then twice as long.")
    faults: Faults = Field(Faults(), description="What goes wrong on the way, on purpose: tables must not show it.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.addresses and self.count is not None:
            raise ValueError(
                "count is of servers that are started for the run, addresses are of others: give one of them"
            )
        if self.addresses and self.channel == "memory":
            raise ValueError("servers at addresses are reached by sockets: leave channel out")
        if self.key is not None and not self.addresses:
            raise ValueError("key is for servers at addresses; those started for the run are reached by ipc only")
        return self

    @property
    def num(self) -> int:
        """Of the servers, started or found."""
        return len(self.addresses) or self.count or 1
