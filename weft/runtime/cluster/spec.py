"""`ClusterSpec`: the jobs of a cluster and the address of each task (TensorFlow 1's class).

`ClusterTask`: which of these tasks this process is. `Cluster`: how a session reaches them.
Addresses are `tcp://host:port` and `ipc:///path`, as ZeroMQ writes them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from weft.ir.dataclass import dataclass
from weft.ir.errors import InvalidArgumentError, NotFoundError, TypeRuleError, suggest
from weft.ir.locations import caller_location

if TYPE_CHECKING:
    from weft.comm.addresses import Secret

_TCP = re.compile(r"(?:tcp://)?(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_.-]+):([0-9]{1,5})")
_LONGEST_PATH = 107  # bytes in sockaddr_un.sun_path, less the zero at its end
_IPC = "ipc://"


def parse_address(given: object) -> str:
    """The address in canonical form: `host:port` (TensorFlow's form) gets `tcp://`.

    Port 0 stands for one that the system chooses when the task starts. InvalidArgumentError for
    anything else.
    """
    text = given if isinstance(given, str) else ""
    if text.startswith(_IPC):
        path = text[len(_IPC) :]
        if not path.startswith("/") or "\0" in path or len(path.encode()) > _LONGEST_PATH:
            raise InvalidArgumentError(
                f"the address {given!r:.200} is no ipc:// address",
                hint=f"ipc:// and an absolute path of at most {_LONGEST_PATH} bytes",
            )
        return text
    found = _TCP.fullmatch(text)
    if found is None or int(found[2]) > 65535:
        raise InvalidArgumentError(
            f"{given!r:.200} is no address of a task",
            hint="'host:port', 'tcp://host:port' or 'ipc:///path'; grpc:// is not spoken here",
        )
    return f"tcp://{found[1]}:{int(found[2])}"


def tcp_address(host: str, port: int) -> str:
    """`tcp://host:port`; an IPv6 address gets its brackets. InvalidArgumentError as above."""
    return parse_address(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")


def is_open(address: str) -> bool:
    """Whether the system chooses the port: such an address cannot be connected to."""
    return address.startswith("tcp://") and address.endswith(":0")


_JOB = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")  # as in a device's name, /job:NAME/task:0
Jobs = Mapping[str, Sequence[str]]


class ClusterSpec:
    """Jobs and the addresses of their tasks, in order; it never changes.

    cluster: a dict from job to a list of addresses, JSON text of one, or another ClusterSpec.
    Addresses are "host:port" (TensorFlow's form), "tcp://host:port" or "ipc:///path"; port 0 is for
    a task of which nobody needs to know the address beforehand. Text and files may also be what
    TF_CONFIG holds, with the jobs under "cluster". InvalidArgumentError for a job without tasks, a
    name that is none, an address that is none or is used twice.

    >>> workers = ["host-b:2222", "host-c:2222"]
    >>> spec = wf.train.ClusterSpec({"ps": ["host-a:2222"], "worker": workers})
    >>> spec.tasks()
    (('ps', 0), ('worker', 0), ('worker', 1))
    >>> spec.address("worker", 1)
    'tcp://host-c:2222'
    """

    __slots__ = ("_jobs",)

    def __init__(self, cluster: ClusterSpec | Jobs | str) -> None:
        try:
            self._jobs = _checked(_as_mapping(cluster))
        except (InvalidArgumentError, TypeRuleError) as error:
            raise error.at(caller_location()) from None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ClusterSpec:
        """Read a JSON file. NotFoundError if it is not there, InvalidArgumentError naming it."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise NotFoundError(
                f"the cluster file '{os.fspath(path)}' cannot be read: {error}",
                location=caller_location(),
            ) from None
        try:
            return cls(text)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(
                f"the cluster file '{os.fspath(path)}': {error.what}",
                hint=error.hint,
                location=caller_location(),
            ) from None

    # ------------------------------------------------------------------------------------ looking
    @property
    def jobs(self) -> tuple[str, ...]:
        """The names of the jobs, in the order given."""
        return tuple(self._jobs)

    def tasks(self) -> tuple[tuple[str, int], ...]:
        """(job, task) of every task, job by job."""
        return tuple((job, i) for job, held in self._jobs.items() for i in range(len(held)))

    def num_tasks(self, job: str) -> int:
        """How many tasks a job has. NotFoundError if there is no such job."""
        return len(self.job_tasks(job))

    def job_tasks(self, job: str) -> tuple[str, ...]:
        """The addresses of a job's tasks. NotFoundError if there is no such job."""
        if job not in self._jobs:
            raise NotFoundError(
                f"the cluster has no job {job!r:.60}{suggest(str(job), self.jobs)}",
                hint=f"it has {', '.join(self._jobs)}",
                location=caller_location(),
            )
        return self._jobs[job]

    def address(self, job: str, task: int) -> str:
        """The address of one task. NotFoundError if it is not in the cluster."""
        held = self.job_tasks(job)
        if type(task) is not int or not 0 <= task < len(held):
            raise NotFoundError(
                f"the cluster has no task {task!r:.20} of the job '{job}'",
                hint=f"it has the tasks 0 to {len(held) - 1}",
                location=caller_location(),
            )
        return held[task]

    task_address = address  # TensorFlow 1's name

    def task_indices(self, job: str) -> list[int]:
        """The numbers of a job's tasks (TensorFlow 1's method)."""
        return list(range(self.num_tasks(job)))

    def with_address(self, job: str, task: int, address: str) -> ClusterSpec:
        """The same cluster, one task at another address: where it was started anew."""
        self.address(job, task)
        changed = {j: list(held) for j, held in self._jobs.items()}
        changed[job][task] = address
        return ClusterSpec(changed)

    # -------------------------------------------------------------------------------- other forms
    def as_dict(self) -> dict[str, list[str]]:
        """Job -> addresses, as the constructor takes it."""
        return {job: list(held) for job, held in self._jobs.items()}

    def to_json(self) -> str:
        """JSON text, as the constructor and `load` take it."""
        return json.dumps(self.as_dict(), indent=2)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClusterSpec) and list(self._jobs.items()) == list(
            other._jobs.items()
        )

    def __hash__(self) -> int:
        return hash(tuple(self._jobs.items()))

    def __iter__(self) -> Iterator[str]:
        return iter(self._jobs)

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, job: object) -> bool:
        return job in self._jobs

    def __repr__(self) -> str:
        return f"ClusterSpec({self.as_dict()})"


