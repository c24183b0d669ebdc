"""When a worker may start its next iteration: the policies of a job, as values.

The words of a command line say the same in short: `bsp`, `bsp+backup:1`, `asp`, `ssp:3`, `dssp:3:12`,
`dssp:3:12+elapsed+hysteresis:1`. `label` gives them, `heterps.sync.parse_policy` reads them.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from heterps.config.base import Frozen

Lead = Annotated[int, Field(ge=0, lt=2**53)]
PREDICTORS = ("last", "ema", "elapsed")


class _Policy(Frozen):
    """What all policies say of themselves."""

    in_rounds: ClassVar[bool] = False
    """Whether all workers make one update together from their parts of one batch; else each makes its own updates."""


class BSP(_Policy):
    """Bulk synchronous parallel: all push, the mean of their gradients is applied once, all go on."""

    in_rounds: ClassVar[bool] = True
    kind: Literal["bsp"] = "bsp"
    backup: Annotated[int, Field(ge=0)] = Field(
        0,
        description="Backup workers: a round ends when all but so many have pushed; late gradients are dropped and "
        "counted.",
    )

    @property
    def label(self) -> str:
        return f"bsp+backup:{self.backup}" if self.backup else "bsp"


class ASP(_Policy):
    """Asynchronous parallel: each gradient is applied when it comes, nobody waits."""

    kind: Literal["asp"] = "asp"

    @property
    def label(self) -> str:
        return "asp"


class SSP(_Policy):
    """Stale synchronous parallel: only those too far ahead of the slowest wait."""

    kind: Literal["ssp"] = "ssp"
    lower: Lead = Field(3, description="Largest lead at which an iteration may start (the paper's s).")

    @property
    def label(self) -> str:
        return f"ssp:{self.lower}"


class DSSP(_Policy):
    """Dynamic stale synchronous parallel: SSP whose bound moves by itself in [lower, lower + spread]."""

    kind: Literal["dssp"] = "dssp"
    lower: Lead = Field(3, description="Lead up to which nobody waits (the paper's s_L).")
    spread: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        12, description="Most extra iterations that the fastest worker is granted at once (the paper's r_max)."
    )
    predictor: Literal["last", "ema", "elapsed"] = Field(
        "last",
        description="How long an iteration will take: as the last one, as a moving average, or as the last one unless "
        "the running one is late already, which is then taken to be as late again.",
    )
    hysteresis: Lead = Field(0, description="A worker that waits goes on at a lead of lower less this.")
    literal: bool = Field(
        False, description="The algorithm as it was printed, errors included: it bounds nothing. To compare with."
    )

    @property
    def label(self) -> str:
        words = [f"dssp:{self.lower}:{self.spread}"]
        words += [self.predictor] if self.predictor != "last" else []
        words += [f"hysteresis:{self.hysteresis}"] if self.hysteresis else []
        words += ["literal"] if self.literal else []
        return "+".join(words)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.hysteresis > self.lower:
            raise ValueError(f"hysteresis ({self.hysteresis}) must be at most lower ({self.lower})")
        if self.hysteresis and self.literal:
            raise ValueError("the printed algorithm (literal) knows no hysteresis: leave one of them out")
        return self


PolicyConfig = BSP | ASP | SSP | DSSP
