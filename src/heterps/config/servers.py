"""The parameter servers of a job, and how its workers communicate with them."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from heterps.config.base import Frozen, Name

Chance = Annotated[float, Field(ge=0, le=1)]


class Faults(Frozen):
    """Injected network faults, to test that a job survives them. Probabilities are per message."""

    drop: Chance = Field(0.0, description="Probability that a message is lost.")
    double: Chance = Field(0.0, description="Probability that a message is delivered twice.")
    delay_s: NonNegativeFloat = Field(0.0, description="Largest random delay of a message; the order is kept.")
    reorder: Chance = Field(0.0, description="Probability that a message is held back, so that later ones overtake it.")
    reorder_s: PositiveFloat = Field(0.02, description="Longest time for which a message is held back.")
    corrupt: Chance = Field(0.0, description="Probability that one bit of a message is flipped.")
    cut: Chance = Field(0.0, description="Probability that a message cuts the connection to its receiver for a while.")
    cut_s: PositiveFloat = Field(1.0, description="Seconds for which a connection stays cut; what is sent is lost.")


class ValueCoding(Frozen):
    """The encoding of a table's values in messages. Servers always store float32."""

    values: Literal["fp32", "fp16", "bf16"] = Field(
        "fp32", description="Type to which values are rounded in messages, to nearest even."
    )
    compression: Literal["lz4", "zstd"] | None = Field(
        None, description="Compression of the values in messages; null: none."
    )
    least_bytes: NonNegativeInt = Field(4096, description="Frames below this size are not compressed.")


class Servers(Frozen):
    """Parameter servers: each holds one shard of the tables."""

    count: PositiveInt | None = Field(
        None,
        description="Number of servers to start for the run on this machine; null: one, unless there are addresses.",
    )
    replicas: Literal[0, 1] = Field(
        0,
        description="1: every server has a mirror, a second process that holds the same shard, push by push. When one "
        "of the two is lost the other goes on, nothing is lost, and nobody goes back to a checkpoint. For servers that "
        "the launchers `local` and `ray` start as processes.",
    )
    channel: Literal["ipc", "memory"] = Field(
        "ipc",
        description="How started servers run: `ipc` as processes, reached by sockets and shared memory; `memory` as "
        "threads of this process.",
    )
    addresses: tuple[Name, ...] = Field(
        (), description="Addresses of running servers (`heterps server start`), in their order; no others are started."
    )
    key: Name | None = Field(None, description="Key file of the job (`heterps keys create`); tcp addresses need it.")
    coding: ValueCoding = Field(ValueCoding(), description="Encoding of values in messages.")
    codings: dict[Name, ValueCoding] = Field({}, description="Encoding of the values of single tables, by table name.")
    staleness: NonNegativeInt = Field(
        0,
        description="Number of a worker's pushes by which rows may be out of date; ssp and dssp bound it too. With 0 "
        "every row is as new as the policy has it. Above 0, copies of hot rows are used again within this bound, and "
        "in bsp the rows of the next batch are pulled while this one is computed.",
    )
    cache_bytes: NonNegativeInt = Field(64 << 20, description="Memory of each worker for cached rows, for each table.")
    deadline_s: PositiveFloat = Field(
        60.0, description="Seconds to wait for an answer of a server before the run ends with an error."
    )
    silence_s: PositiveFloat | None = Field(
        None,
        description="Seconds without a word of a server after which it counts as lost, though its process may live; "
        "null: `deadline_s`, and half of it with mirrors, which must take over in time. A server's longest step, such "
        "as to load its rows, has to take less. For servers that the run starts as processes, and that are not "
        "emulated.",
    )
    wait_s: NonNegativeFloat | None = Field(
        None,
        description="Seconds for which servers wait when the process of `heterps train` was killed; null: 60. A run "
        "that is resumed within that time goes on with what they hold, and not from its last checkpoint. 0: they end "
        "at once. For servers that the launcher `local` starts as processes; others end at once.",
    )
    retry_s: PositiveFloat = Field(
        1.0, description="Seconds until a request is sent again; the time doubles with each attempt."
    )
    faults: Faults = Field(Faults(), description="Injected network faults; the results must not depend on them.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.addresses and self.count is not None:
            raise ValueError(
                "count starts servers for the run, addresses names servers that run already: give one of the two"
            )
        if self.addresses and self.channel == "memory":
            raise ValueError("servers at addresses are reached by sockets: leave channel out")
        if self.replicas and self.addresses:
            raise ValueError(
                "replicas: mirrors are for servers that the run starts, and addresses names servers that run already: "
                "leave one of the two out"
            )
        if self.replicas and self.channel == "memory":
            raise ValueError(
                "replicas: servers as threads (channel: memory) all end with this process: leave channel out"
            )
        if self.silence_s is not None and self.silence_s >= self.deadline_s:
            raise ValueError(
                f"silence_s: a server that is silent must be noticed before others give up after deadline_s, "
                f"{self.deadline_s:g} s: give less than that, or leave it out"
            )
        if self.silence_s is not None and (self.addresses or self.channel == "memory"):
            raise ValueError("silence_s is for servers that the run starts as processes: leave it out")
        if self.key is not None and not self.addresses:
            raise ValueError("key is for servers at addresses; those started for the run are reached by ipc only")
        return self

    @property
    def longest_silence_s(self) -> float:
        """Seconds without a word after which a server counts as lost."""
        if self.silence_s is not None:
            return self.silence_s
        return self.deadline_s / 2 if self.replicas else self.deadline_s

    @property
    def num(self) -> int:
        """Number of servers, started or found by their addresses."""
        return len(self.addresses) or self.count or 1
