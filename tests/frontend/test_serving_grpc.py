"""gRPC: what grpcio's generic client gets for bytes that are written by hand, and tritonclient."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import os
import shutil
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paths import ROOT
from serve_process import serving

import weft as wf
from weft.frontend.serving.app import App
from weft.frontend.serving.batching import Limits
from weft.frontend.serving.grpc_server import GrpcServer
from weft.frontend.serving.repository import Repository
from weft.frontend.serving.service import failure
from weft.frontend.tools.main import main

SERVICE = "/inference.GRPCInferenceService/"
Code = grpc.StatusCode


# ------------------------------------------------------------------------- the wire, by hand


def varint(value: int) -> bytes:
    out = b""
    value &= (1 << 64) - 1
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def field(number: int, value: bytes | str | int) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def parsed(data: bytes) -> list[tuple[int, Any]]:
    """Fields of a message: numbers and lengths alone, which is all that is used here."""
    found, at = [], 0

    def read() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        tag = read()
        size = read()
        if tag & 7 == 0:
            found.append((tag >> 3, size))
        else:
            assert tag & 7 == 2
            found.append((tag >> 3, data[at : at + size]))
            at += size
    return found


def values(data: bytes, number: int) -> list[Any]:
    return [value for n, value in parsed(data) if n == number]


def tensor(name: str, datatype: str, shape: Sequence[int], contents: bytes | None = None) -> bytes:
    packed = b"".join(map(varint, shape))
    made = field(1, name) + field(2, datatype) + field(3, packed)
    return made if contents is None else made + field(5, contents)


def infer_request(
    inputs: list[bytes], raw: list[bytes] | None = None, model: str = "m", version: str = "",
    more: bytes = b"",
) -> bytes:  # fmt: skip
    return (
        field(1, model) + field(2, version) + field(3, "7")
        + b"".join(field(5, one) for one in inputs) + more
        + b"".join(field(7, one) for one in raw or [])
    )  # fmt: skip


def parameter(name: str, value: bytes) -> bytes:
    return field(4, field(1, name) + field(2, value))


X = np.arange(6, dtype=np.float32).reshape(2, 3)
GOOD = infer_request([tensor("x", "FP32", X.shape)], [X.tobytes()])


# ----------------------------------------------------------------------------------- a server


class Served:
    """A server in a thread's event loop, and a channel to it."""

    def __init__(self, paths: Sequence[str], **options: Any) -> None:
        token, limits = options.pop("token", None), options.pop("limits", Limits())
        self.app = App(Repository(paths), limits, **options)
        self.server = GrpcServer(self.app.service, token)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)

    def run(self, awaited: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(awaited, self.loop).result(60)

    def __enter__(self) -> Served:
        self.thread.start()
        self.port = self.run(self.server.start("127.0.0.1", 0))
        self.channel = grpc.insecure_channel(f"127.0.0.1:{self.port}")
        return self

    def __exit__(self, *error: Any) -> None:
        self.channel.close()
        self.run(self.server.stop())
        self.app.close()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def ask(self, name: str, message: bytes = b"", **options: Any) -> bytes:
        path = name if name.startswith("/") else SERVICE + name
        told: bytes = self.channel.unary_unary(path)(message, timeout=60, **options)
        return told

    def refused(self, name: str, message: bytes = b"", **options: Any) -> tuple[Any, str]:
        with pytest.raises(grpc.RpcError) as error:
            self.ask(name, message, **options)
        return error.value.code(), error.value.details()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("grpc")
    kinds = (("m", wf.float32, ("n", 3)), ("half", wf.float16, ("n",)), ("int", wf.int8, ("n",)))
    for name, kind, shape in kinds:
        wf.export(lambda x: x + x, path / name, example=wf.TensorType(kind, shape))
    wf.export(lambda x: x, path / "words", example=wf.TensorType(wf.string, ("n", 2)))
    wf.export(lambda x: x, path / "truth", example=wf.TensorType(wf.bool, ("n",)))
    number = wf.TensorType(wf.int64, ())
    wf.export(None, path / "pair", signatures={
        "both": (lambda a, b: (a + b, a), (number, number)),
        "one": (lambda a: -a, wf.TensorType(wf.uint64, (2,))),
    })  # fmt: skip
    return path


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    paths = [str(p) for p in folder.iterdir()]
    with Served(paths, max_body=1 << 20, may_load=True) as made:
        yield made


def outputs(answer: bytes) -> dict[str, tuple[str, list[int], bytes]]:
    """By name: datatype, shape and bytes."""
    found = {}
    for one, data in zip(values(answer, 5), values(answer, 6), strict=True):
        shape, packed = [], b"".join(values(one, 3))
        while packed:
            size = next(i for i, b in enumerate(packed) if b < 128) + 1
            shape.append(sum((b & 127) << 7 * i for i, b in enumerate(packed[:size])))
            packed = packed[size:]
        found[values(one, 1)[0].decode()] = (values(one, 2)[0].decode(), shape, data)
    return found


class TestInfer:
    def test_the_very_bytes(self, served: Served) -> None:
        """A message and its answer as tritonclient's classes write and read them (recorded)."""
        told = bytes.fromhex(
            "0a016d1a01372a0d0a01781204465033321a020203"
            "3a1800000000" "0000803f" "00000040" "00004040" "00008040" "0000a040"
        )  # fmt: skip
        answer = served.ask("ModelInfer", told)
        assert answer == bytes.fromhex(
            "0a016d" "120131" "1a0137" "2a120a06726573756c741204465033321a020203"
            "3218" "00000000" "00000040" "00008040" "0000c040" "00000041" "00002041"
        )  # fmt: skip

    def test_raw(self, served: Served) -> None:
        answer = served.ask("ModelInfer", GOOD)
        assert values(answer, 1) == [b"m"]
        assert values(answer, 2) == [b"1"]
        assert values(answer, 3) == [b"7"]
        assert outputs(answer) == {"result": ("FP32", [2, 3], (X * 2).tobytes())}

    def test_contents(self, served: Served) -> None:
        floats = field(6, X.tobytes())
        answer = served.ask("ModelInfer", infer_request([tensor("x", "FP32", X.shape, floats)]))
        assert outputs(answer)["result"][2] == (X * 2).tobytes()
        small = field(2, b"".join(map(varint, [1, -3, 63])))
        answer = served.ask(
            "ModelInfer", infer_request([tensor("x", "INT8", [3], small)], model="int")
        )
        assert outputs(answer)["result"] == ("INT8", [3], np.array([2, -6, 126], "i1").tobytes())
        truth = field(1, b"\1\0")
        answer = served.ask(
            "ModelInfer", infer_request([tensor("x", "BOOL", [2], truth)], model="truth")
        )
        assert outputs(answer)["result"] == ("BOOL", [2], b"\1\0")
        words = b"".join(field(8, w) for w in (b"a", b"\xff"))
        answer = served.ask(
            "ModelInfer", infer_request([tensor("x", "BYTES", [1, 2], words)], model="words")
        )
        raw = struct.pack("<I", 1) + b"a" + struct.pack("<I", 1) + b"\xff"
        assert outputs(answer)["result"] == ("BYTES", [1, 2], raw)

    def test_a_signature_and_an_output(self, served: Served) -> None:
        ab = [tensor("b", "INT64", []), tensor("a", "INT64", [])]
        raw = [struct.pack("<q", 5), struct.pack("<q", -2)]
        chosen = parameter("signature", field(3, "both"))
        more = chosen + field(6, field(1, "result_1"))
        answer = served.ask("ModelInfer", infer_request(ab, raw, model="pair", more=more))
        assert outputs(answer) == {"result_1": ("INT64", [], struct.pack("<q", -2))}
        assert served.refused("ModelInfer", infer_request(ab, raw, model="pair"))[0] is (
            Code.INVALID_ARGUMENT
        )

    @given(st.binary(max_size=60))
    def test_any_half_precision_bits(self, served: Served, bits: bytes) -> None:
        bits = bits[: len(bits) // 2 * 2]
        x = np.frombuffer(bits, "<f2")
        message = infer_request([tensor("x", "FP16", x.shape)], [bits], model="half")
        found = np.frombuffer(outputs(served.ask("ModelInfer", message))["result"][2], "<f2")
        with np.errstate(all="ignore"):
            assert np.array_equal(found, x + x, equal_nan=True)

    def test_a_stream(self, served: Served) -> None:
        asked = [GOOD, infer_request([], model="none"), b"\xff\xff", GOOD]
        got = list(served.channel.stream_stream(SERVICE + "ModelStreamInfer")(iter(asked)))
        assert len(got) == 4
        assert outputs(values(got[0], 2)[0])["result"][2] == (X * 2).tobytes()
        assert b"there is no model 'none'" in values(got[1], 1)[0]
        assert b"no ModelInferRequest" in values(got[2], 1)[0]
        assert got[3] == got[0]

    @pytest.mark.parametrize(("message", "code", "text"), [
        (b"\xff\xff", Code.INVALID_ARGUMENT, "no ModelInferRequest"),
        (infer_request([], model="none"), Code.NOT_FOUND, "no model 'none'"),
        (infer_request([], version="3"), Code.NOT_FOUND, "no version '3'"),
        (infer_request([]), Code.INVALID_ARGUMENT, "'x' is missing"),
        (infer_request([tensor("x", "FP32", [2, 3])]), Code.INVALID_ARGUMENT, "has 0 values"),
        (infer_request([tensor("x", "FP64", [2, 3])], [bytes(48)]), Code.INVALID_ARGUMENT, "FP64"),
        (infer_request([tensor("x", "FP32", [2, 3])], [bytes(23)]), Code.INVALID_ARGUMENT,
         "has 23 bytes"),
        (infer_request([tensor("x", "FP32", [-1, 3])], [b""]), Code.INVALID_ARGUMENT, "shape"),
        (infer_request([tensor("x", "FP32", [0, 1 << 40])], [b""]), Code.INVALID_ARGUMENT,
         "no elements"),
        (infer_request([tensor("x", "FP32", [1 << 61, 1 << 61])], [b""]), Code.INVALID_ARGUMENT,
         "takes"),
        (infer_request([tensor("x", "FP32", [2, 4])], [bytes(32)]), Code.INVALID_ARGUMENT,
         "takes [-1, 3]"),
        (infer_request([tensor("x", "FP32", [2, 3])] * 2, [bytes(24)] * 2),
         Code.INVALID_ARGUMENT, "twice"),
        (infer_request([tensor("y", "FP32", [2, 3])], [bytes(24)]), Code.INVALID_ARGUMENT,
         "no input 'y'"),
        (infer_request([tensor("x", "FP32", [2, 3])], [bytes(24)] * 2), Code.INVALID_ARGUMENT,
         "raw contents for 2 of 1"),
        (infer_request([tensor("x", "FP32", [2, 3], field(6, bytes(24)))], [bytes(24)]),
         Code.INVALID_ARGUMENT, "raw ones, too"),
        (infer_request([tensor("x", "FP32", [2, 3])], [bytes(24)], more=field(6, field(1, "y"))),
         Code.INVALID_ARGUMENT, "no output 'y'"),
        (infer_request([tensor("x", "FP32", [2, 3])], [bytes(24)],
                       more=parameter("timeout", field(2, -5))), Code.INVALID_ARGUMENT, "timeout"),
        (infer_request([tensor("x", "FP32", [2, 3])], [bytes(24)], more=parameter("a", b"")),
         Code.INVALID_ARGUMENT, "no value"),
        (infer_request([tensor("x", "FP16", [1])], model="half"), Code.INVALID_ARGUMENT, "no data"),
        (bytes(1 << 21), Code.RESOURCE_EXHAUSTED, "max"),
    ])  # fmt: skip
    def test_what_is_wrong(self, served: Served, message: bytes, code: Any, text: str) -> None:
        found, told = served.refused("ModelInfer", message)
        assert (found, text in told) == (code, True), told
        assert served.ask("ModelInfer", GOOD)

    @given(st.binary(max_size=80), st.integers(0, 60), st.integers(0, 20))
    def test_made_up_messages(self, served: Served, noise: bytes, at: int, gone: int) -> None:
        codes = set()
        for message in (noise, GOOD[:at] + noise + GOOD[at + gone :]):
            try:
                served.ask("ModelInfer", message)
            except grpc.RpcError as error:
                codes.add(error.code())
        assert codes <= {Code.INVALID_ARGUMENT, Code.NOT_FOUND}


class TestOthers:
    def test_state(self, served: Served) -> None:
        assert served.ask("ServerLive") == served.ask("ServerReady") == field(1, 1)
        assert served.ask("ModelReady", field(1, "m") + field(2, "1")) == field(1, 1)
        assert served.ask("ModelReady", field(1, "none")) == b""
        assert values(served.ask("ServerMetadata"), 1) == [b"weft"]
        assert b"binary_tensor_data" in values(served.ask("ServerMetadata"), 3)
        told = served.ask("ModelMetadata", field(1, "m"))
        assert values(told, 4) == [tensor("x", "FP32", [-1, 3])]
        assert values(told, 5) == [tensor("result", "FP32", [-1, 3])]
        assert served.refused("ModelMetadata", field(1, "none"))[0] is Code.NOT_FOUND
        assert served.refused("ModelConfig")[0] is Code.UNIMPLEMENTED

    def test_health(self, served: Served) -> None:
        path = "/grpc.health.v1.Health/Check"
        assert served.ask(path) == field(1, 1)
        assert served.ask(path, field(1, "inference.GRPCInferenceService")) == field(1, 1)
        assert served.refused(path, field(1, "other"))[0] is Code.NOT_FOUND

    def test_statistics_and_repository(self, served: Served) -> None:
        served.ask("ModelInfer", GOOD)
        (one,) = values(served.ask("ModelStatistics", field(1, "m")), 1)
        assert values(one, 1) == [b"m"]
        assert values(one, 4)[0] >= 2
        index = values(served.ask("RepositoryIndex"), 1)
        assert sorted(values(i, 1)[0] for i in index)[:3] == [b"half", b"int", b"m"]
        assert values(index[0], 3) == [b"READY"]
        served.ask("RepositoryModelUnload", field(2, "int"))
        assert served.ask("ModelReady", field(1, "int")) == b""
        ready = values(served.ask("RepositoryIndex", field(2, 1)), 1)
        assert len(ready) == len(index) - 1
        served.ask("RepositoryModelLoad", field(2, "int"))
        assert served.ask("ModelReady", field(1, "int")) == field(1, 1)
        config = field(2, "int") + field(3, field(1, "config") + field(2, field(3, "{}")))
        assert served.refused("RepositoryModelLoad", config)[0] is Code.INVALID_ARGUMENT

    def test_metrics(self, served: Served) -> None:
        served.refused("ModelInfer", infer_request([]))
        text = served.app.service.metrics.text()
        assert 'weft_requests_total{model="m",status="INVALID_ARGUMENT"}' in text
        assert 'weft_requests_total{model="m",status="OK"}' in text


def test_a_token(folder: Path) -> None:
    with Served([str(folder / "m")], token="secret") as served:
        assert served.ask("/grpc.health.v1.Health/Check") == field(1, 1)
        for metadata in ((), (("authorization", "secret"),), (("authorization", "Bearer secre"),)):
            for name in ("ModelInfer", "ServerLive", "RepositoryModelUnload"):
                code, _ = served.refused(name, GOOD, metadata=metadata)
                assert code is Code.UNAUTHENTICATED
        good = (("authorization", "Bearer secret"),)
        assert outputs(served.ask("ModelInfer", GOOD, metadata=good))
        assert served.refused("RepositoryModelUnload", field(2, "m"), metadata=good)[0] is (
            Code.PERMISSION_DENIED
        )
        stream = served.channel.stream_stream(SERVICE + "ModelStreamInfer")
        with pytest.raises(grpc.RpcError):
            list(stream(iter([GOOD])))


@pytest.mark.parametrize(("error", "status", "code", "text"), [
    (wf.errors.InvalidArgumentError("a", hint="b"), 400, "INVALID_ARGUMENT", "a (hint: b)"),
    (wf.errors.UnavailableError("a"), 503, "UNAVAILABLE", "a"),
    (wf.errors.ResourceExhaustedError("a"), 500, "RESOURCE_EXHAUSTED", "a"),
    (wf.errors.DataLossError("a"), 500, "INTERNAL", "a"),
    (MemoryError(), 500, "INTERNAL", "there is not enough memory for this request"),
    (KeyError("secret"), 500, "INTERNAL", "internal error (KeyError)"),
])  # fmt: skip
def test_what_errors_are_for_clients(
    error: Exception, status: int, code: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "weft.serving"):
        assert failure(error) == (status, code, text)
    assert Code[code]
    told = [record for record in caplog.records if record.name == "weft.serving"]
    assert len(told) == (status == 500)  # what is not the client's doing


class Held:
    """A signature whose calls wait until `go` is set."""

    def __init__(self, signature: Any) -> None:
        self.signature, self.go = signature, threading.Event()
        self.begun, self.calls = threading.Event(), 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.signature, name)

    def is_quick(self, rows: int) -> bool:
        return False

    def __call__(self, arrays: Any) -> Any:
        self.calls += 1
        self.begun.set()
        assert self.go.wait(60)
        return self.signature(arrays)


@contextmanager
def held_model(folder: Path, **limits: Any) -> Iterator[tuple[Served, Held]]:
    with Served([str(folder / "m")], limits=Limits(max_batch=1, **limits)) as served:
        signatures = served.app.service.repository.find("m").signatures
        held = signatures["serving_default"] = Held(signatures["serving_default"])  # type: ignore[assignment]
        try:
            yield served, held
        finally:
            held.go.set()


class TestLimits:
    def test_a_full_queue_and_clients_that_go(self, folder: Path) -> None:
        with held_model(folder, max_queue=1) as (served, held):
            call = served.channel.unary_unary(SERVICE + "ModelInfer")
            first = call.future(GOOD, timeout=60)
            assert held.begun.wait(60)
            second = call.future(GOOD, timeout=60)
            scheduler, end = served.app.service.scheduler, time.monotonic() + 60
            while len(scheduler) != 1:
                assert time.monotonic() < end
                time.sleep(0.01)
            code, text = served.refused("ModelInfer", GOOD)
            assert code is Code.UNAVAILABLE
            assert "try again" in text
            second.cancel()
            while len(scheduler):  # it is taken from the queue
                assert time.monotonic() < end
                time.sleep(0.01)
            held.go.set()
            assert outputs(first.result())
            assert held.calls == 1

    def test_timeouts(self, folder: Path) -> None:
        """Of the client, of the request (microseconds), and of the server."""
        with held_model(folder, timeout=0.3) as (served, _):
            micro = infer_request([tensor("x", "FP32", X.shape)], [X.tobytes()],
                                  more=parameter("timeout", field(2, 1000)))  # fmt: skip
            code, text = served.refused("ModelInfer", micro)
            assert (code, "0.001 seconds" in text) == (Code.DEADLINE_EXCEEDED, True)
            assert served.refused("ModelInfer", GOOD)[0] is Code.DEADLINE_EXCEEDED
            with pytest.raises(grpc.RpcError) as error:
                served.channel.unary_unary(SERVICE + "ModelInfer")(GOOD, timeout=0.05)
            assert error.value.code() is Code.DEADLINE_EXCEEDED
            silent = served.channel.stream_unary(SERVICE + "ModelInfer")
            wait = threading.Event()
            with pytest.raises(grpc.RpcError) as error:  # a call whose message never comes
                silent(iter(lambda: wait.wait(60) and b"", b""), timeout=60)
            wait.set()
            assert error.value.code() is Code.DEADLINE_EXCEEDED
            assert "no message came in time" in error.value.details()


def takes_connections(address: str) -> bool:
    try:
        http.client.HTTPConnection(address, timeout=60).connect()
    except ConnectionRefusedError:
        return False
    return True


class TestProcess:
    def test_it_listens_and_ends(self, folder: Path) -> None:
        with serving(str(folder / "m"), "--grpc-port", "0") as (process, _, lines):
            address = lines[-1].removeprefix("serving gRPC on ")
            with grpc.insecure_channel(address) as channel:
                call = channel.unary_unary(SERVICE + "ModelInfer")
                assert outputs(call(GOOD, timeout=60))["result"][2] == (X * 2).tobytes()
            process.terminate()
            assert process.wait(60) == 0
            assert process.stderr.read() == ""

    @pytest.mark.slow
    def test_a_stream_that_stays_open(self, folder: Path) -> None:
        """While it is waited for, nobody else comes; a second interrupt does not wait for it."""
        options = ("--grpc-port", "0", "--timeout", "600")
        with serving(str(folder / "m"), *options) as (process, at, lines):
            address, ends = lines[-1].removeprefix("serving gRPC on "), threading.Event()

            def asked() -> Iterator[bytes]:
                yield GOOD
                ends.wait(120)

            with grpc.insecure_channel(address) as channel:
                got = channel.stream_stream(SERVICE + "ModelStreamInfer")(asked())
                assert outputs(values(next(got), 2)[0])
                process.send_signal(signal.SIGINT)
                end = time.monotonic() + 60
                while takes_connections(at):
                    assert time.monotonic() < end
                    time.sleep(0.05)
                assert process.poll() is None
                process.send_signal(signal.SIGINT)
                assert process.wait(60) == 0
                ends.set()

    @pytest.mark.slow
    @pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
    def test_tls(self, folder: Path, tmp_path: Path) -> None:
        key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
        words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext"
        command = ["openssl", *words.split(), "subjectAltName=IP:127.0.0.1"]
        subprocess.run(
            [*command, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True
        )
        options = ("--grpc-port", "0", "--tls-key", str(key), "--tls-cert", str(cert))
        with serving(str(folder / "m"), *options) as (_, _at, lines):
            address = lines[-1].removeprefix("serving gRPC on ")
            trusted = grpc.ssl_channel_credentials(cert.read_bytes())
            with grpc.secure_channel(address, trusted) as channel:
                call = channel.unary_unary(SERVICE + "ModelInfer")
                assert outputs(call(GOOD, timeout=60))
            with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError):
                channel.unary_unary(SERVICE + "ServerLive")(b"", timeout=5)

    @pytest.mark.slow
    def test_a_port_that_is_taken(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        with Served([str(folder / "m")]) as served:
            words = ["serve", str(folder / "m"), "--port", "0", "--grpc-port", str(served.port)]
            assert main(words) == 2
            assert "for gRPC" in capsys.readouterr().err

    @pytest.mark.skipif("WEFT_TRITONCLIENT" not in os.environ, reason="names no Python that has it")
    def test_tritonclient(self, folder: Path) -> None:
        paths = [str(folder / n) for n in ("m", "half", "words")]
        with serving(*paths, "--grpc-port", "0", "--model-control") as (_, address, lines):
            at = lines[-1].removeprefix("serving gRPC on ")
            program = ROOT / "tests" / "support" / "triton_calls.py"
            done = subprocess.run(
                [os.environ["WEFT_TRITONCLIENT"], str(program), address, at],
                capture_output=True, text=True, timeout=120,
            )  # fmt: skip
            assert done.stdout == "fine\n", done.stderr


def test_both_answer_alike(folder: Path) -> None:
    """HTTP and gRPC tell the same of models."""
    with serving(str(folder / "m"), "--grpc-port", "0") as (_, address, lines):
        connection = http.client.HTTPConnection(address, timeout=60)
        connection.request("GET", "/v2/models/m")
        told = json.loads(connection.getresponse().read())
        with grpc.insecure_channel(lines[-1].removeprefix("serving gRPC on ")) as channel:
            same = channel.unary_unary(SERVICE + "ModelMetadata")(field(1, "m"), timeout=60)
        assert told["platform"].encode() == values(same, 3)[0]
        (x,) = told["inputs"]
        assert values(same, 4) == [tensor(x["name"], x["datatype"], x["shape"])]
