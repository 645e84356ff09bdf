"""The messages of figure 6's null step without a session: what they take of the processor.

    python figure6_transport.py server INDEX FOLDER
    python figure6_transport.py worker INDEX FOLDER SERVERS ELEMENTS

In a trip a worker sends each server a message, gets a tensor of f32[ELEMENTS], sends another, and
gets a message. Workers speak on stdin and stdout as those of `figure6_worker.py` do.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
from windows import obey

from weft.comm.endpoint import Endpoint
from weft.comm.rendezvous import MASTER_SHIFT
from weft.ir.cost.thresholds import LENT_BYTES

BEGIN, DONE = 1, 2
PARAMETERS, GRADIENT = 0, 1
WARM_SECONDS = 0.5


def address(folder: str, name: str) -> str:
    """Where a process listens."""
    return f"ipc://{folder}/{name}"


def send(end: Endpoint, peer: str, step: int, kind: int, number: int, array: Any) -> None:
    """A tensor to a peer, as tasks do: a large one is computed where the peer reads it."""
    room = end.room(peer, array.shape, array.dtype) if array.nbytes >= LENT_BYTES else None
    if room is not None:
        np.copyto(room, array)
        array = room
    end.send_tensor(peer, step, kind, (number,), array, lend=True)


def serve(index: int, folder: str) -> None:
    """Answer until killed."""
    held: dict[int, Any] = {}
    links: list[Endpoint] = []

    def begin(message: Any) -> None:
        end, peer, step, size = links[0], message.peer, message.step, int(message.meta["n"])
        if size not in held:
            held[size] = np.zeros(size, np.float32)

        def done(_: Any) -> None:
            end.send(peer, DONE, step)
            end.forget(step)

        end.rendezvous.get(step, (GRADIENT, (int(message.meta["w"]),)), done)
        send(end, peer, step, PARAMETERS, index, held[size])

    name = f"server{index}"
    with Endpoint(name, address(folder, name), on_message=begin) as end:
        links.append(end)
        print("ready", flush=True)
        threading.Event().wait()


class Worker:
    """One worker, and how many answers its trip waits for."""

    def __init__(self, index: int, folder: str, servers: int, elements: int) -> None:
        self.index, self.elements = index, elements
        self.names = [f"server{j}" for j in range(servers)]
        self.done = threading.Semaphore(0)
        name = f"worker{index}"
        self.end = Endpoint(name, address(folder, name), on_message=lambda _: self.done.release())
        for server in self.names:
            self.end.connect(server, address(folder, server))
        self.step = (index + 1) << MASTER_SHIFT
        self.gradient = np.zeros(elements, np.float32)

    def trip(self) -> None:
        """One trip to all servers."""
        self.step += 1
        step = self.step
        for j, server in enumerate(self.names):

            def came(_: Any, server: str = server) -> None:
                send(self.end, server, step, GRADIENT, self.index, self.gradient)

            self.end.rendezvous.get(step, (PARAMETERS, (j,)), came)
        for server in self.names:
            self.end.send(server, BEGIN, step, {"n": self.elements, "w": self.index})
        for _ in self.names:
            self.done.acquire()
        self.end.forget(step)


def work(index: int, folder: str, servers: int, elements: int) -> None:
    """Trips for as long as stdin says."""
    worker = Worker(index, folder, servers, elements)
    obey(worker.trip, WARM_SECONDS)
    worker.end.close()


def main() -> None:
    """See the module's text."""
    role, index, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    assert Path(folder).is_dir()
    if role == "server":
        serve(index, folder)
    else:
        work(index, folder, int(sys.argv[4]), int(sys.argv[5]))


if __name__ == "__main__":
    main()
