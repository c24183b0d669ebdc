"""How rows of embedding tables come and go, and where they are."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
)

from heterps.config.base import Frozen, Name


class Uniform(Frozen):
    """Uniform in [-scale, scale)."""

    kind: Literal["uniform"] = "uniform"
    scale: NonNegativeFloat = Field(0.01, description="The largest absolute value.")


class Normal(Frozen):
    """Normal with mean 0, cut off at 4.2 standard deviations."""

    kind: Literal["normal"] = "normal"
    std: NonNegativeFloat = Field(0.01, description="Standard deviation.")


class Constant(Frozen):
    """The same value everywhere."""

    kind: Literal["constant"] = "constant"
    value: float = Field(description="The value.")


class Zero(Frozen):
    """Zeros."""

    kind: Literal["zero"] = "zero"


Initializer = Uniform | Normal | Constant | Zero


class Always(Frozen):
    """Every key gets a row when it is first pulled or pushed."""

    kind: Literal["always"] = "always"


class AfterSightings(Frozen):
    """A key gets a row with its `num`-th push, as a sketch counts them: now and then one gets it too early."""

    kind: Literal["sightings"] = "sightings"
    num: Annotated[int, Field(ge=1, le=255)] = Field(description="Pushes with the key until it gets a row.")
    sketch_bytes: Annotated[int, Field(ge=1024)] = Field(
        1 << 22,
        description="Memory of the sketch, on each shard; about 4 for each key that waits. All its counts are halved "
        "after as many sightings, so that keys which come rarely enough never get a row.",
    )


class WithProbability(Frozen):
    """A key gets a row with each push by chance, so that frequent keys get one soon and most rare ones never."""

    kind: Literal["probability"] = "probability"
    p: Annotated[float, Field(gt=0, le=1)] = Field(description="The chance, each time.")


Admission = Always | AfterSightings | WithProbability


class Eviction(Frozen):
    """Which rows go. A row that went is as if it had never been: its key begins anew."""

    max_age: Annotated[int, Field(ge=1, lt=2**31)] | None = Field(
        None, description="Rows that so many pushes in a row had no gradient for go."
    )
    min_uses: PositiveFloat | None = Field(
        None, description="Rows whose uses have faded below go; a new row has 1, and 1 more with each push of its key."
    )
    half_life: PositiveInt = Field(4096, description="After so many pushes to the table a use counts half.")
    max_bytes: PositiveInt | None = Field(
        None, description="Memory for the rows of a table on each shard; the coldest go when it is full."
    )
    order: Literal["lfu", "lru"] = Field(
        "lfu", description="Which rows are the coldest: those with the fewest uses left, or those unused for longest."
    )


class Tables(Frozen):
    """Of the embedding tables, unless a module brings its own."""

    init: Annotated[Initializer, Field(discriminator="kind")] | None = Field(
        None, description="What new rows hold; null: what the module says, uniform in [-0.01, 0.01) if nothing."
    )
    admission: Annotated[Admission, Field(discriminator="kind")] = Field(
        Always(),
        description="Which keys get a row. One without a row reads its initial values; its gradients are lost.",
    )
    eviction: Eviction = Field(Eviction(), description="Which rows go.")


class Tiers(Frozen):
    """Embedding tables larger than memory: hot rows stay in it, the others are on disk. Results do not depend on it."""

    memory_bytes: PositiveInt = Field(
        description="Memory of a process for the rows of all tables and their indexes. A row on disk takes up to 12.5 "
        "bytes of it. The tables share it in proportion to their dim."
    )
    folder: Name = Field(
        ".",
        description="Where rows on disk are: a folder of a local disk, best a fast one, and not one in memory (tmpfs). "
        "Their files have no name and go when the process ends; only a checkpoint survives it.",
    )

    def share(self, part: int, whole: int) -> Tiers:
        """`part` of `whole` equal pieces of the memory."""
        return Tiers(memory_bytes=max(1, self.memory_bytes * part // whole), folder=self.folder)
