"""Checks of a `Saver`'s arguments."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from weft.frontend.ops.arguments import check_int
from weft.frontend.session.session import Session
from weft.frontend.tensor import Tensor
from weft.frontend.tracing.trace import current_trace
from weft.frontend.train.saver_files import PathLike, as_path
from weft.frontend.variable import Variable
from weft.ir.errors import InvalidArgumentError, TypeRuleError, UnsupportedError, WeftError
from weft.ir.locations import caller_location
from weft.runtime.checkpoint.atomic import SUFFIX


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


@contextmanager
def located() -> Iterator[None]:
    """Errors from below say where in the user's program the call was."""
    try:
        yield
    except WeftError as error:
        error.at(caller_location())
        raise


def base_path(given: PathLike) -> Path:
    """The path without suffix. InvalidArgumentError for one without a name."""
    path = as_path(given)
    name = path.name.removesuffix(SUFFIX)
    if not name or str(given).endswith("/") or os.path.isdir(path):
        raise InvalidArgumentError(
            f"'{given}' is a folder: a checkpoint needs a name in it",
            hint="saver.save(None, 'folder/model')",
            location=caller_location(),
        )
    return path.with_name(name)


def step_number(what: str, sess: Session | None, global_step: Any) -> int:
    """An int, for a number, a variable's value, or a tensor (one of a graph is run in `sess`)."""
    if isinstance(global_step, Variable):
        return int(global_step.state.read())
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
