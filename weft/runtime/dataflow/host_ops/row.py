"""Row of a host op: what Python does for it, and whether it may wait.

All who carry the op out go through it: a step of the dataflow executor and the interpreter `begin`
it, an eager call does it `now`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from weft.ir.dataclass import dataclass
from weft.ir.errors import InternalError, WeftError
from weft.ir.graph import Operation
from weft.ir.spec import Attrs
from weft.ir.types import TensorType
from weft.runtime.resources.attempts import Attempt, CancelToken, Resource

Array = np.ndarray[Any, Any]


class Dead:
    """The type of `DEAD`."""

    def __repr__(self) -> str:
        return "DEAD"


#: In place of an array: a dead operand of a `send`, a dead result of a `recv`.
DEAD = Dead()
#: Given once, from any thread: the results of a host node (None for a token), or a WeftError.
#: The step keeps the arrays: nobody may write to them any more.
Done = Callable[[Any], None]
#: Begins `op` on the object of its handle (None without one, a tuple for several) and arrays that
#: it owns, and does not wait: `done` may be called at once or later; if the token is cancelled it
#: must be, with an error.
Begin = Callable[[Any, Operation, list[Array], Done, CancelToken], None]
#: Does an op on such an object, arrays and its attributes, waiting for at most so many seconds
#: (None: no limit) or until the token is cancelled; its results, or the WeftError.
Now = Callable[[Any, list[Array], Attrs, float | None, CancelToken | None], list[Any]]


@dataclass(frozen=True, slots=True)
class HostRow:
    """What a host op does. now: None for a message between the parts of a step, which an eager call
    has not. brief: it only begins something, or takes no time (`executor.is_small`)."""

    begin: Begin
    now: Now | None
    brief: bool = False


_Object = TypeVar("_Object")
_Waited = TypeVar("_Waited", bound=Resource)


def at_once(
    kind: Callable[..., _Object],
    run: Callable[[_Object, list[Array], Attrs], Any],
    *,
    brief: bool = False,
) -> HostRow:
    """The row of an op on an object that waits for nothing but a lock. kind: says to mypy what
    `run` takes, nothing else looks at it. run: the op's results as an array, several, or None for a
    token."""

    def begin(
        given: _Object, op: Operation, arrays: list[Array], done: Done, cancel: CancelToken
    ) -> None:
        try:
            made: Any = _listed(run(given, arrays, op.attrs))
        except WeftError as error:
            made = error
        done(made)

    def now(
        given: _Object, arrays: list[Array], attrs: Attrs, timeout: object, cancel: object
    ) -> list[Any]:
        return _listed(run(given, arrays, attrs))

    return HostRow(begin, now, brief)


def without_object(run: Callable[[list[Array], Attrs], Any]) -> HostRow:
    """As `at_once`, of an op that names no object."""
    return at_once(object, lambda _, arrays, attrs: run(arrays, attrs))


def waits(
    kind: Callable[..., _Waited],
    start: Callable[[_Waited, list[Array], Attrs, Done, CancelToken | None], Attempt],
    results: Callable[[_Waited, Any, Operation | None], Any] = lambda resource, made, op: made,
    *,
    brief: bool = False,
) -> HostRow:
    """The row of an op that may wait for its object (of several the first). kind: as of `at_once`.

    start: makes the attempt, as the resource's `start_...` do. results: the op's results from the
    attempt's outcome, as `run` of `at_once` gives them; it is told the op (None eagerly).
    """

    def begin(
        given: Any, op: Operation, arrays: list[Array], done: Done, cancel: CancelToken
    ) -> None:
        waited = given[0] if isinstance(given, tuple) else given
        outcome = after(done, lambda made: _listed(results(waited, made, op)))
        try:
            start(given, arrays, op.attrs, outcome, cancel)
        except WeftError as error:
            done(error)

    def now(
        given: Any, arrays: list[Array], attrs: Attrs, timeout: float | None,
        cancel: CancelToken | None,
    ) -> list[Any]:  # fmt: skip
        waited = given[0] if isinstance(given, tuple) else given
        made = waited.wait(lambda done: start(given, arrays, attrs, done, cancel), timeout)
        return _listed(results(waited, made, None))

    return HostRow(begin, now, brief)


def result_ranks(op: Operation) -> list[int]:
    """How many axes the tensors have that the op gives."""
    return [r.type.rank for r in op.results if isinstance(r.type, TensorType)]


def _listed(made: Any) -> list[Any]:
    return [made] if made is None or isinstance(made, np.ndarray) else list(made)


def after(done: Done, convert: Callable[[Any], list[Any]]) -> Done:
    """What a resource calls with its outcome: `done` gets what `convert` makes of it, or the error;
    an error of `convert` too, or the step would wait for ever."""

    def call(made: Any) -> None:
        if not isinstance(made, WeftError):
            try:
                made = convert(made)
            except WeftError as error:
                made = error
            except Exception as error:
                made = InternalError(f"the results of a host op are lost: {error!r}")
        done(made)

    return call
