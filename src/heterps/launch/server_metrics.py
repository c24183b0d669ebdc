"""What a server tells Prometheus while it serves.

    the server's loop, every second --> [figures as they are now] <-- a thread of its own, when Prometheus asks

The loop leaves figures between two messages, and nobody waits for a lock: a request for metrics, however slow, does not
hold a worker up. Figures of a server that is busy with one message become old, and say how old they are.
"""

from __future__ import annotations

import time

from msgspec.structs import replace

from heterps.ps.server.server import Server
from heterps.report.exposition import text_of
from heterps.report.prometheus_servers import ServerFacts, server_families


class ServerFigures:
    """What is known of a server: written by its own thread, read by others."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.note()

    def note(self) -> None:
        """Note the figures of the server as they are now. To be called by its own thread."""
        self._noted = self._server.stats(), time.monotonic()  # at once, so that no reader sees one of the two alone

    def exposition(self) -> bytes:
        """Return the text that Prometheus reads, of the figures that were noted last."""
        stats, at = self._noted
        age_s = time.monotonic() - at
        return text_of(server_families([ServerFacts(replace(stats, up_s=stats.up_s + age_s), age_s)]))
