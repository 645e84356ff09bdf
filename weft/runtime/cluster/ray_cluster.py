"""`RayCluster`: Ray starts the tasks, gives them processors and GPUs, and starts them again.

That is all that Ray is used for: tensors and steps go between the tasks over weft's own transport,
encrypted with a secret that Ray hands to each task. See docs/guide/engines.md."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, Self

from weft.ir.dataclass import dataclass
from weft.ir.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
    suggest,
)
from weft.ir.locations import caller_location
from weft.ir.process import ForkLock
from weft.runtime.cluster.spec import Cluster, ClusterSpec, ClusterTask

#: Of a task at once: a program that runs, and what asks how the task is.
_CALLS = 4
STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


@dataclass(frozen=True)
class RayTaskStatus:
    """One task as it is now. incarnation: differs for each start."""

    job: str
    task: int
    address: str
    incarnation: int
    pid: int
    gpus: str | None


class RayCluster:
    """The tasks of a cluster as Ray actors, which Ray starts again when they are lost.

    jobs: how many tasks each has. resources: for each job what Ray is to give each of its tasks:
    "num_cpus" (1 if it is not named), "num_gpus" and Ray's own resources by name. strategy: Ray's
    for the placement group. address: of a Ray cluster that runs; None: the one that this process
    has joined, else one that is started here and ended by `close`. name: of the actors. wait_secs:
    how long Ray may take to find room, or to start a lost task again. ray_options: for `ray.init`.

    `wf.train.MonitoredTrainingSession(cluster)` is a session on it. UnsupportedError without Ray
    (`pip install weft[ray]`), UnavailableError if Ray does not start the tasks in time.

    >>> wf.train.RayCluster({"ps": 1, "worker": 2}, strategy="TOGETHER")
    Traceback (most recent call last):
    weft.ir.errors.InvalidArgumentError: RayCluster: strategy='TOGETHER'
      ...
      hint: it is one of PACK, SPREAD, STRICT_PACK, STRICT_SPREAD
    """

    def __init__(
        self,
        jobs: Mapping[str, int],
        *,
        resources: Mapping[str, Mapping[str, float]] | None = None,
        strategy: str = "PACK",
        address: str | None = None,
        name: str | None = None,
        wait_secs: float = 60.0,
        ray_options: Mapping[str, Any] | None = None,
    ) -> None:
        from weft.comm.addresses import Secret

        self._sizes = _checked_jobs(jobs)
        self._needs = _checked_resources(self._sizes, resources or {})
        if strategy not in STRATEGIES:
            raise InvalidArgumentError(
                f"RayCluster: strategy={strategy!r:.60}",
                hint=f"it is one of {', '.join(STRATEGIES)}",
                location=caller_location(),
            )
        self._wait = wait_secs
        self._secret = Secret.generate()
        self._lock = ForkLock()
        self._told: ClusterSpec | None = None
        self._actors: dict[tuple[str, int], Any] = {}
        self._group: Any = None
        self._ray = _import_ray()
        self._began_ray = self._join_ray(address, dict(ray_options or {}))
        try:
            self._start(name or f"weft-{os.urandom(4).hex()}", strategy)
            self.status()
        except BaseException:
            self.close()
            raise

    # ------------------------------------------------------------------------------ what there is
    def status(self) -> list[RayTaskStatus]:
        """All tasks as they are now; waits for those that Ray is starting. UnavailableError if that
        takes longer than `wait_secs`."""
        if not self._actors:
            raise FailedPreconditionError("this RayCluster is closed", location=caller_location())
        asked = {task: actor.describe.remote() for task, actor in self._actors.items()}
        _, late = self._ray.wait(list(asked.values()), num_returns=len(asked), timeout=self._wait)
        names = {ref: f"/job:{job}/task:{i}" for (job, i), ref in asked.items()}
        if late:
            raise UnavailableError(
                f"Ray has not started {', '.join(names[ref] for ref in late)} within "
                f"{self._wait:g} s",
                hint="`ray status` shows what there is room for; see wait_secs",
                location=caller_location(),
            )
        found = []
        for (job, i), ref in asked.items():
            try:
                found.append(RayTaskStatus(job, i, **self._ray.get(ref)))
            except self._ray.exceptions.RayError as error:
                raise UnavailableError(
                    f"Ray cannot start {names[ref]}: {error}", location=caller_location()
                ) from None
        return found

    def cluster_spec(self) -> ClusterSpec:
        """Where the tasks are now, as `status`; the tasks are told, too."""
        addresses: dict[str, list[str]] = {job: [] for job in self._sizes}
        for one in self.status():
            addresses[one.job].append(one.address)
        spec = ClusterSpec(addresses)
        with self._lock:
            news, self._told = spec != self._told, spec
        if news:
            for actor in self._actors.values():
                actor.set_cluster.remote(spec.to_json())
        return spec

    @property
    def target(self) -> str:
        """The address of the task that sessions are made on: the chief's."""
        return self.cluster_spec().address(self._chief(), 0)

    @property
    def cluster(self) -> Cluster:
        """What `wf.Session(cluster=)` takes: the session asks where a task that it has lost is now,
        and has the cluster's secret."""
        return Cluster(self.target, spec=self.cluster_spec, secret=self._secret)

    def run(self, program: Callable[[ClusterTask], Any], job: str | None = None) -> list[Any]:
        """What `program(task)` gives in each task of a job, at the same time: a collective program
        (`wf.Mesh(task=task)`), or an elastic one (`wf.train.Elastic(task=task)`).

        job: by default the chief's. The tasks have addresses for this, and the cluster's secret. In
        a task that is lost and made anew the program begins again, at its address: it has to be on
        its old machine. The first error of a program is raised as Ray has it.
        """
        own = self._chief() if job is None else job
        if own not in self._sizes:
            raise NotFoundError(
                f"RayCluster: it has no job {job!r:.60}{suggest(str(job), tuple(self._sizes))}",
                location=caller_location(),
            )
        self.status()  # waits for those that Ray is starting
        actors = [self._actors[own, i] for i in range(self._sizes[own])]
        spec = ClusterSpec({own: self._ray.get([a.free_address.remote() for a in actors])})
        runs = [actor.run.remote(program, spec.to_json()) for actor in actors]
        left = list(runs)
        while left:  # `get` of all would wait for the first one while another has failed
            done, left = self._ray.wait(left)
            self._ray.get(done)
        found: list[Any] = self._ray.get(runs)
        return found

    def _chief(self) -> str:
        """The job of the chief, which is its task 0."""
        spec = ClusterSpec({job: ["127.0.0.1:0"] * n for job, n in self._sizes.items()})
        return next(job for job, i in spec.tasks() if ClusterTask(spec, job, i).is_chief)

    # ------------------------------------------------------------------------------------- ending
    def close(self) -> None:
        """End the tasks; and Ray, if it was started here."""
        ray, actors, group = self._ray, self._actors, self._group
        self._actors, self._group = {}, None
        if ray.is_initialized():
            for actor in actors.values():
                ray.kill(actor, no_restart=True)
            if group is not None:
                ray.util.remove_placement_group(group)
            if self._began_ray:
                ray.shutdown()
        self._began_ray = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ----------------------------------------------------------------------------------- starting
    def _join_ray(self, address: str | None, options: dict[str, Any]) -> bool:
        """Whether Ray was started, or joined, here."""
        if self._ray.is_initialized():
            if address is not None or options:
                raise FailedPreconditionError(
                    "this process has joined a Ray cluster already",
                    hint="leave address and ray_options out, or call ray.shutdown() first",
                    location=caller_location(),
                )
            return False
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options.setdefault("log_to_driver", False)
        if address is None:
            needed = sum(n * self._needs[job].get("CPU", 0.0) for job, n in self._sizes.items())
            # tasks share the processors of this machine, whatever they ask for
            options.setdefault("num_cpus", max(os.cpu_count() or 1, int(needed) + 1))
            options.setdefault("include_dashboard", False)  # its job API runs any program
        else:
            options["address"] = address
        self._ray.init(**options)
        return True

    def _start(self, name: str, strategy: str) -> None:
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        from weft.runtime.cluster.ray_task import RayTask

        ray = self._ray
        tasks = [(job, i) for job, n in self._sizes.items() for i in range(n)]
        bundles = [self._needs[job] or {"CPU": 0.001} for job, _ in tasks]
        self._group = placement_group(bundles, strategy=strategy, name=name)
        ready, _ = ray.wait([self._group.ready()], timeout=self._wait)
        if not ready:
            raise UnavailableError(
                f"Ray has no room for {bundles} ({strategy}) within {self._wait:g} s",
                hint=f"it has {ray.available_resources()}",
                location=caller_location(),
            )
        actor = ray.remote(RayTask)
        for index, (job, i) in enumerate(tasks):
            needs = dict(bundles[index])
            cpus, gpus = needs.pop("CPU", 0.0), needs.pop("GPU", 0.0)
            options = actor.options(
                name=f"{name}-{job}-{i}", num_cpus=cpus, num_gpus=gpus, resources=needs,
                max_restarts=-1, max_task_retries=-1, max_concurrency=_CALLS,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    self._group, placement_group_bundle_index=index
                ),
            )  # fmt: skip
            self._actors[job, i] = options.remote(
                self._sizes, job, i, self._secret.hex(), int(cpus)
            )


