"""`Saver`: checkpoints of variables, optimizers, random state and whatever else has state; and
which checkpoints a folder has, and what is in one (`latest_checkpoint` and the like).

A checkpoint is one point in time: the locks of all its variables are held while they are copied, in
the order in which steps take them, and written after that. See docs/guide/checkpoints.md. In a
graph, save and restore are ops (the paper, section 4.3): a checkpoint is then a step (`SaveOps`).
`BaseSaver` holds the rules of `ShardedSaver` too: which checkpoints stay, when one is due, which is
the latest."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import Effect, current_trace
from weft.frontend.ops.promotion import check_int, check_shape
from weft.frontend.queues.host_ops import (
    graph_or_eager,
    host_effect,
    host_op,
    located,
    string_tensor,
)
from weft.frontend.random.generator import process_state
from weft.frontend.session.graph import placeholder
from weft.frontend.session.session import Session
from weft.frontend.state.scopes import group
from weft.frontend.state.variable import Variable
from weft.frontend.train.saved_items import (
    RANDOM,
    STATE_PREFIX,
    ItemList,
    Items,
    RestoreReport,
    VarList,
    all_locked,
    copies,
    restore_file,
)
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import as_dtype, string
from weft.ir.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    TypeRuleError,
    UnsupportedError,
    WeftError,
    suggest,
)
from weft.ir.locations import caller_location
from weft.ir.process import ForkLock
from weft.ir.types import TensorType
from weft.runtime.checkpoint.folder import (
    STATE_FILE,
    Manifest,
    Retention,
    SavedCheckpoint,
    SaveJob,
    candidates,
    checkpoint_name,
    find_checkpoint,
    load_manifest,
    log,
    open_checkpoint,
)
from weft.runtime.checkpoint.format import RESERVED, SUFFIX, Array, encode_tree
from weft.runtime.files.paths import is_file, is_folder, path_of

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class CheckpointState:
    """TensorFlow 1's fields: the path of the latest checkpoint, and those of all that are kept, in
    the order in which they were saved.

    >>> saver = wf.train.Saver([wf.Variable(1.0)])
    >>> _ = [saver.save(None, "folder/model", global_step=n) for n in (1, 2)]
    >>> wf.train.get_checkpoint_state("folder").all_model_checkpoint_paths
    ['folder/model-1.safetensors', 'folder/model-2.safetensors']
    """

    model_checkpoint_path: str
    all_model_checkpoint_paths: list[str]


def get_checkpoint_state(
    checkpoint_dir: PathLike, latest_filename: str | None = None
) -> CheckpointState | None:
    """What the state file of a folder says; None if there is none, or it names no checkpoint.

    DataLossError naming it if it is damaged.

    >>> print(wf.train.get_checkpoint_state("folder"))
    None
    >>> _ = wf.train.Saver([wf.Variable(1.0)]).save(None, "folder/model", global_step=7)
    >>> wf.train.get_checkpoint_state("folder").model_checkpoint_path
    'folder/model-7.safetensors'
    """
    folder = as_path(checkpoint_dir)
    manifest = load_manifest(state_file(folder, latest_filename))
    if manifest is None or manifest.latest is None:
        return None
    return CheckpointState(
        checkpoint_name(folder / manifest.latest.file),
        [checkpoint_name(folder / row.file) for row in manifest.rows],
    )


def latest_checkpoint(checkpoint_dir: PathLike, latest_filename: str | None = None) -> str | None:
    """The path of the checkpoint that was saved last, for `Saver.restore`; None if there is none.

    It is what the state file says; whether the file is as it was written shows when it is restored.
    DataLossError naming the state file if that is damaged.

    >>> saver = wf.train.Saver([wf.Variable(1.0)])
    >>> _ = [saver.save(None, "folder/model", global_step=n) for n in (10, 20)]
    >>> wf.train.latest_checkpoint("folder")
    'folder/model-20.safetensors'
    """
    state = get_checkpoint_state(checkpoint_dir, latest_filename)
    return None if state is None else state.model_checkpoint_path


def best_checkpoint(
    checkpoint_dir: PathLike, mode: str = "min", latest_filename: str | None = None
) -> str | None:
    """The path of the checkpoint with the least metric (mode="max": the greatest); of equal ones
    the later. None if no checkpoint that is kept has a metric.

    >>> saver = wf.train.Saver([wf.Variable(1.0)], max_to_keep=1, keep_best=1)
    >>> for step, loss in enumerate([0.9, 0.3, 0.5]):
    ...     _ = saver.save(None, "folder/model", step, metric=loss)
    >>> wf.train.best_checkpoint("folder"), wf.train.latest_checkpoint("folder")
    ('folder/model-1.safetensors', 'folder/model-2.safetensors')
    """
    folder = as_path(checkpoint_dir)
    manifest = load_manifest(state_file(folder, latest_filename)) or Manifest()
    ranked = Retention(mode=check_mode(mode)).rank(manifest.rows)
    return checkpoint_name(folder / ranked[0].file) if ranked else None


def checkpoint_exists(checkpoint_prefix: PathLike) -> bool:
    """Whether there is a checkpoint of that path, with or without its suffix.

    >>> _ = wf.train.Saver([wf.Variable(1.0)]).save(None, "model")
    >>> wf.train.checkpoint_exists("model"), wf.train.checkpoint_exists("other")
    (True, False)
    """
    return is_file(checkpoint_path(checkpoint_prefix))


def list_variables(checkpoint_dir_or_file: PathLike) -> list[tuple[str, list[int]]]:
    """Name and shape of each variable in a checkpoint, or in the latest one of a folder.

    NotFoundError if there is none, DataLossError for a damaged one.

    >>> saver = wf.train.Saver({"w": wf.Variable(np.ones((2, 3))), "n": wf.Variable(0)})
    >>> wf.train.list_variables(saver.save(None, "model"))
    [('n', []), ('w', [2, 3])]
    """
    with open_checkpoint(_file_of(checkpoint_dir_or_file)) as file:
        rows = [(name, list(entry.shape)) for name, entry in file.entries.items()]
    return [row for row in rows if not row[0].startswith(RESERVED)]


def load_variable(checkpoint_dir_or_file: PathLike, name: str) -> Array:
    """The value of one variable in a checkpoint, or in the latest one of a folder.

    NotFoundError with the closest names, DataLossError for a damaged file, UnsupportedError for a
    dtype that weft does not have.

    >>> path = wf.train.Saver({"w": wf.Variable([1.0, 2.0])}).save(None, "model")
    >>> wf.train.load_variable(path, "w")
    array([1., 2.], dtype=float32)
    """
    with open_checkpoint(_file_of(checkpoint_dir_or_file)) as file:
        entry = file.entries.get(name)
        if entry is None:
            raise NotFoundError(
                f"'{file.path}' has no variable '{name}'{suggest(name, list(file.entries))}",
                location=caller_location(),
            )
        if entry.dtype is None:
            raise UnsupportedError(
                f"'{name}' in '{file.path}' is {entry}, a dtype that weft does not have",
                location=caller_location(),
            )
        return np.array(file.read(name))


def _file_of(given: PathLike) -> Path:
    if not is_folder(as_path(given)):
        return checkpoint_path(given)
    latest = latest_checkpoint(given)
    if latest is None:
        raise NotFoundError(f"there is no checkpoint in '{given}'", location=caller_location())
    return checkpoint_path(latest)


def checkpoint_path(given: PathLike) -> Path:
    """The file of a checkpoint's path, with or without its suffix; of several files the manifest.

    InvalidArgumentError for a path that is both.
    """
    return find_checkpoint(as_path(given))


def as_path(given: object) -> Path:
    """A path, or what stands for one where it is a URL. InvalidArgumentError for what is none, also
    None; UnsupportedError for a URL that fsspec does not open."""
    if not isinstance(given, str | os.PathLike):
        raise InvalidArgumentError(
            f"a path is expected, got {given!r:.60}",
            hint="wf.train.latest_checkpoint is None where there is no checkpoint; "
            "Saver.restore_or_initialize asks for that itself",
            location=caller_location(),
        )
    try:
        return path_of(given)
    except UnsupportedError as error:
        raise error.at(caller_location()) from error.__cause__


def state_file(folder: Path, latest_filename: str | None) -> Path:
    """The state file of a folder. InvalidArgumentError for a name that is a path."""
    name = STATE_FILE if latest_filename is None else latest_filename
    if not name or Path(name).name != name:
        raise InvalidArgumentError(
            f"latest_filename must be the name of a file in the same folder, got {name!r}",
            location=caller_location(),
        )
    return folder / name


def check_mode(mode: str) -> str:
    """ "min" or "max"."""
    if mode not in ("min", "max"):
        raise InvalidArgumentError(
            f"mode must be 'min' or 'max', got {mode!r}", location=caller_location()
        )
    return mode


def check_call(what: str, sess: object) -> None:
    """TypeRuleError if `sess` is no session, UnsupportedError for one on other tasks (they hold the
    variables) and inside a compiled function."""
    if sess is not None and not isinstance(sess, Session):
        raise TypeRuleError(
            f"{what}: the first argument is a session or None, got a {type(sess).__name__}",
            hint=f"as in TensorFlow 1: {what}(session, path); without a session {what}(None, path)",
            location=caller_location(),
        )
    if sess is not None and sess.is_remote:
        raise UnsupportedError(
            f"{what}: the session's variables are on other tasks, not in this process",
            hint="Saver.build() saves and restores by ops of the graph, wf.train.ShardedSaver on "
            "each task; wf.train.MonitoredTrainingSession does it by itself",
            location=caller_location(),
        )
    trace = current_trace()
    if trace is not None and trace.root().kind != "graph":
        raise UnsupportedError(
            f"{what} is called while '{trace.root().name}' is traced",
            hint="call it outside of the compiled function, after a step",
            location=caller_location(),
        )


def seen_by(sess: Session | None) -> AbstractContextManager[object]:
    """In the block variables are as `sess` sees them, which may have values of its own."""
    return nullcontext() if sess is None else sess.as_default()


@contextmanager
def errors_at_caller() -> Iterator[None]:
    """Errors from below say where in the user's program the call was."""
    try:
        yield
    except WeftError as error:
        error.at(caller_location())
        raise


