"""Cluster resolvers: the cluster and this process's task, as the engine that started it says.

WEFT_CONFIG and TF_CONFIG: JSON in a variable.
SLURM: `srun` tells each process its rank, the hosts and how many tasks each of them has (man srun,
    "OUTPUT ENVIRONMENT VARIABLES"). Variables of the step come first, those of the job may be of a
    larger allocation. Short forms, lists of hosts `n[1-3,07],gpu[01-02]-ib` and of counts
    `2(x3),1`, are parsed here, so that no `scontrol` needs to run (man scontrol, "show hostnames";
    hostlist(3)).
Kubernetes: Indexed Jobs and StatefulSets, whose pods have names that count up. A headless service
    gives each pod the DNS name `<pod's host name>.<service>`:
    https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode
    and .../statefulset/#stable-network-id
Open MPI, MPICH and Intel MPI (Hydra), torchrun: each process is told its rank, and no more. If all
    processes are on this host, that is enough; otherwise the user names the hosts.

Pure reading of the environment: no subprocess, no network."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from weft.ir.dataclass import dataclass
from weft.ir.errors import InvalidArgumentError, NotFoundError, UnsupportedError, WeftError
from weft.ir.locations import caller_location
from weft.runtime.cluster.spec import ClusterSpec, ClusterTask, tcp_address

Environment = Mapping[str, str]
JobSizes = Mapping[str, int | None]
DEFAULT_PORT = 23400  # below the range from which Linux takes ports of outgoing connections
JOBS = "WEFT_JOBS"


def variables(environ: Environment | None) -> Environment:
    """The environment given, or this process's."""
    return os.environ if environ is None else environ


def needed(environ: Environment, *names: str) -> str:
    """The first of the variables that is set and not empty. NotFoundError naming them."""
    for name in names:
        if environ.get(name):
            return environ[name]
    raise NotFoundError(f"the environment variable {' or '.join(names)} is not set")


def whole(environ: Environment, *names: str) -> int:
    """An integer >= 0 in the first of the variables that is set. Errors name it."""
    text = needed(environ, *names)
    if not (text.isascii() and text.isdigit()):
        name = next(n for n in names if environ.get(n))
        raise InvalidArgumentError(f"{name}={text!r:.60} is no number")
    return int(text)


def whole_or(environ: Environment, default: int, *names: str) -> int:
    """As `whole`, `default` if none is set."""
    return whole(environ, *names) if any(environ.get(n) for n in names) else default


def job_sizes(
    jobs: JobSizes | None, environ: Environment, world: int | None = None
) -> dict[str, int]:
    """How many tasks each job has: as `jobs` says, else WEFT_JOBS ("ps=2,worker=*"), else all are
    of the job "worker". None (or `*`) is what is left of `world`; with a world they must fit it."""
    asked = _parse_jobs(environ[JOBS]) if jobs is None and environ.get(JOBS) else jobs
    if asked is None:
        if world is None:
            raise InvalidArgumentError(
                "this environment does not say how many tasks there are",
                hint=f'pass jobs={{"ps": 2, "worker": 3}}, or set {JOBS}=ps=2,worker=3',
            )
        asked = {"worker": None}
    open_jobs = [job for job, n in asked.items() if n is None]
    known = sum(n for n in asked.values() if n is not None)
    wrong = any(isinstance(n, bool) or (n is not None and n < 1) for n in asked.values())
    if wrong or not asked or len(open_jobs) > 1 or (open_jobs and world is None):
        raise InvalidArgumentError(
            f"jobs are {dict(asked)}: each needs a number of at least 1",
            hint="of an engine that says how many tasks there are, one may be None: the rest",
        )
    rest = 0 if world is None else world - known
    sizes = {job: rest if n is None else n for job, n in asked.items()}
    if world is not None and (sum(sizes.values()) != world or min(sizes.values()) < 1):
        raise InvalidArgumentError(
            f"the jobs {dict(asked)} do not fit the {world} tasks that the engine started"
        )
    return sizes


def spec_of(sizes: Mapping[str, int], addresses: Sequence[str]) -> ClusterSpec:
    """Ranks fill the jobs in the order given."""
    jobs: dict[str, list[str]] = {}
    start = 0
    for job, n in sizes.items():
        jobs[job] = list(addresses[start : start + n])
        start += n
    return ClusterSpec(jobs)


