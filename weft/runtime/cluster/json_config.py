"""WEFT_CONFIG and TF_CONFIG: the cluster and this process's task as JSON in a variable."""

from __future__ import annotations

import json
from typing import Any

from weft.ir.dataclass import dataclass
from weft.ir.errors import InvalidArgumentError
from weft.runtime.cluster.jobs import Environment, gpus, needed, variables, whole_or
from weft.runtime.cluster.spec import ClusterSpec, ClusterTask


@dataclass(frozen=True)
class JsonResolver:
    """Reads `{"cluster": {"ps": [...], "worker": [...]}, "task": {"type": "ps", "index": 0}}`.

    name: the variable; None is WEFT_CONFIG, and TF_CONFIG if that is not set. Of TF_CONFIG all else
    (`rpc_layer`, `environment`, ...) is for TensorFlow and not looked at.
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
