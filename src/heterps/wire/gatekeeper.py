"""Who may connect to a server with keys: whoever holds the job's key, and nobody else.

CURVE alone admits any client that knows the server's public key. ZeroMQ asks a handler (ZAP, RFC 27) for each client's
own key; this one says yes to the job's key only. pyzmq runs it on a thread of its own.
"""

from __future__ import annotations

import hmac
import logging
from typing import Any

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils import z85

from heterps.wire.keys import Keys


class Gatekeeper:
    """Answers ZeroMQ's question for every client of one context, until it is closed."""

    def __init__(self, context: zmq.Context[Any], keys: Keys) -> None:
        self._public = z85.decode(keys.public)
        self._authenticator = ThreadAuthenticator(context, log=logging.getLogger("heterps.wire"))
        self._authenticator.start()
        self._authenticator.configure_curve_callback(domain="*", credentials_provider=self)

    def callback(self, _domain: str, key: bytes) -> bool:
        """Whether a client with this public key (Z85) may come in."""
        return hmac.compare_digest(z85.decode(key), self._public)

    def close(self) -> None:
        self._authenticator.stop()
