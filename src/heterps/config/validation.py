"""Validation: samples held out of training, and what is done with how well the model does on them."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from heterps.config.base import Frozen, Name


class Split(Frozen):
    """The rows of the training data that are held out for validation, chosen by hash or by time."""

    share: Annotated[float, Field(gt=0, lt=1)] = Field(description="Share of the rows that is held out, such as 0.05.")
    by: Name | None = Field(
        None,
        description="Column whose hash decides, so that rows with the same value, such as those of one user, stay "
        "together; null: each row for itself.",
    )
    newest: Name | None = Field(
        None, description="Column of times (dates, timestamps, ISO text or numbers): the newest rows are held out."
    )
    since: float | None = Field(
        None,
        description="Time from which on rows are held out: seconds since 1970, or the column's own numbers; null: "
        "found by `share`.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.by is not None and self.newest is not None:
            raise ValueError("rows are held out `by` the hash of a column or as the `newest`, not both")
        if self.since is not None and self.newest is None:
            raise ValueError("`since` is a time of the column that `newest` names")
        return self

    @property
    def column(self) -> str | None:
        """The column that decides; None if the place of a row in its file does."""
        return self.newest or self.by


class Validation(Frozen):
    """When the model is validated, and what follows from it."""

    every_samples: PositiveInt | None = Field(
        None, description="Number of samples between two validations; null: once an epoch, unless by time."
    )
    every_minutes: PositiveFloat | None = Field(None, description="Minutes between two validations; null: by samples.")
    metric: Name | None = Field(
        None,
        description="Metric that says which of two models is better, such as auc, log_loss or rmse; null: the main one "
        "of the label.",
    )
    patience: PositiveInt | None = Field(
        None,
        description="Training ends after this number of validations without a better one than before; null: it goes on "
        "to the last epoch.",
    )
    keep_best: bool = Field(
        True,
        description="Keep the checkpoint of the best validation. It is the model of the run: the test set is evaluated "
        "with it.",
    )
    on_stop: bool = Field(
        False, description="Validate and evaluate the test set also when a signal, such as Ctrl-C, stops the run."
    )
