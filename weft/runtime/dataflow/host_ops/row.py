"""Row of a host op: it begins, does not wait, and says when it is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.ir.errors import InternalError, WeftError
from weft.ir.graph import Operation
from weft.runtime.resources.cancel import CancelToken

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


def after(done: Done, convert: Callable[[Any], list[Any]]) -> Done:
    """What a resource calls with its outcome: `done` gets what `convert` makes of it, or the error;
    an error of `convert` too, or the step would wait for ever."""

    def call(made: Any) -> None:
        if not isinstance(made, WeftError):
            try:
                made = convert(made)
            except Exception as error:
                made = InternalError(f"the results of a host op are lost: {error!r}")
        done(made)

    return call


def no_value(made: Any) -> Any:
    """The results of an op that gives a token, from what its resource handed over."""
    return made if isinstance(made, WeftError) else [None]