def gpus(environ: Environment, *names: str) -> tuple[str, ...] | None:
    """The devices that the first of the variables that is there names; none is there: None."""
    found = next((environ[n] for n in ("CUDA_VISIBLE_DEVICES", *names) if n in environ), None)
    return None if found is None else tuple(one for one in found.split(",") if one)


def _parse_jobs(text: str) -> dict[str, int | None]:
    sizes: dict[str, int | None] = {}
    for part in text.split(","):
        found = re.fullmatch(r"\s*([\w-]+)\s*=\s*([0-9]{1,6}|\*)\s*", part, re.ASCII)
        if found is None or found[1] in sizes:
            raise InvalidArgumentError(f"{JOBS}={text!r:.200} is not as ps=2,worker=*")
        sizes[found[1]] = None if found[2] == "*" else int(found[2])
    return sizes


@dataclass(frozen=True)
class JsonResolver:
    """Reads `{"cluster": {"ps": [...], "worker": [...]}, "task": {"type": "ps", "index": 0}}`.

    name: the variable; None is WEFT_CONFIG, and TF_CONFIG if that is not set. Of TF_CONFIG all else
    (`rpc_layer`, `environment`, ...) is for TensorFlow and not looked at.

    >>> config = '{"cluster": {"worker": ["host-a:2222"]}, "task": {"type": "worker", "index": 0}}'
    >>> print(wf.train.JsonResolver().resolve({"TF_CONFIG": config}))
    /job:worker/task:0 at tcp://host-a:2222 (TF_CONFIG)
    """

    name: str | None = None

    def found(self, environ: Environment | None = None) -> bool:
        """Whether one of the variables is set."""
        return any(variables(environ).get(name) for name in self._names())

    def resolve(self, environ: Environment | None = None) -> ClusterTask:
        """This process's place. NotFoundError if the variable is not set, InvalidArgumentError
        naming it if its text is not as above or the task is not in the cluster."""
        env = variables(environ)
        text = needed(env, *self._names())
        name = next(n for n in self._names() if env.get(n))
        try:
            config = json.loads(text)
        except ValueError as error:
            raise InvalidArgumentError(f"{name} is not JSON: {error}") from None
        if not isinstance(config, dict) or not isinstance(config.get("cluster"), dict):
            raise InvalidArgumentError(
                f'{name} has no "cluster"',
                hint='{"cluster": {"worker": ["host:2222"]}, "task": {"type": "worker", '
                '"index": 0}}',
            )
        job, index = _task(name, config.get("task"))
        try:
            spec = ClusterSpec(config["cluster"])
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{name}: {error.what}", hint=error.hint) from None
        if job not in spec or index >= spec.num_tasks(job):
            hint = f"it has {', '.join(f'{j} 0..{spec.num_tasks(j) - 1}' for j in spec)}"
            if job == "evaluator":
                hint += "; an evaluator is a program of its own here: it needs no cluster"
            raise InvalidArgumentError(
                f"{name}: the cluster has no task {index} of the job {job!r:.60}", hint=hint
            )
        restarts = whole_or(env, 0, "WEFT_RESTART_COUNT")
        return ClusterTask(spec, job, index, 0, gpus(env), restarts, name)

    def _names(self) -> tuple[str, ...]:
        return ("WEFT_CONFIG", "TF_CONFIG") if self.name is None else (self.name,)


def _task(name: str, task: Any) -> tuple[str, int]:
    job = task.get("type") if isinstance(task, dict) else None
    index = task.get("index") if isinstance(task, dict) else None
    if isinstance(index, str) and index.isascii() and index.isdigit():  # TensorFlow takes both
        index = int(index)
    if not isinstance(job, str) or type(index) is not int or index < 0:
        raise InvalidArgumentError(
            f"{name} does not say which task this process is: task is {task!r:.100}",
            hint='"task": {"type": "worker", "index": 0}',
        )
    return job, index


_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_COUNT = re.compile(r"([0-9]+)(?:\(x([0-9]+)\))?")
_HOST = re.compile(r"[A-Za-z0-9_.-]+")
_MOST = 1 << 16  # as in SLURM (MAX_RANGE): an environment must not take all memory


