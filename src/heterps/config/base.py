"""What every part of the job is made of."""

from __future__ import annotations

from typing import Annotated

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
)

Name = Annotated[str, Field(min_length=1, max_length=200)]


class Frozen(BaseModel):
    """A value: fixed once made, typos refused, no NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())