def _import_ray() -> ModuleType:
    try:
        import ray
    except ImportError as error:
        raise UnsupportedError(
            f"RayCluster needs Ray: {error}",
            hint="pip install 'weft[ray]'",
            location=caller_location(),
        ) from None
    found: ModuleType = ray
    return found


def _checked_jobs(jobs: Mapping[str, int]) -> dict[str, int]:
    given: Sequence[tuple[Any, Any]] = list(jobs.items())
    if not given or not all(type(n) is int and n > 0 for _, n in given):
        raise InvalidArgumentError(
            f"RayCluster: jobs={dict(jobs)}: each needs a number of tasks",
            hint='RayCluster({"ps": 2, "worker": 3})',
            location=caller_location(),
        )
    ClusterSpec({job: ["127.0.0.1:0"] * n for job, n in given})  # refuses what is no name
    return dict(given)


def _checked_resources(
    sizes: Mapping[str, int], resources: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    """By job what a bundle of Ray's holds: CPU, GPU and others, without zeros."""
    unknown = set(resources) - set(sizes)
    if unknown:
        raise InvalidArgumentError(
            f"RayCluster: resources of {', '.join(sorted(unknown))}, which is no job",
            location=caller_location(),
        )
    needs = {}
    for job in sizes:
        own = {"num_cpus": 1.0, **resources.get(job, {})}
        named = {{"num_cpus": "CPU", "num_gpus": "GPU"}.get(k, k): v for k, v in own.items()}
        needs[job] = {k: float(v) for k, v in named.items() if v}
    return needs
