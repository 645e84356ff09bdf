"""SLURM: `srun` tells each process its rank, the hosts and how many tasks each of them has.

Variables: man srun, "OUTPUT ENVIRONMENT VARIABLES". Those of the step come first, those of the job
may be of a larger allocation.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.dataclass import dataclass
from weft.ir.errors import InvalidArgumentError, UnsupportedError
from weft.runtime.cluster.addresses import tcp_address
from weft.runtime.cluster.hostlist import expand_counts, expand_hostlist, expand_ports
from weft.runtime.cluster.jobs import (
    DEFAULT_PORT,
    Environment,
    JobSizes,
    gpus,
    job_sizes,
    needed,
    spec_of,
    variables,
    whole,
    whole_or,
)
from weft.runtime.cluster.spec import ClusterTask


@dataclass(frozen=True)
class SlurmResolver:
    """Tasks of one `srun`: ranks fill the jobs in the order given.

    jobs: how many tasks each has, None for the rest; without it WEFT_JOBS, else all are workers.
    port: task i of a host listens at port + i, unless `srun --resv-ports` gave ports to the step.
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
