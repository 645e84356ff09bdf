"""Requests and answers of ASGI applications (asgi.readthedocs.io/en/latest/specs/www.html), as far
as `app.py` needs them: each request costs few calls of Python, as that is what bounds a server of
small models."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Refusal(Exception):
    """An answer that is an error of HTTP itself."""

    def __init__(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.status, self.text, self.headers = status, text, headers


class ClientGone(Exception):
    """The client has gone while its request was read."""


class Request:
    """A request. model, version: those of its path, if it names any; held: bytes of its body that
    are noted as being under way."""

    __slots__ = ("_headers", "_receive", "held", "model", "version")

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._headers, self._receive = scope["headers"], receive
        self.model: str | None = None
        self.version: str | None = None
        self.held = 0

    def header(self, name: bytes) -> str | None:
        """The first header of that name, in small letters."""
        for key, value in self._headers:
            if key == name:
                return str(value, "latin-1")
        return None

    async def stream(self) -> AsyncIterator[bytes]:
        """The parts of its body, as they come. ClientGone if the rest will not come."""
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            if body := message.get("body", b""):
                yield body
            if not message.get("more_body", False):
                return

    async def disconnected(self) -> None:
        """Wait until the client goes; its body was read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass


class Response:
    """An answer. kind: the type of its content."""

    __slots__ = ("body", "headers", "kind", "status")

    def __init__(
        self, body: bytes, kind: str, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        self.body, self.kind, self.status, self.headers = body, kind, status, headers

    async def send(self, send: Send, with_body: bool = True) -> None:
        headers = [
            (b"content-length", b"%d" % len(self.body)), (b"content-type", self.kind.encode()),
        ]  # fmt: skip
        if self.headers:
            headers += [
                (k.lower().encode("latin-1"), v.encode("latin-1")) for k, v in self.headers.items()
            ]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        body = self.body if with_body else b""
        await send({"type": "http.response.body", "body": body, "more_body": False})


def json_response(
    told: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """An answer of JSON."""
    return Response(json.dumps(told).encode(), "application/json", status, headers)


def error_response(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    """An answer that says what is wrong."""
    return json_response({"error": text}, status, headers)
