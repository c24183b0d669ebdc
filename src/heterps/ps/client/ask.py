"""One question to a server and its answer, for commands: statistics, rosters, moves."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from heterps.errors import PeerLost
from heterps.ps.ops.requests import FromServer, ToServer, client_codec, server_codec
from heterps.ps.protocol.messages import Refused
from heterps.wire import Channel, Frame, WireError
from heterps.wire.keys import Keys
from heterps.wire.stack import layered
from heterps.wire.zmq_channel import ClientChannel

REPEAT_S, LATER_S = 2.0, 0.05


def ask(
    channel: Channel, peer: str, question: ToServer, frames: Sequence[Frame] = (), deadline_s: float = 10.0
) -> tuple[FromServer, list[memoryview]]:
    """Return the answer of `peer`, asked again and again until the deadline. Questions must be safe to repeat.

    A server that asks for a later try is asked again soon.
    """
    requests, answers = server_codec(), client_codec()
    parts = requests.encode(question, frames)
    deadline, why = time.monotonic() + deadline_s, "does it run?"
    while (now := time.monotonic()) < deadline:
        channel.send(peer, parts)
        until = min(now + REPEAT_S, deadline)
        while (left_s := until - time.monotonic()) > 0:
            received = channel.receive(left_s)
            if received is None or received[0] != peer:
                continue
            try:
                header, answer_frames = answers.decode(received[1])
            except WireError:
                continue
            if header.id != question.id:
                continue
            if not isinstance(header, Refused) or header.code != "later":
                return header, answer_frames
            why, until = header.text, min(time.monotonic() + LATER_S, deadline)
    raise PeerLost(f"server {peer} did not do {type(question).__name__} within {deadline_s:g} s: {why}")


def asker_channel(peers: dict[str, str], keys: Keys | None = None) -> Channel:
    """Return a channel for questions to servers by name and address."""
    return layered(ClientChannel(f"asker-{os.getpid()}-{time.monotonic_ns()}", peers, keys=keys))
