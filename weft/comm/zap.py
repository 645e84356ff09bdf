"""Who is let in: the answers to libzmq's authentication requests (ZeroMQ RFC 27)."""

from __future__ import annotations

import zmq

from weft.comm.rejections import Rejections
from weft.comm.security import Keys
from weft.comm.sockets import Context, Socket

ADDRESS = "inproc://zeromq.zap.01"


class Gate:
    """The handler of one context; `answer` is called when its socket is readable."""

    def __init__(self, context: Context, keys: Keys, rejections: Rejections) -> None:
        self._keys = keys
        self._rejections = rejections
        self.socket: Socket = context.socket(zmq.REP)
        self.socket.set(zmq.LINGER, 0)
        self.socket.bind(ADDRESS)

    def answer(self) -> None:
        """Answer one request. Its form is libzmq's own, so a wrong one is an error of this code."""
        version, request, domain, address, _, mechanism, *credentials = self.socket.recv_multipart()
        admitted = version == b"1.0" and self._keys.admits(domain, mechanism, credentials)
        if not admitted:
            self._rejections.count("unknown key", f" from {address.decode('ascii', 'replace')}")
        status = [b"200", b"OK", b"member"] if admitted else [b"400", b"unknown key", b""]
        self.socket.send_multipart([b"1.0", request, *status, b""])
