"""Base classes of the models that heterps reads from files and writes to them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from heterps.errors import ConfigError
from heterps.validation import explain

Name = Annotated[str, Field(min_length=1, max_length=200)]


class Frozen(BaseModel):
    """Base of models that people write: immutable; unknown fields, NaN and infinity are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())

    def __init__(self, /, **fields: Any) -> None:
        """Raises ConfigError, with a line for each invalid field."""
        try:
            super().__init__(**fields)
        except ValidationError as error:
            kind = type(self)
            problems = [f"{kind.__name__}: {text}" for _, text in explain(error, kind, fields)]
            raise ConfigError("\n".join(problems)) from None

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # a model within a model is validated with it

    def __setattr__(self, name: str, value: Any) -> None:
        try:
            super().__setattr__(name, value)
        except ValidationError:
            kind = type(self).__name__
            raise ConfigError(
                f"{name} of a {kind} cannot be changed, since runs rely on it. Make another {kind} with "
                f"model_copy(update={{{name!r}: ...}})."
            ) from None


class Record(BaseModel):
    """Base of models that tools write: immutable; fields that a newer version adds are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")
