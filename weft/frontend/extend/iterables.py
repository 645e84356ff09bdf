"""What the loops of a converted function go over (`autograph.py`) where it depends on tensors: the
rows of a tensor, `range`, and `enumerate` and `zip` of these."""

from __future__ import annotations

import builtins
import functools
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Never

import numpy as np

from weft.frontend.core.operators import Operators
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.extend.debug import check
from weft.frontend.ops.dispatch import apply
from weft.frontend.ops.elementwise import maximum, minimum
from weft.frontend.ops.manipulation import stack
from weft.ir.dims import SymbolicDim
from weft.ir.dtypes import int64
from weft.ir.errors import InvalidArgumentError, TracerError, TypeRuleError, UnsupportedError
from weft.ir.locations import caller_location


def is_traced(x: object) -> bool:
    """Whether the value of a tensor is not known while the function is traced."""
    return isinstance(x, Operators) and as_tensor(x)._data is None


class Steps(ABC):
    """What a loop goes over: so many elements, each made of its number and of the rows that it has
    of some tensors.

    length: an int or open size, or a tensor; leaves: the tensors, which may have more rows;
    numbered: whether elements need their number."""

    length: Any
    leaves: Sequence[Tensor] = ()
    numbered = True

    @abstractmethod
    def element(self, i: Any, rows: Iterator[Any]) -> Any:
        """The element of a number, of the rows of the leaves, in their order."""

    def at(self, i: Any) -> Any:
        """The element of a number."""
        return self.element(i, iter([leaf[i] for leaf in self.leaves]))

    def __iter__(self) -> Iterator[Never]:
        raise TracerError(
            "autograph: `enumerate`, `zip` and `range` of tensors are for `for` statements: their "
            "elements have no values until the function runs",
            hint="wf.unstack(x) is a list of rows",
            location=caller_location(),
        )


class Rows(Steps):
    """The rows of a tensor."""

    numbered = False

    def __init__(self, x: Any) -> None:
        self.tensor = as_tensor(x)
        self.leaves = (self.tensor,)
        self.length = self.tensor.shape[0] if self.tensor.ndim else None

    def element(self, i: Any, rows: Iterator[Any]) -> Any:
        return next(rows)


class Listed(Rows):
    """The elements of a list or tuple, all Python numbers of one type, or tensors of one type.

    Numbers are weak tensors in the loop, so that they take the dtype of what they meet."""

    def __init__(self, given: Sequence[Any]) -> None:
        super().__init__(stack([as_tensor(x) for x in given]))
        self._weak = not isinstance(given[0], Operators | np.ndarray | np.generic)

    @classmethod
    def of(cls, x: Any) -> Listed | None:
        """None for what else only Python iterates over, and for an empty list."""
        if not isinstance(x, list | tuple) or not x:
            return None
        if all(isinstance(one, Operators | np.ndarray | np.generic) for one in x):
            kinds = {(t.dtype, t.shape) for t in map(as_tensor, x)}
            return cls(x) if len(kinds) == 1 else None
        numbers = type(x[0]) in (bool, int, float, complex)
        return cls(x) if numbers and len(set(map(type, x))) == 1 else None

    def element(self, i: Any, rows: Iterator[Any]) -> Any:
        row = next(rows)
        if self._weak:
            row.weak = True
        return row


