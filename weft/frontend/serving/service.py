"""What a server does, whatever requests it is asked by: calls of signatures within limits, and
models that come and go. `app.py` (HTTP) and `grpc_server.py` ask it."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar

import numpy as np

from weft.frontend.serving.batching import Answer, Limits, QuickCalls, Scheduler, prepare
from weft.frontend.serving.metrics import Metrics
from weft.frontend.serving.models import Signature, Version
from weft.frontend.serving.repository import Repository
from weft.ir.errors import (
    CancelledError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    OutOfRangeError,
    PermissionDeniedError,
    ResourceExhaustedError,
    TypeRuleError,
    UnavailableError,
    UnsupportedError,
    WeftError,
)

Array = np.ndarray[Any, Any]
_log = logging.getLogger("weft.serving")
_P = ParamSpec("_P")
_T = TypeVar("_T")

#: Requests and answers of more bytes are read and written beside the event loop, which serves
#: others meanwhile.
_LARGE = 1 << 17
#: How many times the longest request all requests that are under way may have together.
_BODIES = 16
#: Seconds after which somebody looks whether the client of a request has gone.
_SOON = 0.05
#: Which status of HTTP, and of gRPC, an error of weft is; others are 500, INTERNAL.
_STATUS: tuple[tuple[type[WeftError], int, str], ...] = (
    (NotFoundError, 404, "NOT_FOUND"),
    (InvalidArgumentError, 400, "INVALID_ARGUMENT"), (TypeRuleError, 400, "INVALID_ARGUMENT"),
    (OutOfRangeError, 400, "INVALID_ARGUMENT"), (UnsupportedError, 400, "INVALID_ARGUMENT"),
    (PermissionDeniedError, 403, "PERMISSION_DENIED"),
    (UnavailableError, 503, "UNAVAILABLE"), (FailedPreconditionError, 503, "UNAVAILABLE"),
    (ResourceExhaustedError, 500, "RESOURCE_EXHAUSTED"),
    (DeadlineExceededError, 504, "DEADLINE_EXCEEDED"),
    (CancelledError, 499, "CANCELLED"),  # nobody reads it, but metrics count it
)  # fmt: skip


class Asked(Protocol):
    """A request for a call, of any protocol. timeout: seconds, if it says so."""

    @property
    def signature(self) -> Signature: ...
    @property
    def arrays(self) -> list[Array]: ...
    @property
    def timeout(self) -> float | None: ...


_A = TypeVar("_A", bound=Asked)


class Service:
    """Models and the queue for them.

    ready: what `/v2/health/ready` says. told: which signatures are batched, or why not, a line
    each; each is called before the first request. max_body: the most bytes of a request.
    may_load: whether requests may load and unload models. `close` runs what is queued and ends the
    threads. Errors as `Limits`."""

    def __init__(
        self, repository: Repository, limits: Limits, max_body: int, may_load: bool = False
    ) -> None:
        self.repository, self.limits, self.max_body = repository, limits, max_body
        self.may_load, self.ready = may_load, True
        self.told: list[str] = []
        for version in [v for m in repository.models.values() for v in m.versions.values()]:
            self.told += prepare(version, limits)
        repository.prepared = lambda version: prepare(version, limits)
        self.metrics = Metrics(lambda: len(self.scheduler))
        repository.ended = self.metrics.forget
        self.scheduler = Scheduler(limits, self.metrics)
        self.quick = QuickCalls(limits, self.metrics)
        self._held = 0  # bytes of requests that are under way
        self._ended = threading.Event()
        self._following: threading.Thread | None = None

    def follow(self, seconds: float) -> None:
        """Look each so many seconds whether versions have come or gone, until `close`."""

        def run() -> None:
            while not self._ended.wait(seconds):
                try:
                    self.repository.refresh()
                except Exception:  # what is served goes on, and so do the looks
                    _log.exception("versions could not be looked for")

        self._following = threading.Thread(target=run, name="weft serve follows", daemon=True)
        self._following.start()

    def stop(self) -> None:
        """Say that it is not ready, and have no request wait for others. Requests are still
        answered."""
        self.ready = False
        self.scheduler.hurry()

    def close(self) -> None:
        """Run what is queued, then end the threads."""
        self.ready = False
        self._ended.set()
        self.scheduler.close()
        if self._following is not None:
            self._following.join()

    def hold(self, size: int) -> None:
        """Note that so many more bytes of requests are under way; fewer, if it is negative.
        UnavailableError if they are too many; they are noted then, too."""
        self._held += size
        if size > 0 and self._held > _BODIES * self.max_body:
            raise UnavailableError("too many large requests are under way")

    async def answer(
        self,
        version: Version,
        size: int,
        read: Callable[[], _A],
        write: Callable[[_A, list[Array]], _T],
        gone: Callable[[], Coroutine[Any, Any, object]] | None = None,
    ) -> tuple[Answer, _T]:
        """A request of so many bytes, read, called and its results written. Errors as `call`, and
        those of `read` and `write`."""
        asked = await beside(size, read)
        answer = await self.call(version, asked.signature, asked.arrays, asked.timeout, gone)
        size = sum(array.nbytes for array in answer.arrays)
        return answer, await beside(size, write, asked, answer.arrays)

    async def call(
        self,
        version: Version,
        signature: Signature,
        arrays: Sequence[Array],
        timeout: float | None,
        gone: Callable[[], Coroutine[Any, Any, object]] | None = None,
    ) -> Answer:
        """The results of a call with arrays that fit. timeout: seconds, at most those of the
        limits; gone: a coroutine that ends when the client has gone.

        DeadlineExceededError if it does not come in time, CancelledError if the client goes; a call
        that has not begun then never does. Errors as `Scheduler.submit`, and those of the call."""
        begun = time.monotonic()
        try:
            return await self._call(version, signature, arrays, timeout, gone)
        except BaseException:  # a call of gRPC that is cancelled, too
            self.metrics.failed((version.model, version.number), time.monotonic() - begun)
            raise

    async def _call(
        self,
        version: Version,
        signature: Signature,
        arrays: Sequence[Array],
        timeout: float | None,
        gone: Callable[[], Coroutine[Any, Any, object]] | None,
    ) -> Answer:
        if self.quick.take(version, signature, arrays):
            self.scheduler.check_open()
            return await self.quick.submit(version, signature, arrays)
        most = self.limits.timeout
        limit = seconds = most if timeout is None else min(timeout, most)
        queued = self.scheduler.submit(version, signature, arrays)
        result: asyncio.Future[Any] = asyncio.wrap_future(queued)
        awaited: list[asyncio.Future[Any]] = [result]
        try:
            if gone is not None and seconds > _SOON:  # most are answered before anybody goes
                await asyncio.wait(awaited, timeout=_SOON)
                seconds -= _SOON
                if not result.done():
                    awaited.append(asyncio.create_task(gone()))
            if not result.done():
                await asyncio.wait(awaited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in awaited:
                if not one.done():
                    one.cancel()
        if result.done() and not result.cancelled():
            answer: Answer = result.result()
            return answer
        if len(awaited) > 1 and awaited[1].done() and not awaited[1].cancelled():
            raise CancelledError("the client has gone")
        raise DeadlineExceededError(f"there was no result within {limit:g} seconds")

    def statistics(self, model: str | None, version: str | None) -> list[dict[str, Any]]:
        """Of one version, of those of a model, or of all. Errors as `Repository.find` and
        `Repository.model`."""
        repository = self.repository
        if model is not None and version is not None:
            chosen = [repository.find(model, version)]
        else:
            models = repository.models.values() if model is None else [repository.model(model)]
            chosen = [v for m in models for _, v in sorted(m.versions.items())]
        return [self.metrics.statistics(v.model, v.number) for v in chosen]

    async def load(self, model: str) -> None:
        """Load a model, or load it again where its files have changed, beside what is served.
        PermissionDeniedError if requests may not; errors as `Repository.load`."""
        self._check_may_load()
        await asyncio.to_thread(self.repository.load, model)

    async def unload(self, model: str) -> None:
        """PermissionDeniedError if requests may not; errors as `Repository.unload`."""
        self._check_may_load()
        await asyncio.to_thread(self.repository.unload, model)

    def _check_may_load(self) -> None:
        if not self.may_load:
            raise PermissionDeniedError(
                "requests may not load or unload models here", hint="weft serve --model-control"
            )


async def beside(size: int, f: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """`f(*args)`, in a thread if it is about many bytes."""
    if size <= _LARGE:
        return f(*args, **kwargs)
    return await asyncio.to_thread(f, *args, **kwargs)


def failure(error: Exception) -> tuple[int, str, str]:
    """What an error is for a client: the status of HTTP, that of gRPC, and the text. What is not
    the client's doing is logged."""
    if isinstance(error, WeftError):
        found = [(status, code) for kind, status, code in _STATUS if isinstance(error, kind)]
        status, code = found[0] if found else (500, "INTERNAL")
        if status == 500:
            _log.error("a request failed: %s", error)
        hint = "" if error.hint is None else f" (hint: {error.hint})"
        return status, code, f"{error.what}{hint}"
    _log.error("a request failed", exc_info=error)
    if isinstance(error, MemoryError):
        return 500, "INTERNAL", "there is not enough memory for this request"
    return 500, "INTERNAL", f"internal error ({type(error).__name__})"
