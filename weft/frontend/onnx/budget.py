"""`Budget`: how much of a model may be computed and written out while it is traced, as a model may
come from anyone.

What is known is computed at once, outside of the trace, and every value stays until the trace ends:
a chain of Expand, Tile, Pad, Range or Concat would double memory at each node. So the types of
results are inferred first, by tracing the operator alone; what would be too large is an op of the
graph, where it costs memory only if a call needs it. Results whose sizes depend on values of
constants are computed by a trace, too: an error, once too much has been."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from weft.frontend.core.tensor import Tensor
from weft.frontend.core.trace import Trace, suspend_trace
from weft.ir.errors import ResourceExhaustedError, WeftError

#: Nodes that are run in one trace or read from one file, functions and loops written out.
MOST_NODES = 200_000
#: Bytes of a value that is computed at once, and of all of a trace; or so many times those of the
#: weights, which may be widened and transposed.
LARGEST = 2**24
MOST_BYTES = 2**29
TIMES_WEIGHTS = 8
#: Bytes of the sparse tensors of a file with their zeros.
MOST_DENSE = 2**31
#: Elements of a table of places or weights that an operator makes for itself.
MOST_IN_TABLE = 2**26
#: Bytes of inputs, multiplied: results of no more are not inferred while the budget has as many.
_SMALL = 2**20


class Budget:
    """Of one run of a model. weights: bytes of its constants."""

    def __init__(self, weights: int) -> None:
        self._largest = max(LARGEST, TIMES_WEIGHTS * weights)
        self._bytes = MOST_BYTES + TIMES_WEIGHTS * weights
        self._nodes = 0

    def count(self, what: str) -> None:
        """One more node of a trace. ResourceExhaustedError."""
        self._nodes += 1
        if self._nodes > MOST_NODES:
            raise ResourceExhaustedError(
                f"{what} is the node number {self._nodes} of those that are written out",
                hint="functions that call functions, and loops over sequences, repeat their nodes",
            )

    def allows(self, inputs: Sequence[Any], grows: bool, compute: Callable[[], Any]) -> bool:
        """Whether what is computed of these known inputs may be computed at once. grows: whether
        values of inputs or attributes say how large it is. ResourceExhaustedError where a trace
        would do so anyway, and too much has been."""
        tensors = list(_tensors(inputs))
        if any(t.dtype.kind == "string" for t in tensors):
            self._check_strings(tensors)
            return True
        most = math.prod(max(t.numpy().nbytes, 1) for t in tensors)
        sure = not grows and most <= min(_SMALL, self._bytes)
        made = most if sure else _inferred(compute)
        if made is not None:
            return made <= min(self._largest, self._bytes)
        if self._bytes < 0:  # sizes that depend on values: a trace computes them at once, too
            raise ResourceExhaustedError("what is computed of constants takes too much memory")
        return True

    def take(self, made: Sequence[Any]) -> None:
        """What has been computed at once."""
        self._bytes -= sum(map(tensor_bytes, _tensors(made)))

    def _check_strings(self, tensors: Sequence[Tensor]) -> None:
        """Strings that may be joined, each with each. ResourceExhaustedError."""
        words = [t.numpy().ravel().tolist() for t in tensors if t.dtype.kind == "string"]
        longest = sum(max(map(len, w), default=0) for w in words)
        made = longest * math.prod(max(len(w), 1) for w in words)
        if made > min(self._largest, self._bytes):
            raise ResourceExhaustedError(f"strings of {made:,} bytes are computed of constants")


def tensor_bytes(value: Tensor) -> int:
    """Of a tensor that is known; of strings those of their words, too."""
    array = value.numpy()
    if not array.dtype.hasobject:
        return int(array.nbytes)
    return int(array.nbytes) + sum(len(w) for w in array.ravel().tolist())


def _tensors(values: Sequence[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _inferred(compute: Callable[[], Any]) -> int | None:
    """The bytes of the results; None where they are not known before it runs."""
    trace = Trace("function", "sizes", creates_variables=False)
    trace.symbols, trace.takes_host_ops = set(), True
    try:
        with suspend_trace(), trace.scope():
            made = compute()
    except (WeftError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return None
    total = 0
    for value in _tensors(made):
        if value.dtype.kind == "string":
            return None
        known = [n for n in value.shape if isinstance(n, int)]
        if len(known) < len(value.shape):
            return None
        total += math.prod(known) * value.dtype.itemsize
    return total


def check_table(what: str, *counts: int) -> None:
    """ResourceExhaustedError if a table of so many elements along its axes is too large."""
    if math.prod(max(n, 0) for n in counts) > MOST_IN_TABLE:
        raise ResourceExhaustedError(f"{what} would be a table of {' x '.join(map(str, counts))}")