def base_path(given: PathLike) -> Path:
    """The path without suffix, or the URL. InvalidArgumentError for one without a name."""
    path = as_path(given)
    name = path.name.removesuffix(SUFFIX)
    if not name or str(given).endswith("/") or is_folder(path):
        raise InvalidArgumentError(
            f"'{given}' is a folder: a checkpoint needs a name in it",
            hint="saver.save(None, 'folder/model')",
            location=caller_location(),
        )
    return path.with_name(name)


def step_number(what: str, sess: Session | None, global_step: Any) -> int:
    """An int, for a number, a variable's value, or a tensor (one of a graph is run in `sess`)."""
    if isinstance(global_step, Variable):
        return int(global_step.current_state.read())
    if isinstance(global_step, Tensor):
        in_graph = global_step._data is None and sess is not None
        return int(sess.run(global_step) if in_graph and sess is not None else global_step)
    if isinstance(global_step, bool):
        raise bad(what, "global_step", global_step)
    return check_int(what, global_step, "global_step")


def count(what: str, name: str, value: Any, least: int = 0) -> int:
    """An integer of at least `least`."""
    if isinstance(value, bool) or check_int(what, value, name) < least:
        raise bad(what, name, value)
    return int(value)


def positive(what: str, name: str, value: Any) -> float:
    """A number greater than 0."""
    found = number(what, name, value)
    if isinstance(value, bool) or found is None or not found > 0:
        raise bad(what, name, value)
    return found


