"""Saving and restoring in a session: by the Saver where variables are in this process, by a
ShardedSaver or by the Saver's ops where they are on other tasks."""

from __future__ import annotations

from pathlib import Path

from weft.frontend.session.session import Session
from weft.frontend.train.monitored.scaffold import Scaffold
from weft.frontend.train.saver_files import PathLike, as_path, latest_checkpoint
from weft.frontend.train.step_counter import global_step
from weft.frontend.variable import Variable
from weft.ir.errors import FailedPreconditionError
from weft.runtime.checkpoint.atomic import SUFFIX


class Checkpoints:
    """The checkpoints `<folder>/<name>-<step>` of a scaffold's variables. The folder is one that
    all tasks see."""

    def __init__(self, folder: PathLike, scaffold: Scaffold, name: str = "model") -> None:
        self.folder = Path(as_path(folder))
        self._scaffold = scaffold
        self._base = str(self.folder / name)

    def save(self, session: Session, step: Variable) -> int:
        """Write one; the step that it has."""
        self.folder.mkdir(parents=True, exist_ok=True)
        ops, saver = self._scaffold.save_ops, self._scaffold.saver
        number = global_step(session, step)
        if ops is not None:
            session.run(ops.save, {ops.filename: f"{self._base}-{number}"})
        elif saver is not None:
            path = saver.save(session, self._base, step)
            number = int(path.removesuffix(SUFFIX).rpartition("-")[2])
        else:
            raise FailedPreconditionError("there are no variables to save")
        return number

    def restore(self, session: Session) -> bool:
        """Restore the latest one; whether there is one. DataLossError if it is damaged."""
        ops, saver = self._scaffold.save_ops, self._scaffold.saver
        if saver is None:
            return False
        if ops is None:
            return saver.restore_or_initialize(session, self.folder) is not None
        latest = latest_checkpoint(self.folder)
        if latest is not None:
            session.run(ops.restore, {ops.filename: latest})
        return latest is not None
