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
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, ParamSpec, TypeVar

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from weft.frontend.serving import predict, protocol
from weft.frontend.serving.batching import Answer, Limits, Scheduler, prepare
from weft.frontend.serving.metrics import Metrics
from weft.frontend.serving.models import Repository, Signature, Version
from weft.ir.errors import (
    CancelledError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    OutOfRangeError,
    TypeRuleError,
    UnavailableError,
    UnsupportedError,
    WeftError,
)

Array = np.ndarray[Any, Any]
_P = ParamSpec("_P")
_T = TypeVar("_T")
_Handler = Callable[[Request], Awaitable[Response]]

#: Bodies of more bytes are read and written beside the event loop, which answers others meanwhile.
_LARGE = 1 << 17
#: How long what a client still sends of a body that is refused is read: seconds.
_LINGER = 1.0
#: How many times the longest body all requests that are under way may have together.
_BODIES = 16
#: Which status an error of weft is; others are 500.
_STATUS: tuple[tuple[type[WeftError], int], ...] = (
    (NotFoundError, 404),
    (InvalidArgumentError, 400), (TypeRuleError, 400), (OutOfRangeError, 400),
    (UnsupportedError, 400),
    (UnavailableError, 503), (FailedPreconditionError, 503),
    (DeadlineExceededError, 504),
    (CancelledError, 499),  # the client has gone; nobody reads it, but metrics count it
)  # fmt: skip


