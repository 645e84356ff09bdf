"""What `Saver` and `ShardedSaver` have in common: which checkpoints stay, when one is due, which is
the latest."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from weft.frontend.train.saver_arguments import base_path, count, positive
from weft.frontend.train.saver_files import PathLike, check_mode, state_file
from weft.ir.errors import DataLossError, InvalidArgumentError
from weft.ir.locations import caller_location
from weft.ir.process import ForkLock
from weft.runtime.checkpoint.folder import Manifest, Retention, candidates, load_manifest, log
from weft.runtime.checkpoint.sharded import checkpoint_name

T = TypeVar("T")


class BaseSaver:
    """Rules and memory of a Saver. The arguments are documented at `wf.train.Saver`."""

    def __init__(
        self,
        name: str,
        max_to_keep: int | None,
        keep_checkpoint_every_n_hours: float,
        keep_best: int,
        best_mode: str,
        every_n_steps: int | None,
        every_n_seconds: float | None,
    ) -> None:
        self.name = name
        most = count(name, "max_to_keep", 0 if max_to_keep is None else max_to_keep)
        self._retention = Retention(
            most or None,
            count(name, "keep_best", keep_best),
            check_mode(best_mode),
            positive(name, "keep_checkpoint_every_n_hours", keep_checkpoint_every_n_hours),
        )
        self._every_n_steps = self._every_n_seconds = None
        if every_n_steps is not None:
            self._every_n_steps = count(name, "every_n_steps", every_n_steps, 1)
        if every_n_seconds is not None:
            self._every_n_seconds = positive(name, "every_n_seconds", every_n_seconds)
        self._lock = ForkLock()
        self._kept: list[Path] = []
        self._saved_at = time.monotonic()
        self._last_step: dict[Path, int] = {}

    @property
    def last_checkpoints(self) -> list[str]:
        """The paths that are kept as of the last save, oldest first (TF1's name)."""
        self.wait()
        return [checkpoint_name(path) for path in self._kept]

    def wait(self) -> None:
        """Wait for what is being written."""

    def _needs_a_rule(self) -> None:
        if self._every_n_steps is None and self._every_n_seconds is None:
            raise InvalidArgumentError(
                f"{self.name}: save_if_due is without every_n_steps and every_n_seconds never due",
                hint=f"pass one of them to wf.train.{type(self).__name__}",
                location=caller_location(),
            )

    def _is_due(self, save_path: PathLike, step: int, latest_filename: str | None) -> bool:
        """Whether a multiple of `every_n_steps` was reached since the last checkpoint, or
        `every_n_seconds` have gone by."""
        base = base_path(save_path)
        last = self._last_step.get(base)
        if last is None:
            known = load_manifest(state_file(base.parent, latest_filename)) or Manifest()
            own = [r.step for r in known.rows if r.prefix == base.name and r.step is not None]
            last = self._last_step.setdefault(base, own[-1] if own else 0)
        every, seconds = self._every_n_steps, self._every_n_seconds
        by_step = every is not None and step // every != last // every
        return by_step or (seconds is not None and time.monotonic() - self._saved_at >= seconds)

    def _note_save(self, base: Path, step: int | None) -> None:
        self._saved_at = time.monotonic()
        if step is not None:
            self._last_step[base] = step

    def _restore_latest(
        self,
        folder: Path,
        latest_filename: str | None,
        or_previous: bool,
        restore: Callable[[Path], T],
    ) -> T | None:
        """`restore` of the latest checkpoint; with `or_previous` of the newest that is not damaged.
        None if there is none; DataLossError if it is damaged, or all are."""
        damaged: list[str] = []
        for row in reversed(candidates(state_file(folder, latest_filename), or_previous)):
            path = folder / row.file
            try:
                if not path.exists():
                    raise DataLossError(
                        f"the state file names the checkpoint '{path}', which is not there",
                        hint="or_previous=True takes an earlier one",
                    )
                return restore(path)
            except DataLossError as error:
                if not or_previous:
                    raise
                log.warning("%s; the one before is tried", error.what)
                damaged.append(row.file)
        if damaged:
            raise DataLossError(
                f"all checkpoints in '{folder}' are damaged: {', '.join(damaged)}",
                location=caller_location(),
            )
        return None
