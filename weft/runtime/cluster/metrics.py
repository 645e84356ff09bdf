"""`MetricsServer`: what a task counts, over HTTP for Prometheus, and the metrics themselves."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any

from weft.comm.traffic import TRIP_SECONDS
from weft.ir.errors import InvalidArgumentError
from weft.runtime.trace.counters import Stats
from weft.runtime.trace.prometheus import CONTENT_TYPE, SECONDS, Histogram, family, histograms

_LOG = logging.getLogger("weft.cluster")
#: Who sends a request may take so many seconds for it, and so many may be answered at once.
REQUEST_SECONDS, MOST_REQUESTS = 5.0, 8
Rows = list[tuple[dict[str, str], float]]


def metrics_text(task: str, stats: Stats) -> str:
    """The metrics of a task. stats: of `counters.task_stats`."""
    return "\n".join([*_step_lines(task, stats), *_link_lines(task, stats),
                      *_state_lines(task, stats)]) + "\n"  # fmt: skip


def _step_lines(task: str, stats: Stats) -> Iterator[str]:
    steps, own = stats["steps"], {"task": task}
    ended: Rows = [({**own, "outcome": how}, steps[how]) for how in ("done", "failed")]
    yield from family("weft_steps_total", "counter", "Parts of steps that ended.", ended)
    under_way = steps["begun"] - steps["done"] - steps["failed"]
    yield from family("weft_steps_running", "gauge", "Parts that run now.", [(own, under_way)])
    taken = Histogram(SECONDS, stats["step_buckets"], stats["step_seconds"])
    yield from histograms("weft_step_seconds", "How long parts of steps took.", [(own, taken)])
    of: list[dict[str, str]] = [{**own, "graph": row[0]} for row in stats["parts"]]
    for k, name, told in (
        (1, "runs_total", "Parts that ended, by the name of the step's graph."),
        (2, "seconds_total", "How long they took."),
        (3, "wait_seconds_total", "In which they waited for tensors of other tasks."),
    ):
        rows: Rows = [(labels, row[k]) for labels, row in zip(of, stats["parts"], strict=True)]
        yield from family(f"weft_part_{name}", "counter", told, rows)
    yield from family(
        "weft_waits", "gauge", "Tensors that parts wait for now.", [(own, stats["waiting"])]
    )


def _link_lines(task: str, stats: Stats) -> Iterator[str]:
    links: Mapping[str, Mapping[str, Any]] = stats["links"]
    for name, end, told in (
        ("messages_total", "", "Messages of all kinds."),
        ("bytes_total", "_bytes", "Bytes, those in shared memory too."),
        ("shared_bytes_total", "_shared", "Bytes that lay in shared memory."),
    ):
        for kind, label, all_counts, of in (
            ("link", "peer", links, ""),
            ("exchange", "member", stats["exchanges"], "Of meshes and elastic runs: "),
        ):
            rows: Rows = [
                ({"task": task, label: peer, "direction": direction}, counts[f"{way}{end}"])
                for peer, counts in all_counts.items()
                for direction, way in (("sent", "sent"), ("received", "came"))
            ]
            yield from family(f"weft_{kind}_{name}", "counter", of + told, rows)
    trips = [
        (
            {"task": task, "peer": peer},
            Histogram(TRIP_SECONDS, counts["trip_buckets"], counts["trip_seconds"]),
        )
        for peer, counts in links.items()
    ]
    told = "How long small messages took to a peer and back."
    yield from histograms("weft_link_round_trip_seconds", told, trips)


def _state_lines(task: str, stats: Stats) -> Iterator[str]:
    own = {"task": task}
    variables: Rows = [(own, stats["variables"][1])]
    yield from family("weft_variable_bytes", "gauge", "Bytes of variables.", variables)
    queues: Rows = [({**own, "queue": name}, size) for name, size, _ in stats["queues"]]
    yield from family("weft_queue_elements", "gauge", "Elements in queues.", queues)
    held: Counter[str] = Counter()
    for row in stats["gpus"]:  # emulated ones of several settings have one name
        held[row[0].rpartition("/")[2]] += row[2]
    gpus: Rows = [({**own, "gpu": name}, nbytes) for name, nbytes in held.items()]
    yield from family("weft_gpu_bytes", "gauge", "Memory that the task holds on GPUs.", gpus)
    refused: Rows = [({**own, "reason": why}, n) for why, n in stats["rejected"].items()]
    yield from family("weft_refused_frames_total", "counter", "Frames that were refused.", refused)
    yield from family(
        "process_resident_memory_bytes", "gauge", "Memory of the process.", [({}, stats["memory"])]
    )
    yield from family(
        "process_cpu_seconds_total", "counter", "Processor time.", [({}, stats["cpu_seconds"])]
    )


class MetricsServer:
    """GET /metrics at `host:port`; port 0 is any free one. text: gives what is answered. Whoever
    reaches the port may read. InvalidArgumentError for an address that cannot be listened at."""

    def __init__(self, text: Callable[[], str], port: int, host: str = "127.0.0.1") -> None:
        try:
            self._server = _Server((host, port), _handler(text))
        except (OSError, OverflowError) as error:
            raise InvalidArgumentError(
                f"metrics cannot be served at {host}:{port}: {error}"
            ) from None
        self.host, self.port = host, int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="weft-metrics", daemon=True
        )
        self._thread.start()
        _servers.add(self._server)

    @property
    def url(self) -> str:
        """Where it is."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/metrics"

    def close(self) -> None:
        """Listen no more."""
        if self._thread.is_alive():  # else it is a child of a fork
            self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingTCPServer):  # HTTPServer asks the DNS for its own name
    allow_reuse_address = daemon_threads = True
    block_on_close = False

    def __init__(self, at: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._room = threading.BoundedSemaphore(MOST_REQUESTS)
        if ":" in at[0]:
            self.address_family = socket.AF_INET6
        super().__init__(at, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """One more thread, or none: who asks too often is cut off."""
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        # a handler's own timeout holds for each read of it
        end = threading.Timer(REQUEST_SECONDS, _cut, (request,))
        end.daemon = True
        end.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            end.cancel()
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        _LOG.debug("a request for metrics came to nothing", exc_info=True)


def _handler(text: Callable[[], str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_SECONDS
        server_version, sys_version = "weft", ""

        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(HTTPStatus.NOT_FOUND, "it is /metrics")
                return
            body = text().encode()
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            _LOG.debug(format, *args)

    return Handler


def _cut(request: socket.socket) -> None:
    with contextlib.suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


def _close_all() -> None:
    """In a child of a fork: the port is the parent's."""
    for server in list(_servers):
        server.server_close()


_servers: weakref.WeakSet[_Server] = weakref.WeakSet()
os.register_at_fork(after_in_child=_close_all)
