"""`Saver`: checkpoints of variables, optimizers, random state and whatever else has state.

A checkpoint is one point in time: the locks of all its variables are held while they are copied, in
the order in which steps take them, and written after that. See docs/checkpoints.md.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from weft.frontend.random.state import process_state
from weft.frontend.session.session import Session
from weft.frontend.train.saver_arguments import (
    base_path,
    check_call,
    located,
    number,
    step_number,
)
from weft.frontend.train.saver_base import BaseSaver
from weft.frontend.train.saver_files import (
    PathLike,
    as_path,
    checkpoint_path,
    state_file,
)
from weft.frontend.train.saver_graph import SaveOps, build_save_ops
from weft.frontend.train.saver_items import ItemList, VarList
from weft.frontend.train.saver_restore import STATE_PREFIX, RestoreReport, restore_file
from weft.frontend.variable import Variable
from weft.ir.errors import InvalidArgumentError
from weft.ir.locations import caller_location
from weft.runtime.checkpoint.atomic import SUFFIX
from weft.runtime.checkpoint.folder import SavedCheckpoint, SaveJob
from weft.runtime.checkpoint.format import Array, encode_tree
from weft.runtime.checkpoint.state import RANDOM, all_locked, copies


class Saver(BaseSaver):
    """Saves and restores variables, and removes old checkpoints.

    var_list: variables; a list of them (they are saved by their own names) or a dict, name in the
    file -> variable. Both may hold optimizers (their slots and counters), `wf.random.Generator`s,
    objects with `state_dict()` and `load_state_dict()` (in a dict), and further dicts and lists,
    whose names are joined by "/". None: the variables of the graph that is being built, as it is
    when a checkpoint is written. include: state by name: "random" (the process-wide generators, and
    those of the graph), and what `register_state` was given.

    Kept are the last `max_to_keep` checkpoints (None or 0: all), besides these the `keep_best` with
    the best metric (`best_mode`: "min" or "max"), and for good one every
    `keep_checkpoint_every_n_hours`. `save_if_due` saves at multiples of `every_n_steps`, and
    `every_n_seconds` after the last. One Saver in one process for a path: the state file in the
    folder remembers what there is, also for the Saver of the next start.
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
        include: str | Iterable[str] = (),
    ) -> None:
        super().__init__(
            "Saver" if name is None else name, max_to_keep, keep_checkpoint_every_n_hours,
            keep_best, best_mode, every_n_steps, every_n_seconds,
        )  # fmt: skip
        self._items = ItemList(var_list, include)
        self._job: SaveJob | None = None

    # ------------------------------------------------------------------------------------ in graphs
    def build(self, filename: Any = None) -> SaveOps:
        """Add ops that save and restore the variables to the graph that is being built, so that a
        checkpoint is a step: `session.run(ops.save, {ops.filename: path})`.

        filename: a string or a tensor of one; None makes a placeholder. The variables are those of
        now. After a save the folder's state file names the checkpoint, and `max_to_keep` stay; the
        other rules of this Saver are for `save`. The values are of one point in time.
        """
        with located():
            return build_save_ops(self.name, self._items.now(), filename, self._retention.most or 0)

    # ------------------------------------------------------------------------------------- saving
    def save(
        self,
        sess: Session | None,
        save_path: PathLike,
        global_step: Any = None,
        latest_filename: str | None = None,
        *,
        metric: Any = None,
        wait: bool = True,
    ) -> str:
        """Write a checkpoint and return its path, `<save_path>-<global_step>.safetensors`.

        sess: not needed (None), variables hold their values themselves. global_step: an integer, or
        the variable that counts steps, read at the same moment as all others. wait=False: return
        when the values are copied, and write in another thread; an error is raised by the next call
        of this Saver (or `wait()`).

        When `save` returns (or `wait`), the checkpoint is on disk. If it fails or the process is
        killed, all earlier ones are as they were. FailedPreconditionError for variables that are
        not initialised and for a folder that cannot be written, ResourceExhaustedError for a full
        disk.
        """
        check_call(f"{self.name}.save", sess)
        base = base_path(save_path)
        state_path = state_file(base.parent, latest_filename)
        rating = number(self.name, "metric", metric)
        with self._lock, located():
            self.wait()
            arrays, notes = self._snapshot(sess, global_step)
            step: int | None = notes["step"]
            path = base if step is None else base.with_name(f"{base.name}-{step}")
            path = path.with_name(path.name + SUFFIX)
            notes.update(prefix=base.name, time=round(time.time(), 3), metric=rating)
            row = SavedCheckpoint(path.name, base.name, step, notes["time"], rating)
            job = SaveJob(state_path, row, arrays, notes, self._retention)
            self._note_save(base, step)
            if wait:
                job.write()
                self._kept = job.kept
            else:
                self._job = job
                job.start()
        return str(path)

    def save_if_due(
        self,
        sess: Session | None,
        save_path: PathLike,
        global_step: Any,
        latest_filename: str | None = None,
        *,
        metric: Any = None,
        wait: bool = True,
    ) -> str | None:
        """`save`, if a multiple of `every_n_steps` was reached since the last checkpoint, or
        `every_n_seconds` have gone by; otherwise None. Call it after each step."""
        self._needs_a_rule()
        check_call(f"{self.name}.save_if_due", sess)
        if not self._is_due(save_path, step_number(self.name, sess, global_step), latest_filename):
            return None
        return self.save(sess, save_path, global_step, latest_filename, metric=metric, wait=wait)

    def wait(self) -> None:
        """Wait for the checkpoint that `save(wait=False)` is writing; raises its error."""
        with self._lock, located():
            job, self._job = self._job, None
            if job is not None:
                job.finish()
                self._kept = job.kept

    def _snapshot(
        self, sess: Session | None, global_step: Any
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        """Copies of all values at one point in time."""
        counter = [global_step.state] if isinstance(global_step, Variable) else []
        if not counter and global_step is not None:  # not below: a session's step takes locks
            global_step = step_number(self.name, sess, global_step)
        while True:
            items = self._items.now()
            if not items.variables and not items.stateful:
                raise InvalidArgumentError(
                    f"{self.name}: there are no variables to save",
                    hint="pass var_list; without it, the variables of the current graph are saved",
                    location=caller_location(),
                )
            states = {name: v.state for name, v in items.variables.items()}
            with all_locked([*states.values(), *counter]):
                if not items.same_as(self._items.now()):
                    continue  # a step made slots in between, and has used them
                arrays = copies(states)
                step = None if global_step is None else step_number(self.name, None, global_step)
                trees = {name: s.state_dict() for name, s in items.stateful.items()}
                seed = process_state()[0]
            notes: dict[str, Any] = {"step": step, "state": {}}
            if RANDOM in self._items.include:
                notes["random_seed"] = seed
            for name, tree in trees.items():
                notes["state"][name] = encode_tree(tree, STATE_PREFIX + name, arrays.__setitem__)
            return arrays, notes

    # ---------------------------------------------------------------------------------- restoring
    def restore(
        self, sess: Session | None, save_path: PathLike, strict: bool = True
    ) -> RestoreReport:
        """Assign the values of a checkpoint, all at one point in time, and say what was done.

        save_path: what `save` or `latest_checkpoint` returned, or any safetensors file. strict: if
        something of this Saver is missing in the file or does not fit, it is an error; otherwise it
        stays as it is and the report says so. What else the file has is no error. Slots that an
        optimizer has yet to make are made.

        Everything is read and checked first: with an error nothing has changed. NotFoundError if
        there is no such file, or a name is missing; InvalidArgumentError for shapes and dtypes;
        DataLossError for a damaged file.
        """
        check_call(f"{self.name}.restore", sess)
        with self._lock, located():
            self.wait()
            return restore_file(self._items, checkpoint_path(save_path), strict)

    def restore_or_initialize(
        self,
        sess: Session | None,
        checkpoint_dir: PathLike,
        init_op: Any = None,
        *,
        strict: bool = True,
        or_previous: bool = False,
        latest_filename: str | None = None,
    ) -> RestoreReport | None:
        """Restore the latest checkpoint of a folder; without one run `init_op` in `sess` (if it is
        given), and return None. To be called at the start of a program.

        DataLossError naming the file if the latest checkpoint or the state file is damaged. With
        `or_previous` the newest one that is not damaged is restored, with a warning in the log
        `weft.checkpoint` for each that is; DataLossError if all are.
        """
        check_call(f"{self.name}.restore_or_initialize", sess)
        if init_op is not None and sess is None:
            raise InvalidArgumentError(
                f"{self.name}: init_op needs a session to run in", location=caller_location()
            )
        folder = as_path(checkpoint_dir)
        with self._lock, located():
            self.wait()
            report = self._restore_latest(
                folder, latest_filename, or_previous,
                lambda path: restore_file(self._items, path, strict),
            )  # fmt: skip
        if report is None and init_op is not None and sess is not None:
            sess.run(init_op)
        return report
