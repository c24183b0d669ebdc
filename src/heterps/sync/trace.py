"""A policy's inputs and decisions as a file of JSON lines, and the proof that the first give the second.

    {"version": 1, "policy": {"kind": "ssp", "lower": 0}, "workers": ["a", "b"], "now": 0.0}
    {"event": "pushed", "worker": "a", "now": 1.0, "clock": 1, "lead": 1}          an input,
    {"event": "waits", "worker": "a", "now": 1.0, "clock": 1, "lead": 1}           what was decided on it,
    {"event": "pushed", "worker": "b", "now": 2.3, "clock": 1, "lead": 0}          the next input
    {"event": "released", "worker": "b", "now": 2.3, "clock": 1, "lead": 0}
    {"event": "released", "worker": "a", "now": 2.3, "clock": 1, "lead": 0}

Numbers are written so that they are read back to the bit.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TypeVar

from pydantic import Field

from heterps.config.base import Frozen
from heterps.config.sync import PolicyConfig
from heterps.errors import ConfigError, RunError
from heterps.sync.make import make_policy
from heterps.sync.policy import Event, Policy
from heterps.yamlfile import validate

M = TypeVar("M", bound=Frozen)

INPUTS = ("pushed", "dropped", "joined", "left")
"""Kinds of events; the others are decisions."""


class Writable(Protocol):
    """What a trace is written to: an open text file, for one."""

    def write(self, text: str, /) -> object: ...


class TraceHeader(Frozen):
    """What the policy began with."""

    version: Literal[1] = 1
    policy: Annotated[PolicyConfig, Field(discriminator="kind")]
    workers: tuple[str, ...]
    now: float


class TraceLine(Frozen):
    """An Event."""

    event: Literal["pushed", "dropped", "joined", "left", "released", "waits", "granted"]
    worker: str
    now: float
    clock: int
    lead: int
    extra: int = 0

    def as_event(self) -> Event:
        return Event(self.event, self.worker, self.now, self.clock, self.lead, self.extra)


def record(policy: Policy, file: Writable, most_inputs: int | None = None) -> None:
    """From now on every input and decision of `policy`, which has had no input yet, is written to `file`; of so many
    inputs, if that is said: what was written up to there can be replayed as any other trace."""
    if policy.num_inputs:
        raise ValueError("a policy is recorded from its first input on: this one has had some already")
    header = TraceHeader(policy=policy.config, workers=tuple(policy.clocks.of), now=policy.begun_at)
    file.write(header.model_dump_json() + "\n")
    earlier, num_inputs = policy.on_event, 0

    def write(event: Event) -> None:
        nonlocal num_inputs
        num_inputs += event.kind in INPUTS
        if most_inputs is None or num_inputs <= most_inputs:
            file.write(json.dumps(_as_line(event)) + "\n")
        if earlier is not None:
            earlier(event)

    policy.on_event = write


def replay(path: str | Path) -> Policy:
    """The policy as the trace at `path` left it, after all its inputs again.

    Raises RunError with the line where the policy decides other than the trace says, or where it cannot be read.
    """
    try:
        with open(path, encoding="utf-8") as lines:
            return replay_lines(lines, where=str(path))
    except OSError as error:
        raise RunError(f"{path}: cannot read this trace: {error.strerror}.") from None


def replay_lines(lines: Iterable[str], *, where: str = "trace") -> Policy:
    decided: deque[Event] = deque()
    policy: Policy | None = None
    number = 0
    for number, text in enumerate(lines, 1):
        place = f"{where}:{number}"
        if policy is None:
            header = _read(text, TraceHeader, place)
            policy = make_policy(header.policy, header.workers, now=header.now, on_event=decided.append)
            continue
        event = _read(text, TraceLine, place).as_event()
        if not decided:
            _feed(policy, event, place)
        expected = decided.popleft()
        if event != expected:
            raise RunError(f"{place}: the trace says {_shown(event)}, the policy {_shown(expected)}.")
    if policy is None:
        raise RunError(f"{where}: this trace is empty; its first line names the policy and the workers.")
    if decided:
        raise RunError(f"{where}:{number}: the trace ends here, but the policy goes on: {_shown(decided[0])}.")
    return policy


def _feed(policy: Policy, event: Event, place: str) -> None:
    inputs = dict(zip(INPUTS, (policy.on_push, policy.on_push, policy.on_join, policy.on_leave), strict=True))
    if event.kind not in inputs:
        raise RunError(f"{place}: the trace says {_shown(event)}, but the policy has decided nothing more.")
    try:
        inputs[event.kind](event.worker, event.now)
    except ValueError as error:
        raise RunError(f"{place}: {error}.") from None


def _read(text: str, model: type[M], place: str) -> M:
    try:
        return validate(json.loads(text), model, where=place)
    except json.JSONDecodeError as error:
        raise RunError(f"{place}: not a line of a trace: {error.msg}.") from None
    except ConfigError as error:
        raise RunError(str(error)) from None


def _as_line(event: Event) -> dict[str, Any]:
    fields = {"event": event.kind} | event._asdict()
    del fields["kind"]
    if not event.extra:
        del fields["extra"]
    return fields


def _shown(event: Event) -> str:
    return json.dumps(_as_line(event))