@dataclass(frozen=True)
class ClusterTask:
    """This process's place in a cluster, as an engine's environment says it.

    rank: its number among all tasks, in the order of `cluster.tasks()`. local_rank: among those of
    its host. gpus: the devices that the engine gave it, None if it says nothing. restarts: how
    often the engine has started this task anew. source: which environment said so.

    >>> workers = ["host-b:2222", "host-c:2222"]
    >>> spec = wf.train.ClusterSpec({"ps": ["host-a:2222"], "worker": workers})
    >>> task = wf.train.ClusterTask(spec, "worker", 0)
    >>> task.rank, task.is_chief, task.address
    (1, True, 'tcp://host-b:2222')
    """

    cluster: ClusterSpec
    job: str
    task: int
    local_rank: int = 0
    gpus: tuple[str, ...] | None = None
    restarts: int = 0
    source: str = ""

    def __post_init__(self) -> None:
        self.cluster.address(self.job, self.task)

    @property
    def address(self) -> str:
        """Where the others reach this task."""
        return self.cluster.address(self.job, self.task)

    @property
    def rank(self) -> int:
        return self.cluster.tasks().index((self.job, self.task))

    @property
    def is_chief(self) -> bool:
        """Whether this task initialises, restores and saves: task 0 of the job "chief" (or
        "master"), else of "worker", else of the last job."""
        jobs = self.cluster.jobs
        chief = next((j for j in ("chief", "master", "worker") if j in jobs), jobs[-1])
        return (self.job, self.task) == (chief, 0)

    def __str__(self) -> str:
        return f"/job:{self.job}/task:{self.task} at {self.address} ({self.source})"


def addresses_of(task: object, what: str) -> tuple[str, ...]:
    """Where the tasks of its job are. InvalidArgumentError for what is no task."""
    if not isinstance(task, ClusterTask):
        raise InvalidArgumentError(
            f"{what}: task is a wf.train.ClusterTask, got {task!r:.60}",
            hint="wf.train.cluster_from_environment()",
            location=caller_location(),
        )
    return task.cluster.job_tasks(task.job)


