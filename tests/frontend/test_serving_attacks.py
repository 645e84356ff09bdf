"""Clients that are slow, vanish, or mean harm, against `weft serve` over sockets."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import serve_attack
from serve_attack import head, opened
from serve_process import serving

import weft as wf

GOOD = b'{"instances": [[1, 2, 3]]}'


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("attacks") / "doubled"
    wf.export(lambda x: x * 2, path, example=wf.TensorType(wf.float32, ("n", 3)))
    return str(path)


@pytest.fixture(params=["httptools", pytest.param("h11", marks=pytest.mark.slow)])
def without(request: pytest.FixtureRequest) -> str | None:
    """The server's parser of HTTP, as what it does without: httptools, or nothing."""
    if request.param == "h11":
        return "httptools"
    pytest.importorskip("httptools")
    return None


def works(address: str) -> bool:
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request("POST", "/v1/models/m:predict", GOOD)
    reply = connection.getresponse()
    with contextlib.closing(connection):
        return reply.read() == b'{"predictions": [[2.0, 4.0, 6.0]]}'


def seconds_until_closed(one: socket.socket) -> tuple[float, bytes]:
    begun, got = time.monotonic(), b""
    with contextlib.suppress(ConnectionResetError):
        while part := one.recv(1 << 16):
            got += part
    return time.monotonic() - begun, got


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident(pid: int) -> int:
    """Bytes of memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmRSS")).split()[1])


@pytest.mark.slow
def test_slow_clients(bundle: str, without: str | None) -> None:
    """Nothing, half a head, a head that never ends, a body that never ends, and an answer that
    nobody reads: each ends in time, and others are served meanwhile."""
    limits = ("--head-timeout", "0.5", "--timeout", "1")
    with serving(f"m={bundle}", *limits, without=without) as (process, address, _):
        before = open_files(process.pid)
        silent, half, drip, body, deaf = [opened(address) for _ in range(5)]
        half.sendall(b"POST /v1/models/m:predict HTTP/1.1\r\nHost: loc")
        body.sendall(head(1000) + b'{"instances"')
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        rows = json.dumps({"instances": [[1, 2, 3]] * 400_000}).encode()

        def send() -> None:
            with contextlib.suppress(OSError):
                deaf.sendall(head(len(rows)) + rows)

        sending = threading.Thread(target=send)
        sending.start()
        ended = threading.Event()

        def feed() -> None:
            with contextlib.suppress(OSError):
                drip.sendall(b"GET / HTTP/1.1\r\n")
                while not ended.wait(0.1):
                    drip.sendall(b"X: y\r\n")

        feeding = threading.Thread(target=feed)
        feeding.start()
        for one, most in ((silent, 5.0), (half, 5.0), (drip, 5.0), (body, 10.0)):
            seconds, got = seconds_until_closed(one)
            assert seconds < most
            assert b"408" in got if one is body else got == b""
        ended.set()
        feeding.join(60)
        sending.join(60)
        assert works(address)
        end = time.monotonic() + 60
        while open_files(process.pid) > before:  # the one that does not read, too
            assert time.monotonic() < end
            time.sleep(0.1)
        for one in (silent, half, drip, body, deaf):
            one.close()


@pytest.mark.slow
def test_too_many_connections(bundle: str) -> None:
    with serving(f"m={bundle}", "--max-connections", "8") as (_, address, _lines):
        held = [opened(address) for _ in range(8)]
        held[0].sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert held[0].recv(100).startswith(b"HTTP/1.1 200")
        extra = opened(address)
        _, got = seconds_until_closed(extra)
        assert got.startswith(b"HTTP/1.1 503 ")
        assert b"Retry-After: 1" in got
        assert b"too many connections" in got
        for one in (*held, extra):
            one.close()
        end = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if works(address):
                    break
            assert time.monotonic() < end


def test_clients_that_are_killed(bundle: str, without: str | None) -> None:
    """Connections that break off anywhere, by a reset or a close, leave nothing behind."""
    whole = head(len(GOOD)) + GOOD
    with serving(f"m={bundle}", without=without) as (process, address, _):
        assert works(address)
        before = open_files(process.pid)
        for i in range(300):
            one = opened(address)
            one.sendall(whole[: i % (len(whole) + 1)])
            if i % 2:  # as the kernel does for a process that is killed with data unread
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            one.close()
        half_open = [opened(address) for _ in range(20)]
        for one in half_open:
            one.sendall(whole)
            one.shutdown(socket.SHUT_WR)  # as one that goes: nothing waits for it
        for one in half_open:
            assert seconds_until_closed(one)[0] < 10
            one.close()
        assert works(address)
        end = time.monotonic() + 60
        while open_files(process.pid) > before:
            assert time.monotonic() < end
            time.sleep(0.05)
        process.terminate()
        assert process.wait(60) == 0
        assert process.stderr.read() == ""


@pytest.mark.slow
def test_a_server_that_is_killed_starts_again(bundle: str) -> None:
    with serving(f"m={bundle}") as (process, address, _):
        port = address.rpartition(":")[2]
        held = opened(address)
        held.sendall(head(100) + b"{")
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        seconds, _ = seconds_until_closed(held)
        assert seconds < 10
    with serving(f"m={bundle}", "--port", port) as (_, again, _lines):
        assert again == address
        assert works(again)


#: What is no HTTP, or no request of a client that means well: what status it gets (0: none).
MALFORMED: list[tuple[bytes, set[int]]] = [
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100), {400}),  # TLS
    (b"GET\r\n\r\n", {400}), (b"\r\n\r\n", {0, 400}), (b"GET / HTTP/9.9\r\n\r\n", {400, 403}),
    (b"GET / HTTP/1.1\r\n\r\n", {400, 403}),  # no Host
    (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: b\r\n\r\n", {400, 403}),
    (b"GET / HTTP/1.1\r\nHost: localhost\r\nA" + b"x" * 1_000_000 + b": y\r\n\r\n", {0, 400, 431}),
    (b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", {0, 400, 431}),
    (b"POST /v1/models/m:predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n", {400}),
    (head(5, "Content-Length: 6") + b"{}   ", {400}),
    (b"POST /v1/models/m:predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
     b"\r\nfffffffffffffffffffff\r\n{}\r\n", {400}),
    (b"POST /v1/models/m:predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
     b"\r\n2\r\n{}\r\n0\r\n\r\n", {400}),
    (b"POST /v1/models/m:predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n",
     {400, 501}),
    (b"GET /../../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n", {404}),
    (b"GET /v2/models/%2e%2e%2f%2e%2e HTTP/1.1\r\nHost: localhost\r\n\r\n", {404}),
    (b"GET /v2/models/m%00 HTTP/1.1\r\nHost: localhost\r\n\r\n", {404}),
    (b"GET http://elsewhere/ HTTP/1.1\r\nHost: elsewhere\r\n\r\n", {403}),
    (b"CONNECT elsewhere:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", {400, 404}),
    (b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", {403}),
    (b"POST /v2/repository/models/m/unload HTTP/1.1\r\nHost: localhost\r\n"
     b"Origin: http://evil.example\r\nContent-Length: 0\r\n\r\n", {403}),
    (b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
     {200}),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400, 403}),
]  # fmt: skip


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


@pytest.mark.slow
def test_what_is_no_request(bundle: str, without: str | None) -> None:
    with serving(f"m={bundle}", "--head-timeout", "1", without=without) as (process, address, _):
        wrong = []
        for data, wanted in MALFORMED:
            with opened(address) as one:
                with contextlib.suppress(OSError):
                    one.sendall(data)
                got = b""
                with contextlib.suppress(ConnectionResetError):
                    got = one.recv(1 << 20)
                if status_of(got) not in wanted:
                    wrong.append((data[:200], got[:300]))
                if status_of(got) >= 400:
                    one.settimeout(0.5)
                    with contextlib.suppress(OSError):
                        got += one.recv(1 << 16)
                    assert b'{"error": ' in got, got
        assert not wrong, "\n".join(map(str, wrong))
        assert works(address)
        process.terminate()
        assert process.wait(60) == 0
        assert process.stderr.read() == ""


@pytest.mark.slow
def test_too_much_ahead(bundle: str, without: str | None) -> None:
    """A head without an end, and requests that are sent without a look at their answers, cost no
    memory to speak of; those that are sent ahead within reason are answered in their order."""
    with serving(f"m={bundle}", without=without) as (process, address, _):
        assert works(address)
        before = resident(process.pid)
        with opened(address) as one:
            got = b""
            with contextlib.suppress(OSError):
                one.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ")
                for _ in range(200):
                    one.sendall(b"y" * 100_000)
                got = one.recv(1 << 16)
            assert status_of(got) in (0, 400, 431)
        flood = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
        for _ in range(4):
            with opened(address) as one, contextlib.suppress(OSError):
                one.settimeout(1)
                for _ in range(200):
                    one.sendall(flood * 1000)
        assert resident(process.pid) < before + (64 << 20)
        with opened(address) as one:
            one.sendall((head(len(GOOD)) + GOOD) * 8 + flood)
            end, got = time.monotonic() + 60, b""
            while got.count(b"HTTP/1.1 200") < 9 or not got.endswith(b'{"live": true}'):
                got += one.recv(1 << 16)
                assert time.monotonic() < end, got
            assert got.count(b'{"predictions": [[2.0, 4.0, 6.0]]}') == 8
        assert works(address)


@pytest.mark.slow
def test_a_hundred_thousand_malformed_requests(bundle: str) -> None:
    """Requests that are wrong in ways drawn at random, over connections that stay open; each gets a
    status below 500, and memory stays what it was."""
    with serving(f"m={bundle}", "--threads", "2", "--head-timeout", "2") as (process, address, _):
        program = [sys.executable, serve_attack.__file__, address, "100000"]
        half = None
        with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as attacking:
            assert attacking.stdout is not None
            for line in attacking.stdout:
                if line.startswith("half"):
                    half = resident(process.pid)
                last = line
        counts = json.loads(last)
        print(counts)
        assert attacking.returncode == 0
        assert sum(counts.values()) == 100_000
        assert all(status < "500" for status in counts), counts
        assert len(counts) >= 4
        assert half is not None
        assert resident(process.pid) < half + (24 << 20)
        assert works(address)
        process.terminate()
        assert process.wait(60) == 0
        assert process.stderr.read() == ""
