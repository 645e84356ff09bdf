"""Applying one op: at once on concrete tensors, or as a further op of the graph that is being
built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.frontend.arrays import contiguous
from weft.frontend.eager.quick import REDUCTIONS, quick_fold
from weft.frontend.tensor import Tensor
from weft.frontend.tracing.device_scope import device_scopes
from weft.frontend.tracing.eager_device import check_eager_device
from weft.frontend.tracing.trace import check_usable, current_trace
from weft.ir.dims import SymbolicDim, format_shape
from weft.ir.errors import TracerError, WeftError
from weft.ir.interpreter.evaluate import evaluate_op
from weft.ir.locations import caller_location
from weft.ir.spec import AttrValue


def apply(op_name: str, *operands: Tensor, **attrs: AttrValue) -> Tensor:
    """The one result of an op. Operands have the dtypes and shapes that the IR's type rule asks
    for.

    Symbolic while a trace is current (concrete operands become constants), else computed at once by
    the interpreter. TypeRuleError, ShapeError or InvalidArgumentError with the user's line if it
    does not fit.
    """
    (result,) = apply_many(op_name, operands, attrs)
    return result


def apply_many(
    op_name: str, operands: Sequence[Tensor], attrs: Mapping[str, AttrValue]
) -> tuple[Tensor, ...]:
    """All results of an op; see `apply`."""
    trace = current_trace()
    if trace is not None:
        values = trace.emit(op_name, [trace.lift(t) for t in operands], attrs)
        return tuple(trace.tensor(v) for v in values)
    if device_scopes():
        check_eager_device()
    if op_name in REDUCTIONS:
        made = quick_fold(op_name, operands[0], attrs["axes"], attrs["keepdims"])
        if made is not None:
            return (made,)
    return tuple(Tensor(a) for a in _evaluate(op_name, operands, attrs))


def in_order(t: Tensor) -> Tensor:
    """`t`, of a function that has nothing to do; in `wf.control_dependencies` as the result of an
    op, which comes after these."""
    trace = current_trace()
    if trace is None or not trace.control:
        return t
    made = apply("identity", t)
    made.weak = t.weak
    return made


def _evaluate(
    op_name: str, operands: Sequence[Tensor], attrs: Mapping[str, AttrValue]
) -> list[Any]:
    arrays: list[Any] = []
    for t in operands:
        if t._data is None:
            check_usable(t, None)
        arrays.append(t._data)
    for name, value in attrs.items():
        if isinstance(value, tuple) and any(isinstance(d, SymbolicDim) for d in value):
            raise TracerError(
                f"op '{op_name}' needs {name}={format_shape(value)}, sizes that have values only "
                "while the graph they come from runs",
                hint="build on tensors of a graph inside `with graph.as_default():`",
                location=caller_location(),
            )
    try:
        return [contiguous(a) for a in evaluate_op(op_name, arrays, attrs)]
    except WeftError as error:
        cause = error.__cause__  # an error of the user's own function is worth showing
        raise error.at(caller_location()) from None if isinstance(cause, WeftError) else cause
