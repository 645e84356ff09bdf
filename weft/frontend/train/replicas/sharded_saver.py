"""`ShardedSaver`: checkpoints of variables on several tasks, each of which writes its own file.

A checkpoint `model-7` is `model-7-00000-of-00002.safetensors` and so on, one for each task, and
`model-7.manifest.json`, which is written when all of them are there and says what is in which. The
save draws a number that stands in every file: parts of two saves under one name do not pass for a
checkpoint. A restore asks only for what a variable needs, whatever the tasks were when it was
saved.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.frontend.devices import device
from weft.frontend.files.contents import read_file, write_file
from weft.frontend.files.reports import Assert
from weft.frontend.ops.arithmetic import equal
from weft.frontend.ops.strings import string_join
from weft.frontend.session.graph import placeholder
from weft.frontend.session.scopes import control_dependencies, group
from weft.frontend.session.session import Session
from weft.frontend.tensor import Tensor
from weft.frontend.tracing.trace import Effect, Trace, current_trace
from weft.frontend.train.saver_arguments import step_number
from weft.frontend.train.saver_graph import restore_v2, save_v2
from weft.frontend.train.saver_items import ItemList, VarList
from weft.frontend.variable import Variable
from weft.ir.device import DeviceSpec
from weft.ir.dtypes import int64, string
from weft.ir.errors import (
    DataLossError,
    FailedPreconditionError,
    NotFoundError,
    TypeRuleError,
    UnsupportedError,
)
from weft.ir.source import caller_location

_FORMAT = "weft sharded checkpoint 1"
_MARK = "__save__"
_MANIFEST = ".manifest.json"


class ShardedSaver:
    """Saves and restores variables of the graph that is being built, task by task.

    var_list: as for `Saver`, variables only; by default all of the graph. The ops are added at
    once; which task a variable is on says its `wf.device` (those without one share a file, which
    the session's task writes). All tasks and the session see one file system.
    """

    def __init__(self, var_list: VarList = None, *, name: str = "ShardedSaver") -> None:
        trace = current_trace()
        if trace is None or trace.kind != "graph":
            raise FailedPreconditionError(
                f"{name} adds ops to a graph, and none is being built",
                hint="make it inside `with graph.as_default():`",
                location=caller_location(),
            )
        items = ItemList(var_list, ()).now()
        if items.stateful:
            raise UnsupportedError(
                f"{name}: {', '.join(items.stateful)}: it saves variables only",
                location=caller_location(),
            )
        if not items.variables:
            raise FailedPreconditionError(
                f"{name}: there are no variables to save", location=caller_location()
            )
        self.name = name
        self._trace = trace
        self._variables = dict(items.variables)
        self._tasks = _by_task(trace, self._variables)
        self._prefix = placeholder(string, [], f"{name}/prefix")
        self._mark = placeholder(int64, [], f"{name}/mark")
        self._manifest = placeholder(string, [], f"{name}/manifest")
        self._save = self._built_save()
        self._read = read_file(string_join([self._prefix, _MANIFEST]))
        self._restores: dict[tuple[Any, ...], Effect] = {}
        self._restore_ops(self._shards())

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that have a file each, in the order of the files; "" is the session's."""
        return tuple(self._tasks)

    # ------------------------------------------------------------------------------------- saving
    def save(self, sess: Session, save_path: str, global_step: Any = None) -> str:
        """Write a checkpoint and return its path, `<save_path>-<global_step>`.

        One step of the session: what tasks save is read at one point of it, variable by variable;
        no other step should change them meanwhile. If it fails, there is no manifest, or the old
        one, whose files say that they are not of one save. Errors as `Saver.save`.
        """
        path = str(save_path)
        step = None
        if global_step is not None:
            step = step_number(self.name, None, self._now(sess, global_step))
            path = f"{path}-{step}"
        mark = secrets.randbits(62)
        manifest = {
            "format": _FORMAT,
            "mark": mark,
            "step": step,
            "shards": [
                {"task": task, "file": _file(i, len(self._tasks)), "tensors": list(names)}
                for i, (task, names) in enumerate(self._tasks.items())
            ],
        }
        feeds = {
            self._prefix: path,
            self._mark: np.int64(mark),
            self._manifest: json.dumps(manifest, indent=1),
        }
        self._checked(sess).run(self._save, feeds)
        return path

    def _now(self, sess: Session, global_step: Any) -> Any:
        in_graph = isinstance(global_step, (Variable, Tensor))
        return self._checked(sess).run(global_step) if in_graph else global_step

    def _checked(self, sess: Any) -> Session:
        if not isinstance(sess, Session) or sess.graph._trace is not self._trace:
            raise TypeRuleError(
                f"{self.name}: the first argument is a session of the graph that it was made in",
                location=caller_location(),
            )
        return sess

    def _built_save(self) -> Effect:
        count = len(self._tasks)
        written = []
        for number, (task, names) in enumerate(self._tasks.items()):
            with control_dependencies(None), device(None), device(task):
                path = string_join([self._prefix, _file(number, count)])
                values = [self._variables[n].read() for n in names]
                written.append(save_v2(path, [*names, _MARK], [*values, self._mark]))
        with control_dependencies(written):
            return write_file(string_join([self._prefix, _MANIFEST]), self._manifest)

    # ---------------------------------------------------------------------------------- restoring
    def restore(self, sess: Session, save_path: str) -> None:
        """Assign to all variables what the checkpoint holds, whichever tasks wrote it.

        NotFoundError if there is none or a variable is not in it, DataLossError for what is no
        manifest, InvalidArgumentError if the files are not of one save; then nothing is changed. A
        checkpoint of other tasks adds ops to the graph, once.
        """
        manifest = self._manifest_of(sess, save_path)
        shards = [(s["file"], tuple(s["tensors"])) for s in manifest["shards"]]
        feeds = {self._prefix: str(save_path), self._mark: np.int64(manifest["mark"])}
        self._checked(sess).run(self._restore_ops(shards), feeds)

    def _manifest_of(self, sess: Session, save_path: str) -> Mapping[str, Any]:
        text = self._checked(sess).run(self._read, {self._prefix: str(save_path)})
        try:
            manifest = json.loads(bytes(text))
            known = manifest["format"] == _FORMAT
            held = {n for shard in manifest["shards"] for n in shard["tensors"]}
        except (ValueError, TypeError, KeyError):
            known, held = False, set()
        if not known:
            raise DataLossError(
                f"{self.name}: '{save_path}{_MANIFEST}' is no manifest of a sharded checkpoint",
                location=caller_location(),
            )
        missing = [n for n in self._variables if n not in held]
        if missing:
            raise NotFoundError(
                f"{self.name}: the checkpoint '{save_path}' has no {', '.join(missing)}",
                hint="pass a var_list of what it has",
                location=caller_location(),
            )
        found: Mapping[str, Any] = manifest
        return found

    def _shards(self) -> list[tuple[str, tuple[str, ...]]]:
        count = len(self._tasks)
        return [(_file(i, count), names) for i, names in enumerate(self._tasks.values())]

    def _restore_ops(self, shards: Sequence[tuple[str, tuple[str, ...]]]) -> Effect:
        key = tuple(shards)
        if key not in self._restores:
            with self._trace.active(), control_dependencies(None):
                pairs: list[tuple[Variable, Tensor]] = []
                checks: list[Effect] = []
                for task, names in self._tasks.items():
                    for file, stored in shards:
                        wanted = [n for n in names if n in stored]
                        if wanted:
                            with device(None), device(task):
                                checks.append(self._read_part(file, wanted, pairs))
                with control_dependencies(checks):  # of all files, before anything changes
                    done = [v.assign(x) for v, x in pairs]
                self._restores[key] = group(*done, name=f"{self.name}/restore")
        return self._restores[key]

    def _read_part(
        self, file: str, names: Sequence[str], pairs: list[tuple[Variable, Tensor]]
    ) -> Effect:
        """Read variables of one task from one file; what checks that it is of this save."""
        held = [self._variables[n] for n in names]
        path = string_join([self._prefix, file])
        *found, mark = restore_v2(
            path, [*names, _MARK], [*(v.dtype for v in held), int64], [*(v.shape for v in held), []]
        )
        pairs += zip(held, found, strict=True)
        message = "the file is of another save than the manifest:"
        return Assert(equal(mark, self._mark), [message, path])


def _file(number: int, count: int) -> str:
    """What follows the checkpoint's name."""
    return f"-{number:05d}-of-{count:05d}.safetensors"


def _by_task(trace: Trace, variables: Mapping[str, Variable]) -> dict[str, tuple[str, ...]]:
    """The names of the variables of each task, in the order of the tasks' names."""
    found: dict[str, list[str]] = {}
    for name, variable in variables.items():
        op = trace.effects.ref(variable).op
        spec = DeviceSpec.parse("" if op is None else op.device)
        found.setdefault(str(DeviceSpec(spec.job, spec.task)), []).append(name)
    return {task: tuple(found[task]) for task in sorted(found)}
