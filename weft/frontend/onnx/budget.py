"""`Budget`: how much of a model may be computed and written out while it is traced, as a model may
come from anyone.

What is known is computed at once, outside of the trace, and every value stays until the trace ends:
a chain of Expand, Tile, Pad, Range or Concat would double memory at each node. So the types of
results are inferred first, by tracing the operator alone, which computes nothing; what would be too
large is an op of the graph, where it costs memory only if a call needs it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from weft.frontend.core.tensor import Tensor
from weft.frontend.core.trace import Trace, suspend_trace
from weft.frontend.onnx.sizes import Sizes
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
#: Bytes of inputs, multiplied: the results of an operator that has no more are not inferred.
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
        values of inputs or attributes say how large it is."""
        tensors = list(_tensors(inputs))
        if any(t.dtype.kind == "string" for t in tensors):
            self._take_strings(tensors)
            return True
        made: int | None = math.prod(max(t.numpy().nbytes, 1) for t in tensors)
        if grows or made is None or made > _SMALL:
            made = _inferred(compute)
        if made is None:  # sizes that depend on values, say, which are as large as the inputs
            return True
        if made > min(self._largest, self._bytes):
            return False
        self._bytes -= made
        return True

    def _take_strings(self, tensors: Sequence[Tensor]) -> None:
        """Strings that may be joined, each with each. ResourceExhaustedError."""
        words = [t.numpy().ravel().tolist() for t in tensors if t.dtype.kind == "string"]
        longest = sum(max(map(len, w), default=0) for w in words)
        made = longest * math.prod(max(len(w), 1) for w in words)
        if made > min(self._largest, self._bytes):
            raise ResourceExhaustedError(f"strings of {made:,} bytes are computed of constants")
        self._bytes -= made


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
    for value in made:
        if isinstance(value, Sizes):
            continue
        if not isinstance(value, Tensor) or value.dtype.kind == "string":
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
