"""Record a policy's inputs and decisions as JSON lines, and replay them to prove that the inputs give the decisions.

    {"version": 1, "policy": {"kind": "ssp", "lower": 0}, "workers": ["a", "b"], "now": 0.0}
    {"event": "pushed", "worker": "a", "now": 1.0, "clock": 1, "lead": 1}          an input,
    {"event": "waits", "worker": "a", "now": 1.0, "clock": 1, "lead": 1}           what was decided on it,
    {"event": "pushed", "worker": "b", "now": 2.3, "clock": 1, "lead": 0}          the next input
    {"event": "released", "worker": "b", "now": 2.3, "clock": 1, "lead": 0}
    {"event": "released", "worker": "a", "now": 2.3, "clock": 1, "lead": 0}

Numbers are written so that reading them back gives the same bits.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from heterps.config.base import Frozen
from heterps.config.sync import AnyPolicy
from heterps.errors import ConfigError, RunError
from heterps.sync.make import make_policy
from heterps.sync.policy import Event, Policy
from heterps.yamlfile import validate

M = TypeVar("M", bound=Frozen)

INPUTS = ("pushed", "dropped", "joined", "left")
"""Kinds of events that are inputs; the others are decisions."""


class Writable(Protocol):
    """Anything that a trace can be written to, such as an open text file."""

    def write(self, text: str, /) -> object: ...


class TraceHeader(Frozen):
    """First line of a trace: the policy, its initial workers and its start time."""

    version: Literal[1] = 1
    policy: AnyPolicy
    workers: tuple[str, ...]
    now: float


class TraceLine(Frozen):
    """One line of a trace: an Event."""

    event: Literal["pushed", "dropped", "joined", "left", "released", "waits", "granted"]
    worker: str
    now: float
    clock: int
    lead: int
    extra: int = 0

    def as_event(self) -> Event:
        return Event(self.event, self.worker, self.now, self.clock, self.lead, self.extra)


def record(policy: Policy, file: Writable, most_inputs: int | None = None) -> None:
    """Write every further input and decision of `policy`, which must have had no input yet, to `file`.

    With `most_inputs`, recording ends after that many inputs; the trace can be replayed as any other.
    """
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


def read_trace(path: str | Path, most_bytes: int | None = None) -> tuple[TraceHeader, list[Event]]:
    """Read the header and all whole lines of the trace at `path`; a run that goes on may be writing the last one.

    With `most_bytes`, only the lines in that many bytes at the end of a longer trace. Raises RunError with the line
    that cannot be read.
    """
    try:
        with open(path, "rb") as file:
            first = file.readline()
            skipped = 0 if most_bytes is None else max(0, file.seek(0, 2) - len(first) - most_bytes)
            file.seek(len(first) + skipped)
            text = (first + file.read()).decode("utf-8", errors="replace")
    except OSError as error:
        raise RunError(f"{path}: cannot read this trace: {error.strerror}.") from None
    whole = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
    if not whole:
        raise RunError(f"{path}: this trace is empty; its first line names the policy and the workers.")
    header = _read(whole[0], TraceHeader, f"{path}:1")
    start = 2 if skipped else 1  # the first of the lines at the end is not whole
    place = "" if skipped else ":{}"
    return header, [
        _read(line, TraceLine, f"{path}{place.format(i)}").as_event() for i, line in enumerate(whole[start:], start + 1)
    ]


def replay(path: str | Path) -> Policy:
    """Feed the inputs of the trace at `path` to a new policy, and return it as the trace leaves it.

    Raises RunError with the line at which the policy decides differently, or which cannot be read.
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
