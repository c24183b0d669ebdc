"""SimulatedClients: clients of the servers of a simulated job, on its network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from heterps.errors import PeerLost
from heterps.ps.client.pump import Pump
from heterps.ps.client.remote import RemoteClient
from heterps.ps.client.session import Options
from heterps.ps.protocol.specs import TableSpecs
from heterps.sim.pump import DirectPump, SimulatedPump
from heterps.sim.servers import SimulatedServers
from heterps.wire.simulated import Outgoing, SimulatedNetwork


def client_name(name: str, incarnation: int) -> str:
    """The name of a client on the network."""
    return f"{name}.{incarnation} at the servers"


class SimulatedClients:
    """Makes clients of `servers`, which have mirrors or not; they repeat what is not answered, if asked to."""

    def __init__(
        self, network: SimulatedNetwork, servers: SimulatedServers, *, is_mirrored: bool, repeats: bool
    ) -> None:
        self._network, self._servers, self._is_mirrored, self._repeats = network, servers, is_mirrored, repeats
        self._watching: RemoteClient | None = None

    def connect(self, name: str, incarnation: int, tables: TableSpecs, answered: Callable[[], None]) -> RemoteClient:
        """A client of the servers, by the network; it is `answered` whenever something came."""
        pump = partial(SimulatedPump, network=self._network, answered=answered)
        return self._client(name, tables, pump, incarnation)

    def watching(self, name: str, tables: TableSpecs, life: int) -> RemoteClient:
        """A client that takes no time, for first values and evaluations; with mirrors, one like others."""
        if self._is_mirrored:
            self._watching = self._client(name, tables, partial(SimulatedPump, network=self._network), life)
            return self._watching

        def ask(server: str, sender: str, parts: list[memoryview]) -> Outgoing:
            asked = self._servers.all[server]
            if asked.is_dead:
                raise PeerLost(f"{server} was killed, and has no mirror")
            answers = asked.server.handle(sender, parts, self._network.now_s)
            asked.answer([(peer, message) for peer, message in answers if peer != sender])  # what was held for others
            return [(peer, message) for peer, message in answers if peer == sender]

        return self._client(name, tables, partial(DirectPump, network=self._network, ask=ask), life)

    def hang_up(self) -> None:
        """Let the calls of a client that watches fail: servers cannot answer any more."""
        if self._watching is not None:
            self._watching.close()

    def _client(self, name: str, tables: TableSpecs, pump: Callable[..., Pump], incarnation: int) -> RemoteClient:
        """A client that gives nothing up."""
        options = Options(deadline_s=1e9, first_retry_s=1e6, longest_retry_s=1e6, linger_s=0.0)
        if self._repeats:
            options = replace(options, first_retry_s=0.5, longest_retry_s=2.0)
        return RemoteClient(
            name,
            self._network.channel(client_name(name, incarnation)),
            self._servers.roster,
            tables,
            incarnation=incarnation,
            options=options,
            clock=lambda: self._network.now_s,
            pump=pump,
        )
