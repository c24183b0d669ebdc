"""Actor: a role of the job that Ray runs somewhere, as its driver sees it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from heterps.errors import HeterpsError, PeerLost
from heterps.launch.ray.reservations import Reservations, ReservedBundle
from heterps.launch.ray.roles import Role

ASK_S = 10.0
"""Seconds for which Ray may find out what became of an actor."""


@dataclass(frozen=True)
class Place:
    """Where an actor runs: Ray's id of the node, its host, and the process id there."""

    node: str
    host: str
    pid: int


class Actor:
    """A role of class `kind` in a new process on `reserved`. Ray does not restart it: its state would be lost."""

    def __init__(self, name: str, kind: type[Role], reserved: ReservedBundle) -> None:
        import ray

        self.name, self.reserved = name, reserved
        made = ray.remote(kind).options(max_concurrency=2, max_restarts=0, max_task_retries=0, **reserved.options)
        self._actor = made.remote()
        self._placed = self._actor.place.remote()
        self._place: Place | None = None
        self._running: Any = None
        self._asked: Any = None  # whether it lives, when Ray had not found out
        self._asked_at = 0.0
        self.is_out_of_reach = False
        """Whether Ray could not reach it: its node may be gone, and Ray not know yet."""

    @property
    def place(self) -> Place | None:
        """Where the actor runs; None until it is known."""
        import ray

        if self._place is None and ray.wait([self._placed], timeout=0)[0]:
            with suppress(ray.exceptions.RayError):
                self._place = Place(**ray.get(self._placed))
        return self._place

    def ask(self, method: str, *arguments: Any) -> Any:
        """Calls a method of the role without waiting; `answer` waits for the result."""
        return getattr(self._actor, method).remote(*arguments)

    def answer(self, asked: Any, deadline_s: float, doing: str) -> Any:
        """The result of a call. Raises the role's own error if it is one of ours, else PeerLost."""
        import ray

        try:
            return ray.get(asked, timeout=deadline_s)
        except ray.exceptions.GetTimeoutError:
            raise PeerLost(f"{self.called}, which {doing}, did not answer within {deadline_s:g} s") from None
        except ray.exceptions.RayError as error:
            raise self._translated(error) from None

    def run(self, *arguments: Any) -> None:
        self._running = self._actor.run.remote(*arguments)

    @property
    def ended(self) -> HeterpsError | None:
        """The error that ended the role's run, with the actor's name; None while it runs. Does not wait."""
        import ray

        if self._running is None or not ray.wait([self._running], timeout=0)[0]:
            return None
        try:
            ray.get(self._running)
        except ray.exceptions.ActorUnavailableError as error:
            return self._found_out(error)
        except ray.exceptions.RayError as error:
            return self._translated(error)
        return PeerLost(f"{self.called} ended though nobody had told it to")

    def _found_out(self, error: Exception) -> HeterpsError | None:
        """What became of an actor that Ray cannot reach; None while Ray finds out."""
        import ray

        if self._asked is None:
            self._asked, self._asked_at = self._actor.place.remote(), time.monotonic()
        if ray.wait([self._asked], timeout=0)[0]:
            try:
                ray.get(self._asked)
            except ray.exceptions.RayError as later:
                return self._translated(later)
        elif time.monotonic() - self._asked_at < ASK_S:
            return None
        return self._translated(error)

    @property
    def is_dead(self) -> bool:
        """Whether the process is gone; a run that only failed with an error is not dead."""
        import ray

        try:
            ray.get(self._actor.place.remote(), timeout=ASK_S)
        except ray.exceptions.RayError:
            return True
        return False

    def release(self) -> None:
        """Lets the actor end by itself."""
        with suppress(Exception):  # of Ray: it is gone already
            self._actor.stop.remote()

    def kill(self) -> None:
        import ray

        with suppress(Exception):
            ray.kill(self._actor)

    def leave_in_doubt(self, reservations: Reservations) -> None:
        """Puts its node in doubt, where it was at work and has not ended by itself: the node may be out of reach."""
        is_silent = self._running is not None and (self.ended is None or self.is_out_of_reach)
        if is_silent and (place := self.place) is not None:
            reservations.doubt(self.reserved.resource, place.node)

    @property
    def called(self) -> str:
        place = self.place
        return self.name if place is None else f"{self.name} (process {place.pid} on Ray node {place.host})"

    def _translated(self, error: Exception) -> HeterpsError:
        import ray

        if isinstance(error, ray.exceptions.RayTaskError):
            cause = error.cause
            if isinstance(cause, HeterpsError):
                return type(cause)(f"{self.name}: {cause}")
            return PeerLost(f"{self.called} failed with {type(cause).__name__}: {cause}")
        if isinstance(error, ray.exceptions.ActorUnavailableError):
            self.is_out_of_reach = True
            return PeerLost(f"{self.called} is gone: Ray cannot reach it any more, so its process or its node died")
        return PeerLost(f"{self.called} is gone: {summary_of(str(error)).rstrip('.')}")


def summary_of(text: str) -> str:
    """A short text for what Ray says about a death: its first sentence and the error at the end of a traceback."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return "Ray does not say why"
    last = lines[-1] if len(lines) > 1 and "Traceback" in text else ""
    return " ".join(part for part in (lines[0], last) if part)[:400]


def wait_ended(actors: Iterable[Actor], deadline_s: float) -> None:
    """Waits until the runs of all actors have ended, or the time is over."""
    import ray

    running = [actor._running for actor in actors if actor._running is not None]
    if running:
        ray.wait(running, num_returns=len(running), timeout=deadline_s)


def first_dead(actors: Iterable[Actor], deadline_s: float) -> HeterpsError | None:
    """The error of the first actor whose process Ray reports as gone in time; a run that failed does not count."""
    import ray

    by_run = {actor._running: actor for actor in actors if actor._running is not None}
    deadline = time.monotonic() + deadline_s
    while by_run and (left_s := deadline - time.monotonic()) > 0:
        for run in ray.wait(list(by_run), timeout=left_s)[0]:
            actor = by_run.pop(run)
            if actor.is_dead:
                return actor.ended
    return None
