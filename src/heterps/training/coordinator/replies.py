"""Replies to commands that ask how a running job stands."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future

from heterps.ps.client.interface import JobClient
from heterps.training.coordinator.core import CoordinatorCore
from heterps.training.run.commands import CommandReply


def status_reply(core: CoordinatorCore, num_samples: int, now: float) -> CommandReply:
    """Return how far a job of `num_samples` is, and what its stages do."""
    silence_s = core.silence.longest_s(core.layout.workers, now)
    status = core.accounting.status(core.flow) | core.reconfiguration.status()
    return CommandReply(json.dumps(status | {"total": num_samples, "silence_s": round(silence_s, 3)}))


def tell_servers(client: JobClient, answer: Callable[[CommandReply], None]) -> None:
    """Answer with the figures of all servers, once they have told them; nobody waits for that."""

    def told(stats: Future[list[bytes]]) -> None:
        if (error := stats.exception()) is not None:
            answer(CommandReply(f"its servers do not say how they stand: {error}", is_error=True))
        else:
            answer(CommandReply(f"[{','.join(one.decode() for one in stats.result())}]"))

    client.server_stats().add_done_callback(told)
    client.flush()
