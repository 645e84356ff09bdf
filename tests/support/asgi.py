"""A client of an ASGI application in this process: requests without sockets."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any

from weft.ir.dataclass import dataclass


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def binary_request(told: Any, *tails: bytes) -> tuple[bytes, dict[str, str]]:
    """JSON and then bytes of tensors: the body, and the header that says where they begin."""
    head = json.dumps(told).encode()
    return b"".join([head, *tails]), {"Inference-Header-Content-Length": str(len(head))}


class Client:
    """Requests to an application, whose event loop has a thread of its own."""

    def __init__(self, app: Any) -> None:
        self.app, self.loop = app, asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)

    def __enter__(self) -> Client:
        self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.app.close()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def send(
        self, method: str, path: str, body: bytes | Iterable[bytes] = b"",
        headers: Mapping[str, str] | None = None, gone: asyncio.Event | None = None,
    ) -> Future[Reply]:  # fmt: skip
        """A request that is under way. body: in parts, if it is no bytes, without a
        Content-Length; gone: when it is set, the client goes, and such a body ends only then."""
        return asyncio.run_coroutine_threadsafe(
            self._ask(method, path, body, headers or {}, gone), self.loop
        )

    def ask(
        self, method: str, path: str, body: bytes | Iterable[bytes] = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Reply:  # fmt: skip
        return self.send(method, path, body, headers).result(60)

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        return self.ask("GET", path, b"", headers)

    def post(self, path: str, told: Any, headers: Mapping[str, str] | None = None) -> Reply:
        return self.ask("POST", path, json.dumps(told).encode(), headers)

    async def _ask(
        self, method: str, path: str, body: bytes | Iterable[bytes],
        headers: Mapping[str, str], gone: asyncio.Event | None,
    ) -> Reply:  # fmt: skip
        parts = [body] if isinstance(body, bytes) else list(body)
        shown = [(k.lower().encode("latin-1"), v.encode("latin-1")) for k, v in headers.items()]
        if isinstance(body, bytes) and not any(k == b"content-length" for k, _ in shown):
            shown.append((b"content-length", str(len(body)).encode()))
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method,
            "scheme": "http", "path": path, "raw_path": path.encode(), "root_path": "",
            "query_string": b"", "headers": shown, "client": ("test", 1), "server": ("test", 80),
        }  # fmt: skip
        endless = gone is not None and not isinstance(body, bytes)
        messages = [
            {"type": "http.request", "body": part, "more_body": endless or i + 1 < len(parts)}
            for i, part in enumerate(parts)
        ]
        leaves = gone or asyncio.Event()
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop(0)
            await leaves.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        start, *rest = sent
        return Reply(
            start["status"],
            {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in start["headers"]},
            b"".join(m.get("body", b"") for m in rest),
        )
