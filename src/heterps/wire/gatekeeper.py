"""Authentication: only clients that hold the job's key may connect to a server with keys.

CURVE alone admits any client that knows the server's public key. ZeroMQ passes each client's own key to a handler (ZAP,
RFC 27); this one accepts the job's key only. pyzmq runs it on its own thread.
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
    """Authenticates every client of one ZeroMQ context, until it is closed."""

    def __init__(self, context: zmq.Context[Any], keys: Keys) -> None:
        self._public = z85.decode(keys.public)
        self._authenticator = ThreadAuthenticator(context, log=logging.getLogger("heterps.wire"))
        self._authenticator.start()
        self._authenticator.configure_curve_callback(domain="*", credentials_provider=self)

    def callback(self, _domain: str, key: bytes) -> bool:
        """Tell whether a client with this public key (Z85) may connect."""
        return hmac.compare_digest(z85.decode(key), self._public)

    def close(self) -> None:
        self._authenticator.stop()
