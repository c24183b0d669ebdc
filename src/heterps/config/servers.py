"""The parameter servers of a job, and how its workers speak with them."""

from __future__ import annotations

from typing import Annotated

from pydantic import (
    Field,
    NonNegativeFloat,
    PositiveFloat,
)

from heterps.config.base import Frozen

Chance = Annotated[float, Field(ge=0, le=1)]


class Faults(Frozen):
    """What goes wrong on the way of a message, to see that a job bears it. Chances are by message."""

    drop: Chance = Field(0.0, description="Chance that a message is lost.")
    double: Chance = Field(0.0, description="Chance that a message is delivered twice.")
    delay_s: NonNegativeFloat = Field(0.0, description="Messages are late by up to so many seconds, in order.")
    reorder: Chance = Field(0.0, description="Chance that later messages may overtake this one, which is held back.")
    corrupt: Chance = Field(0.0, description="Chance that one bit of a message is flipped.")
    cut: Chance = Field(0.0, description="Chance that a message breaks the way to its receiver for a while.")
    cut_s: PositiveFloat = Field(1.0, description="How long a way stays broken; what is sent in that time is lost.")
