"""How many tasks each job has, and which ranks they are: what all resolvers share."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from weft.ir.errors import InvalidArgumentError, NotFoundError
from weft.runtime.cluster.spec import ClusterSpec

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
