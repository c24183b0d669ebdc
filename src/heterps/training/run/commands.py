"""What commands say to a running job, and what it answers (see control.py). No torch here: commands start at once."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from heterps.wire import Codec

MAX_EVERY_S = 3600.0
"""Most seconds between two versions that a job may be asked for."""


class AskStatus(Struct, frozen=True, tag="ask_status"):
    """Ask how far the job is, and what its stages do; the answer is a CommandReply, with JSON."""


class AskServers(Struct, frozen=True, tag="ask_servers"):
    """Ask what the servers of the job hold and do; the answer is a CommandReply, with a JSON list of ServerStats."""


class Scale(Struct, frozen=True, tag="scale"):
    """Run stage `stage`, from 0 on, with `count` workers."""

    stage: Annotated[int, Meta(ge=0, lt=2**53)]
    count: Annotated[int, Meta(ge=1, lt=2**15)]


class Replan(Struct, frozen=True, tag="replan"):
    """Go on by this plan, from a checkpoint that is made now, with this cluster: names of files in the run's folder."""

    plan: str
    cluster: str | None = None


class Follow(Struct, frozen=True, tag="follow"):
    """Write a version of the model every `every_s`, into the run's stream; for a while, so ask again in time."""

    every_s: Annotated[float, Meta(gt=0, le=MAX_EVERY_S)]


class CommandReply(Struct, frozen=True, tag="told"):
    """An answer: what was done or will be, or why not."""

    text: str
    is_error: bool = False


ToJob = AskStatus | AskServers | Scale | Replan | Follow


def command_codec() -> Codec[ToJob | CommandReply]:
    return Codec(ToJob | CommandReply)
