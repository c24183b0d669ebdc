"""The settings of the synchronisation policies, which decide when a worker may start its next iteration.

Command lines use a short form: `bsp`, `bsp+backup:1`, `asp`, `ssp:3`, `dssp:3:12`, `dssp:3:12+elapsed+lower`.
`label` gives it, `heterps.sync.parse_policy` reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, Union

from pydantic import Discriminator, Field, PlainValidator, Tag, model_validator

from heterps.config.base import Frozen
from heterps.errors import ConfigError
from heterps.plugins import Registry

Lead = Annotated[int, Field(ge=0, lt=2**53)]


class PolicyConfig(Frozen):
    """Settings of a policy. To add a policy, derive a class here, name it in _BUILT_IN, and write its state machine."""

    in_rounds: ClassVar[bool] = False
    """Whether the gradients of all workers are applied together, as their mean, when a round ends; else each at once.

    In a job the workers of a round have parts of one batch; else each worker has batches of its own.
    """
    made_by: ClassVar[str]
    """Import path `module:name` of the state machine, which is called as `heterps.sync.Policy` is."""
    numbers: ClassVar[tuple[str, ...]] = ()
    """The fields that the short form gives as numbers, as in ssp:3. It gives the other fields as options (+literal)."""
    kind: str

    @property
    def bound(self) -> int | None:
        """Largest lead at which an iteration may start; None: the policy bounds none, or nothing is ever ahead."""
        return None

    @property
    def drops_late(self) -> bool:
        """Whether gradients that come too late are dropped. Only the simulator does this: real rounds need them all."""
        return False

    @property
    def label(self) -> str:
        """The short form of these settings; options with their default values are left out."""
        words = [":".join([self.kind, *(str(getattr(self, name)) for name in self.numbers)])]
        for name, field in self.options().items():
            value = getattr(self, name)
            if value != field.default:
                words.append(value if isinstance(value, str) else name if value is True else f"{name}:{value}")
        return "+".join(words)

    @classmethod
    def options(cls) -> dict[str, Any]:
        """The fields that the short form gives as options."""
        return {name: field for name, field in cls.model_fields.items() if name not in ("kind", *cls.numbers)}


class BSP(PolicyConfig):
    """Bulk synchronous parallel: all workers push, the mean of their gradients is applied once, all continue."""

    in_rounds = True
    made_by = "heterps.sync.rounds:Rounds"
    kind: Literal["bsp"] = "bsp"
    backup: Annotated[int, Field(ge=0)] = Field(
        0,
        description="Number of backup workers: a round ends when all but this many workers have pushed; late gradients "
        "are dropped and counted.",
    )

    @property
    def drops_late(self) -> bool:
        return self.backup > 0


class ASP(PolicyConfig):
    """Asynchronous parallel: each gradient is applied when it arrives, and no worker waits."""

    made_by = "heterps.sync.stale:Stale"
    kind: Literal["asp"] = "asp"


class SSP(PolicyConfig):
    """Stale synchronous parallel: only workers that are too far ahead of the slowest wait."""

    made_by = "heterps.sync.stale:Stale"
    numbers = ("lower",)
    kind: Literal["ssp"] = "ssp"
    lower: Lead = Field(3, description="Largest lead at which an iteration may start (the paper's s).")

    @property
    def bound(self) -> int:
        return self.lower


class DSSP(PolicyConfig):
    """Dynamic stale synchronous parallel: SSP whose bound moves by itself in [lower, lower + spread]."""

    made_by = "heterps.sync.literal:make_dynamic"
    numbers = ("lower", "spread")
    kind: Literal["dssp"] = "dssp"
    lower: Lead = Field(3, description="Largest lead at which no worker waits (the paper's s_L).")
    spread: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        12, description="Largest number of extra iterations granted to a worker at once (the paper's r_max)."
    )
    predictor: Literal["last", "ema", "elapsed"] = Field(
        "last",
        description="Prediction of an iteration's time: `last` is that of the last one, `ema` a moving average, and "
        "`elapsed` that of the last one, or more if the running iteration is already late.",
    )
    grant: Literal["all", "fastest"] = Field(
        "all",
        description="Who is granted extra iterations: `all` workers that would have to wait, or the `fastest` only, as "
        "in the paper.",
    )
    release: Literal["next", "lower"] = Field(
        "next",
        description="When a waiting worker goes on: at the `next` push that raises the lowest clock, or once its lead "
        "is back at `lower`, as in the paper.",
    )
    hysteresis: Lead = Field(
        0, description="With `release: lower`, a waiting worker is released at a lead of lower - hysteresis."
    )
    literal: bool = Field(
        False,
        description="Use the algorithm as published, errors included, for comparison: it bounds nothing, grants to the "
        "fastest, and releases at lower.",
    )

    @property
    def bound(self) -> int | None:
        return None if self.literal else self.lower + self.spread

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.hysteresis > self.lower:
            raise ValueError(f"hysteresis ({self.hysteresis}) must be at most lower ({self.lower})")
        if self.hysteresis and self.release != "lower":
            raise ValueError("hysteresis is about a release at lower: add `release: lower` (in short +lower)")
        if self.hysteresis and self.literal:
            raise ValueError("the printed algorithm (literal) knows no hysteresis: leave one of them out")
        return self


_BUILT_IN: dict[str, type[PolicyConfig]] = {"bsp": BSP, "asp": ASP, "ssp": SSP, "dssp": DSSP}
POLICIES: Registry[type[PolicyConfig]] = Registry("policy", _BUILT_IN)


def register_policy(settings: type[PolicyConfig]) -> None:
    """Add a policy by the class of its settings; the default of `kind` is its name in job files and commands."""
    name = settings.model_fields["kind"].default
    if not isinstance(name, str):
        raise ConfigError(f'{settings.__name__}: the field `kind` needs a default: kind: Literal["mine"] = "mine".')
    POLICIES.add(name, settings)


def _branch(value: Any) -> Any:
    """The branch of the union below that a value belongs to; an unknown kind is left to pydantic's error."""
    kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    return "plugin" if isinstance(kind, str) and kind not in _BUILT_IN and kind in POLICIES else kind


def _from_plugin(value: Any) -> PolicyConfig:
    return value if isinstance(value, PolicyConfig) else POLICIES[value["kind"]].model_validate(value)


if TYPE_CHECKING:
    AnyPolicy = PolicyConfig
else:  # the type of a field that holds any policy, selected by its kind
    AnyPolicy = Annotated[
        Union[
            *(Annotated[settings, Tag(kind)] for kind, settings in _BUILT_IN.items()),
            Annotated[Any, PlainValidator(_from_plugin), Tag("plugin")],
        ],
        Discriminator(_branch),
    ]