def expand_hostlist(text: str) -> list[str]:
    """The hosts, in order: leading zeros kept, several brackets in one name allowed.

    InvalidArgumentError for text that is no hostlist, and for more than 65536 hosts.
    """
    hosts: list[str] = []
    for part in _split(text):
        names = [""]
        for piece in re.finditer(r"([^\[\]]*)(?:\[([^\[\]]*)\])?", part):
            literal, ranges = piece[1], piece[2]
            numbers = [""] if ranges is None else _numbers(ranges, text)
            if len(names) * len(numbers) + len(hosts) > _MOST:
                raise _bad(text, f"it has more than {_MOST} hosts")
            names = [name + literal + number for name in names for number in numbers]
        if not all(map(_HOST.fullmatch, names)):
            raise _bad(text, f"'{part}' is no host")
        hosts += names
    return hosts


def expand_counts(text: str) -> list[int]:
    """`2(x3),1` -> [2, 2, 2, 1]. InvalidArgumentError for anything else."""
    counts: list[int] = []
    for part in text.split(","):
        found = _COUNT.fullmatch(part.strip())
        repeats = int(found[2] or 1) if found else 0
        if found is None or not 0 < repeats <= _MOST - len(counts):
            raise InvalidArgumentError(f"{text!r:.200} is no list of counts, as 2(x3),1")
        counts += [int(found[1])] * repeats
    return counts


def expand_ports(text: str) -> list[int]:
    """`12000-12003,12007` -> the ports. InvalidArgumentError for anything else."""
    ports = [int(number) for number in _numbers(text, text)]
    if not all(0 < port < 65536 for port in ports):
        raise _bad(text, "a port is not in 1 to 65535")
    return ports


def _split(text: str) -> list[str]:
    """The parts between commas outside of brackets; well-formed brackets or an error."""
    parts, depth = [""], 0
    for char in text.strip():
        depth += (char == "[") - (char == "]")
        if depth not in (0, 1):
            raise _bad(text, "its brackets do not fit")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    if depth:
        raise _bad(text, "its brackets do not fit")
    if not all(parts):
        raise _bad(text, "a host is empty")
    return parts


def _numbers(ranges: str, text: str) -> list[str]:
    numbers: list[str] = []
    for one in ranges.split(","):
        found = _RANGE.fullmatch(one)
        low, high = (found[1], found[2] or found[1]) if found else ("1", "0")
        if len(low) > 18 or len(high) > 18 or not 0 <= int(high) - int(low) < _MOST - len(numbers):
            raise _bad(text, f"'{one}' is no range")
        numbers += [str(i).zfill(len(low)) for i in range(int(low), int(high) + 1)]
    return numbers


