"""Functions of several steps on few elements: a call of a kind that comes often is replayed as the
NumPy calls that it consists of, without the tensors and checks in between.

The bits are those of the interpreter, against which the first replay is checked. Nothing is
compiled: a program of NumPy calls (`numpy_program.py`) is made once for each dtypes, shapes and
settings that came `OFTEN` times.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from weft.frontend import pytree
from weft.frontend.eager.keys import NotPlain
from weft.frontend.tensor import Tensor
from weft.ir.errors import WeftError
from weft.ir.quiet import QUIET

Array = np.ndarray[Any, Any]
Run = Callable[[list[Array]], Any]
#: Calls of so many equal keys are replayed from then on.
OFTEN = 64
#: Keys that are remembered for one function; then it begins anew.
MOST_KEYS = 256
#: Functions of which so many programs could not be made are not asked again.
MOST_FAILURES = 8


class Replays:
    """The programs of one function. scan: of (args, kwargs, key, arrays), appends to key and
    arrays. make: of (args, kwargs, arrays, key), such a call as (graph, what packs its results, its
    results), or None."""

    def __init__(self, scan: Callable[..., None], make: Callable[..., Any]) -> None:
        self._scan, self._make = scan, make
        self._known: dict[Hashable, Run | None] = {}
        self._counts: dict[Hashable, int] = {}
        self.failures = 0

    def find(self, args: Any, kwargs: Any, arrays: list[Array]) -> Run | None:
        """What replays a call, whose operands are put into `arrays`."""
        if self.failures >= MOST_FAILURES:
            return None
        key: list[Any] = []
        try:
            self._scan(args, kwargs, key, arrays)
        except NotPlain:
            return None
        held = tuple(key)
        try:
            return self._known[held]
        except KeyError:
            pass
        count = self._counts[held] = self._counts.get(held, 0) + 1
        if count < OFTEN:
            if len(self._counts) > MOST_KEYS:
                self._counts.clear()
            return None
        if len(self._known) >= MOST_KEYS:
            self._known.clear()
        run = self._known[held] = self._new(args, kwargs, held, arrays)
        self.failures += run is None
        return run

    def _new(self, args: Any, kwargs: Any, key: tuple[Any, ...], arrays: list[Array]) -> Run | None:
        from weft.frontend.eager.numpy_program import numpy_program  # not for `import weft`

        try:
            made = self._make(args, kwargs, arrays, key)
            if made is None:
                return None
            graph, pack, wanted = made
            program = numpy_program(graph)
            return None if program is None else _checked(program, pack, arrays, wanted)
        except WeftError:
            return None


def _checked(
    program: Callable[..., list[Array]], pack: Callable[[list[Array]], Any],
    arrays: list[Array], wanted: Any,
) -> Run | None:  # fmt: skip
    """The replay, if it gives the bits of `wanted` for these operands."""
    run = QUIET.run

    def replay(arrays: list[Array]) -> Any:
        return pack(run(program, *arrays))

    try:
        got = replay(arrays)
    except Exception:  # a reference that takes no scalars, say
        return None
    made, leaves = pytree.flatten(got)[0], pytree.flatten(wanted)[0]
    if len(made) != len(leaves) or not all(map(_same, made, leaves)):
        return None
    own = not any(np.may_share_memory(t._data, a) for t in made for a in arrays)
    return replay if own else None


def _same(a: Any, b: Any) -> bool:
    if type(a) is not Tensor or type(b) is not Tensor or a.weak != b.weak:
        return False
    x, y = a._data, b._data
    if x is None or y is None or (x.dtype, x.shape) != (y.dtype, y.shape):
        return False
    return x.tobytes() == y.tobytes() and x.flags.owndata and x.flags.c_contiguous
