"""Kubernetes: Indexed Jobs and StatefulSets, whose pods have names that count up.

A headless service gives each pod the DNS name `<pod's host name>.<service>`:
https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode and
.../statefulset/#stable-network-id
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from weft.ir.dataclass import dataclass
from weft.ir.errors import InvalidArgumentError
from weft.runtime.cluster.addresses import tcp_address
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
from weft.runtime.cluster.spec import ClusterSpec, ClusterTask


@dataclass(frozen=True)
class KubernetesResolver:
    """Pods of one Indexed Job or StatefulSet, whose numbers fill the jobs in the order given; or,
    with `names`, of one set for each job.

    jobs: how many tasks each has (without it WEFT_JOBS: the pods do not know). service: the
    headless service, without it WEFT_SERVICE. names: job -> name of its Job or StatefulSet. All
    tasks listen at `port`.
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
