"""Open MPI, MPICH and Intel MPI (Hydra), torchrun: each process is told its rank, and no more.

They do not say on which hosts the others are. If all are on this one, none needs to; otherwise the
user names the hosts.
"""

from __future__ import annotations

from weft.ir.dataclass import dataclass
from weft.ir.errors import InvalidArgumentError, NotFoundError
from weft.runtime.cluster.addresses import tcp_address
from weft.runtime.cluster.hostlist import expand_hostlist
from weft.runtime.cluster.jobs import (
    DEFAULT_PORT,
    Environment,
    JobSizes,
    gpus,
    job_sizes,
    spec_of,
    variables,
    whole,
    whole_or,
)
from weft.runtime.cluster.spec import ClusterTask


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
