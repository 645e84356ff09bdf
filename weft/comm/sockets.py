"""ZeroMQ sockets of links: bounded queues and frames, heartbeats, CURVE keys and authentication.

Two CURVE key pairs are derived from the cluster's secret (BLAKE2b, one person string each): every
inbox proves that it has the server's, and admits only who has the client's. CURVE without such a
list (ZAP, ZeroMQ RFC 27) would admit anybody who knows the server's public key."""

from __future__ import annotations

import contextlib
import hmac
import resource
from typing import Final

import zmq
from zmq.utils import z85

from weft.comm.errors import AuthenticationError
from weft.comm.keys import Secret
from weft.comm.limits import FRAME_BYTES, Limits, Rejections

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


INBOX_HWM = 16  # messages of one connection that wait for the inbox; a chunk of 1 MB is one
CTL_HWM = 256  # messages that wait for one peer's connection; tensors among them up to 256 KB
BULK_HWM = 4

Socket = zmq.Socket[bytes]
Context = zmq.Context[Socket]


def _common(socket: Socket, limits: Limits) -> Socket:
    beat = int(limits.heartbeat_s * 1000)
    timeout = int(limits.heartbeat_timeout_s * 1000)
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.MAXMSGSIZE, FRAME_BYTES)
    socket.set(zmq.HEARTBEAT_IVL, beat)
    socket.set(zmq.HEARTBEAT_TIMEOUT, timeout)
    socket.set(zmq.HEARTBEAT_TTL, timeout)
    socket.set(zmq.HANDSHAKE_IVL, int(limits.connect_s * 1000))
    return socket


def inbox(context: Context, limits: Limits, keys: Keys | None) -> Socket:
    """The inbox of a task, not bound yet. A DEALER, which shows the messages of all who connect as
    a ROUTER does, but without a frame before each that says by which connection it came: frames
    say that themselves."""
    socket = _common(context.socket(zmq.DEALER), limits)
    socket.set(zmq.RCVHWM, INBOX_HWM)
    if keys is not None:
        keys.serve(socket)
    return socket


def dealer(context: Context, limits: Limits, keys: Keys | None, hwm: int) -> Socket:
    """One lane to a peer, not connected yet. IMMEDIATE: nothing is queued for a peer that is not
    there, so a process that is restarted at its address never gets what was meant for the old."""
    socket = _common(context.socket(zmq.DEALER), limits)
    socket.set(zmq.IMMEDIATE, 1)
    socket.set(zmq.SNDHWM, hwm)
    socket.set(zmq.RCVHWM, 1)  # nothing is ever sent back on it
    socket.set(zmq.RECONNECT_IVL, 20)
    socket.set(zmq.RECONNECT_IVL_MAX, 500)
    if keys is not None:
        keys.call(socket)
    return socket


def make_context(peers: int) -> Context:
    """A context for links to so many peers: with sockets, and descriptors, for all of them (libzmq
    ends the process where some of its calls find none left)."""
    context: Context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 6 * peers + 64)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 8 * peers + 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    return context


ZAP_ADDRESS = "inproc://zeromq.zap.01"


class Gate:
    """The handler of one context; `answer` is called when its socket is readable."""

    def __init__(self, context: Context, keys: Keys, rejections: Rejections) -> None:
        self._keys = keys
        self._rejections = rejections
        self.socket: Socket = context.socket(zmq.REP)
        self.socket.set(zmq.LINGER, 0)
        self.socket.bind(ZAP_ADDRESS)

    def answer(self) -> None:
        """Answer one request. Its form is libzmq's own, so a wrong one is an error of this code."""
        version, request, domain, address, _, mechanism, *credentials = self.socket.recv_multipart()
        admitted = version == b"1.0" and self._keys.admits(domain, mechanism, credentials)
        if not admitted:
            self._rejections.count("unknown key", f" from {address.decode('ascii', 'replace')}")
        status = [b"200", b"OK", b"member"] if admitted else [b"400", b"unknown key", b""]
        self.socket.send_multipart([b"1.0", request, *status, b""])