def number(what: str, name: str, value: Any) -> float | None:
    """A real number, or None."""
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError) as error:
        if isinstance(error, WeftError):
            raise
        raise TypeRuleError(
            f"{what}: {name} must be a real number, got {value!r:.60}", location=caller_location()
        ) from None


def bad(what: str, name: str, value: object) -> InvalidArgumentError:
    """The error for a value that an argument cannot have."""
    hint = "TensorFlow 1's arguments reshape and sharded, after var_list, are not there"
    return InvalidArgumentError(
        f"{what}: {name} cannot be {value!r:.60}",
        hint=hint if isinstance(value, bool) else "see the documentation of wf.train.Saver",
        location=caller_location(),
    )


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


class SaveOps(NamedTuple):
    """The ops that `Saver.build` has added to a graph. filename: of the file, a string, with or
    without its suffix; save: writes it; restore: assigns to all variables what it holds.

    >>> with wf.Graph().as_default(), wf.Session() as session:
    ...     v = wf.Variable(3.0)
    ...     ops = wf.train.Saver([v]).build()
    ...     session.run(wf.global_variables_initializer())
    ...     session.run(ops.save, {ops.filename: "model"})
    ...     _ = session.run(v.assign(0.0))
    ...     session.run(ops.restore, {ops.filename: "model"})
    ...     print(session.run(v))
    3.0
    """

    filename: Tensor
    save: Effect
    restore: Effect


