"""Reconfiguration of the roster on a simulated network."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial

from servers import SimulatedJob

from heterps.ps.ops.moves import MoveRequest, rebalance
from heterps.ps.ops.requests import client_codec, server_codec
from heterps.ps.protocol.messages import Refused
from heterps.ps.protocol.roster import Roster, Seat
from heterps.ps.server.server import Server


class Mover:
    """Runs a rebalance on the simulated network: asks, and asks again every second."""

    def __init__(self, job: SimulatedJob, old: Roster, new: Roster) -> None:
        self.job = job
        self.name = f"mover-{new.epoch}-{job.random.random()}"
        self.steps: Generator = rebalance(old, new)
        self.question: MoveRequest = next(self.steps)
        self.is_done = False
        job.network.attach(self.name, self.take)
        self.ask(self.question)

    def ask(self, question: MoveRequest) -> None:
        if question is self.question and not self.is_done:
            parts = server_codec().encode(question.header, question.frames)
            self.job.network.send(self.name, question.peer, parts)
            self.job.network.call_at(self.job.now + 1.0, partial(self.ask, question))

    def take(self, now: float, sender: str, parts: list[memoryview]) -> tuple[()]:
        answer = client_codec().decode(parts)
        is_wanted = (sender, answer[0].id) == (self.question.peer, self.question.header.id) and not self.is_done
        if is_wanted and not (isinstance(answer[0], Refused) and answer[0].code == "later"):
            try:
                self.question = self.steps.send(answer)
                self.ask(self.question)
            except StopIteration:
                self.is_done = True
        return ()

    def finish(self, max_steps: int = 50_000) -> None:
        for _ in range(max_steps):
            if self.is_done:
                return
            self.job.step()
        header = type(self.question.header).__name__
        raise AssertionError(f"{header} of {self.question.peer} without an answer after {max_steps} steps")


def join(job: SimulatedJob, old: Roster) -> Roster:
    """A new server, empty still."""
    new = old.add(Seat(f"server-{old.num_shards}", incarnation=old.epoch + 1))
    job.add_server(Server(new.servers[-1].name, new, job.tables, joining=True))
    return new