def _as_mapping(cluster: ClusterSpec | Jobs | str) -> Mapping[str, Any]:
    if isinstance(cluster, ClusterSpec):
        return cluster._jobs
    if isinstance(cluster, str):
        try:
            cluster = json.loads(cluster, object_pairs_hook=_no_twins)
        except ValueError as error:
            raise InvalidArgumentError(f"the text of a cluster is not JSON: {error}") from None
        if isinstance(cluster, dict) and isinstance(cluster.get("cluster"), dict):
            cluster = cluster["cluster"]
    if not isinstance(cluster, Mapping):
        raise TypeRuleError(
            f"a cluster is a dict from job to addresses, got a {type(cluster).__name__}",
            hint='ClusterSpec({"ps": ["host:2222"], "worker": ["host:2223", "host:2224"]})',
        )
    return cluster


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is there twice")
    return found


def _checked(given: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    jobs: dict[str, tuple[str, ...]] = {}
    owners: dict[str, str] = {}
    name: Any  # a user's dict may have anything for names
    for name, addresses in given.items():
        job = name if isinstance(name, str) else ""
        if not _JOB.fullmatch(job):
            raise InvalidArgumentError(
                f"{name!r:.60} cannot be the name of a job",
                hint="a letter, then letters, digits, _ and -",
            )
        if isinstance(addresses, Mapping):
            raise InvalidArgumentError(
                f"the job '{job}' is a dict: clusters with gaps in a job are not supported",
                hint="give the list of all its addresses, in order",
            )
        if isinstance(addresses, str) or not isinstance(addresses, Sequence) or not addresses:
            raise InvalidArgumentError(f"the job '{job}' needs a list of at least one address")
        jobs[job] = tuple(parse_address(one) for one in addresses)
        for i, one in enumerate(jobs[job]):
            owner = owners.setdefault(one, f"/job:{job}/task:{i}")
            if owner != f"/job:{job}/task:{i}" and not is_open(one):
                raise InvalidArgumentError(f"{owner} and /job:{job}/task:{i} are both at {one}")
    if not jobs:
        raise InvalidArgumentError("a cluster needs at least one job")
    return jobs


#: How long a session waits for the tasks when it begins.
CONNECT_TIMEOUT = 60.0


@dataclass(frozen=True)
class Cluster:
    """A cluster as a session sees it: `wf.Session(cluster=)`.

    target: the address of a task, which says where the others are; what no device binds runs there.
    spec: the tasks, in place of what the target says; a function is asked again when one was lost.
    key_file, secret: the cluster's key. Timeouts are in seconds. connect_timeout: how long tasks
    may take to answer at the start; recv_timeout: after how long a part that waits for another
    task's tensor gives up (None: never). spread: ops that nothing binds may leave the target
    where that is predicted to be faster for one session; None: where it is faster also if the other
    tasks that may do the same step do it at once (docs/guide/placement-search.md).
    bfloat16_sendrecv: float32 tensors, but scalars, go from task to task as bfloat16.

    Raises TypeRuleError and InvalidArgumentError for what is none of that.

    >>> with wf.train.Server.create_local_server() as server:
    ...     cluster = wf.train.Cluster(server.target, connect_timeout=10.0)
    ...     with wf.Graph().as_default(), wf.Session(cluster=cluster) as session:
    ...         print(session.run(wf.asarray([1, 2]) * 2), session.is_remote)
    [2 4] True
    """

    target: str
    _: KW_ONLY
    spec: ClusterSpec | Callable[[], ClusterSpec] | None = None
    key_file: str | os.PathLike[str] | None = None
    secret: Secret | None = field(default=None, repr=False)
    connect_timeout: float = CONNECT_TIMEOUT
    recv_timeout: float | None = None
    spread: bool | None = None
    bfloat16_sendrecv: bool = False

    def __post_init__(self) -> None:
        target, spec = cast(object, self.target), cast(object, self.spec)  # whatever was given
        if not (isinstance(target, str) and target):
            raise TypeRuleError(
                f"wf.train.Cluster: target={target!r:.100} is no address of a task",
                hint="'tcp://host:port' or 'ipc:///path'",
                location=caller_location(),
            )
        if not (spec is None or isinstance(spec, ClusterSpec) or callable(spec)):
            raise TypeRuleError(
                f"wf.train.Cluster: spec is a {type(spec).__name__}, not a "
                "wf.train.ClusterSpec or a function that gives one",
                location=caller_location(),
            )
        for name, seconds in (("connect", self.connect_timeout), ("recv", self.recv_timeout)):
            if seconds is not None and not seconds > 0:
                raise InvalidArgumentError(
                    f"wf.train.Cluster: {name}_timeout={seconds!r} is no time",
                    hint="give seconds, more than 0",
                    location=caller_location(),
                )
