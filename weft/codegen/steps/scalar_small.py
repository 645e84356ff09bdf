"""Small arrays in registers: which element of an op's result is made of which elements.

A kernel of a loop on small arrays (`scalar_check.py`) keeps every element in a register of its own;
its code is the elements' ops, one after another. Ops that only move elements become nothing.
"""

from __future__ import annotations

import math

import numpy as np

from weft.ir.graph import Operation, Value
from weft.ir.interpreter.evaluate import evaluate_op
from weft.ir.types import TensorType

#: The most elements of a value that is kept in registers, where a loop is on small arrays.
SMALL = 64
#: Ops that move elements as the positions alone say.
MOVES = frozenset(
    {
        "reshape", "broadcast_to", "permute_dims", "slice", "identity", "stop_gradient", "concat",
        "slice_update", "pad",
    }
)  # fmt: skip


def tensor(value: Value) -> TensorType:
    """The type of a value that is a tensor."""
    assert isinstance(value.type, TensorType)
    return value.type


def elements(value: Value) -> int:
    """How many elements a value has."""
    return math.prod(tensor(value).static_shape)


def is_single(value: Value) -> bool:
    """Whether a value holds one element."""
    return all(d == 1 for d in tensor(value).shape)


def fits(value: Value, limit: int) -> bool:
    """Whether a value's elements are in registers, if those of at most `limit` elements are."""
    return is_single(value) or 0 < elements(value) <= limit


def moved(op: Operation) -> list[tuple[int, int]]:
    """Per element of the result of an op in `MOVES`: (number of the operand, element of it)."""
    given, names = [], list[tuple[int, int]]()
    for k, operand in enumerate(op.operands):
        count = elements(operand)
        given.append(np.arange(count).reshape(tensor(operand).static_shape) + len(names))
        names += [(k, j) for j in range(count)]
    (made,) = evaluate_op(op.name, given, op.attrs)
    return [names[j] for j in made.reshape(-1).tolist()]


def folded(op: Operation) -> list[list[int]]:
    """Per element of the result of an op in `FOLDS`: the elements of the operand, in order."""
    axes: tuple[int, ...] = op.attrs["axes"]  # type: ignore[assignment]
    shape = tensor(op.operands[0]).static_shape
    index = np.arange(math.prod(shape)).reshape(shape)
    last = np.moveaxis(index, axes, range(len(shape) - len(axes), len(shape)))
    rows: list[list[int]] = last.reshape(elements(op.result), -1).tolist()
    return rows


def multiplied(op: Operation) -> list[list[tuple[int, int]]]:
    """Per element of the result of a matmul: the pairs of elements to multiply, in order."""
    a, b = (np.arange(elements(v)).reshape(tensor(v).static_shape) for v in op.operands)
    a = a.swapaxes(-1, -2) if op.attrs["transpose_a"] else a
    b = b.swapaxes(-1, -2) if op.attrs["transpose_b"] else b
    *batch, m, n = tensor(op.result).static_shape
    a = np.broadcast_to(a, (*batch, *a.shape[-2:])).reshape(-1, m, a.shape[-1])
    b = np.broadcast_to(b, (*batch, *b.shape[-2:])).reshape(-1, b.shape[-2], n)
    return [
        list(zip(x[i].tolist(), y[:, j].tolist(), strict=True))
        for x, y in zip(a, b, strict=True)
        for i in range(m)
        for j in range(n)
    ]
