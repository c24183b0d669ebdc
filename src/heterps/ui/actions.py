"""What a page may ask of a running job: stop, scale, replan. The job is asked as the commands of these names ask it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from heterps.errors import ConfigError
from heterps.report.figures import usd
from heterps.training.run.commands import AskStatus, Scale
from heterps.training.run.control import Found, ask, find

Asked = Mapping[str, Any]
N = TypeVar("N", int, float)


def stop(folder: Path, asked: Asked) -> str:
    """End a job as Ctrl-C does, which saves."""
    del asked
    os.kill(find(folder).pid, signal.SIGINT)
    return "The job saves and ends after the step under way."


def scale(folder: Path, asked: Asked) -> str:
    """Run a stage with more or fewer workers."""
    told = ask(folder, Scale(_number(asked, "stage", int) - 1, _number(asked, "count", int)))
    if told.is_error:
        raise ConfigError(told.text)
    return told.text


def replan(folder: Path, asked: Asked) -> str:
    """Plan again with other prices and limits, and let the job go on by a plan that is cheaper."""
    from heterps.launch.replanning import Wishes, ask_to_follow, propose

    prices = {name[6:]: _number(asked, name, float) for name in asked if name.startswith("price.")}
    limits = {name[6:]: _number(asked, name, int) for name in asked if name.startswith("limit.")}
    found = find(folder)
    proposal = propose(found, _status(found), Wishes(prices=prices, limits=limits))
    if not proposal.is_better:
        return "The plan that runs is still the best: nothing changes."
    _, told = ask_to_follow(found, proposal)
    bill = f"{usd(proposal.new.usd)} instead of {usd(proposal.old.usd)} for the samples that are left"
    return f"{told} ({bill}, {proposal.basis})"


ACTIONS: dict[str, Callable[[Path, Asked], str]] = {"stop": stop, "scale": scale, "replan": replan}


def _status(found: Found) -> dict[str, Any]:
    told = found.ask(AskStatus())
    if told.is_error:
        raise ConfigError(told.text)
    status: dict[str, Any] = json.loads(told.text)
    return status


def _number(asked: Asked, name: str, kind: Callable[[Any], N]) -> N:
    try:
        return kind(asked[name])
    except (KeyError, TypeError, ValueError):
        raise ConfigError(f"{name}: give a number.") from None
