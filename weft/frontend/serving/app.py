"""The ASGI application: what `weft serve` answers to which request.

Paths are those of the Open Inference Protocol, version 2 (`/v2/...`), and of TensorFlow Serving
(`/v1/...`); `/metrics` is for Prometheus. Any server of ASGI applications runs it; `weft serve`
uses uvicorn. Every error is a status of 400 or more with {"error": text}."""

from __future__ import annotations

import asyncio
import hmac
import importlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Mapping
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from weft.frontend.serving import examples, predict, protocol
from weft.frontend.serving.batching import Answer, Limits
from weft.frontend.serving.models import Version
from weft.frontend.serving.page import page
from weft.frontend.serving.repository import Repository
from weft.frontend.serving.service import Service, beside, size_of
from weft.ir.errors import (
    CancelledError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    OutOfRangeError,
    PermissionDeniedError,
    TypeRuleError,
    UnavailableError,
    UnsupportedError,
    WeftError,
)

_Handler = Callable[[Request], Awaitable[Response]]

#: How long what a client still sends of a body that is refused is read: seconds.
_LINGER = 1.0
#: Which status an error of weft is; others are 500.
_STATUS: tuple[tuple[type[WeftError], int], ...] = (
    (NotFoundError, 404),
    (InvalidArgumentError, 400), (TypeRuleError, 400), (OutOfRangeError, 400),
    (UnsupportedError, 400), (PermissionDeniedError, 403),
    (UnavailableError, 503), (FailedPreconditionError, 503),
    (DeadlineExceededError, 504),
    (CancelledError, 499),  # the client has gone; nobody reads it, but metrics count it
)  # fmt: skip


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
        self._routed = Starlette(
            routes=self._routes(),
            exception_handlers={HTTPException: _http_error},
            lifespan=self._lifespan,
        )
        self._routed.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is not None:
            self.service.metrics.request("", refusal.status_code)
            await refusal(scope, receive, send)
            return
        await self._routed(scope, receive, send)

    def close(self) -> None:
        """Run what is queued, then end the threads."""
        self.service.close()

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(self.close)

    def _refusal(self, scope: Scope) -> Response | None:
        """The answer to a request that may not be asked.

        Browsers let pages of other sites send requests to this machine: they say so in `Origin`. A
        page may also have the name of its site lead here: then it is in `Host`."""
        given: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            if name in (b"authorization", b"host", b"origin"):
                given.setdefault(name, []).append(value)
        host, origin = given.get(b"host", [b""])[0], given.get(b"origin")
        if origin is not None and [o.partition(b"://")[2] for o in origin] != [host]:
            return error_response(403, "the request comes from a page of another site")
        if self._hosts is not None and _name_of(host) not in self._hosts:
            return error_response(403, "the name in Host is none of this server's")
        open_to_all = scope["path"] == "/" or scope["path"].startswith("/v2/health/")
        if self._token is None or open_to_all:
            return None
        tokens = given.get(b"authorization", [])
        if len(tokens) == 1 and hmac.compare_digest(tokens[0], self._token):
            return None
        return error_response(401, "the request has no valid token", {"WWW-Authenticate": "Bearer"})

    def _routes(self) -> list[Route]:
        def route(path: str, handler: _Handler, method: str = "GET") -> Route:
            return Route(path, self._guarded(handler), methods=[method])

        found = [
            route("/", self._page),
            route("/v2", self._server), route("/v2/", self._server),
            route("/v2/health/live", self._live), route("/v2/health/ready", self._is_ready),
            route("/v2/models/stats", self._statistics),
            route("/v2/repository/index", self._index, "POST"),
            route("/v2/repository/models/{model}/load", self._load, "POST"),
            route("/v2/repository/models/{model}/unload", self._unload, "POST"),
            route("/metrics", self._metrics),
        ]  # fmt: skip
        for at in ("/{model}", "/{model}/versions/{version}"):
            found += [
                route(f"/v2/models{at}", self._model),
                route(f"/v2/models{at}/ready", self._is_ready),
                route(f"/v2/models{at}/stats", self._statistics),
                route(f"/v2/models{at}/infer", self._infer, "POST"),
                route(f"/v1/models{at}:predict", self._predict, "POST"),
                route(f"/v1/models{at}:classify", self._classify, "POST"),
                route(f"/v1/models{at}:regress", self._regress, "POST"),
                route(f"/v1/models{at}", self._state),
                route(f"/v1/models{at}/metadata", self._signatures),
            ]
        return found

    def _guarded(self, handler: _Handler) -> _Handler:
        """The handler with errors as answers, and counted."""
        service = self.service

        async def run(request: Request) -> Response:
            request.state.held = 0
            try:
                response = await handler(request)
            except Exception as error:
                response = _failure(error)
            finally:
                service.hold(-request.state.held)
            model = request.path_params.get("model", "")
            known = model if model in service.repository.models else ""
            service.metrics.request(known, response.status_code)
            return response

        return run

    def _version(self, request: Request) -> Version:
        path = request.path_params
        return self.service.repository.find(path["model"], path.get("version"))

    # ------------------------------------------------------------------------------ what is there

    async def _page(self, request: Request) -> Response:
        text, policy = page()
        headers = {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff"}
        return Response(text, headers=headers, media_type="text/html")

    async def _server(self, request: Request) -> Response:
        version = str(importlib.import_module("weft").__version__)
        return _json({"name": "weft", "version": version, "extensions": protocol.EXTENSIONS})

    async def _live(self, request: Request) -> Response:
        return _json({"live": True})

    async def _is_ready(self, request: Request) -> Response:
        told: dict[str, Any] = {"ready": self.service.ready}
        if "model" in request.path_params:
            told = {"name": self._version(request).model, **told}
        if self.service.ready:
            return _json(told)
        return _json({**told, "error": "the server is stopping"}, 503)

    async def _metrics(self, request: Request) -> Response:
        return Response(self.service.metrics.text(), media_type="text/plain; version=0.0.4")

    async def _model(self, request: Request) -> Response:
        version = self._version(request)
        model = self.service.repository.model(version.model)
        return _json(protocol.metadata(model.versions, version))

    async def _state(self, request: Request) -> Response:
        path = request.path_params
        model = self.service.repository.model(path["model"])
        return _json(predict.status(model, path.get("version")))

    async def _statistics(self, request: Request) -> Response:
        path = request.path_params
        told = self.service.statistics(path.get("model"), path.get("version"))
        return _json({"model_stats": told})

    async def _index(self, request: Request) -> Response:
        body = await self._body(request)
        ready = protocol.read_json(body).get("ready", False) if body else False
        if not isinstance(ready, bool):
            raise InvalidArgumentError("'ready' must be true or false")
        models = self.service.repository.models.values()
        return _json(protocol.index(models, ready))

    async def _load(self, request: Request) -> Response:
        body = await self._body(request)
        protocol.check_load(protocol.read_json(body) if body else {})
        await self.service.load(request.path_params["model"])
        return _json({})

    async def _unload(self, request: Request) -> Response:
        await self._body(request)
        await self.service.unload(request.path_params["model"])
        return _json({})

    async def _signatures(self, request: Request) -> Response:
        return _json(predict.metadata(self._version(request)))

    # ------------------------------------------------------------------------------------- calls

    async def _infer(self, request: Request) -> Response:
        version = self._version(request)
        with version.used():
            body = await self._body(request)
            length = request.headers.get(protocol.HEADER)
            asked = await beside(len(body), protocol.read_request, version, body, length)
            answer = await self._run(request, version, asked)
            size = size_of(answer.arrays)
            content, head = await beside(size, protocol.write_answer, asked, answer.arrays)
        headers = _timing(answer)
        if head is not None:
            headers[protocol.HEADER] = str(head)
        kind = "application/json" if head is None else "application/octet-stream"
        return Response(content, headers=headers, media_type=kind)

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

            def read() -> predict.PredictRequest:
                return read_request(version, protocol.read_json(body))

            asked = await beside(len(body), read)
            answer = await self._run(request, version, asked)

            def write() -> bytes:
                return json.dumps(answer_of(asked, answer.arrays)).encode()

            content = await beside(size_of(answer.arrays), write)
        return Response(content, headers=_timing(answer), media_type="application/json")

    async def _run(
        self, request: Request, version: Version,
        asked: protocol.InferRequest | predict.PredictRequest,
    ) -> Answer:  # fmt: skip
        """Errors as `Service.call`."""
        return await self.service.call(
            version, asked.signature, asked.arrays, asked.timeout,
            lambda: _disconnected(request),
        )  # fmt: skip

    async def _body(self, request: Request) -> bytes:
        """The body of a request, if it is not too long and does not take too long to come."""
        coding = request.headers.get("content-encoding", "identity")
        if coding != "identity":
            raise HTTPException(415, f"the content encoding '{coding:.40}' is not supported")
        most = self.service.max_body
        said = request.headers.get("content-length", "0")
        if said.isascii() and said.isdigit() and int(said[:18]) > most:
            raise await self._too_long(request.stream())
        parts, size, stream = [], 0, request.stream()
        try:
            async with asyncio.timeout(self.service.limits.timeout):
                async for part in stream:
                    parts.append(part)
                    size += len(part)
                    request.state.held = size
                    self.service.hold(len(part))
                    if size > most:
                        parts.clear()
                        raise await self._too_long(stream)
        except TimeoutError:
            raise HTTPException(408, "the request did not come in time") from None
        except ClientDisconnect:
            raise CancelledError("the client has gone") from None
        return b"".join(parts)

    async def _too_long(self, stream: AsyncIterator[bytes]) -> HTTPException:
        """The refusal of a body that is too long. What comes of it within a second is thrown away:
        a client that is still writing would find the connection broken, and no answer."""
        try:
            async with asyncio.timeout(_LINGER):
                async for _ in stream:
                    pass
        except (TimeoutError, ClientDisconnect):
            pass
        return HTTPException(
            413,
            f"the request has more than {self.service.max_body} bytes",
            {"Connection": "close"},
        )


def _name_of(host: bytes) -> str:
    """The name in a `Host` header, without its port."""
    text = host.decode("latin-1").lower()
    return text.partition("]")[0] + "]" if text.startswith("[") else text.partition(":")[0]


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _timing(answer: Answer) -> dict[str, str]:
    """How long the request was queued and its call took, in milliseconds, and the rows of the
    call, as the header that browsers know."""
    told = f"queue;dur={answer.queued * 1e3:.3f}, compute;dur={answer.computed * 1e3:.3f}"
    if answer.rows is not None:
        told += f', batch;desc="{answer.rows}"'
    return {"Server-Timing": told}


def _json(told: Any, status: int = 200) -> Response:
    return Response(json.dumps(told), status, media_type="application/json")


def error_response(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    content = json.dumps({"error": text})
    return Response(content, status, headers, media_type="application/json")


def _failure(error: Exception) -> Response:
    """The answer to a request that failed. What is not the client's doing is logged."""
    if isinstance(error, HTTPException):
        return error_response(error.status_code, error.detail, error.headers)
    if isinstance(error, WeftError):
        status = next((s for kind, s in _STATUS if isinstance(error, kind)), 500)
        text = error.what if error.hint is None else f"{error.what} (hint: {error.hint})"
        headers = {"Retry-After": "1"} if status == 503 else None
        if status == 500:
            logging.getLogger("weft.serving").error("a request failed: %s", error)
        return error_response(status, text, headers)
    logging.getLogger("weft.serving").error("a request failed", exc_info=error)
    if isinstance(error, MemoryError):
        return error_response(500, "there is not enough memory for this request")
    return error_response(500, f"internal error ({type(error).__name__})")


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    texts = {404: "there is nothing at this path", 405: "this path takes another method"}
    text = texts.get(error.status_code, error.detail)
    return error_response(error.status_code, text, error.headers)
