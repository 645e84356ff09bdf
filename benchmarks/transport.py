"""Tensors of 4 B to 256 MB from one process to another, beside raw ZeroMQ in the same run.

    python benchmarks/transport.py [--json transport.json] [--quick]

One trip: an array goes to the other process, which has asked for it, and 4 bytes come back; through
shared memory as the executor sends: copied once, and read where it then is. Raw
ZeroMQ does it with the same kinds of sockets (a ROUTER that is read by a blocking loop, a DEALER to
send on), one whole zero-copy frame, and no header, no checks and no array at the other end.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import zmq
from harness import Comparison, compare, least_and_median, machine
from rich.console import Console
from rich.table import Table

from weft.comm.addresses import Secret
from weft.comm.endpoint import Endpoint
from weft.comm.limits import Limits

SIZES = [4, 1 << 10, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 24, 1 << 26, 1 << 28]
STEP, DATA, DONE = 1 << 36, 1, 2
LIMITS = Limits(heartbeat_timeout_s=30.0)
#: Of weft: where it binds, whether it may share memory, whether it encrypts; its floor.
WAYS: dict[str, tuple[str, bool, bool, str]] = {
    "tcp": ("tcp", False, False, "zmq tcp"),
    "ipc": ("ipc", False, False, "zmq ipc"),
    "shared memory": ("ipc", True, False, "zmq ipc"),
    "tcp, CURVE": ("tcp", False, True, "zmq tcp"),
}
SECRET = Secret(bytes(range(32)))  # of the benchmark: it guards nothing


def bind_to(scheme: str, folder: str, name: str) -> str:
    return "tcp://127.0.0.1:0" if scheme == "tcp" else f"ipc://{folder}/{name}"


# ------------------------------------------------------------------------------- the other process


def serve_weft(way: str, folder: str) -> None:
    scheme, shared, curve, _ = WAYS[way]
    secret = SECRET if curve else None
    with Endpoint("there", bind_to(scheme, folder, "there"), secret, LIMITS, shared=shared) as end:
        reply = np.zeros(1, np.float32)

        def ask(trip: int) -> None:
            end.rendezvous.get(STEP, (DATA, (trip,)), lambda value: got(trip, value))

        def got(trip: int, value: Any) -> None:
            if isinstance(value, np.ndarray):
                ask(trip + 1)
                end.send_tensor("here", STEP, DONE, (trip,), reply)

        ask(0)
        print(end.address, flush=True)
        sys.stdin.read()


def serve_zmq(scheme: str, folder: str) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    inbox, out = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    inbox.bind(bind_to(scheme, folder, "raw"))
    print(inbox.last_endpoint.decode(), flush=True)
    out.connect(sys.stdin.readline().strip())
    while True:
        inbox.recv()
        inbox.recv(copy=False)
        out.send(b"done")


# ------------------------------------------------------------------------------------ this process


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, os.path.abspath(__file__), "--serve", *arguments]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def first_line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


@contextmanager
def weft_trips(way: str, folder: str) -> Iterator[Callable[[Any], None]]:
    scheme, shared, curve, _ = WAYS[way]
    folder = tempfile.mkdtemp(dir=folder)
    secret = SECRET if curve else None
    with process("weft", way, folder) as child:
        where = bind_to(scheme, folder, "here")
        with Endpoint("here", where, secret, LIMITS, shared=shared) as end:
            end.connect("there", first_line(child))
            done: queue.SimpleQueue[Any] = queue.SimpleQueue()
            trips = iter(range(1 << 60))

            def trip(x: Any) -> None:
                number = next(trips)
                end.rendezvous.get(STEP, (DONE, (number,)), done.put)
                end.send_tensor("there", STEP, DATA, (number,), x, lend=True)
                value = done.get(timeout=60)
                if isinstance(value, BaseException):
                    raise value

            yield trip


@contextmanager
def zmq_trips(scheme: str, folder: str) -> Iterator[Callable[[Any], None]]:
    folder = tempfile.mkdtemp(dir=folder)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with process("zmq", scheme, folder) as child:
        inbox, out = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
        inbox.bind(bind_to(scheme, folder, "back"))
        out.connect(first_line(child))
        assert child.stdin is not None
        print(inbox.last_endpoint.decode(), file=child.stdin, flush=True)

        def trip(x: Any) -> None:
            out.send(x, copy=x.nbytes <= 1 << 16)
            inbox.recv()
            inbox.recv()

        yield trip
        context.destroy(0)


def size_name(size: int) -> str:
    for unit, name in ((1 << 20, "MB"), (1 << 10, "KB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def report(rows: list[tuple[int, Comparison]]) -> None:
    table = Table(title="One trip of a tensor: us, min / median (GB/s; times raw ZeroMQ's)")
    table.add_column("size")
    for name in [*WAYS, "zmq tcp", "zmq ipc"]:
        table.add_column(name, justify="right")
    for size, comparison in rows:
        cells = [size_name(size)]
        for name, timing in comparison.timings.items():
            text = f"{timing.minimum * 1e6:.0f} / {timing.median * 1e6:.0f}"
            if size >= 1 << 20:
                text += f"\n{size / 1e9 / timing.median:.2f} GB/s"
            if name in WAYS:
                floor = comparison.timings[WAYS[name][3]]
                text += f"\n{timing.minimum / floor.minimum:.2f}x / "
                text += f"{timing.median / floor.median:.2f}x"
            cells.append(text)
        table.add_row(*cells, end_section=True)
    Console(width=150).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--quick", action="store_true", help="a few rounds of sizes up to 16 MB")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        kind, way, folder = args.serve
        (serve_weft if kind == "weft" else serve_zmq)(way, folder)
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        trips = {way: stack.enter_context(weft_trips(way, folder)) for way in WAYS}
        trips |= {f"zmq {s}": stack.enter_context(zmq_trips(s, folder)) for s in ("tcp", "ipc")}
        for size in SIZES[:7] if args.quick else SIZES:
            x = np.random.default_rng(0).integers(0, 256, size).astype(np.uint8)
            runs = {name: partial(trip, x) for name, trip in trips.items()}
            few = 3 if args.quick else max(5, min(25, (1 << 29) // size))
            inner = max(1, min(100, (1 << 20) // size))
            rows.append((size, compare(size_name(size), runs, rounds=few, inner=inner)))
    report(rows)
    if args.json:
        found = [
            {"bytes": size, "seconds": {n: least_and_median(t) for n, t in c.timings.items()}}
            for size, c in rows
        ]
        text = {"title": "transport", "machine": machine(), "rows": found}
        Path(args.json).write_text(json.dumps(text, indent=1) + "\n")


if __name__ == "__main__":
    main()
