"""Base classes of the models that heterps reads from files and writes to them."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Name = Annotated[str, Field(min_length=1, max_length=200)]


class Frozen(BaseModel):
    """Base of models that people write: immutable; unknown fields, NaN and infinity are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())


class Record(BaseModel):
    """Base of models that tools write: immutable; fields that a newer version adds are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")
