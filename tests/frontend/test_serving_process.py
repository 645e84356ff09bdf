"""`weft serve` as a process, as people start and stop it."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paths import ROOT
from serve_process import serving

import weft as wf
from weft.frontend.tools.main import main


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("process") / "doubled"
    wf.export(lambda x: x * 2, path, example=wf.TensorType(wf.float32, ("n", 3)))
    return str(path)


def infer(address: str, x: Any, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    entry = {"name": "x", "datatype": "FP32", "shape": list(x.shape), "data": x.tolist()}
    connection = http.client.HTTPConnection(address, timeout=60)
    body = json.dumps({"inputs": [entry]})
    connection.request("POST", "/v2/models/m/infer", body, headers or {})
    reply = connection.getresponse()
    return reply.status, json.loads(reply.read())


X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_what_is_in_flight_is_answered(bundle: str) -> None:
    with serving(f"m={bundle}", "--max-delay-ms", "300000") as (process, address, lines):
        assert lines == ["m/1:serving_default: batched up to 64 rows"]
        found: list[tuple[int, Any]] = []
        asking = threading.Thread(target=lambda: found.append(infer(address, X)))
        asking.start()
        idle = http.client.HTTPConnection(address, timeout=60)
        deadline = time.monotonic() + 60
        while True:  # until the request is in the queue, where the delay keeps it
            idle.request("GET", "/metrics")
            text = idle.getresponse().read().decode()
            if "weft_waiting_requests 1\n" in text:
                break
            assert time.monotonic() < deadline, text
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        asking.join(60)
        ((status, told),) = found
        assert status == 200
        assert told["outputs"][0]["data"] == (X * 2).reshape(-1).tolist()
        with pytest.raises(OSError):  # noqa: PT011
            infer(address, X)
        assert process.stderr.read() == ""


@pytest.mark.slow
def test_a_token_of_the_environment_and_a_body_that_is_too_long(bundle: str) -> None:
    limit = ("--max-body-mb", "1")
    with serving(f"m={bundle}", *limit, WEFT_SERVE_TOKEN="secret") as (process, address, _):
        assert infer(address, X)[0] == 401
        assert infer(address, X, {"Authorization": "Bearer secret"})[0] == 200
        large = http.client.HTTPConnection(address, timeout=60)
        headers = {"Authorization": "Bearer secret"}
        large.request("POST", "/v2/models/m/infer", b" " * 20_000_000, headers)
        assert large.getresponse().status == 413  # though all of it is on its way
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


@pytest.mark.slow
def test_small_answers_come_at_once(bundle: str) -> None:
    """A part of an answer that waits for the client's acknowledgement takes 40 ms."""
    with serving(f"m={bundle}") as (_, address, _):
        connection, seconds = http.client.HTTPConnection(address, timeout=60), []
        for _ in range(40):
            begun = time.perf_counter()
            connection.request("POST", "/v1/models/m:predict", b'{"instances": [[1, 2, 3]]}')
            assert connection.getresponse().read() == b'{"predictions": [[2.0, 4.0, 6.0]]}'
            seconds.append(time.perf_counter() - begun)
        assert min(seconds[20:]) < 0.03  # the first of a connection do not wait


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_tls(bundle: str, tmp_path: Path) -> None:
    key, cert = str(tmp_path / "key.pem"), str(tmp_path / "cert.pem")
    words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext"
    command = ["openssl", *words.split(), "subjectAltName=IP:127.0.0.1", "-keyout", key]
    subprocess.run([*command, "-out", cert], check=True, capture_output=True)
    with serving(f"m={bundle}", "--tls-cert", cert, "--tls-key", key) as (_, address, _):
        trusted = ssl.create_default_context(cafile=cert)
        connection = http.client.HTTPSConnection(address, timeout=60, context=trusted)
        connection.request("GET", "/v2/health/ready")
        assert json.loads(connection.getresponse().read()) == {"ready": True}


@pytest.mark.slow
def test_a_second_interrupt_ends_it_at_once(bundle: str) -> None:
    with serving(f"m={bundle}", "--timeout", "600") as (process, at, _):
        connection = http.client.HTTPConnection(at, timeout=60)
        connection.putrequest("POST", "/v1/models/m:predict")
        connection.putheader("Content-Length", "100")
        connection.endheaders(b'{"instances"')  # the rest never comes
        other = http.client.HTTPConnection(at, timeout=60)
        other.request("GET", "/v2/health/ready")
        assert other.getresponse().read() == b'{"ready": true}'
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def test_errors_of_the_command(
    bundle: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, text in (
        (["nothing"], "neither a bundle nor a folder of versions"),
        ([bundle, "--threads", "0"], "threads must be 1 or more"),
        ([bundle, "--port", "99999"], "cannot listen at 127.0.0.1:99999"),
        ([bundle, "--token", "é"], "a token must be printable ASCII"),
        ([bundle, "--max-body-mb", "0"], "--max-body-mb must be more than 0"),
        ([bundle, "--port", "0", "--tls-key", "a"], "go together"),
        ([bundle, "--port", "0", "--tls-key", "a", "--tls-cert", "b"], "cannot be read"),
    ):
        assert main(["serve", *words]) == 2
        assert text in capsys.readouterr().err
    for package, extra in (("uvicorn", "serve"), ("grpc", "serve-grpc")):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            assert main(["serve", bundle, "--grpc-port", "0"]) == 2
            told = capsys.readouterr().err
            assert f"weft serve needs the package {package}" in told
            assert f"pip install 'weft[{extra}]'" in told


def test_others_do_not_load_it() -> None:
    program = (
        "import sys, weft, weft.frontend.tools.main\n"
        "print([m for m in ('uvicorn', 'grpc', 'google.protobuf') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout == "[]\n"