class Range(Steps):
    """`range` of integers of which some may be tensors."""

    def __init__(self, start: Any, stop: Any, step: Any) -> None:
        self.start, self.stop, self.step = counter(start), counter(stop), step
        if is_traced(step):
            raise UnsupportedError(
                "autograph: the step of a range is a tensor",
                hint="a `while` loop counts by any step",
                location=caller_location(),
            )

    @functools.cached_property
    def length(self) -> Any:
        """How many numbers there are."""
        if not is_traced(self.start) and not is_traced(self.stop):
            return len(builtins.range(self.start, self.stop, self.step))
        return maximum(-((self.start - self.stop) // self.step), 0)

    def element(self, i: Any, rows: Iterator[Any]) -> Any:
        return i * self.step + self.start


class Numbered(Steps):
    """`enumerate` of other steps."""

    def __init__(self, of: Steps, start: Any) -> None:
        self._of, self._start = of, start
        self.length, self.leaves = of.length, of.leaves

    def element(self, i: Any, rows: Iterator[Any]) -> Any:
        return i + self._start, self._of.element(i, rows)


class Together(Steps):
    """`zip` of other steps: as many as the shortest has."""

    def __init__(self, parts: Sequence[Steps]) -> None:
        self._parts = parts
        self.length = _least([part.length for part in parts])
        self.leaves = [leaf for part in parts for leaf in part.leaves]
        self.numbered = any(part.numbered for part in parts)

    def element(self, i: Any, rows: Iterator[Any]) -> Any:
        return tuple([part.element(i, rows) for part in self._parts])


def _least(lengths: Sequence[Any]) -> Any:
    if all(isinstance(n, int) for n in lengths):
        return min(lengths)
    first, *others = lengths
    if not is_traced(first) and all(not is_traced(n) and n == first for n in others):
        return first  # one open size
    return functools.reduce(minimum, map(counter, lengths))


def counter(x: Any) -> Any:
    """A bound of a range, as Python counts: weak, and wider than what a small dtype holds.
    TypeRuleError if it is no integer."""
    if isinstance(x, SymbolicDim):
        x = as_tensor(x)
    elif not is_traced(x):
        return x
    t = as_tensor(x)
    if not t.dtype.is_integer or t.ndim:
        raise TypeRuleError(
            f"autograph: a range of {t.describe()}, which is no integer without axes",
            hint="convert it with wf.astype",
            location=caller_location(),
        )
    wide = apply("astype", t, dtype=int64)
    wide.weak = True
    return wide


def steps_of(x: Any) -> Steps | None:
    """What a loop over `x` goes over; None where it is as Python's."""
    if isinstance(x, Steps):
        return x
    return Rows(x) if is_traced(x) else None


def _rows(what: str, x: Any) -> Steps:
    """What `enumerate` or `zip` goes over. TypeRuleError for a tensor without axes."""
    steps = x if isinstance(x, Steps) else Rows(x)
    if steps.length is None:
        raise TypeRuleError(
            f"autograph: `{what}` of {steps.leaves[0].describe()}, which has no first axis",
            hint="wf.reshape(x, [1]) has one",
            location=caller_location(),
        )
    return steps


def range_(*args: Any) -> Any:
    """`range(*args)`."""
    if not any(is_traced(x) or isinstance(x, SymbolicDim) for x in args):
        return builtins.range(*map(operator.index, args))
    start, stop, step = {1: (0, *args, 1), 2: (*args, 1)}.get(len(args), args)
    return Range(start, stop, step)


def enumerate_(iterable: Any, start: Any = 0) -> Any:
    """`enumerate(iterable, start)`."""
    first = counter(start) if is_traced(start) else operator.index(start)
    if steps_of(iterable) is not None:
        return Numbered(_rows("enumerate", iterable), first)
    if is_traced(first):
        return ((i + first, x) for i, x in builtins.enumerate(iterable))
    return builtins.enumerate(iterable, first)


def zip_(*iterables: Any, strict: bool = False) -> Any:
    """`zip(*iterables, strict=strict)`. Beside what only Python iterates over, a list of names say,
    the rows of tensors come one by one: the loop is unrolled. Where how many there are is open, a
    list of numbers, or of tensors of one type, is a tensor, too."""
    if all(steps_of(x) is None for x in iterables):
        return builtins.zip(*iterables, strict=strict)
    parts = [_zipped(x) for x in iterables]
    if any(part is not None and not isinstance(part.length, int) for part in parts):
        pairs = builtins.zip(parts, iterables, strict=True)
        parts = [Listed.of(x) if part is None else part for part, x in pairs]
        if not strict and any(isinstance(x, list | tuple) and not x for x in iterables):
            return builtins.zip(())  # as short as the shortest
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        pairs = builtins.zip(parts, iterables, strict=True)
        return builtins.zip(*[x if p is None else _one_by_one(p) for p, x in pairs], strict=strict)
    if strict:
        _check_equal([part.length for part in known])
    return Together(known)


def _zipped(x: Any) -> Steps | None:
    """A part of a `zip`; None for what only Python iterates over."""
    if isinstance(x, builtins.range):
        return Range(x.start, x.stop, x.step)
    return _rows("zip", x) if isinstance(x, Operators | np.ndarray | Steps) else None


def _one_by_one(steps: Steps) -> Iterable[Any]:
    if not isinstance(steps.length, int):
        raise UnsupportedError(
            "autograph: a `zip` of tensors whose number of rows is open, and of what only Python "
            "iterates over",
            hint="a list of numbers of one type, or of tensors of one dtype and shape, will do; or "
            "make sizes known",
            location=caller_location(),
        )
    return (steps.at(i) for i in builtins.range(steps.length))


def _check_equal(lengths: Sequence[Any]) -> None:
    """`zip(strict=True)`: an error, in each run where a length is not known before."""
    first, *others = lengths
    for number, n in builtins.enumerate(others, 2):
        if isinstance(first, int) and isinstance(n, int):
            if n != first:
                raise InvalidArgumentError(
                    f"autograph: zip(strict=True): argument {number} has {n} elements, the first "
                    f"{first}",
                    location=caller_location(),
                )
        elif is_traced(first) or is_traced(n) or n != first:
            same = as_tensor(counter(first)) == as_tensor(counter(n))
            check(same, f"autograph: zip(strict=True): argument {number} is not as long as the "
                  "first")  # fmt: skip


#: Python's functions in a converted function.
FUNCTIONS: dict[Any, Callable[..., Any]] = {
    builtins.range: range_, builtins.enumerate: enumerate_, builtins.zip: zip_,
}  # fmt: skip