class App:
    """Models behind HTTP, as an ASGI application.

    repository: the models; limits: of the queue. token: if given, requests but those for
    `/v2/health/` need the header `Authorization: Bearer TOKEN`. max_body: the most bytes of a
    request. ready: what `/v2/health/ready` says. told: which signatures are batched, or why not, a
    line each; each is called before the first request. `close` runs what is queued and ends the
    threads; so does the end of the server's lifespan. Errors as `Limits`."""

    def __init__(
        self,
        repository: Repository,
        limits: Limits | None = None,
        *,
        token: str | None = None,
        max_body: int = 64 << 20,
    ) -> None:
        self.repository, self.max_body, self.ready = repository, max_body, True
        self.limits = limits or Limits()
        shown = [
            (f"{version.model}/{version.number}:{signature.name}", signature)
            for version, signature in repository.signatures()
        ]
        self.told = prepare(shown, self.limits)
        self.metrics = Metrics(lambda: len(self.scheduler))
        self.scheduler = Scheduler(self.limits, self.metrics)
        self._held = 0  # bytes of requests that are under way
        self._token = None if token is None else f"Bearer {token}".encode()
        self._routed = Starlette(
            routes=self._routes(),
            exception_handlers={HTTPException: _http_error},
            lifespan=self._lifespan,
        )
        self._routed.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._may(scope):
            refusal = _error(401, "the request has no valid token", {"WWW-Authenticate": "Bearer"})
            self.metrics.request("", refusal.status_code)
            await refusal(scope, receive, send)
            return
        await self._routed(scope, receive, send)

    def stop(self) -> None:
        """Say that it is not ready, and have no request wait for others. Requests are still
        answered."""
        self.ready = False
        self.scheduler.hurry()

    def close(self) -> None:
        """Run what is queued, then end the threads."""
        self.ready = False
        self.scheduler.close()

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(self.close)

    def _may(self, scope: Scope) -> bool:
        if self._token is None or scope["path"].startswith("/v2/health/"):
            return True
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        return len(given) == 1 and hmac.compare_digest(given[0], self._token)

    def _routes(self) -> list[Route]:
        def route(path: str, handler: _Handler, method: str = "GET") -> Route:
            return Route(path, self._guarded(handler), methods=[method])

        found = [
            route("/v2", self._server), route("/v2/", self._server),
            route("/v2/health/live", self._live), route("/v2/health/ready", self._is_ready),
            route("/metrics", self._metrics),
        ]  # fmt: skip
        for at in ("/{model}", "/{model}/versions/{version}"):
            found += [
                route(f"/v2/models{at}", self._model),
                route(f"/v2/models{at}/ready", self._is_ready),
                route(f"/v2/models{at}/infer", self._infer, "POST"),
                route(f"/v1/models{at}:predict", self._predict, "POST"),
                route(f"/v1/models{at}", self._state),
                route(f"/v1/models{at}/metadata", self._signatures),
            ]
        return found

    def _guarded(self, handler: _Handler) -> _Handler:
        """The handler with errors as answers, and counted."""

        async def run(request: Request) -> Response:
            request.state.held = 0
            try:
                response = await handler(request)
            except Exception as error:
                response = _failure(error)
            finally:
                self._held -= request.state.held
            model = request.path_params.get("model", "")
            known = model if model in self.repository.models else ""
            self.metrics.request(known, response.status_code)
            return response

        return run

    def _version(self, request: Request) -> Version:
        path = request.path_params
        return self.repository.find(path["model"], path.get("version"))

    # ------------------------------------------------------------------------------ what is there

    async def _server(self, request: Request) -> Response:
        version = str(importlib.import_module("weft").__version__)
        return _json({"name": "weft", "version": version, "extensions": protocol.EXTENSIONS})

    async def _live(self, request: Request) -> Response:
        return _json({"live": True})

    async def _is_ready(self, request: Request) -> Response:
        told: dict[str, Any] = {"ready": self.ready}
        if "model" in request.path_params:
            told = {"name": self._version(request).model, **told}
        if self.ready:
            return _json(told)
        return _json({**told, "error": "the server is stopping"}, 503)

    async def _metrics(self, request: Request) -> Response:
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4")

    async def _model(self, request: Request) -> Response:
        version = self._version(request)
        return _json(protocol.metadata(self.repository.models[version.model], version))

    async def _state(self, request: Request) -> Response:
        version = self._version(request)
        chosen = "version" in request.path_params
        every = self.repository.models[version.model]
        return _json(predict.status([version] if chosen else [every[n] for n in sorted(every)]))

    async def _signatures(self, request: Request) -> Response:
        return _json(predict.metadata(self._version(request)))

    # ------------------------------------------------------------------------------------- calls

    async def _infer(self, request: Request) -> Response:
        version = self._version(request)
        body = await self._body(request)
        length = request.headers.get(protocol.HEADER)
        asked = await _beside(len(body), protocol.read_request, version, body, length)
        answer = await self._run(request, version, asked.signature, asked.arrays)
        size = _size(answer.arrays)
        content, head = await _beside(size, protocol.write_answer, asked, answer.arrays)
        headers = _timing(answer)
        if head is not None:
            headers[protocol.HEADER] = str(head)
        kind = "application/json" if head is None else "application/octet-stream"
        return Response(content, headers=headers, media_type=kind)

    async def _predict(self, request: Request) -> Response:
        version = self._version(request)
        body = await self._body(request)

        def read() -> predict.PredictRequest:
            return predict.read_request(version, protocol.read_json(body))

        asked = await _beside(len(body), read)
        answer = await self._run(request, version, asked.signature, asked.arrays)

        def write() -> bytes:
            return json.dumps(predict.answer(asked, answer.arrays)).encode()

        content = await _beside(_size(answer.arrays), write)
        return Response(content, headers=_timing(answer), media_type="application/json")

    async def _body(self, request: Request) -> bytes:
        """The body of a request, if it is not too long and does not take too long to come."""
        coding = request.headers.get("content-encoding", "identity")
        if coding != "identity":
            raise HTTPException(415, f"the content encoding '{coding:.40}' is not supported")
        said = request.headers.get("content-length", "0")
        if said.isascii() and said.isdigit() and int(said[:18]) > self.max_body:
            raise await self._too_long(request.stream())
        parts, size, stream = [], 0, request.stream()
        try:
            async with asyncio.timeout(self.limits.timeout):
                async for part in stream:
                    parts.append(part)
                    size += len(part)
                    self._held += len(part)
                    request.state.held = size
                    if self._held > _BODIES * self.max_body:
                        raise UnavailableError("too many large requests are under way")
                    if size > self.max_body:
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
            413, f"the request has more than {self.max_body} bytes", {"Connection": "close"}
        )

    async def _run(
        self, request: Request, version: Version, signature: Signature, arrays: Sequence[Array]
    ) -> Answer:
        """The answer of the queue. DeadlineExceededError if it does not come in time,
        CancelledError if the client goes; a call that has not begun then never does."""
        queued = self.scheduler.submit(version.model, signature, arrays)
        result: asyncio.Future[Any] = asyncio.wrap_future(queued)
        gone: asyncio.Future[Any] = asyncio.ensure_future(_disconnected(request))
        try:
            done, _ = await asyncio.wait(
                [result, gone], timeout=self.limits.timeout, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            gone.cancel()
            if not result.done():
                result.cancel()
        if result in done:
            answer: Answer = result.result()
            return answer
        if gone in done:
            raise CancelledError("the client has gone")
        raise DeadlineExceededError(f"there was no result within {self.limits.timeout:g} seconds")


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _beside(size: int, f: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """`f(*args)`, in a thread if it is about many bytes."""
    if size <= _LARGE:
        return f(*args, **kwargs)
    return await asyncio.to_thread(f, *args, **kwargs)


def _size(arrays: Sequence[Array]) -> int:
    return sum(array.nbytes for array in arrays)


def _timing(answer: Answer) -> dict[str, str]:
    """How long the request was queued and its call took, in milliseconds, and the rows of the
    call, as the header that browsers know."""
    told = f"queue;dur={answer.queued * 1e3:.3f}, compute;dur={answer.computed * 1e3:.3f}"
    if answer.rows is not None:
        told += f', batch;desc="{answer.rows}"'
    return {"Server-Timing": told}


def _json(told: Mapping[str, Any], status: int = 200) -> Response:
    return Response(json.dumps(told), status, media_type="application/json")


def _error(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    content = json.dumps({"error": text})
    return Response(content, status, headers, media_type="application/json")


def _failure(error: Exception) -> Response:
    """The answer to a request that failed. What is not the client's doing is logged."""
    if isinstance(error, HTTPException):
        return _error(error.status_code, error.detail, error.headers)
    if isinstance(error, WeftError):
        status = next((s for kind, s in _STATUS if isinstance(error, kind)), 500)
        text = error.what if error.hint is None else f"{error.what} (hint: {error.hint})"
        headers = {"Retry-After": "1"} if status == 503 else None
        if status == 500:
            logging.getLogger("weft.serving").error("a request failed: %s", error)
        return _error(status, text, headers)
    logging.getLogger("weft.serving").error("a request failed", exc_info=error)
    if isinstance(error, MemoryError):
        return _error(500, "there is not enough memory for this request")
    return _error(500, f"internal error ({type(error).__name__})")


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    texts = {404: "there is nothing at this path", 405: "this path takes another method"}
    text = texts.get(error.status_code, error.detail)
    return _error(error.status_code, text, error.headers)
