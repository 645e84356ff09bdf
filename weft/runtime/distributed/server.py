"""`Server`: a task of a cluster, in this process (TensorFlow 1's class)."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from weft.ir.errors import FailedPreconditionError, InvalidArgumentError, UnsupportedError
from weft.ir.locations import caller_location
from weft.runtime.cluster.spec import ClusterSpec
from weft.runtime.distributed.messages import Wire
from weft.runtime.distributed.transport import knows_peers, open_endpoint
from weft.runtime.distributed.worker import Worker
from weft.runtime.files.leave import AllowFiles

if TYPE_CHECKING:
    from weft.comm.keys import Secret


class Server:
    """A task: it holds variables and queues and runs its parts of steps, for any number of
    sessions (`wf.Session(server.target)`).

    server_or_cluster_def: a ClusterSpec or what it takes. job_name, task_index: which task this is;
    may be left out where there is only one. start: begin at once; else by `start()`. key_file: the
    cluster's secret (`weft keygen`), which tasks need that other machines can reach; default: see
    docs/cluster.md; secret: the same as an object. allow_files: the folders whose files graphs may
    use that sessions of other processes send (True: all, False: none); default: all if sessions
    prove who they are, by the secret or by an ipc address of this user's, else none. protocol,
    config: TensorFlow's; UnsupportedError if given. As a context manager it stops at the end.
    InvalidArgumentError for a task that the cluster does not have, and for an address that is not
    this machine's or is taken, FailedPreconditionError for one that needs keys.
    """

    def __init__(
        self,
        server_or_cluster_def: ClusterSpec | Mapping[str, Sequence[str]] | str,
        job_name: str | None = None,
        task_index: int | None = None,
        protocol: str | None = None,
        config: Any = None,
        start: bool = True,
        *,
        key_file: str | os.PathLike[str] | None = None,
        secret: Secret | None = None,
        allow_files: AllowFiles = None,
    ) -> None:
        for name, value in (("protocol", protocol), ("config", config)):
            if value is not None:
                raise UnsupportedError(
                    f"wf.train.Server: {name}={value!r:.60} is not supported",
                    hint="tasks speak over ZeroMQ, and need no other settings",
                    location=caller_location(),
                )
        self._cluster = ClusterSpec(server_or_cluster_def)
        self.job_name = self._only(job_name, self._cluster.jobs, "job_name")
        numbers = self._cluster.task_indices(self.job_name)
        self.task_index = self._only(task_index, numbers, "task_index")
        self._bind = self._cluster.address(self.job_name, self.task_index)
        self._key_file, self._secret = key_file, secret
        self._allow_files = allow_files
        self._ended = threading.Event()
        self._wire: Wire | None = None
        self.worker = Worker(
            f"/job:{self.job_name}/task:{self.task_index}", self._cluster.as_dict()
        )
        if start:
            self.start()

    @staticmethod
    def _only(given: Any, known: Sequence[Any], what: str) -> Any:
        if given is None and len(known) == 1:
            return known[0]
        if given not in known:
            raise InvalidArgumentError(
                f"wf.train.Server: {what}={given!r:.60} is not in the cluster",
                hint=f"it is one of {', '.join(map(str, known))}",
                location=caller_location(),
            )
        return given

    @classmethod
    def create_local_server(cls, config: Any = None, start: bool = True) -> Server:
        """A cluster of one task, "/job:local/task:0", in this process."""
        return cls({"local": ["127.0.0.1:0"]}, config=config, start=start)

    @classmethod
    def create_local_cluster(cls, jobs: Mapping[str, int]) -> list[Server]:
        """A cluster in this process, for tests: so many tasks of each job, in order."""
        spec = ClusterSpec({job: ["127.0.0.1:0"] * count for job, count in jobs.items()})
        made: list[Server] = []
        try:
            for job, number in spec.tasks():
                made.append(cls(spec, job, number))
                spec = spec.with_address(job, number, made[-1].target)
        except BaseException:
            for server in made:
                server.stop()
            raise
        for server in made:
            server.set_cluster(spec)
        return made

    # ------------------------------------------------------------------------------ what it is
    @property
    def name(self) -> str:
        """`/job:ps/task:0`."""
        return self.worker.name

    @property
    def target(self) -> str:
        """Its address, for `wf.Session`; port 0 is replaced by the one that it has."""
        return self._bind if self._wire is None else self._wire.address

    @property
    def incarnation(self) -> int:
        """A number that differs for each start of a task."""
        if self._wire is None:
            raise FailedPreconditionError(
                f"{self.name} has not started", location=caller_location()
            )
        return self._wire.incarnation

    @property
    def cluster(self) -> ClusterSpec:
        """The cluster as sessions are told it."""
        return self._cluster

    def set_cluster(self, cluster: ClusterSpec) -> None:
        """Tell later sessions this cluster: where addresses were not known at the start."""
        cluster.address(self.job_name, self.task_index)
        self._cluster = cluster
        self.worker.cluster = cluster.as_dict()

    # ----------------------------------------------------------------------------- how it runs
    def start(self) -> None:
        """Listen. Nothing happens if it does already; FailedPreconditionError once stopped."""
        if self._ended.is_set():
            raise FailedPreconditionError(
                f"{self.name} was stopped", hint="make a new Server", location=caller_location()
            )
        if self._wire is not None:
            return
        worker = self.worker
        self._wire = open_endpoint(
            self.name,
            self._bind,
            self._key_file,
            self._secret,
            worker.on_message,
            worker.on_link_lost,
        )
        worker.attach(self._wire, self._leave())
        self.set_cluster(
            self._cluster.with_address(self.job_name, self.task_index, self._wire.address)
        )

    def _leave(self) -> AllowFiles:
        """The files that graphs of sessions in other processes may use: what was said; else all if
        only holders of the secret, or processes of this user, can be at the other end."""
        if self._allow_files is not None:
            return self._allow_files
        return knows_peers(self._bind, self._key_file, self._secret)

    def join(self, timeout: float | None = None) -> bool:
        """Wait until `stop` is called, for ever if nobody does. Whether it was."""
        return self._ended.wait(timeout)

    def stop(self) -> None:
        """End all steps and connections; what the task holds is gone."""
        if self._ended.is_set():
            return
        self._ended.set()
        self.worker.close()
        if self._wire is not None:
            self._wire.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<wf.train.Server {self.name} at {self.target}>"
