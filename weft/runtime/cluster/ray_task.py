"""`RayTask`: the actor that Ray starts for each task, a weft server, and where it is reached.

It needs Ray when it is imported; `ray_cluster.py` does not."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from typing import Any

from ray.util import get_node_ip_address

from weft.comm.addresses import Secret
from weft.runtime.cluster.server import Server
from weft.runtime.cluster.spec import ClusterSpec, ClusterTask, tcp_address
from weft.runtime.cluster.transport import use_secret


class RayTask:
    """Runs in a process of its own; when that is lost Ray makes it anew, at another address.

    It listens at the address by which Ray knows its machine. sizes: how many tasks each job has.
    secret: the cluster's, in hexadecimal digits. threads: how many compute, 0 for as many as there
    are processors.
    """

    def __init__(
        self, sizes: Mapping[str, int], job: str, task: int, secret: str, threads: int
    ) -> None:
        if threads:
            os.environ.setdefault("WEFT_NUM_THREADS", str(threads))
        open_address = tcp_address(get_node_ip_address(), 0)
        spec = ClusterSpec({j: [open_address] * n for j, n in sizes.items()})
        self._job, self._task = job, task
        own = Secret.from_hex(secret)
        use_secret(own)
        self._server = Server(spec, job, task, secret=own)
        self._server.worker.serves = True

    def describe(self) -> dict[str, Any]:
        """Where this task is: address, incarnation, pid, gpus."""
        return {
            "address": self._server.target,
            "incarnation": self._server.incarnation,
            "pid": os.getpid(),
            "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
        }

    def set_cluster(self, cluster: str) -> None:
        """Where the other tasks are, as JSON text, for sessions that know this one only."""
        self._server.set_cluster(ClusterSpec(cluster))

    def free_address(self) -> str:
        """Where a program of this task can listen, beside its server."""
        host = get_node_ip_address()
        kind = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(kind) as probe:
            probe.bind((host, 0))
            return tcp_address(host, probe.getsockname()[1])

    def run(self, program: Callable[[ClusterTask], Any], cluster: str) -> Any:
        """What a program gives, in one of the tasks of its cluster. cluster: JSON text."""
        task = ClusterTask(ClusterSpec(cluster), self._job, self._task, source="Ray")
        self._server.worker.serves = False  # it has work of its own for so long
        try:
            return program(task)
        finally:
            self._server.worker.serves = True