def _bad(text: str, why: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{text!r:.200} is no list of hosts: {why}")


@dataclass(frozen=True)
class KubernetesResolver:
    """Pods of one Indexed Job or StatefulSet, whose numbers fill the jobs in the order given; or,
    with `names`, of one set for each job.

    jobs: how many tasks each has (without it WEFT_JOBS: the pods do not know). service: the
    headless service, without it WEFT_SERVICE. names: job -> name of its Job or StatefulSet. All
    tasks listen at `port`.

    >>> pods = wf.train.KubernetesResolver(jobs={"ps": 1, "worker": 2}, service="training")
    >>> print(pods.resolve({"HOSTNAME": "digits-2"}))
    /job:worker/task:1 at tcp://digits-2.training:23400 (Kubernetes)
    """

    jobs: JobSizes | None = None
    service: str | None = None
    names: Mapping[str, str] | None = None
    port: int = DEFAULT_PORT

    def found(self, environ: Environment | None = None) -> bool:
        """Whether this is a pod that knows its service."""
        env = variables(environ)
        inside = "KUBERNETES_SERVICE_HOST" in env or "JOB_COMPLETION_INDEX" in env
        return bool(self.service or env.get("WEFT_SERVICE")) and inside

    def resolve(self, environ: Environment | None = None) -> ClusterTask:
        """This process's place. Errors name the variables that are not there or do not fit."""
        env = variables(environ)
        service = self.service or needed(env, "WEFT_SERVICE")
        host = needed(env, "HOSTNAME").split(".")[0]
        found = re.fullmatch(r"(.+)-([0-9]+)", host)
        if found is None:
            raise InvalidArgumentError(
                f"HOSTNAME={host!r:.100} does not end in a number",
                hint="an Indexed Job (completionMode: Indexed) or a StatefulSet has such pods",
            )
        name, number = found[1], int(found[2])
        if "JOB_COMPLETION_INDEX" in env and whole(env, "JOB_COMPLETION_INDEX") != number:
            raise InvalidArgumentError(
                f"HOSTNAME={host!r:.100} is not of JOB_COMPLETION_INDEX="
                f"{env['JOB_COMPLETION_INDEX']}",
                hint="leave the pod's hostname to Kubernetes",
            )
        sizes = job_sizes(self.jobs, env)
        if self.names is None:
            hosts = [f"{name}-{i}.{service}" for i in range(sum(sizes.values()))]
            spec = spec_of(sizes, [tcp_address(one, self.port) for one in hosts])
            tasks = spec.tasks()
            if number >= len(tasks):
                raise InvalidArgumentError(
                    f"this is pod {number}, and the jobs {sizes} are {len(tasks)} tasks"
                )
            job, task = tasks[number]
        else:
            spec, job, task = self._of_sets(sizes, service), self._job_of(name), number
            if task >= spec.num_tasks(job):
                raise InvalidArgumentError(
                    f"this is pod {number} of '{name}', and the job '{job}' has "
                    f"{spec.num_tasks(job)} tasks"
                )
        restarts = whole_or(env, 0, "WEFT_RESTART_COUNT")
        return ClusterTask(spec, job, task, 0, gpus(env), restarts, "Kubernetes")

    def _of_sets(self, sizes: Mapping[str, int], service: str) -> ClusterSpec:
        names = self.names or {}
        if set(names) != set(sizes):
            raise InvalidArgumentError(
                f"names has {sorted(names)}, the jobs are {sorted(sizes)}",
                hint="the name of the Job or StatefulSet of each job",
            )
        jobs = {
            job: [tcp_address(f"{names[job]}-{i}.{service}", self.port) for i in range(n)]
            for job, n in sizes.items()
        }
        return ClusterSpec(jobs)

    def _job_of(self, own: str) -> str:
        found = [job for job, name in (self.names or {}).items() if name == own]
        if len(found) != 1:
            raise InvalidArgumentError(f"the pod's set '{own}' is the name of {len(found)} jobs")
        return found[0]


@dataclass(frozen=True, slots=True)
class Launcher:
    """Its name, and its variables: rank, number of ranks, rank on the host, ranks on the host."""

    name: str
    rank: str
    world: str
    local_rank: str
    local_world: str


OPEN_MPI = Launcher(
    "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
)  # fmt: skip
TORCHRUN = Launcher("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
HYDRA = Launcher("MPICH's Hydra", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
LAUNCHERS = (OPEN_MPI, TORCHRUN, HYDRA)


@dataclass(frozen=True)
class RankResolver:
    """Processes that a launcher has numbered: ranks fill the jobs in the order given.

    jobs: how many tasks each has, None for the rest; without it WEFT_JOBS, else all are workers.
    hosts: in the order of ranks, as a list or in SLURM's short form ("node[1-4]"), each with the
    same number of ranks; without it WEFT_HOSTS. Task i of a host listens at port + i. launchers: of
    which the variables are looked for.

    >>> ranks = wf.train.RankResolver(hosts="node[1-2]")
    >>> print(ranks.resolve({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}))
    /job:worker/task:3 at tcp://node2:23401 (torchrun)
    """

    jobs: JobSizes | None = None
    hosts: str | None = None
    port: int = DEFAULT_PORT
    launchers: tuple[Launcher, ...] = LAUNCHERS

    def found(self, environ: Environment | None = None) -> bool:
        """Whether one of the launchers has started this process."""
        return self._launcher(variables(environ)) is not None

    def resolve(self, environ: Environment | None = None) -> ClusterTask:
        """This process's place. NotFoundError without a launcher's variables, or without hosts
        where they are needed; InvalidArgumentError for what does not fit."""
        env = variables(environ)
        launcher = self._launcher(env)
        if launcher is None:
            known = ", ".join(f"{one.rank} ({one.name})" for one in self.launchers)
            raise NotFoundError(f"none of the variables {known} is set")
        rank, world = whole(env, launcher.rank), whole(env, launcher.world)
        if rank >= world:
            raise InvalidArgumentError(f"{launcher.name}: rank {rank} of {world}")
        local = whole_or(env, rank, launcher.local_rank)
        hosts = self._hosts(env, launcher, world)
        per_host = world // len(hosts)
        if per_host * len(hosts) != world or local != rank % per_host:
            raise InvalidArgumentError(
                f"{launcher.name}: rank {rank} of {world} is the {local}th of its host, which does "
                f"not follow from {len(hosts)} hosts with as many ranks each",
                hint="place ranks in blocks of one size, or set WEFT_CONFIG for each process",
            )
        addresses = [
            tcp_address(hosts[i // per_host], self.port + i % per_host) for i in range(world)
        ]
        spec = spec_of(job_sizes(self.jobs, env, world), addresses)
        job, task = spec.tasks()[rank]
        restarts = whole_or(env, 0, "TORCHELASTIC_RESTART_COUNT", "WEFT_RESTART_COUNT")
        return ClusterTask(spec, job, task, local, gpus(env), restarts, launcher.name)

    def _launcher(self, env: Environment) -> Launcher | None:
        return next((one for one in self.launchers if env.get(one.rank)), None)

    def _hosts(self, env: Environment, launcher: Launcher, world: int) -> list[str]:
        given = self.hosts or env.get("WEFT_HOSTS")
        if given:
            return expand_hostlist(given)
        if whole_or(env, 0, launcher.local_world) == world:
            return ["127.0.0.1"]
        raise NotFoundError(
            f"{launcher.name} does not say on which hosts the {world} ranks are",
            hint='pass hosts="node[1-4]" or set WEFT_HOSTS, in the order of ranks',
        )


@dataclass(frozen=True)
class SlurmResolver:
    """Tasks of one `srun`: ranks fill the jobs in the order given.

    jobs: how many tasks each has, None for the rest; without it WEFT_JOBS, else all are workers.
    port: task i of a host listens at port + i, unless `srun --resv-ports` gave ports to the step.

    >>> environ = {
    ...     "SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_NODELIST": "node[1-3]",
    ...     "SLURM_STEP_TASKS_PER_NODE": "1(x3)"}
    >>> print(wf.train.SlurmResolver(jobs={"ps": 1, "worker": None}).resolve(environ))
    /job:worker/task:1 at tcp://node3:23400 (SLURM)
    """

    jobs: JobSizes | None = None
    port: int = DEFAULT_PORT

    def found(self, environ: Environment | None = None) -> bool:
        """Whether `srun` started this process: a batch script itself has a rank, but no step."""
        env = variables(environ)
        return bool(env.get("SLURM_PROCID") and env.get("SLURM_STEP_NODELIST"))

    def resolve(self, environ: Environment | None = None) -> ClusterTask:
        """This process's place. Errors name the variables that are not there or do not fit."""
        env = variables(environ)
        if whole_or(env, 1, "SLURM_HET_SIZE") > 1:
            raise UnsupportedError(
                "a heterogeneous SLURM job: its components have variables of their own",
                hint="set WEFT_CONFIG for each process, or use one component",
            )
        hosts = expand_hostlist(needed(env, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"))
        counts = expand_counts(needed(env, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"))
        rank = whole(env, "SLURM_PROCID")
        world = whole(env, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
        if len(counts) != len(hosts) or sum(counts) != world or rank >= world:
            raise InvalidArgumentError(
                f"the SLURM environment contradicts itself: {len(hosts)} hosts, tasks per host "
                f"{counts}, {world} tasks in all, this is rank {rank}"
            )
        places = _places(counts, env.get("SLURM_DISTRIBUTION", "block"))
        self._check_own(env, hosts, places[rank])
        ports = self._ports(env, max(counts))
        addresses = [tcp_address(hosts[node], ports[local]) for node, local in places]
        spec = spec_of(job_sizes(self.jobs, env, world), addresses)
        job, task = spec.tasks()[rank]
        restarts = whole_or(env, 0, "SLURM_RESTART_COUNT")
        devices = gpus(env, "SLURM_STEP_GPUS")
        return ClusterTask(spec, job, task, places[rank][1], devices, restarts, "SLURM")

    def _ports(self, env: Environment, most: int) -> Sequence[int]:
        reserved = env.get("SLURM_STEP_RESV_PORTS")
        ports: Sequence[int] = (
            expand_ports(reserved) if reserved else range(self.port, self.port + most)
        )
        if len(ports) < most:
            raise InvalidArgumentError(
                f"SLURM reserved {len(ports)} ports, a host has up to {most} tasks",
                hint=f"srun --resv-ports={most}",
            )
        return ports

    @staticmethod
    def _check_own(env: Environment, hosts: Sequence[str], place: tuple[int, int]) -> None:
        """What SLURM says of this process itself must be what follows for its rank."""
        told = (
            ("SLURM_NODEID", str(place[0])),
            ("SLURM_LOCALID", str(place[1])),
            ("SLURMD_NODENAME", hosts[place[0]]),
        )
        for name, follows in told:
            if env.get(name, follows) != follows:
                raise UnsupportedError(
                    f"SLURM has distributed the tasks in a way that is not known here: "
                    f"{name}={env[name]}, and {follows} was expected",
                    hint="srun --distribution=block or cyclic; or set WEFT_CONFIG",
                )


def _places(counts: Sequence[int], distribution: str) -> list[tuple[int, int]]:
    """(host, task of that host) of each rank."""
    kind = distribution.split(",")[0].split(":")[0].lower()
    places = [(node, local) for node, n in enumerate(counts) for local in range(n)]
    if kind in ("", "*", "block"):
        return places
    if kind == "cyclic":  # one to each host in turn, as long as it has room
        return sorted(places, key=lambda place: (place[1], place[0]))
    raise UnsupportedError(
        f"SLURM_DISTRIBUTION={distribution!r:.60}: which host a rank is on does not follow from it",
        hint="srun --distribution=block or cyclic; or set WEFT_CONFIG",
    )


class Resolver(Protocol):
    """What knows one engine's environment."""

    def found(self, environ: Environment | None = None) -> bool:
        """Whether that engine has started this process."""

    def resolve(self, environ: Environment | None = None) -> ClusterTask:
        """This process's place in the cluster, or a WeftError that names what does not fit."""


def resolvers(jobs: JobSizes | None = None) -> tuple[Resolver, ...]:
    """In the order in which they are asked: what the user wrote, then the innermost engine first
    (mpirun and torchrun inside of a SLURM allocation leave its variables as they were; srun sets
    PMI's variables as well)."""
    return (
        JsonResolver(),
        KubernetesResolver(jobs),
        RankResolver(jobs, launchers=(OPEN_MPI, TORCHRUN)),
        SlurmResolver(jobs),
        RankResolver(jobs, launchers=(HYDRA,)),
    )


def from_environment(
    jobs: JobSizes | None = None, environ: Environment | None = None
) -> ClusterTask:
    """This process's place in the cluster that its environment describes.

    WEFT_CONFIG, TF_CONFIG, Kubernetes (WEFT_SERVICE), Open MPI, torchrun, SLURM, PMI: the first one
    found. jobs: how many tasks each job has, where the engine knows only their sum, as
    `{"ps": 2, "worker": None}` (None: the rest); without it WEFT_JOBS ("ps=2,worker=*"), else all
    are workers. environ: in place of os.environ. NotFoundError if nothing is found, an error that
    names the variable if what is found does not fit.

    >>> environ = {"RANK": "2", "WORLD_SIZE": "3", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "3"}
    >>> print(wf.train.cluster_from_environment({"ps": 1, "worker": None}, environ))
    /job:worker/task:1 at tcp://127.0.0.1:23402 (torchrun)
    """
    env = variables(environ)
    try:
        for resolver in resolvers(jobs):
            if resolver.found(env):
                return resolver.resolve(env)
    except WeftError as error:
        raise error.at(caller_location()) from None
    raise NotFoundError(
        "the environment does not say which cluster this process is a task of",
        hint="WEFT_CONFIG or TF_CONFIG, WEFT_SERVICE in Kubernetes, or start it by srun, mpirun or "
        "torchrun; docs/guide/engines.md",
        location=caller_location(),
    )
