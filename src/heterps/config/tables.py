"""Embedding tables: initial values, admission, eviction, and where the rows are stored."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from heterps.config.base import Frozen, Name


class Uniform(Frozen):
    """Initial values that are uniform in [-scale, scale)."""

    kind: Literal["uniform"] = "uniform"
    scale: NonNegativeFloat = Field(0.01, description="The largest absolute value.")


class Normal(Frozen):
    """Initial values that are normal with mean 0, truncated at 4.2 standard deviations."""

    kind: Literal["normal"] = "normal"
    std: NonNegativeFloat = Field(0.01, description="Standard deviation.")


class Constant(Frozen):
    """Initial values that are all the same."""

    kind: Literal["constant"] = "constant"
    value: float = Field(description="The value.")


class Zero(Frozen):
    """Initial values that are all 0."""

    kind: Literal["zero"] = "zero"


Initializer = Uniform | Normal | Constant | Zero


class Always(Frozen):
    """Every key gets a row when it is first pulled or pushed."""

    kind: Literal["always"] = "always"


class AfterSightings(Frozen):
    """A key gets a row with its `num`-th push. A sketch counts the pushes, so that a few keys get one too early."""

    kind: Literal["sightings"] = "sightings"
    num: Annotated[int, Field(ge=1, le=255)] = Field(description="Number of pushes of a key until it gets a row.")
    sketch_bytes: Annotated[int, Field(ge=1024)] = Field(
        1 << 22,
        description="Memory of the sketch on each shard: about 4 bytes for each key without a row. All counts are "
        "halved after this many sightings, so that very rare keys never get a row.",
    )


class WithProbability(Frozen):
    """A key gets a row with a given probability at each push: frequent keys get one soon, most rare keys never."""

    kind: Literal["probability"] = "probability"
    p: Annotated[float, Field(gt=0, le=1)] = Field(description="Probability at each push.")


class Never(Frozen):
    """No key gets a row: only rows that the job starts with are trained."""

    kind: Literal["never"] = "never"


Admission = Always | AfterSightings | WithProbability | Never


class Eviction(Frozen):
    """Which rows are deleted. The key of a deleted row starts again, as if it had never been seen."""

    max_age: Annotated[int, Field(ge=1, lt=2**31)] | None = Field(
        None, description="Delete rows that had no gradient in this many pushes to the table; null: never."
    )
    min_uses: PositiveFloat | None = Field(
        None,
        description="Delete rows whose decayed number of uses is below this. A new row has 1 use, and each push of its "
        "key adds 1; null: never.",
    )
    half_life: PositiveInt = Field(4096, description="Number of pushes to the table after which a use counts half.")
    max_bytes: PositiveInt | None = Field(
        None,
        description="Memory for the rows of a table and their index on each shard; when it is full, the coldest rows "
        "are deleted. Keys get rows when they are pushed. A push with more than a quarter as many new keys as fit may "
        "go beyond it.",
    )
    order: Literal["lfu", "lru"] = Field(
        "lfu", description="The coldest rows are those with the fewest decayed uses (lfu) or unused for longest (lru)."
    )


class Tables(Frozen):
    """Settings of the embedding tables, unless a module has its own."""

    init: Annotated[Initializer, Field(discriminator="kind")] | None = Field(
        None, description="Initial values of rows; null: those of the module, or else uniform in [-0.01, 0.01)."
    )
    admission: Annotated[Admission, Field(discriminator="kind")] = Field(
        Always(),
        description="Which keys get a row. A key without a row reads its initial values; its gradients are lost.",
    )
    eviction: Eviction = Field(Eviction(), description="Which rows are deleted.")


class Tiers(Frozen):
    """Embedding tables larger than memory: hot rows stay in memory, others are on disk. Results do not change."""

    memory_bytes: PositiveInt = Field(
        description="Memory of each process for the rows of all tables and their indexes. A row on disk takes up to "
        "12.5 bytes of it. The tables share it in proportion to their dim."
    )
    folder: Name = Field(
        ".",
        description="Folder for rows on disk: on a local disk, preferably a fast one, and not in memory (tmpfs). The "
        "files have no name and are deleted when the process ends; only a checkpoint survives it.",
    )

    def share(self, part: int, whole: int) -> Tiers:
        """The same settings with `part` / `whole` of the memory."""
        return Tiers(memory_bytes=max(1, self.memory_bytes * part // whole), folder=self.folder)