@located
def save_v2(
    prefix: Any, tensor_names: Sequence[str], tensors: Sequence[Any], name: str | None = None, *,
    keep: int = -1,
) -> Effect:  # fmt: skip
    """An effect that writes `tensors` under `tensor_names` to the checkpoint file `prefix` (a
    string; `.safetensors` is added if it does not end so), whole or not at all.

    keep: -1 writes the file alone; 0 also makes it the folder's latest checkpoint, n > 0 keeps the
    last n besides. What is read in one step without an order between the reads is read at one point
    in time. Errors as `wf.train.Saver.save`.

    >>> _ = wf.train.save_v2("values", ["a", "b"], [wf.asarray(1.0), wf.asarray([2, 3])])
    >>> wf.train.list_variables("values")
    [('a', []), ('b', [2])]
    """
    named = tuple(str(n) for n in tensor_names)
    given = [as_tensor(t) for t in tensors]
    done = host_effect("save", [_path(prefix), *given], name=name, names=named, keep=keep)
    return done or Effect(name or "save")


@located
def restore_v2(
    prefix: Any, tensor_names: Sequence[str], dtypes: Sequence[Any],
    shapes: Sequence[Sequence[int | None]], name: str | None = None,
) -> list[Tensor]:  # fmt: skip
    """What the checkpoint file `prefix` holds under `tensor_names`: tensors of `dtypes` and
    `shapes`, None for any size. NotFoundError, InvalidArgumentError and DataLossError as
    `wf.train.Saver.restore`.

    >>> _ = wf.train.save_v2("values", ["a", "b"], [wf.asarray(1.0), wf.asarray([2, 3])])
    >>> wf.train.restore_v2("values", ["b"], [wf.int64], [[2]])
    [Tensor([2, 3], dtype=int64)]
    """
    if not len(tensor_names) == len(dtypes) == len(shapes):
        raise InvalidArgumentError(
            f"wf.train.restore_v2: {len(tensor_names)} names, {len(dtypes)} dtypes and "
            f"{len(shapes)} shapes; there must be as many of each"
        )
    types = [
        TensorType(as_dtype(d), check_shape("restore_v2", s))
        for d, s in zip(dtypes, shapes, strict=True)
    ]
    named, parts = tuple(str(n) for n in tensor_names), tuple(str(t) for t in types)
    path, sizes = _path(prefix), sum(t.shape.count(None) for t in types)
    return host_op("restore", [path], sizes=sizes, names=named, parts=parts)


