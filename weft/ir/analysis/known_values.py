"""Values that are known before a graph runs: constants, uniform ones, and how often loops run.

Of a `while` the test must compare a carry that starts at a constant and grows by a constant in
every iteration with a constant: `i < n`, `i <= n`, `i > n`, `i >= n`, `i != n`, either way round.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.ir.graph import Block, Operation, Value
from weft.ir.spec import ConstArray, int_attr
from weft.ir.types import TensorType

Array = np.ndarray[Any, Any]
_SWAPPED = {
    "less": "greater", "less_equal": "greater_equal", "greater": "less",
    "greater_equal": "less_equal", "not_equal": "not_equal",
}  # fmt: skip


def constant_of(value: Value) -> ConstArray | None:
    """The array of a `constant`, or None for any other value."""
    if value.op is None or value.op.name != "constant":
        return None
    array = value.op.attrs["value"]
    return array if isinstance(array, ConstArray) else None


def uniform(value: Value) -> Array | None:
    """The scalar (an array of rank 0) that all elements of `value` are known to be, or None."""
    if value.op is not None and value.op.name == "broadcast_to":
        value = value.op.operands[0]
    constant = constant_of(value)
    if constant is None or constant.array.dtype == object:
        return None
    return constant.array if constant.array.ndim == 0 else None


def trip_count(op: Operation) -> int | None:
    """The number of iterations of a `while`, its limit included; None if it is not known."""
    test, body = op.regions
    limit = int_attr(op.attrs, "limit")
    count = 0 if limit == 0 else _by_test(op, test, body)
    if count is None or limit < 0:
        return count
    return min(count, limit)


def _by_test(op: Operation, test: Block, body: Block) -> int | None:
    decision = test.results[0]
    always = uniform(decision)
    if always is not None:
        limit = int_attr(op.attrs, "limit")
        return 0 if not always.item() else limit if limit >= 0 else None
    if decision.op is None or decision.op.name not in _SWAPPED:
        return None
    for name, (left, right) in (
        (decision.op.name, decision.op.operands),
        (_SWAPPED[decision.op.name], decision.op.operands[::-1]),
    ):
        bound = _integer(right, test, op)
        left = _same_number(left)
        if left in test.args and bound is not None:
            number = test.args.index(left)
            if number >= int_attr(op.attrs, "carries"):
                return None
            return _count(op, body, number, name, bound)
    return None


def _integer(value: Value, region: Block, op: Operation) -> int | None:
    """The integer that a value of a region is known to be, also an invariant of the loop."""
    value = _same_number(value)
    if value in region.args:
        number = region.args.index(value)
        carried = number < int_attr(op.attrs, "carries") if op.name == "while" else True
        return None if carried else _constant(op.operands[number])
    return _constant(value)


def _constant(value: Value) -> int | None:
    found = uniform(_same_number(value))
    if found is None or found.dtype.kind not in "iu":
        return None
    return int(found.item())


def _same_number(value: Value) -> Value:
    """The value that this one is a mere copy of, or the same integer in a wider dtype."""
    while value.op is not None and value.op.name in ("identity", "stop_gradient", "tap", "astype"):
        (source,) = value.op.operands
        old, new = source.type, value.type
        assert isinstance(old, TensorType)
        assert isinstance(new, TensorType)
        if old != new and not (
            old.dtype.kind == new.dtype.kind == "int" and old.dtype.itemsize < new.dtype.itemsize
        ):
            return value
        value = source
    return value


def _count(op: Operation, body: Block, number: int, name: str, bound: int) -> int | None:
    """Of `while i NAME bound: i += step`, with i the carry of this number."""
    start = _constant(op.operands[number])
    step = _step(op, body, number)
    if start is None or step is None or step == 0:
        return None
    if name == "not_equal":
        count, rest = divmod(bound - start, step)
        found = count if rest == 0 and count >= 0 else None
    else:
        sign = -1 if name in ("greater", "greater_equal") else 1
        last = sign * bound - (0 if name.endswith("_equal") else 1)
        if sign * start > last:
            return 0
        found = (last - sign * start) // (sign * step) + 1 if sign * step > 0 else None
    kind = op.operands[number].type
    assert isinstance(kind, TensorType)
    held = np.iinfo(kind.dtype.name)  # i must not wrap around on the way
    fits = found is not None and held.min <= start + found * step <= held.max
    return found if fits else None


def _step(op: Operation, body: Block, number: int) -> int | None:
    """What the carry of this number grows by in an iteration."""
    made = _same_number(body.results[number]).op
    own = body.args[number]
    if made is None or made.name not in ("add", "subtract"):
        return None
    left, right = map(_same_number, made.operands)
    if left is own:
        step = _integer(right, body, op)
        return step if step is None or made.name == "add" else -step
    return _integer(left, body, op) if right is own and made.name == "add" else None
