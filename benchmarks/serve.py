"""`weft serve` under load: requests a second with batches and without, and how long answers take.

python benchmarks/serve.py [--json benchmarks/serve.json] [--rounds 5] [--seconds 3] [--clients 16]
python benchmarks/serve.py --peer PYTHON [--json FILE] [--rounds 3] [--seconds 2]
python benchmarks/serve.py --soak MINUTES

Models: the MLP of the digits example, and one of 80 MB of weights, whose call reads them all; a
request is one row, as bytes. Each model has two servers, processes of their own, one of which has
`--max-batch 1`; they are loaded by turns from this process. Closed loop: each client sends its next
request when it has its answer. Open loop: requests come at half the rate that the server without
batches has just reached in a closed loop, whether others are answered or not: evenly, and at random
(exponential gaps). Servers, clients and whatever else runs share the processors.

--peer: a Python that has FastAPI, uvicorn[standard] and PyTorch: `serve_peer.py` serves the same
models, by turns with `weft serve`, to 1 to 256 clients in a closed loop, and in an open one at half
of what the slower one reaches with 16. Both take bytes; PyTorch has one thread, as its two wait for
each other on processors that are shared. --soak: the MLP at full rate for so long; the memory
of the server, and requests that failed. Every answer has status 200, or the program ends.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from bundle import conv_net, mlp, weight
from harness import machine

import weft as wf

#: What `weft serve` is given, by what the tables call it.
SERVERS = {"batches": ("--max-batch", "64"), "none": ("--max-batch", "1")}
#: How requests of an open loop come: so many gaps between them, 1 in the mean.
WAYS: dict[str, Callable[[np.random.Generator, int], Any]] = {
    "evenly": lambda rng, count: np.ones(count),
    "at random": lambda rng, count: rng.exponential(1.0, count),
}


def large() -> tuple[Callable[..., Any], Any]:
    """A model of 80 MB of weights, and a row for it."""
    width = 2000
    first, last = weight(64, width), weight(width, 10)
    layers = [weight(width, width) for _ in range(5)]

    def f(x: Any) -> Any:
        x = wf.matmul(x, first)
        for w in layers:
            x = wf.tanh(wf.matmul(x, w))
        return wf.matmul(x, last)

    return f, np.random.default_rng(1).random((1, 64), np.float32)


MODELS = {"MLP 64-512-512-10": mlp, "80 MB of weights": large}


# ---------------------------------------------------------------------------------------- server


@contextmanager
def serving(path: Path, options: Sequence[str]) -> Iterator[tuple[int, int]]:
    """A server of the bundle, under the name "m": its port, and the process."""
    command = [sys.executable, "-m", "weft", "serve", f"m={path}", "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            served = next(line for line in process.stdout if line.startswith("serving on "))
            yield int(served.rpartition(":")[2]), process.pid
        finally:
            process.terminate()


def request_of(x: Any) -> bytes:
    """A request for a call with `x`, its answer as bytes too, as it goes over the connection."""
    entry = {"name": "x", "datatype": "FP32", "shape": list(x.shape),
             "parameters": {"binary_data_size": x.nbytes}}  # fmt: skip
    head = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
    body = head + x.tobytes()
    lines = [
        "POST /v2/models/m/infer HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}",
        f"Inference-Header-Content-Length: {len(head)}", "", "",
    ]  # fmt: skip
    return "\r\n".join(lines).encode() + body


@contextmanager
def peer(python: str, model: str) -> Iterator[int]:
    """FastAPI with PyTorch: its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    program = str(Path(__file__).with_name("serve_peer.py"))
    environment = {**os.environ, "PYTHONPATH": "", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([python, program, model, str(port)], env=environment) as process:
        try:
            for _ in range(600):
                with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                    break
                time.sleep(0.1)
            yield port
        finally:
            process.terminate()


def peer_request(x: Any) -> bytes:
    """A request for a call of the peer's model with `x`."""
    head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {x.nbytes}\r\n\r\n"
    return head.encode() + x.tobytes()


# ------------------------------------------------------------------------------------------ load


class Connection:
    """A connection to a server, for one request after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, request: bytes) -> bytes:
        """The body of the answer. RuntimeError for a status other than 200."""
        self.writer.write(request)
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = int(head.partition("\r\ncontent-length: ")[2].partition("\r\n")[0])
        body = await self.reader.readexactly(length)
        if not head.startswith("http/1.1 200 "):
            raise RuntimeError(f"{head}{body!r}")
        return body


@asynccontextmanager
async def connections(port: int, count: int) -> AsyncIterator[list[Connection]]:
    """Connections; those that are added to the list are closed at the end, too."""
    made = [Connection(*await asyncio.open_connection("127.0.0.1", port)) for _ in range(count)]
    try:
        yield made
    finally:
        for one in made:
            one.writer.close()


async def asked_once(port: int, request: bytes) -> bytes:
    """The body of an answer."""
    async with connections(port, 1) as (one,):
        return await one.ask(request)


async def closed_loop(port: int, request: bytes, clients: int, seconds: float) -> float:
    """Requests a second that so many clients get answered, each of which waits for its answers."""
    async with connections(port, clients) as made:
        begun = time.perf_counter()

        async def client(one: Connection) -> int:
            count = 0
            while time.perf_counter() < begun + seconds:
                await one.ask(request)
                count += 1
            return count

        counts = await asyncio.gather(*map(client, made))
        return sum(counts) / (time.perf_counter() - begun)


async def open_loop(port: int, request: bytes, gaps: Iterable[float]) -> list[float]:
    """Seconds until each answer to requests that are sent so many seconds after each other."""
    async with connections(port, 8) as made:
        free, taken = list(made), list[float]()

        async def one() -> None:
            begun = time.perf_counter()
            if not free:
                fresh = Connection(*await asyncio.open_connection("127.0.0.1", port))
                made.append(fresh)
                free.append(fresh)
            connection = free.pop()
            await connection.ask(request)
            taken.append(time.perf_counter() - begun)
            free.append(connection)

        asking, due = [], time.perf_counter()
        for gap in gaps:
            due += gap
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            asking.append(asyncio.create_task(one()))
        await asyncio.gather(*asking)
        return taken


# --------------------------------------------------------------------------------------- figures


#: By server: p50 and p99 of the seconds that answers took, of each round.
Latencies = dict[str, list[tuple[float, float]]]


@dataclass
class Figures:
    """What was measured of a model, round by round. rates: requests a second in closed loops, by
    server; taken: in open loops, by how requests come."""

    rates: dict[str, list[float]]
    taken: dict[str, Latencies]


def measured(ports: dict[str, int], request: bytes, args: argparse.Namespace) -> Figures:
    """All loads, by turns, as often as there are rounds."""
    found = Figures(
        {name: [] for name in ports}, {way: {name: [] for name in ports} for way in WAYS}
    )
    rng = np.random.default_rng(0)
    for _ in range(args.rounds):
        for name, port in ports.items():
            loop = closed_loop(port, request, args.clients, args.seconds)
            found.rates[name].append(asyncio.run(loop))
        rate = found.rates["none"][-1] / 2
        count = max(20, round(rate * args.seconds))
        for way, gaps in WAYS.items():
            for name, port in ports.items():
                seconds = asyncio.run(open_loop(port, request, gaps(rng, count) / rate))
                p50, p99 = np.quantile(seconds, [0.5, 0.99]).tolist()
                found.taken[way][name].append((p50, p99))
    return found


def spread(values: Iterable[float], digits: int, end: Callable[[list[float]], float] = min) -> str:
    """An end and the median, for a table."""
    listed = list(values)
    return f"{end(listed):.{digits}f} / {median(listed):.{digits}f}"


def shown(label: str, figures: Figures) -> None:
    """Print the figures of a model: minima and medians of the rounds, of rates maxima."""
    rates = figures.rates
    print(f"\n| {label} | batches | none | batches : none |\n|---|---|---|---|")
    ratios = [a / b for a, b in zip(rates["batches"], rates["none"], strict=True)]
    cells = [spread(rates[name], 0, max) for name in SERVERS]
    print("| requests a second, max / median |", " | ".join([*cells, spread(ratios, 2)]), "|")
    for way, by_server in figures.taken.items():
        for k, what in enumerate(("p50", "p99")):
            cells = [spread((1e3 * t[k] for t in by_server[n]), 2) for n in SERVERS]
            print(f"| {way}: {what}, ms |", " | ".join(cells), "| |")
        cells = [spread((b / a for a, b in by_server[n]), 2) for n in SERVERS]
        print(f"| {way}: p99 : p50 |", " | ".join(cells), "| |")


# ------------------------------------------------------------------------------------- beside


def against(args: argparse.Namespace) -> dict[str, Any]:
    """`weft serve` beside FastAPI with PyTorch, printed: ratios of rounds are weft : peer."""
    kept: dict[str, Any] = {}
    for label, make, name in (("MLP", mlp, "mlp"), ("conv net", conv_net, "conv")):
        f, x = make()
        x = x[:1]
        with tempfile.TemporaryDirectory() as held:
            path = Path(held) / "m"
            wf.export(f, path, example=wf.TensorType(wf.float32, ("batch", *x.shape[1:])))
            with serving(path, ()) as (a, _), peer(args.peer, name) as b:
                asked = {"weft": (a, request_of(x)), "peer": (b, peer_request(x))}
                for port, request in asked.values():
                    asyncio.run(closed_loop(port, request, 32, 1.0))  # kernels of sizes, and such
                kept[label] = beside(asked, args)
        print(f"\n| {label} | weft | peer | weft : peer |\n|---|---|---|---|")
        for what, by_server in kept[label].items():
            ratios = [w / p for w, p in zip(by_server["weft"], by_server["peer"], strict=True)]
            end, digits = (max, 0) if "clients" in what else (min, 2)
            cells = [spread(by_server[n], digits, end) for n in asked]
            print(f"| {what} |", " | ".join([*cells, spread(ratios, 2)]), "|")
    return kept


def beside(
    asked: dict[str, tuple[int, bytes]], args: argparse.Namespace
) -> dict[str, dict[str, list[float]]]:
    """Requests a second and milliseconds of two servers, round by round."""
    found: dict[str, dict[str, list[float]]] = {}

    def note(what: str, name: str, value: float) -> None:
        found.setdefault(what, {n: [] for n in asked})[name].append(value)

    for _ in range(args.rounds):
        reached = []  # by each with 16 clients
        for clients in (1, 4, 16, 64, 256):
            for name, (port, request) in asked.items():
                rate = asyncio.run(closed_loop(port, request, clients, args.seconds))
                note(f"requests a second, clients: {clients}", name, rate)
                if clients == 16:
                    reached.append(rate)
        half = min(reached) / 2
        for name, (port, request) in asked.items():
            gaps = np.full(max(20, round(half * args.seconds)), 1 / half)
            seconds = asyncio.run(open_loop(port, request, gaps))
            for q in (0.5, 0.99):
                value = 1e3 * float(np.quantile(seconds, q))
                note(f"ms at half load, p{round(100 * q)}", name, value)
    return found


def soak(minutes: float, clients: int) -> None:
    """The MLP at full rate for so long: requests, and the server's memory, printed each tenth."""
    f, x = mlp()
    request = request_of(x[:1])
    with tempfile.TemporaryDirectory() as held:
        path = Path(held) / "m"
        wf.export(f, path, example=wf.TensorType(wf.float32, ("batch", x.shape[1])))
        with serving(path, ()) as (port, pid):
            for tenth in range(11):
                status = Path(f"/proc/{pid}/status").read_text()
                resident = int(status.partition("VmRSS:")[2].split()[0]) / 1024
                files = len(os.listdir(f"/proc/{pid}/fd"))
                told = f"{tenth * minutes / 10:5.1f} min: {resident:.1f} MiB, {files} files"
                if tenth < 10:
                    rate = asyncio.run(closed_loop(port, request, clients, 6 * minutes))
                    told += f", then {rate:.0f} requests a second"
                print(told, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--peer", metavar="PYTHON")
    parser.add_argument("--soak", type=float, metavar="MINUTES")
    args = parser.parse_args()
    if args.soak is not None:
        soak(args.soak, args.clients)
        return
    if args.peer is not None:
        before = os.getloadavg()[0]
        kept = against(args)
        print("\nload of the machine:", *(f"{load:.1f}" for load in (before, os.getloadavg()[0])))
        if args.json:
            Path(args.json).write_text(json.dumps({"machine": machine(), **kept}, indent=1) + "\n")
        return
    loads, models = [os.getloadavg()[0]], {}
    print("min / median of", args.rounds, "rounds by turns; ratios are of each round")
    for label, make in MODELS.items():
        f, x = make()
        x = x[:1]
        request = request_of(x)
        with tempfile.TemporaryDirectory() as held:
            path = Path(held) / "m"
            wf.export(f, path, example=wf.TensorType(wf.float32, ("batch", x.shape[1])))
            wanted = np.asarray(wf.load(path)(x)).tobytes()
            with (
                serving(path, SERVERS["batches"]) as (a, _),
                serving(path, SERVERS["none"]) as (b, _),
            ):
                ports = {"batches": a, "none": b}
                for port in ports.values():
                    assert asyncio.run(asked_once(port, request)).endswith(wanted)
                models[label] = measured(ports, request, args)
        shown(label, models[label])
        loads.append(os.getloadavg()[0])
    print("\nload of the machine:", *(f"{load:.1f}" for load in loads))
    if args.json:
        kept = {label: asdict(figures) for label, figures in models.items()}
        told = {"machine": machine(), "load": loads, "clients": args.clients, "models": kept}
        Path(args.json).write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
