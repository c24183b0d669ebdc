"""The settings of the synchronisation policies, which decide when a worker may start its next iteration.

Command lines use a short form: `bsp`, `bsp+backup:1`, `asp`, `ssp:3`, `dssp:3:12`, `dssp:3:12+elapsed+hysteresis:1`.
`label` gives it, `heterps.sync.parse_policy` reads it.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from heterps.config.base import Frozen

Lead = Annotated[int, Field(ge=0, lt=2**53)]
PREDICTORS = ("last", "ema", "elapsed")


class _Policy(Frozen):
    """Common base of the policies' settings."""

    in_rounds: ClassVar[bool] = False
    """Whether all workers make one update together from their parts of a batch; else each makes its own updates."""


class BSP(_Policy):
    """Bulk synchronous parallel: all workers push, the mean of their gradients is applied once, all continue."""

    in_rounds: ClassVar[bool] = True
    kind: Literal["bsp"] = "bsp"
    backup: Annotated[int, Field(ge=0)] = Field(
        0,
        description="Number of backup workers: a round ends when all but this many workers have pushed; late gradients "
        "are dropped and counted.",
    )

    @property
    def label(self) -> str:
        return f"bsp+backup:{self.backup}" if self.backup else "bsp"


class ASP(_Policy):
    """Asynchronous parallel: each gradient is applied when it arrives, and no worker waits."""

    kind: Literal["asp"] = "asp"

    @property
    def label(self) -> str:
        return "asp"


class SSP(_Policy):
    """Stale synchronous parallel: only workers that are too far ahead of the slowest wait."""

    kind: Literal["ssp"] = "ssp"
    lower: Lead = Field(3, description="Largest lead at which an iteration may start (the paper's s).")

    @property
    def label(self) -> str:
        return f"ssp:{self.lower}"


class DSSP(_Policy):
    """Dynamic stale synchronous parallel: SSP whose bound moves by itself in [lower, lower + spread]."""

    kind: Literal["dssp"] = "dssp"
    lower: Lead = Field(3, description="Largest lead at which no worker waits (the paper's s_L).")
    spread: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        12, description="Largest number of extra iterations granted to the fastest worker at once (the paper's r_max)."
    )
    predictor: Literal["last", "ema", "elapsed"] = Field(
        "last",
        description="Prediction of an iteration's time: `last` is that of the last one, `ema` a moving average, and "
        "`elapsed` that of the last one, or more if the running iteration is already late.",
    )
    hysteresis: Lead = Field(0, description="A waiting worker is released at a lead of lower - hysteresis.")
    literal: bool = Field(
        False, description="Use the algorithm as published, errors included, for comparison: it bounds nothing."
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
