"""Malformed requests over sockets, as a program of its own: `serve_attack.py ADDRESS COUNT` sends
so many to `weft serve`, and prints how many got which status."""

from __future__ import annotations

import json
import random
import socket
import sys
import threading
from collections.abc import Iterator
from typing import Any


def opened(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def head(length: int, *more: str, path: str = "/v1/models/m:predict") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {length}", *more]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def bad_requests(seed: int) -> Iterator[bytes]:
    """Requests, each wrong by one or more changes to a good one, or random bytes as its body."""
    rng = random.Random(seed)
    entry = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}
    odd: list[Any] = [
        None, True, -1, 10**18, 10**400, 1e308, "x", "\ud800", [], [[]], {}, [1] * 50,
        float("nan"), "../../etc/passwd", "\x00", {"b64": "%"}, [-1, 3], [0, 10**12], "FP64",
    ]  # fmt: skip
    paths = [
        "/v2/models/m/infer", "/v1/models/m:predict", "/v2/models/m/versions/1/infer",
        "/v2/models/../m/infer", "/v2/models/none/infer", "/v2/models/m/versions/-1/infer",
        "/v2/repository/index", "/v2/repository/models/m/unload", "/v1/models/m:classify",
        "/%00", "/v2/models/%ff/infer", "/" + "a" * 1000,
    ]  # fmt: skip
    while True:
        path = rng.choice(paths[:3] if rng.random() < 0.8 else paths)
        told: Any = {"inputs": [dict(entry)]} if "predict" not in path else {"instances": [[1, 2]]}
        kind, more = rng.randrange(6), list[str]()
        if kind == 0:
            told["inputs"] = [{**entry, rng.choice(list(entry)): rng.choice(odd)}]
        elif kind == 1:
            told = {rng.choice(["inputs", "instances", "parameters", "id"]): rng.choice(odd)}
        elif kind == 2:
            size = rng.choice([-1, 0, 11, 12, 13, 10**15, "12", True])
            told["inputs"] = [
                {k: entry[k] for k in ("name", "datatype", "shape")}
                | {"parameters": {"binary_data_size": size}}
            ]
        elif kind == 3:
            told["outputs"] = rng.choice(odd)
        body = json.dumps(told).encode()
        if kind == 4:
            body = bytes(rng.randrange(256) for _ in range(rng.randrange(60)))
        elif kind == 5:
            body = body[: rng.randrange(len(body))]
        if kind == 2 or rng.random() < 0.1:
            lie = rng.choice([len(body), len(body) - 1, 0, 10**20, -1, "x"])
            more.append(f"Inference-Header-Content-Length: {lie}")
            body += bytes(rng.choice([0, 11, 12, 13]))
        if rng.random() < 0.02:
            more.append("Content-Encoding: gzip")
        yield head(len(body), *more, path=path) + body


def attack(address: str, count: int) -> None:
    """Send so many over four connections, many at a time, and print how many got which status."""
    counts: dict[str, int] = {}
    lock = threading.Lock()
    halves = threading.Barrier(4, action=lambda: print("half", flush=True))

    def run(seed: int, mine: int) -> None:
        requests, one = bad_requests(seed), opened(address)
        stream = one.makefile("rb")
        for number in range(mine):
            if number == mine // 2:
                halves.wait()
            one.sendall(next(requests))
            status = stream.readline().split()[1].decode()
            length, closes = 0, False
            while (line := stream.readline()) not in (b"\r\n", b""):
                name, _, value = line.decode().lower().partition(":")
                length = int(value) if name == "content-length" else length
                closes = closes or (name == "connection" and "close" in value)
            told = json.loads(stream.read(length))
            assert status == "200" or list(told) == ["error"], (status, told)
            with lock:
                counts[status] = counts.get(status, 0) + 1
            if closes:
                one.close()
                one = opened(address)
                stream = one.makefile("rb")

    threads = [threading.Thread(target=run, args=(i, count // 4)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(counts))


if __name__ == "__main__":
    attack(sys.argv[1], int(sys.argv[2]))
