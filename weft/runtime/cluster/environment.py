"""Which of the engines has started this process, and what it says of the cluster."""

from __future__ import annotations

from typing import Protocol

from weft.ir.errors import NotFoundError, WeftError
from weft.ir.locations import caller_location
from weft.runtime.cluster.jobs import Environment, JobSizes, variables
from weft.runtime.cluster.json_config import JsonResolver
from weft.runtime.cluster.kubernetes import KubernetesResolver
from weft.runtime.cluster.ranks import HYDRA, OPEN_MPI, TORCHRUN, RankResolver
from weft.runtime.cluster.slurm import SlurmResolver
from weft.runtime.cluster.spec import ClusterTask


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
        "torchrun; docs/engines.md",
        location=caller_location(),
    )
