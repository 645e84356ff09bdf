"""The HTTP server under the application: uvicorn, with limits on clients that are slow.

uvicorn waits for the head of a first request, and for a client to take its answer, as long as the
connection lasts; here neither lasts longer than it may, and connections are limited."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

#: Seconds between looks at connections.
_EVERY = 1.0
_TOO_MANY = json.dumps({"error": "there are too many connections: try again later"})


class Connection(H11Protocol):
    """A connection of a client."""

    most = 1 << 30  # connections; `Server` sets it

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._since = time.monotonic()
        self._waits_for: tuple[str, object] = ("head", None)
        if len(self.connections) > self.most:
            head = (
                "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(_TOO_MANY)}\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
            )
            self.transport.write((head + _TOO_MANY).encode())
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """The answer to what is no HTTP, as other errors are."""
        try:
            body = json.dumps({"error": msg}).encode()
            headers = [
                ("Content-Type", "application/json"), ("Content-Length", str(len(body))),
                ("Connection", "close"),
            ]  # fmt: skip
            for event in (
                h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event))
        except h11.LocalProtocolError:
            pass  # an answer is on its way already
        self.transport.close()

    def look(self, now: float, head: float, answer: float) -> None:
        """End the connection if its client takes more seconds than it may: `head` for a request's
        head, `answer` to read what was written."""
        cycle: Any = self.cycle  # None before the first request
        if self.transport.get_write_buffer_size():
            state, most = "answer", answer
        elif cycle is None or cycle.response_complete:
            state, most = "head", head
        else:  # the application has limits of its own
            state, most = "", float("inf")
        waits_for = (state, cycle)  # of the next request it is another one
        if waits_for != self._waits_for:
            self._since, self._waits_for = now, waits_for
        elif now - self._since > most:
            self.transport.abort()


class Server(uvicorn.Server):
    """uvicorn's server with these connections.

    most: connections at a time, further ones get status 503; head, answer: seconds in which a
    client must send the head of a request, and take an answer. begin is awaited when it listens;
    stop, when it is to end, before connections are. A second SIGINT ends it at once."""

    def __init__(
        self,
        config: uvicorn.Config,
        most: int,
        head: float,
        answer: float,
        begin: Callable[[], Awaitable[object]],
        stop: Callable[[], Awaitable[object]],
    ) -> None:
        super().__init__(config)
        self._limits = head, answer
        self._begin, self._stop = begin, stop
        Connection.most = most

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._looking = asyncio.create_task(self._look())
        await self._begin()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._stop()
        await super().shutdown(sockets)
        self._looking.cancel()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_EVERY)
            now = time.monotonic()
            for one in list(self.server_state.connections):
                if isinstance(one, Connection):
                    one.look(now, *self._limits)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """uvicorn's own would raise the signal again once all is answered."""
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True
