"""Where a job starts: from another model, and from rows of a file, instead of from initial values alone."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from heterps.config.base import Frozen, Name


class RowFile(Frozen):
    """Rows by original id in a Parquet file, or another file of data: a column of ids and one of vectors."""

    file: Name = Field(description="Path of the file, or of a folder or pattern of files.")
    id: Name = Field("id", description="Column of ids, as they are in the slot of the training data.")
    vector: Name = Field("vector", description="Column of vectors: lists of numbers.")
    table: Name | None = Field(None, description="Embedding table that gets the rows; null: the only one of the slot.")


class Start(Frozen):
    """What a job starts from. What is found neither there nor in files begins with its initial values.

    The clock, schedules, ages of rows and the dense optimizer's state begin anew; rows keep the state of their
    optimizer if it is of the same kind.
    """

    model: Name | None = Field(
        None,
        description="A run (its best checkpoint if one was kept, else its newest), a checkpoint, or a folder of "
        "heterps.save, whose embedding tables, other parameters and buffers are taken over by name; null: none.",
    )
    rename: dict[Name, Name] = Field(
        {},
        description="New names to those in the other model: of a table or parameter, of all that begin with a name and "
        "a dot (deep: mlp), or with a * in both (tower.*: user.*). The first that fits counts.",
    )
    fresh: tuple[Name, ...] = Field(
        (), description="Patterns of names that are not taken over, in which * stands for anything."
    )
    dims: Literal["refuse", "overlap", "project"] = Field(
        "refuse",
        description="What to do with other sizes. overlap takes the values that both have, the first of each row and "
        "axis, and leaves the others at their initial values; project multiplies rows by a random orthogonal matrix, "
        "which keeps the angles between them as far as the sizes allow, and refuses other sizes of other parameters.",
    )
    rows: dict[Name, RowFile] = Field(
        {}, description="By slot: a file of rows. They replace those that the other model has for the same ids."
    )

    @model_validator(mode="before")
    @classmethod
    def _read_word(cls, start: Any) -> Any:
        """Expand a short form: a path means {model: path}."""
        return {"model": start} if isinstance(start, str) else start

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.model is None and (self.rename or self.fresh):
            raise ValueError("rename and fresh are of what is taken from another model: name it in start.model")
        if self.model is None and not self.rows:
            raise ValueError("give a model, or files of rows, or leave start out")
        for new, old in self.rename.items():
            if not new.count("*") == old.count("*") <= 1:
                raise ValueError(f"rename: {new}: {old}: write one * in both names, or in none")
        return self
