"""The HTTP server under the application: uvicorn, with limits on clients that are slow or send what
is no request.

uvicorn waits for the head of a request, and for a client to take its answer, as long as the
connection lasts, and keeps any number of bytes and requests that come ahead; here all have limits.
Requests are parsed by httptools (`httptools_connection.py`) where it is installed, which takes a
quarter of the time off a small request, else by h11."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

#: Seconds between looks at connections, and for a second SIGINT.
_EVERY, _SOON = 1.0, 0.1


class Watch:
    """What is known of a connection: what its client keeps it waiting for, and since when."""

    most = 1 << 30  # connections; `Server` sets it

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self._since = time.monotonic()
        self._waits_for: tuple[str, object] = ("head", None)
        if len(connection.connections) > self.most:
            self.refuse(503, "Service Unavailable", "there are too many connections")

    def refuse(self, status: int, phrase: str, text: str) -> None:
        """Answer with an error, unless an answer is on its way, and close."""
        cycle = self.connection.cycle
        if cycle is None or not cycle.response_started or cycle.response_complete:
            body = json.dumps({"error": text})
            retry = "Retry-After: 1\r\n" if status == 503 else ""
            head = (
                f"HTTP/1.1 {status} {phrase}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n{retry}Connection: close\r\n\r\n"
            )
            self.connection.transport.write((head + body).encode())
        self.connection.transport.close()

    def look(self, now: float, head: float, answer: float) -> None:
        """End the connection if its client takes more seconds than it may: `head` for a request's
        head, `answer` to read what was written."""
        cycle, transport = self.connection.cycle, self.connection.transport
        if transport.get_write_buffer_size():
            state, most = "answer", answer
        elif cycle is None or cycle.response_complete:
            state, most = "head", head
        else:  # the application has limits of its own
            state, most = "", float("inf")
        waits_for = (state, cycle)  # of the next request it is another one
        if waits_for != self._waits_for:
            self._since, self._waits_for = now, waits_for
        elif now - self._since > most:
            transport.abort()


class H11Connection(H11Protocol):
    """A connection of a client, parsed by h11, which has limits on heads."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.watch = Watch(self)

    def send_400_response(self, msg: str) -> None:
        self.watch.refuse(400, "Bad Request", msg)


def connection_class() -> Any:
    """The class for `uvicorn.Config(http=...)`: that of httptools, if it is installed."""
    try:
        from weft.frontend.serving.httptools_connection import ToolsConnection
    except ImportError:
        return H11Connection
    return ToolsConnection


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
        Watch.most = most

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._looking = asyncio.create_task(self._look())
        await self._begin()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()  # it takes no connections while `stop` waits
        stopping = asyncio.ensure_future(self._stop())
        while not (stopping.done() or self.force_exit):
            await asyncio.wait([stopping], timeout=_SOON)
        if stopping.done():
            stopping.result()
        stopping.cancel()
        await super().shutdown(sockets)
        self._looking.cancel()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_EVERY)
            now = time.monotonic()
            for one in list(self.server_state.connections):
                cast("Any", one).watch.look(now, *self._limits)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """uvicorn's own would raise the signal again once all is answered."""
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True
