"""`ShardedSaver`: checkpoints of variables on several tasks, each of which writes its own file.

Each task's file is a Save op of the graph. When all are written, this process writes the manifest,
and then the folder's state file; so a kill of any of them, at any moment, leaves the checkpoints
before (see `runtime/checkpoint/folder.py`). A restore is an op of each task, too, which takes what
it needs from whatever files the checkpoint has.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from weft.frontend.core.tensor import Tensor
from weft.frontend.core.trace import Effect, Trace, current_trace
from weft.frontend.ops.strings import string_join
from weft.frontend.session.graph import placeholder
from weft.frontend.session.session import Session
from weft.frontend.state.scopes import control_dependencies, device, group
from weft.frontend.state.variable import Variable
from weft.frontend.train.saved_items import ItemList, Items, RestoreReport, VarList, compare, refuse
from weft.frontend.train.saver import (
    BaseSaver,
    PathLike,
    as_path,
    base_path,
    checkpoint_path,
    errors_at_caller,
    number,
    restore_v2,
    save_v2,
    state_file,
    step_number,
)
from weft.ir.device import DeviceSpec
from weft.ir.dtypes import int64, string
from weft.ir.errors import FailedPreconditionError, TypeRuleError, UnsupportedError
from weft.ir.locations import caller_location
from weft.runtime.checkpoint.folder import (
    MARK,
    SavedCheckpoint,
    Shard,
    checkpoint_name,
    marked,
    open_checkpoint,
    record_checkpoint,
    shard_end,
    write_shards_manifest,
)
from weft.runtime.checkpoint.format import MANIFEST
from weft.runtime.files.paths import absolute


class ShardedSaver(BaseSaver):
    """Saves and restores variables of the graph that is being built, task by task, and removes old
    checkpoints.

    var_list: as for `Saver`, variables only; by default all of the graph. The ops are added at
    once; which task a variable is on says its `wf.device` (those without one share a file, which
    the session's task writes). All tasks and this process see one file system, or, for paths that
    are URLs, one store. The other arguments are those of `Saver`.

    >>> with wf.Graph().as_default(), wf.Session() as session:
    ...     v = wf.Variable(3.0)
    ...     saver = wf.train.ShardedSaver()
    ...     session.run(wf.global_variables_initializer())
    ...     path = saver.save(session, "model", global_step=5)
    ...     print(path, saver.tasks, saver.restore(session, path).restored)
    model-5 ('',) ('variable',)
    """

    def __init__(
        self,
        var_list: VarList = None,
        max_to_keep: int | None = 5,
        keep_checkpoint_every_n_hours: float = 10000.0,
        name: str | None = None,
        *,
        keep_best: int = 0,
        best_mode: str = "min",
        every_n_steps: int | None = None,
        every_n_seconds: float | None = None,
    ) -> None:
        super().__init__(
            "ShardedSaver" if name is None else name, max_to_keep, keep_checkpoint_every_n_hours,
            keep_best, best_mode, every_n_steps, every_n_seconds,
        )  # fmt: skip
        trace = current_trace()
        if trace is None or trace.kind != "graph":
            raise FailedPreconditionError(
                f"{self.name} adds ops to a graph, and none is being built",
                hint="make it inside `with graph.as_default():`",
                location=caller_location(),
            )
        self._trace = trace
        self._items = self._checked_items(var_list)
        self._variables = dict(self._items.variables)
        self._tasks = _by_task(trace, self._variables)
        with control_dependencies(None), device(None):
            self._prefix = placeholder(string, [], f"{self.name}/prefix")
            self._mark = placeholder(int64, [], f"{self.name}/mark")
            self._path = placeholder(string, [], f"{self.name}/path")
            self._save = self._built_save()
            self._restore = self._built_restore()

    def _checked_items(self, var_list: VarList) -> Items:
        items = ItemList(var_list, ()).now()
        if items.stateful:
            raise UnsupportedError(
                f"{self.name}: {', '.join(items.stateful)}: it saves variables only",
                location=caller_location(),
            )
        if not items.variables:
            raise FailedPreconditionError(
                f"{self.name}: there are no variables to save", location=caller_location()
            )
        return items

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that have a file each, in the order of the files; "" is the session's."""
        return tuple(self._tasks)

    # ------------------------------------------------------------------------------------- saving
    def save(
        self,
        sess: Session,
        save_path: PathLike,
        global_step: Any = None,
        latest_filename: str | None = None,
        *,
        metric: Any = None,
    ) -> str:
        """Write a checkpoint and return its path, `<save_path>-<global_step>`.

        global_step: an integer, or a variable or tensor of the graph, which is read before. One
        step of the session: what a task saves is of one point in time, not all tasks together; no
        other step should change them meanwhile. When it returns, the checkpoint is on disk and the
        folder's latest. If it fails, all earlier ones are as they were. Errors as `Saver.save`, and
        those of a step.
        """
        base = base_path(save_path)
        state_path = state_file(base.parent, latest_filename)
        rating = number(self.name, "metric", metric)
        with self._lock, errors_at_caller():
            step = self._step(sess, global_step)
            name = base.name if step is None else f"{base.name}-{step}"
            mark, files = secrets.randbits(62), self._files
            prefix = absolute(base.with_name(marked(name, mark)))
            self._checked(sess).run(self._save, {self._prefix: prefix, self._mark: np.int64(mark)})
            shards = [
                Shard(task, marked(name, mark) + end, names)
                for (task, names), end in zip(self._tasks.items(), files, strict=True)
            ]
            now = round(time.time(), 3)
            notes = {"step": step, "prefix": base.name, "time": now, "metric": rating}
            path = base.with_name(name + MANIFEST)
            write_shards_manifest(path, mark, shards, notes)
            row = SavedCheckpoint(path.name, base.name, step, now, rating)
            self._kept = record_checkpoint(state_path, row, self._retention)
            self._note_save(base, step)
        return checkpoint_name(path)

    def save_if_due(
        self,
        sess: Session,
        save_path: PathLike,
        global_step: Any,
        latest_filename: str | None = None,
        *,
        metric: Any = None,
    ) -> str | None:
        """`save`, if a multiple of `every_n_steps` was reached since the last checkpoint, or
        `every_n_seconds` have gone by; otherwise None. Call it after each step."""
        self._needs_a_rule()
        step = self._step(sess, global_step)
        if step is None or not self._is_due(save_path, step, latest_filename):
            return None
        return self.save(sess, save_path, step, latest_filename, metric=metric)

    def _step(self, sess: Session, global_step: Any) -> int | None:
        if isinstance(global_step, Variable | Tensor):
            global_step = self._checked(sess).run(global_step)
        return None if global_step is None else step_number(self.name, None, global_step)

    def _checked(self, sess: Any) -> Session:
        if not isinstance(sess, Session) or sess.graph._trace is not self._trace:
            raise TypeRuleError(
                f"{self.name}: the first argument is a session of the graph that it was made in",
                location=caller_location(),
            )
        return sess

    @property
    def _files(self) -> list[str]:
        """The ends of the names of the tasks' files."""
        count = len(self._tasks)
        return [shard_end(i, count) for i in range(count)]

    def _built_save(self) -> Effect:
        written = []
        for (task, names), end in zip(self._tasks.items(), self._files, strict=True):
            with device(task):
                path = string_join([self._prefix, end])
                values = [self._variables[n].read() for n in names]
                written.append(save_v2(path, [*names, MARK], [*values, self._mark]))
        return group(*written, name=f"{self.name}/save")

    # ---------------------------------------------------------------------------------- restoring
    def restore(self, sess: Session, save_path: PathLike) -> RestoreReport:
        """Assign to all variables what the checkpoint holds, whichever tasks or `Saver` wrote it.

        NotFoundError if there is none or a variable is not in it, InvalidArgumentError for another
        shape or dtype, DataLossError for what is damaged or of another save; then nothing is
        changed.
        """
        with self._lock, errors_at_caller():
            return self._restored(sess, checkpoint_path(save_path))

    def restore_or_initialize(
        self,
        sess: Session,
        checkpoint_dir: PathLike,
        init_op: Any = None,
        *,
        or_previous: bool = False,
        latest_filename: str | None = None,
    ) -> RestoreReport | None:
        """As `Saver.restore_or_initialize`."""
        folder = as_path(checkpoint_dir)
        with self._lock, errors_at_caller():
            report = self._restore_latest(
                folder, latest_filename, or_previous, lambda path: self._restored(sess, path)
            )
        if report is None and init_op is not None:
            self._checked(sess).run(init_op)
        return report

    def _restored(self, sess: Session, path: Path) -> RestoreReport:
        session = self._checked(sess)
        with open_checkpoint(path) as file:
            report = compare(file, self._items, {}, False)
            refuse(report, file, "pass a var_list of what it has: {'name in the file': variable}")
        session.run(self._restore, {self._path: absolute(path)})
        return report

    def _built_restore(self) -> Effect:
        pairs: list[tuple[Variable, Tensor]] = []
        for task, names in self._tasks.items():
            held = [self._variables[n] for n in names]
            with device(task):
                types, shapes = [v.dtype for v in held], [v.shape for v in held]
                found = restore_v2(self._path, names, types, shapes)
            pairs += zip(held, found, strict=True)
        with control_dependencies([x for _, x in pairs]):  # all is read before anything changes
            return group(*(v.assign(x) for v, x in pairs), name=f"{self.name}/restore")


def _by_task(trace: Trace, variables: Mapping[str, Variable]) -> dict[str, tuple[str, ...]]:
    """The names of the variables of each task, in the order of the tasks' names."""
    found: dict[str, list[str]] = {}
    for name, variable in variables.items():
        op = trace.effects.ref(variable).op
        spec = DeviceSpec.parse("" if op is None else op.device)
        found.setdefault(str(DeviceSpec(spec.job, spec.task)), []).append(name)
    return {task: tuple(found[task]) for task in sorted(found)}
