"""What the options of `heterps simulate` say: the scenario, the policies, the part of the time that is shown."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heterps.config import PolicyConfig
from heterps.errors import ConfigError
from heterps.report.terminal.consoles import make_console
from heterps.yamlfile import check_role, parse, read_text, validate

if TYPE_CHECKING:
    from heterps.sim import Scenario

SHOWN_ITERATIONS = 25


def read_scenario(path: Path | None, given: dict[str, Any], *, ends_by_itself: bool) -> Scenario:
    """The scenario of the file, if there is one, with the options replacing its fields.

    A scenario that ends with the data of a job needs no end of its own.
    """
    from heterps.sim.scenario import ENDLESS, Scenario

    endless = {"iterations": ENDLESS} if ends_by_itself else {}
    if path is None:
        if "workers" not in given:
            raise ConfigError("say who works: --workers 1.0,2.3 (seconds an iteration), or --scenario FILE.")
        if "horizon_s" not in given and "iterations" not in given and not endless:
            raise ConfigError("say how long: --horizon SECONDS, --iterations NUMBER of each worker, or both.")
        try:
            return validate(endless | given, Scenario, where="options")
        except ConfigError as error:  # a field is named as its option is, without the unit
            raise ConfigError(re.sub(r"^options: (\w+?)(_s)?: ", r"--\1: ", str(error), flags=re.MULTILINE)) from None
    data, lines = parse(read_text(path, what="scenario"), where=str(path), what="scenario")
    check_role(data, where=str(path), what="scenario")
    written = {place: line for place, line in lines.items() if not place or place[0] not in given}
    return validate(endless | data | given, Scenario, where=str(path), lines=written)


def read_policies(mode: str, compare: str | None, options: dict[str, Any]) -> list[PolicyConfig]:
    """The policies to compare, or the one of --mode and its options; warns of options that the policy does not have."""
    from heterps.sim.variants import Variant, parse_variants
    from heterps.sync import parse_policy

    if compare is not None:
        if options:
            flags = ", ".join(f"--{name}" for name in options)
            raise ConfigError(f"{flags}: with --compare a policy's options are in its word, as in dssp:3:12+elapsed.")
        variants = parse_variants(compare)
        for variant in variants:
            if variant != Variant(variant.policy):
                raise ConfigError(f"--compare: {variant.label} is about what is learned: say what, with --job FILE.")
        return [variant.policy for variant in variants]
    named = parse_policy(mode)
    known = {name: value for name, value in options.items() if name in type(named).model_fields}
    if unknown := [f"--{name}" for name in options if name not in known]:
        make_console(stderr=True, soft_wrap=True).print(
            f"note: {named.kind} has no {' and no '.join(unknown)}: not used", markup=False
        )
    return [validate(named.model_dump() | known, type(named), where=f"policy {named.kind}")]


def read_window(text: str | None, scenario: Scenario) -> tuple[float, float]:
    """The part of the time to show, in seconds: as asked for, or as many first iterations as can be told apart."""
    from math import inf, isfinite

    end_s = inf if scenario.horizon_s is None else scenario.horizon_s
    if text is None:
        return 0.0, min(end_s, SHOWN_ITERATIONS * max(scenario.seconds.values()))
    try:
        first, last = (float(word) for word in text.split(":"))
    except ValueError:
        raise ConfigError(f"--window {text}: write from and to in seconds, as in 90:130.") from None
    if not (0 <= first < last and isfinite(last)):
        raise ConfigError(f"--window {text}: it must begin at 0 or later, and end after it begins.")
    if first >= end_s:
        raise ConfigError(f"--window {text}: the simulation ends at {end_s:g} s.")
    return first, min(last, end_s)
