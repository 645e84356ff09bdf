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
from weft.ir.spec import QUIET

Array = np.ndarray[Any, Any]
Run = Callable[..., Any]
#: Calls of so many equal keys are replayed from then on.
OFTEN = 64
#: Keys that are remembered for one function; then it begins anew.
MOST_KEYS = 256
#: Functions of which so many programs could not be made are not asked again.
MOST_FAILURES = 8

#: Types of the settings that are equal only where they are the same, beside their type.
_SETTINGS = frozenset({int, bool, str, type(None)})


class Replays:
    """The programs of one function. scan: of (args, kwargs, key, arrays), appends to key and
    arrays. make: of (args, kwargs, arrays, key), such a call as (graph, what packs its results, its
    results), or None."""

    def __init__(self, scan: Callable[..., None], make: Callable[..., Any]) -> None:
        self._scan, self._make = scan, make
        self._known: dict[Hashable, Run | None] = {}
        self._counts: dict[Hashable, int] = {}
        self._short: dict[Hashable, Run] = {}
        self.failures = 0

    def again(self, args: Any, kwargs: Any, arrays: list[Array]) -> Run | None:
        """What replays a call whose like was replayed before, of tensors and settings alone; found
        by a key that is made in half the time of `scan`'s."""
        if not self._short:
            return None
        if len(args) == 1 and not kwargs and type(args[0]) is Tensor and not args[0].weak:
            data = args[0]._data
            if data is None:
                return None
            arrays.append(data)
            return self._short.get((data.shape, data.dtype))
        key = _short_key(args, kwargs, arrays)
        return None if key is None else self._short.get(key)

    def find(self, args: Any, kwargs: Any, arrays: list[Array]) -> Run | None:
        """What replays a call on its operands, which are put into `arrays`."""
        if self.failures >= MOST_FAILURES:
            return None
        key: list[Any] = []
        try:
            self._scan(args, kwargs, key, arrays)
        except NotPlain:
            return None
        held = tuple(key)
        try:
            run = self._known[held]
        except KeyError:
            return self._count(args, kwargs, held, arrays)
        if run is not None:
            self._shorten(args, kwargs, arrays, run)
        return run

    def _shorten(self, args: Any, kwargs: Any, arrays: list[Array], run: Run) -> None:
        """Keep a replay for `again` if the key says all of the call."""
        given: list[Array] = []
        key = _short_key(args, kwargs, given)
        if key is None or len(given) > len(arrays):
            return
        if any(a is not b for a, b in zip(given, arrays, strict=False)):
            return
        if len(self._short) >= MOST_KEYS:
            self._short.clear()
        # numbers among the operands, which come last, are in the key
        rest = arrays[len(given) :]
        self._short[key] = (lambda *tensors: run(*tensors, *rest)) if rest else run

    def _count(
        self, args: Any, kwargs: Any, held: tuple[Any, ...], arrays: list[Array]
    ) -> Run | None:
        """What replays a call that has no program, once it came often."""
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
            program = numpy_program(graph, pack)
            same = program is not None and _is_right(program, arrays, wanted)
            return program if same else None
        except WeftError:
            return None


def _is_right(program: Run, arrays: list[Array], wanted: Any) -> bool:
    """Whether the program gives the bits of `wanted` for these operands, as arrays of its own."""
    try:
        got = QUIET.run(program, *arrays)
    except Exception:  # a reference that takes no scalars, say
        return False
    made, leaves = pytree.flatten(got)[0], pytree.flatten(wanted)[0]
    if len(made) != len(leaves) or not all(map(_same, made, leaves)):
        return False
    return not any(np.may_share_memory(t._data, a) for t in made for a in arrays)


def _same(a: Any, b: Any) -> bool:
    if type(a) is not Tensor or type(b) is not Tensor or a.weak != b.weak:
        return False
    x, y = a._data, b._data
    if x is None or y is None or (x.dtype, x.shape) != (y.dtype, y.shape):
        return False
    return x.tobytes() == y.tobytes() and x.flags.owndata and x.flags.c_contiguous


def _short_key(args: Any, kwargs: Any, arrays: list[Array]) -> Hashable | None:
    """The types and values of what a call is given, of tensors shape and dtype; None where it is
    given more than concrete tensors, which are put into `arrays`, and plain settings."""
    key: list[Any] = []
    for a in (*args, *kwargs.values()) if kwargs else args:
        kind = type(a)
        if kind is Tensor:
            data = a._data
            if data is None or a.weak:
                return None
            arrays.append(data)
            key.append(data.shape)
            key.append(data.dtype)
        elif kind in _SETTINGS:
            key.append(kind)
            key.append(a)
        elif kind is float:
            key.append(kind)
            key.append(a or repr(a))  # 0.0 is equal to -0.0
        else:
            return None
    key += kwargs
    return tuple(key)
