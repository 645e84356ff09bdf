"""The Open Inference Protocol over gRPC, with Triton's streams, statistics and repository, and
grpc.health.v1: what `weft serve --grpc-port` answers.

It runs in the event loop of the HTTP server, with the same models, queue, limits, token and
metrics. Outputs come as `raw_output_contents`, as Triton's do."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from weft.frontend.serving import protocol
from weft.frontend.serving.grpc_messages import CONTENTS, messages
from weft.frontend.serving.models import Version
from weft.frontend.serving.service import Service, beside, failure
from weft.ir.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
)

_SERVICE, _HEALTH = "inference.GRPCInferenceService", "grpc.health.v1.Health"
_Code = grpc.StatusCode
#: `HealthCheckResponse.ServingStatus`.
_SERVING, _NOT_SERVING = 1, 2


class GrpcServer:
    """The service behind gRPC.

    token: as of `App`; calls of the health service need none. most: calls at a time; further ones
    get RESOURCE_EXHAUSTED. `start` and `stop` are called in one event loop."""

    def __init__(self, service: Service, token: str | None = None, most: int = 4096) -> None:
        self.service, self._most = service, most
        self._token = None if token is None else f"Bearer {token}".encode()
        self._server: Any = None

    async def start(self, host: str, port: int, tls: tuple[bytes, bytes] | None = None) -> int:
        """Listen; the port, one that is free for 0. tls: key and certificate, PEM.
        UnavailableError if the address is taken, or they cannot be read."""
        server = grpc.aio.server(
            maximum_concurrent_rpcs=self._most,
            options=[
                ("grpc.max_receive_message_length", self.service.max_body),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),  # or two servers would share a port
                ("grpc.max_concurrent_streams", self._most),
                ("grpc.keepalive_time_ms", 60_000),  # or half-open connections would stay
                ("grpc.keepalive_timeout_ms", 20_000),
            ],
        )
        server.add_generic_rpc_handlers(
            tuple(
                grpc.method_handlers_generic_handler(name, calls) for name, calls in self._calls()
            )
        )
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if tls is None:
                found = server.add_insecure_port(address)
            else:
                found = server.add_secure_port(address, grpc.ssl_server_credentials([tls]))
        except RuntimeError as error:
            raise UnavailableError(f"cannot listen at {address} for gRPC: {error}") from None
        await server.start()
        self._server = server
        return int(found)

    async def stop(self, seconds: float | None = None) -> None:
        """Take no new calls, and wait until those that run have ended; they are cancelled after so
        many seconds."""
        if self._server is not None:
            await self._server.stop(seconds)

    # ------------------------------------------------------------------------------------- calls

    def _calls(self) -> list[tuple[str, dict[str, Any]]]:
        named = {
            "ServerLive": self._live, "ServerReady": self._ready, "ModelReady": self._model_ready,
            "ServerMetadata": self._server_metadata, "ModelMetadata": self._model_metadata,
            "ModelInfer": self._infer, "ModelStatistics": self._statistics,
            "RepositoryIndex": self._index, "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
        }  # fmt: skip
        calls = {
            name: grpc.stream_unary_rpc_method_handler(self._unary(f"{name}Request", call))
            for name, call in named.items()
        }
        calls["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(self._stream)
        health = self._unary("HealthCheckRequest", self._health, is_open=True)
        check = grpc.stream_unary_rpc_method_handler(health)
        return [(_SERVICE, calls), (_HEALTH, {"Check": check})]

    def _unary(
        self, request: str, call: Callable[[Any, Any], Awaitable[Any]], is_open: bool = False
    ) -> Callable[[Any, Any], Awaitable[bytes]]:
        """The function that gRPC calls: with one message, which comes in time or not, so with those
        of a stream, as they are not different on the wire. is_open: without a token, too."""

        async def run(_: Any, context: Any) -> bytes:
            if not is_open:
                await self._check_token(context)
            held, model = 0, ""
            try:
                data = await self._message(context)
                held = len(data)
                self.service.hold(held)
                asked = await beside(held, _parsed, request, data)
                model = self._known(asked)
                answer = await call(asked, context)
                told = await _bytes(answer)
            except Exception as error:
                await self._refuse(context, model, error)
            finally:
                self.service.hold(-held)
            self.service.metrics.request(model, "OK")
            return told

        return run

    async def _message(self, context: Any) -> bytes:
        """DeadlineExceededError if it does not come in time, InvalidArgumentError for none."""
        try:
            async with asyncio.timeout(self.service.limits.timeout):
                data = await context.read()
        except TimeoutError:
            raise DeadlineExceededError("no message came in time") from None
        if data is grpc.aio.EOF:
            raise InvalidArgumentError("the call has no message")
        return bytes(data)

    async def _refuse(self, context: Any, model: str, error: Exception) -> None:
        """End a call with the status of an error."""
        _, code, text = failure(error)
        self.service.metrics.request(model, code)
        await context.abort(_Code[code], text)

    async def _check_token(self, context: Any) -> None:
        if self._token is None:
            return
        metadata = context.invocation_metadata() or ()
        given = [value for name, value in metadata if name == "authorization"]
        tokens = [v.encode() if isinstance(v, str) else v for v in given]
        if len(tokens) != 1 or not hmac.compare_digest(tokens[0], self._token):
            self.service.metrics.request("", _Code.UNAUTHENTICATED.name)
            await context.abort(_Code.UNAUTHENTICATED, "the call has no valid token")

    def _known(self, asked: Any) -> str:
        """The model that a message is about, if there is such a one."""
        name = getattr(asked, "model_name", "") or getattr(asked, "name", "")
        return name if name in self.service.repository.models else ""

    # ------------------------------------------------------------------------------ what is there

    async def _health(self, asked: Any, context: Any) -> Any:
        if asked.service not in ("", _SERVICE):
            raise NotFoundError(f"there is no service '{asked.service:.100}'")
        status = _SERVING if self.service.ready else _NOT_SERVING
        return messages()["HealthCheckResponse"](status=status)

    async def _live(self, asked: Any, context: Any) -> Any:
        return messages()["ServerLiveResponse"](live=True)

    async def _ready(self, asked: Any, context: Any) -> Any:
        return messages()["ServerReadyResponse"](ready=self.service.ready)

    async def _model_ready(self, asked: Any, context: Any) -> Any:
        try:
            self._version(asked.name, asked.version)
        except (NotFoundError, UnavailableError):
            return messages()["ModelReadyResponse"](ready=False)
        return messages()["ModelReadyResponse"](ready=self.service.ready)

    async def _server_metadata(self, asked: Any, context: Any) -> Any:
        return messages()["ServerMetadataResponse"](**protocol.server_metadata())

    async def _model_metadata(self, asked: Any, context: Any) -> Any:
        version = self._version(asked.name, asked.version)
        versions = self.service.repository.model(version.model).versions
        told = protocol.metadata(versions, version)
        del told["signatures"]  # for which there is no field
        return messages()["ModelMetadataResponse"](**told)

    async def _statistics(self, asked: Any, context: Any) -> Any:
        told = self.service.statistics(asked.name or None, asked.version or None)
        return messages()["ModelStatisticsResponse"](model_stats=told)

    async def _index(self, asked: Any, context: Any) -> Any:
        told = protocol.index(self.service.repository.models.values(), asked.ready)
        return messages()["RepositoryIndexResponse"](models=told)

    async def _load(self, asked: Any, context: Any) -> Any:
        protocol.check_load({"parameters": dict.fromkeys(asked.parameters, "")})
        await self.service.load(asked.model_name)
        return messages()["RepositoryModelLoadResponse"]()

    async def _unload(self, asked: Any, context: Any) -> Any:
        await self.service.unload(asked.model_name)
        return messages()["RepositoryModelUnloadResponse"]()

    # ----------------------------------------------------------------------------------- infer

    def _version(self, model: str, version: str) -> Version:
        return self.service.repository.find(model, version or None)

    async def _infer(self, asked: Any, context: Any) -> Any:
        version = self._version(asked.model_name, asked.model_version)
        with version.used():
            _, told = await self.service.answer(
                version, asked.ByteSize(), lambda: _request(version, asked), _answer
            )
        return told

    async def _stream(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """Answers in the order of the requests; one that fails is answered by why, and the stream
        goes on."""
        await self._check_token(context)
        made = messages()["ModelStreamInferResponse"]
        async for data in requests:
            model = ""
            try:
                self.service.hold(len(data))
                asked = await beside(len(data), _parsed, "ModelInferRequest", data)
                model, code = self._known(asked), "OK"
                told = made(infer_response=await self._infer(asked, context))
            except Exception as error:
                _, code, text = failure(error)
                told = made(error_message=text)
            finally:
                self.service.hold(-len(data))
            self.service.metrics.request(model, code)
            yield await _bytes(told)


async def _bytes(told: Any) -> bytes:
    made: bytes = await beside(told.ByteSize(), told.SerializeToString)
    return made


def _parsed(kind: str, data: bytes) -> Any:
    try:
        return messages()[kind].FromString(data)
    except DecodeError:
        raise InvalidArgumentError(f"the message is no {kind}") from None


def _parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for name, value in given.items():
        chosen = value.WhichOneof("parameter_choice")
        if chosen is None:
            raise InvalidArgumentError(f"the parameter '{name:.100}' has no value")
        found[name] = getattr(value, chosen)
    return found


def _request(version: Version, asked: Any) -> protocol.InferRequest:
    """A `ModelInferRequest` that fits. Errors as `protocol.read_request`."""
    given: dict[str, Any] = {"parameters": _parameters(asked.parameters)}
    if asked.id:
        given["id"] = asked.id
    given["inputs"] = [
        {"name": one.name, "datatype": one.datatype, "shape": list(one.shape),
         "parameters": _parameters(one.parameters)}
        for one in asked.inputs
    ]  # fmt: skip
    given["outputs"] = [
        {"name": one.name, "parameters": _parameters(one.parameters)} for one in asked.outputs
    ]
    reader, raw = protocol.InferReader(version, given), asked.raw_input_contents
    if raw and len(raw) != len(asked.inputs):
        raise InvalidArgumentError(
            f"the request has raw contents for {len(raw)} of {len(asked.inputs)} inputs"
        )
    for i, (name, entry) in enumerate(reader.entries.items()):
        contents = asked.inputs[i].contents
        if not raw:
            field = CONTENTS.get(entry["datatype"])
            data = None if field is None else list(getattr(contents, field))
            reader.read(name, {**entry, "data": data}, memoryview(b""))
        elif contents.ByteSize():
            raise InvalidArgumentError(f"input '{name:.100}' has contents, and raw ones, too")
        else:
            reader.read_raw(name, entry, raw[i])
    return reader.done()


def _answer(request: protocol.InferRequest, results: Any) -> Any:
    """The `ModelInferResponse`."""
    ports = request.signature.outputs
    chosen = [(ports[number], results[number]) for number, _ in request.outputs]
    shown = {k: v for k, v in request.shown.items() if k != "parameters"}
    return messages()["ModelInferResponse"](
        **shown,
        outputs=[
            {"name": port.name, "datatype": protocol.datatype(port.type.dtype),
             "shape": list(array.shape)}
            for port, array in chosen
        ],
        raw_output_contents=[protocol.to_bytes(array, port.type.dtype) for port, array in chosen],
    )  # fmt: skip
