"""CURVE keys from the cluster's secret, and the list of who is let in.

Two key pairs are derived from the secret (BLAKE2b, one person string each): every inbox proves that
it has the server's, and admits only who has the client's. CURVE without such a list (ZAP) would
admit anybody who knows the server's public key.
"""

from __future__ import annotations

import hmac
from typing import Final

import zmq
from zmq.utils import z85

from weft.comm.errors import AuthenticationError
from weft.comm.keys import Secret

_DOMAIN: Final = b"weft"


class Keys:
    """The CURVE key pairs of a secret, in z85."""

    __slots__ = ("_client", "_client_public", "_server", "_server_public")

    def __init__(self, secret: Secret) -> None:
        if not zmq.has("curve"):
            raise AuthenticationError("this libzmq was built without CURVE")
        self._server = z85.encode(secret.derive(b"weft-server"))
        self._client = z85.encode(secret.derive(b"weft-client"))
        self._server_public = zmq.curve_public(self._server)
        self._client_public = zmq.curve_public(self._client)

    def serve(self, socket: zmq.Socket[bytes]) -> None:
        """Make `socket` an inbox that only holders of the secret can write to."""
        socket.set(zmq.CURVE_SERVER, 1)
        socket.set(zmq.CURVE_SECRETKEY, self._server)
        socket.set(zmq.CURVE_PUBLICKEY, self._server_public)
        socket.set(zmq.ZAP_DOMAIN, _DOMAIN)

    def call(self, socket: zmq.Socket[bytes]) -> None:
        """Make `socket` talk to inboxes of holders of the secret only."""
        socket.set(zmq.CURVE_SERVERKEY, self._server_public)
        socket.set(zmq.CURVE_SECRETKEY, self._client)
        socket.set(zmq.CURVE_PUBLICKEY, self._client_public)

    def admits(self, domain: bytes, mechanism: bytes, credentials: list[bytes]) -> bool:
        """Whether a handshake's client is one of ours (ZeroMQ RFC 27; its key is 32 bytes)."""
        return (
            domain == _DOMAIN
            and mechanism == b"CURVE"
            and len(credentials) == 1
            and len(credentials[0]) == 32
            and hmac.compare_digest(z85.encode(credentials[0]), self._client_public)
        )