def _path(given: Any) -> Tensor:
    if isinstance(given, os.PathLike):
        given = os.fsencode(given)
    return string_tensor("a checkpoint's name", given, scalar=True)


def build_save_ops(what: str, items: Items, filename: Any, keep: int) -> SaveOps:
    """The ops that save and restore the variables of `items`, in the graph that is being built."""
    if graph_or_eager(f"{what}.build") is None:
        raise FailedPreconditionError(
            f"{what}.build adds ops to a graph, and none is being built",
            hint="call it inside `with graph.as_default():`; eagerly, save and restore do it",
        )
    if items.stateful:
        raise UnsupportedError(
            f"{what}.build: {', '.join(items.stateful)}: ops save variables only",
            hint=f"{what}.save, between steps, saves queues, readers and other state, too",
        )
    if not items.variables:
        raise InvalidArgumentError(f"{what}.build: there are no variables to save")
    path = placeholder(string, [], "filename") if filename is None else _path(filename)
    held: Mapping[str, Any] = items.variables
    save = save_v2(path, list(held), [v.read() for v in held.values()], keep=keep)
    found = restore_v2(
        path, list(held), [v.dtype for v in held.values()], [v.shape for v in held.values()]
    )
    pairs = zip(held.values(), found, strict=True)
    return SaveOps(path, save, group([v.assign(x) for v, x in pairs], name="restore_all"))


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

    >>> w, optimizer = wf.Variable(1.0), wf.train.Adam(0.1)
    >>> _ = optimizer.minimize(lambda: w**2)  # the first step makes the slots
    >>> saver = wf.train.Saver({"w": w, "adam": optimizer})
    >>> path = saver.save(None, "folder/model", global_step=1)
    >>> path
    'folder/model-1.safetensors'
    >>> saver.restore(None, path).restored
    ('w', 'w/adam/m', 'w/adam/v', 'adam/step')
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

    def __repr__(self) -> str:
        most = self._retention.most
        return f"<wf.train.Saver {self.name!r} that keeps {most or 'all'} checkpoints>"

    # ------------------------------------------------------------------------------------ in graphs
    def build(self, filename: Any = None) -> SaveOps:
        """Add ops that save and restore the variables to the graph that is being built, so that a
        checkpoint is a step: `session.run(ops.save, {ops.filename: path})`.

        filename: a string or a tensor of one; None makes a placeholder. The variables are those of
        now. After a save the folder's state file names the checkpoint, and `max_to_keep` stay; the
        other rules of this Saver are for `save`. The values are of one point in time.
        """
        with errors_at_caller():
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

        sess: whose values, if it has its own (`own_variables`); else not needed (None), variables
        hold their values themselves. global_step: an integer, or
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
        with self._lock, errors_at_caller(), seen_by(sess):
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
        with seen_by(sess):
            step = step_number(self.name, sess, global_step)
        if not self._is_due(save_path, step, latest_filename):
            return None
        return self.save(sess, save_path, global_step, latest_filename, metric=metric, wait=wait)

    def wait(self) -> None:
        """Wait for the checkpoint that `save(wait=False)` is writing; raises its error."""
        with self._lock, errors_at_caller():
            job, self._job = self._job, None
            if job is not None:
                job.finish()
                self._kept = job.kept

    def _snapshot(
        self, sess: Session | None, global_step: Any
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        """Copies of all values at one point in time."""
        counter = [global_step.current_state] if isinstance(global_step, Variable) else []
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
            states = {name: v.current_state for name, v in items.variables.items()}
            with all_locked([*states.values(), *counter], writes=False):
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
        with self._lock, errors_at_caller(), seen_by(sess):
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
        with self._lock, errors_at_caller(), seen_by(sess):
            self.wait()
            report = self._restore_latest(
                folder, latest_filename, or_previous,
                lambda path: restore_file(self._items, path, strict),
            )  # fmt: skip
        if report is None and init_op is not None and sess is not None:
            sess.run(init_op)
        return report
