"""Connections whose requests httptools parses, with the limits on heads and on requests that come
ahead of their turn that it does not have itself."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from weft.frontend.serving.http_server import Watch

#: The most bytes of the head of a request, and requests that a client sends ahead of its answers.
_MOST_HEAD, _MOST_AHEAD = 1 << 16, 16


class ToolsConnection(HttpToolsProtocol):
    """A connection of a client, parsed by httptools."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.watch = Watch(self)
        self._head: int | None = 0  # bytes that have come of a head; None: it is complete

    def send_400_response(self, msg: str) -> None:
        self.watch.refuse(400, "Bad Request", msg)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._head is not None:
            self._head += len(data)
        super().data_received(data)
        if self._head is not None and self._head > _MOST_HEAD:
            self.watch.refuse(431, "Request Header Fields Too Large", "the head is too long")
        elif len(self.pipeline) > _MOST_AHEAD:
            self.watch.refuse(429, "Too Many Requests", "too many requests were sent ahead")

    def on_headers_complete(self) -> None:
        self._head = None
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._head = 0
        super().on_message_complete()
