"""The ASGI application: what `weft serve` answers to which request.

Paths are those of the Open Inference Protocol, version 2 (`/v2/...`), and of TensorFlow Serving
(`/v1/...`); `/metrics` is for Prometheus. Any server of ASGI applications runs it; `weft serve`
uses uvicorn. Every error is a status of 400 or more with {"error": text}."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Mapping
from typing import Any

from weft.frontend.serving import examples, predict, protocol
from weft.frontend.serving.asgi import (
    ClientGone,
    Receive,
    Refusal,
    Request,
    Response,
    Scope,
    Send,
    error_response,
    json_response,
)
from weft.frontend.serving.batching import Answer, Limits
from weft.frontend.serving.models import Version
from weft.frontend.serving.page import page
from weft.frontend.serving.repository import Repository
from weft.frontend.serving.service import Service, failure
from weft.ir.errors import CancelledError, InvalidArgumentError

_Handler = Callable[[Request], Awaitable[Response]]
#: The method and what answers it.
_Route = tuple[str, _Handler]

_HEADER = protocol.HEADER.lower().encode()
#: How long what a client still sends of a body that is refused is read: seconds.
_LINGER = 1.0


class App:
    """Models behind HTTP, as an ASGI application.

    repository: the models; limits: of the queue. token: if given, requests but those for
    `/v2/health/`, and for the page, which holds no more than a form, need the header
    `Authorization: Bearer TOKEN`. max_body: the most bytes of a request. may_load: whether requests
    may load and unload models. hosts: the names that requests may call the server by; None: any.
    `service` does what is asked. `close` runs what is queued and ends the threads; so does the end
    of the server's lifespan. Errors as `Limits`."""

    def __init__(
        self,
        repository: Repository,
        limits: Limits | None = None,
        *,
        token: str | None = None,
        max_body: int = 64 << 20,
        may_load: bool = False,
        hosts: Container[str] | None = None,
    ) -> None:
        self.service = Service(repository, limits or Limits(), max_body, may_load)
        self._token = None if token is None else f"Bearer {token}".encode()
        self._hosts = hosts
        self._fixed, self._of_models, self._verbs = self._routes()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live_on(receive, send)
        elif scope["type"] == "http":
            refusal = self._refusal(scope)
            if refusal is not None:
                self.service.metrics.request("", refusal.status)
            answer = refusal or await self._answer(scope, receive)
            await answer.send(send, scope["method"] != "HEAD")

    async def _answer(self, scope: Scope, receive: Receive) -> Response:
        """The answer to a request, counted; errors are answers, too."""
        service, request = self.service, Request(scope, receive)
        try:
            handler = self._handler(scope, request)
            response = await handler(request)
        except Exception as error:
            response = _failure(error)
        finally:
            if request.held:
                service.hold(-request.held)
        known = request.model if request.model in service.repository.models else None
        service.metrics.request(known or "", response.status)
        return response

    def _handler(self, scope: Scope, request: Request) -> _Handler:
        """What answers a request, which is told the model and version of its path. Refusal for a
        path or method that is none."""
        path, method = scope["path"], "GET" if scope["method"] == "HEAD" else scope["method"]
        found = self._fixed.get(path)
        if found is None:
            parts = path.split("/")
            if len(parts) > 3 and parts[2] == "models":
                verb = ""
                if parts[1] == "v1":
                    parts[-1], colon, verb = parts[-1].partition(":")
                    verb = colon + verb
                request.model, rest = parts[3], parts[4:]
                if len(rest) > 1 and rest[0] == "versions":
                    request.version, rest = rest[1], rest[2:]
                after = "".join(f"/{part}" for part in rest) + verb
                found = self._of_models.get((parts[1], after))
            elif parts[1:4] == ["v2", "repository", "models"] and len(parts) == 6:
                request.model, found = parts[4], self._verbs.get(parts[5])
        if found is None:
            raise Refusal(404, "there is nothing at this path")
        if found[0] != method:
            raise Refusal(405, "this path takes another method", {"Allow": found[0]})
        return found[1]

    def close(self) -> None:
        """Run what is queued, then end the threads."""
        self.service.close()

    async def _live_on(self, receive: Receive, send: Send) -> None:
        """The events of the server's life."""
        while True:
            event = (await receive())["type"]
            if event == "lifespan.shutdown":
                await asyncio.to_thread(self.close)
            await send({"type": f"{event}.complete"})
            if event == "lifespan.shutdown":
                return

    def _refusal(self, scope: Scope) -> Response | None:
        """The answer to a request that may not be asked.

        Browsers let pages of other sites send requests to this machine: they say so in `Origin`. A
        page may also have the name of its site lead here: then it is in `Host`."""
        given: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            if name in (b"authorization", b"host", b"origin"):
                given.setdefault(name, []).append(value)
        called, origin = given.get(b"host", [b""]), given.get(b"origin")
        if origin is not None and [o.partition(b"://")[2] for o in origin] != called:
            return error_response(403, "the request comes from a page of another site")
        if self._hosts is not None and [h for h in called if _name_of(h) not in self._hosts]:
            return error_response(403, "the name in Host is none of this server's")
        open_to_all = scope["path"] == "/" or scope["path"].startswith("/v2/health/")
        if self._token is None or open_to_all:
            return None
        tokens = given.get(b"authorization", [])
        if len(tokens) == 1 and hmac.compare_digest(tokens[0], self._token):
            return None
        return error_response(401, "the request has no valid token", {"WWW-Authenticate": "Bearer"})

    def _routes(self) -> tuple[dict[str, _Route], dict[tuple[str, str], _Route], dict[str, _Route]]:
        """Methods and handlers: by path; by protocol and what follows a model or its version; and
        by what is done to a model of the repository."""

        def get(handler: _Handler) -> _Route:
            return "GET", handler

        def post(handler: _Handler) -> _Route:
            return "POST", handler

        fixed = {
            "/": get(self._page), "/metrics": get(self._metrics),
            "/v2": get(self._server), "/v2/": get(self._server),
            "/v2/health/live": get(self._live), "/v2/health/ready": get(self._is_ready),
            "/v2/models/stats": get(self._statistics), "/v2/repository/index": post(self._index),
        }  # fmt: skip
        of_models = {
            ("v2", ""): get(self._model), ("v2", "/ready"): get(self._is_ready),
            ("v2", "/stats"): get(self._statistics), ("v2", "/infer"): post(self._infer),
            ("v1", ""): get(self._state), ("v1", "/metadata"): get(self._signatures),
            ("v1", ":predict"): post(self._predict), ("v1", ":classify"): post(self._classify),
            ("v1", ":regress"): post(self._regress),
        }  # fmt: skip
        return fixed, of_models, {"load": post(self._load), "unload": post(self._unload)}

    def _version(self, request: Request) -> Version:
        assert request.model is not None
        return self.service.repository.find(request.model, request.version)

    # ------------------------------------------------------------------------------ what is there

    async def _page(self, request: Request) -> Response:
        text, policy = page()
        headers = {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff"}
        return Response(text.encode(), "text/html; charset=utf-8", headers=headers)

    async def _server(self, request: Request) -> Response:
        return json_response(protocol.server_metadata())

    async def _live(self, request: Request) -> Response:
        return json_response({"live": True})

    async def _is_ready(self, request: Request) -> Response:
        told: dict[str, Any] = {"ready": self.service.ready}
        if request.model is not None:
            told = {"name": self._version(request).model, **told}
        if self.service.ready:
            return json_response(told)
        return json_response({**told, "error": "the server is stopping"}, 503)

    async def _metrics(self, request: Request) -> Response:
        return Response(self.service.metrics.text().encode(), "text/plain; version=0.0.4")

    async def _model(self, request: Request) -> Response:
        version = self._version(request)
        model = self.service.repository.model(version.model)
        return json_response(protocol.metadata(model.versions, version))

    async def _state(self, request: Request) -> Response:
        assert request.model is not None
        model = self.service.repository.model(request.model)
        return json_response(predict.status(model, request.version))

    async def _statistics(self, request: Request) -> Response:
        told = self.service.statistics(request.model, request.version)
        return json_response({"model_stats": told})

    async def _index(self, request: Request) -> Response:
        body = await self._body(request)
        ready = protocol.read_json(body).get("ready", False) if body else False
        if not isinstance(ready, bool):
            raise InvalidArgumentError("'ready' must be true or false")
        models = self.service.repository.models.values()
        return json_response(protocol.index(models, ready))

    async def _load(self, request: Request) -> Response:
        body = await self._body(request)
        protocol.check_load(protocol.read_json(body) if body else {})
        await self.service.load(request.model or "")
        return json_response({})

    async def _unload(self, request: Request) -> Response:
        await self._body(request)
        await self.service.unload(request.model or "")
        return json_response({})

    async def _signatures(self, request: Request) -> Response:
        return json_response(predict.metadata(self._version(request)))

    # ------------------------------------------------------------------------------------- calls

    async def _infer(self, request: Request) -> Response:
        version = self._version(request)
        with version.used():
            body = await self._body(request)
            length = request.header(_HEADER)
            answer, (content, head) = await self.service.answer(
                version, len(body), lambda: protocol.read_request(version, body, length),
                protocol.write_answer, request.disconnected,
            )  # fmt: skip
        headers = _timing(answer)
        if head is not None:
            headers[protocol.HEADER] = str(head)
        kind = "application/json" if head is None else "application/octet-stream"
        return Response(content, kind, headers=headers)

    async def _predict(self, request: Request) -> Response:
        return await self._answered(request, predict.read_request, predict.answer)

    async def _classify(self, request: Request) -> Response:
        return await self._answered(request, examples.read_request, examples.classification)

    async def _regress(self, request: Request) -> Response:
        return await self._answered(request, examples.read_request, examples.regression)

    async def _answered(
        self, request: Request,
        read_request: Callable[[Version, Mapping[str, Any]], predict.PredictRequest],
        answer_of: Callable[[predict.PredictRequest, list[Any]], Mapping[str, Any]],
    ) -> Response:  # fmt: skip
        """The answer to a request of TensorFlow Serving's forms."""
        version = self._version(request)
        with version.used():
            body = await self._body(request)
            answer, content = await self.service.answer(
                version, len(body), lambda: read_request(version, protocol.read_json(body)),
                lambda asked, results: json.dumps(answer_of(asked, results)).encode(),
                request.disconnected,
            )  # fmt: skip
        return Response(content, "application/json", headers=_timing(answer))

    async def _body(self, request: Request) -> bytes:
        """The body of a request, if it is not too long and does not take too long to come."""
        coding = request.header(b"content-encoding")
        if coding not in (None, "identity"):
            raise Refusal(415, f"the content encoding '{coding:.40}' is not supported")
        most = self.service.max_body
        said = request.header(b"content-length") or "0"
        if said.isascii() and said.isdigit() and int(said[:18]) > most:
            raise await self._too_long(request.stream())
        parts, size, stream = [], 0, request.stream()
        try:
            async with asyncio.timeout(self.service.limits.timeout):
                async for part in stream:
                    parts.append(part)
                    size += len(part)
                    request.held = size
                    self.service.hold(len(part))
                    if size > most:
                        parts.clear()
                        raise await self._too_long(stream)
        except TimeoutError:
            raise Refusal(408, "the request did not come in time") from None
        except ClientGone:
            raise CancelledError("the client has gone") from None
        return b"".join(parts)

    async def _too_long(self, stream: AsyncIterator[bytes]) -> Refusal:
        """The refusal of a body that is too long. What comes of it within a second is thrown away:
        a client that is still writing would find the connection broken, and no answer."""
        try:
            async with asyncio.timeout(_LINGER):
                async for _ in stream:
                    pass
        except (TimeoutError, ClientGone):
            pass
        return Refusal(
            413,
            f"the request has more than {self.service.max_body} bytes",
            {"Connection": "close"},
        )


def _name_of(host: bytes) -> str:
    """The name in a `Host` header, without its port."""
    text = host.decode("latin-1").lower()
    return text.partition("]")[0] + "]" if text.startswith("[") else text.partition(":")[0]


def _timing(answer: Answer) -> dict[str, str]:
    """How long the request was queued and its call took, in milliseconds, and the rows of the
    call, as the header that browsers know."""
    told = f"queue;dur={answer.queued * 1e3:.3f}, compute;dur={answer.computed * 1e3:.3f}"
    if answer.rows is not None:
        told += f', batch;desc="{answer.rows}"'
    return {"Server-Timing": told}


def _failure(error: Exception) -> Response:
    """The answer to a request that failed."""
    if isinstance(error, Refusal):
        return error_response(error.status, error.text, error.headers)
    status, _, text = failure(error)
    return error_response(status, text, {"Retry-After": "1"} if status == 503 else None)
