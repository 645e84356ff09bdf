"""Constant folding: compute at compile time what depends on constants only.

Before::

    %0 = constant() {value=f32[] 2.0} : f32[]
    %1 = broadcast_to(%0) {shape=[32,10]} : f32[32,10]
    %2 = sqrt(%1) : f32[32,10]

After: ``%1 = constant() {value=f32[] 1.4142135}``, ``%2 = broadcast_to(%1) {shape=[32,10]}``.

A value whose elements are all the same (a *uniform* value) is kept as `broadcast_to` of a scalar:
it costs no memory. Other constants never grow: a result is folded if it has at most LIMIT elements,
or no more elements and bytes than the largest operand; and more than FEW bytes stay bytes, since
products read quantised weights as they are. An op that fails on its constants is left to fail when
it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from weft.ir.analysis.known_values import constant_of, uniform
from weft.ir.dtypes import int64
from weft.ir.errors import WeftError
from weft.ir.graph import Graph, Operation, Value
from weft.ir.interpreter.evaluate import evaluate_op
from weft.ir.ops import lookup
from weft.ir.ops.builder import Builder
from weft.ir.sizes import is_traced, same_size
from weft.ir.spec import ConstArray, int_attr, ints_attr
from weft.ir.types import TensorType
from weft.passes.rewriting.rewrite import (
    emit_at,
    fixed_point,
    rewrite,
    shape_of,
    tensor,
)

LIMIT = 4096  # elements of a new constant
FEW = 256  # the same of bytes that are widened: more may be weights, which products read as bytes
Array = np.ndarray[Any, Any]

#: Ops whose result has the elements of the operand in other places, or some of them.
_MOVES = frozenset({"reshape", "permute_dims", "broadcast_to", "slice"})
#: Reductions that give the element itself if all are the same.
_PICKS = frozenset({"max", "min", "all", "any"})
#: Ops with one right result for floats, and those that move them.
_EXACT = _MOVES | frozenset(
    (
        *("add", "subtract", "multiply", "divide", "sqrt", "negative", "abs", "sign", "astype"),
        *("maximum", "minimum", "floor", "ceil", "trunc", "round", "where", "identity", "isnan"),
        *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "dim_size"),
    )
)


def fold(graph: Graph) -> Graph:
    """Fold to a fixed point, inside regions too."""
    return fixed_point(graph, lambda g: rewrite(g, _fold_op))


def fold_exactly(graph: Graph) -> Graph:
    """`fold` of what compiled code computes to the same bits: integers and moves, and the float ops
    that IEEE 754 defines."""
    return fixed_point(graph, lambda g: rewrite(g, _fold_exact_op))


def _fold_exact_op(builder: Builder, op: Operation) -> Sequence[Value] | None:
    types = [v.type for v in (*op.operands, *op.results) if isinstance(v.type, TensorType)]
    exact = _EXACT if not any(t.dtype.is_complex for t in types) else _MOVES
    if op.name in exact or op.name == "constant" or not any(t.dtype.is_inexact for t in types):
        return _fold_op(builder, op)
    return None


def fold_frozen(graph: Graph) -> Graph:
    """`fold`, also of ops on constants of which some are repeated: for models whose weights are
    constants, which nobody expects to be computed by the kernels that a step would take."""
    return fixed_point(graph, lambda g: rewrite(g, partial(_fold_op, repeated=True)))


def _fold_op(builder: Builder, op: Operation, repeated: bool = False) -> Sequence[Value] | None:
    if op.name == "constant":
        return _scalar_of_uniform(builder, op)
    if op.name == "dim_size":
        size = shape_of(op.operands[0])[int_attr(op.attrs, "axis")]
        if is_traced(size):  # it may become another one
            return [_size_of_argument(builder, op, size) or _size_itself(builder, op, size)]
        return [_constant(builder, op, np.array(size))] if isinstance(size, int) else None
    for value in op.operands:
        if value.op is None or value.op.name not in ("constant", "broadcast_to"):
            return None  # nearly all ops end here
    spec = lookup(op.name)
    known = "no_fold" not in spec.traits and not op.regions and spec.reference is not None
    if not known or not op.operands or not isinstance(op.results[0].type, TensorType):
        return None
    scalars = [s for v in op.operands if (s := uniform(v)) is not None]
    if len(scalars) == len(op.operands):
        found = _fold_uniform(builder, op, scalars)
        if found is not None:
            return [found]
    return _fold_constants(builder, op, repeated)


def _size_of_argument(builder: Builder, op: Operation, size: object) -> Value | None:
    """A size as that of an argument above it which is always as large; None if there is none."""
    todo, seen = [op.operands[0]], set(op.operands)
    while todo:
        value = todo.pop()
        if value.op is not None:
            above = [v for v in value.op.operands if v not in seen]
            seen.update(above)
            todo += above
        elif value is not op.operands[0] and isinstance(value.type, TensorType):
            for axis, other in enumerate(value.type.shape):
                if isinstance(other, int) and isinstance(size, int) and same_size(other, size):
                    return emit_at(builder, op, "dim_size", value, axis=axis)
    return None


def _size_itself(builder: Builder, op: Operation, size: Any) -> Value:
    """A size from no other value: the last number of 0, 1, ..., size, of which a nest makes no
    other."""
    counted = emit_at(builder, op, "iota", dtype=int64, shape=(size + 1,), axis=0)
    bounds = {"starts": (size,), "stops": (size + 1,), "steps": (1,)}
    last = emit_at(builder, op, "slice", counted, **bounds)
    return emit_at(builder, op, "reshape", last, shape=())


def _scalar_of_uniform(builder: Builder, op: Operation) -> Sequence[Value] | None:
    """An array constant of equal elements becomes a scalar, repeated."""
    constant = constant_of(op.result)
    if constant is None or constant.array.size < 2 or constant.array.dtype == object:
        return None
    flat = constant.array.reshape(-1)
    bits = flat.view(np.uint8).reshape(flat.size, -1)
    if (bits[0] != bits[-1]).any() or not (bits == bits[0]).all():
        return None
    scalar = _constant(builder, op, flat[0])
    return [emit_at(builder, op, "broadcast_to", scalar, shape=shape_of(op.result))]


def _fold_uniform(builder: Builder, op: Operation, scalars: Sequence[Array]) -> Value | None:
    """An op on uniform values, computed on one element."""
    result = tensor(op.result)
    if all(v.type.rank == 0 for v in op.operands if isinstance(v.type, TensorType)):
        return None if op.name in _MOVES else _computed(builder, op, scalars)
    if op.name in _MOVES or (op.name in _PICKS and _takes_elements(op)):
        scalar: Value | None = _constant(builder, op, scalars[0])
    elif "elementwise" in lookup(op.name).traits:
        scalar = _computed(builder, op, scalars)
    else:
        return None
    if scalar is None or result.rank == 0:
        return scalar
    return emit_at(builder, op, "broadcast_to", scalar, shape=result.shape)


def _takes_elements(op: Operation) -> bool:
    """Whether each result is known to come from at least one element."""
    shape = shape_of(op.operands[0])
    sizes = [shape[i] for i in ints_attr(op.attrs, "axes")]
    return all(isinstance(d, int) and d > 0 for d in sizes)


def _fold_constants(
    builder: Builder, op: Operation, repeated: bool = False
) -> Sequence[Value] | None:
    constants = [c.array for v in op.operands if (c := constant_of(v)) is not None]
    result = op.results[0].type
    if not constants or len(op.results) != 1:
        return None
    arrays = [*map(_known, op.operands)] if repeated else constants
    size = result.size if isinstance(result, TensorType) else None
    largest = max(c.size for c in constants)
    if not isinstance(size, int) or (op.name == "broadcast_to" and size > largest):
        return None
    nbytes = size * tensor(op.result).dtype.itemsize
    grows = nbytes > max(c.nbytes for c in constants)
    widens = op.name == "astype" and constants[0].dtype in (np.int8, np.uint8)
    if size > (FEW if widens else LIMIT) and (size > largest or grows):
        return None
    known = [a for a in arrays if a is not None]
    found = _computed(builder, op, known) if len(known) == len(op.operands) else None
    return None if found is None else [found]


def _known(value: Value) -> Array | None:
    """The elements of a constant, or of one that is repeated; None for any other value."""
    made = value.op
    shape = shape_of(value) if isinstance(value.type, TensorType) else ()
    if made is not None and made.name == "broadcast_to":
        value = made.operands[0]
    held = constant_of(value)
    if held is None or not all(isinstance(d, int) for d in shape):
        return None
    return np.broadcast_to(held.array, shape)  # type: ignore[arg-type]


def _computed(builder: Builder, op: Operation, arrays: Sequence[Array]) -> Value | None:
    """The op on these arrays as a constant; None if it fails on them."""
    try:
        (array,) = evaluate_op(op.name, arrays, op.attrs)
    except WeftError:
        return None
    return _constant(builder, op, array)


def _constant(builder: Builder, op: Operation, array: Array | np.generic) -> Value:
    return emit_at(builder, op, "constant", value=ConstArray(np.asarray(array)))
