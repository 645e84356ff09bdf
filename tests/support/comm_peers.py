"""Endpoints for tests: here, and in processes of their own (run as a program)."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from weft.comm.addresses import Secret
from weft.comm.endpoint import Endpoint
from weft.comm.limits import Limits
from weft.comm.protocol import Message
from weft.comm.rendezvous import DEAD

#: Patient enough for a busy machine; tests of heartbeats have times of their own.
TIMES: dict[str, float] = {"heartbeat_s": 0.2, "heartbeat_timeout_s": 5.0, "connect_s": 10.0}
FAST = Limits(**TIMES)  # type: ignore[arg-type]
ECHO, EXIT, READ, FORGET, LEND = (
    1,
    2,
    3,
    4,
    5,
)  # kinds of messages that a process of `spawn` understands


class Here(Endpoint):
    """An endpoint that keeps what comes: `.messages` and `.lost` are queues."""

    def __init__(self, name: str, bind: str = "tcp://127.0.0.1:0", **options: Any) -> None:
        self.messages: queue.Queue[Message] = queue.Queue()
        self.lost: queue.Queue[tuple[str, Exception]] = queue.Queue()
        options.setdefault("limits", FAST)
        super().__init__(
            name,
            bind,
            on_message=self.messages.put,
            on_link_lost=lambda peer, error: self.lost.put((peer, error)),
            **options,
        )

    def ask(self, step: int, key: int, iterations: tuple[int, ...] = ()) -> queue.Queue[Any]:
        """A queue that the value for the key will be in."""
        answer: queue.Queue[Any] = queue.Queue()
        self.rendezvous.get(step, (key, iterations), answer.put)
        return answer

    def take(self, step: int, key: int, iterations: tuple[int, ...] = ()) -> Any:
        """The value for the key; errors are raised."""
        value = self.ask(step, key, iterations).get(timeout=10)
        if isinstance(value, BaseException):
            raise value
        return value


class Process:
    """A peer in another process, which echoes messages and the tensors that it is told to."""

    def __init__(self, name: str, bind: str, secret: Secret | None) -> None:
        command = [sys.executable, "-P", os.path.abspath(__file__), name, bind]
        root = str(Path(__file__).resolve().parents[2])
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": root},
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(secret.hex() if secret else "", file=self.process.stdin, flush=True)
        self.name = name
        self.address = self.process.stdout.readline().strip()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def spawn(
    name: str, bind: str = "tcp://127.0.0.1:0", secret: Secret | None = None
) -> Iterator[Process]:
    """A peer's process, killed at the end, also if it is stopped."""
    peer = Process(name, bind, secret)
    try:
        yield peer
    finally:
        peer.kill()


def _serve(name: str, bind: str) -> None:
    text = sys.stdin.readline().strip()
    endpoint: Endpoint

    def on_message(message: Message) -> None:
        if message.kind == EXIT:
            os._exit(0)
        if message.kind == ECHO:
            endpoint.send(message.peer, ECHO, message.step, message.meta, message.buffers)
        if message.kind == FORGET:
            endpoint.forget(message.step)
        if message.kind in (READ, LEND):  # read the tensor `meta`, send it back with the key + 1
            key, step, peer, lend = message.meta, message.step, message.peer, message.kind == LEND

            def back(value: Any) -> None:
                if value is DEAD or isinstance(value, np.ndarray):
                    endpoint.send_tensor(peer, step, key + 1, (), value, lend=lend)

            endpoint.rendezvous.get(step, (key, ()), back)

    endpoint = Endpoint(
        name, bind, Secret.from_hex(text) if text else None, FAST, on_message=on_message
    )
    print(endpoint.address, flush=True)
    sys.stdin.read()  # until the test is gone
    endpoint.close()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _serve(sys.argv[1], sys.argv[2])
