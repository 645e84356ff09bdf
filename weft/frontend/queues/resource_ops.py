"""Ops on tables, barriers, accumulators and stacks in a `wf.Graph`; those on queues are in
`state/resources.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.frontend.autodiff.indexed_slices import IndexedSlices
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import Effect, Trace
from weft.frontend.ops.dispatch import fresh_sizes
from weft.frontend.state.resources import converted, handle, integer, refuse_waiting, value_of
from weft.ir.dtypes import DType, int64, string
from weft.ir.errors import InvalidArgumentError, WeftError
from weft.ir.graph import Value
from weft.ir.spec import Attrs
from weft.runtime.resources.attempts import Resource
from weft.runtime.resources.components import ComponentShape


# ------------------------------------------------------------------------------------------- pieces
def emit(
    trace: Trace, resource: Resource, op: str, operands: Sequence[Value] = (),
    attrs: Attrs | None = None,
) -> list[Value]:  # fmt: skip
    """Add an op on the resource; its errors name the resource."""
    try:
        return list(trace.emit(op, [handle(trace, resource), *operands], attrs or {}))
    except WeftError as error:
        if resource.name in error.what:
            raise
        raise type(error)(f"{resource.describe()}: {error.what}", hint=error.hint) from None


def effect(
    trace: Trace, resource: Resource, op: str, operands: Sequence[Value] = (),
    attrs: Attrs | None = None, name: str | None = None,
) -> Effect:  # fmt: skip
    """Add an op that gives a token."""
    (token,) = emit(trace, resource, op, operands, attrs)
    return Effect(trace.name_scope + (name or op), token, trace)


def lifted(trace: Trace, x: Any, dtype: DType, what: str) -> Value:
    """`x` as an operand of that dtype: what has a value converts as in eager calls."""
    t = _tensor_of(x, what)
    if t._data is not None:
        return trace.lift(Tensor(value_of(x, dtype, lambda: what)))
    return trace.lift(converted(t, dtype, what))


def _tensor_of(x: Any, what: str) -> Tensor:
    try:
        return as_tensor(x)
    except WeftError as error:
        raise type(error)(f"{what}: {error.what}", hint=error.hint) from None


def whole(trace: Trace, x: Any, what: str) -> Value:
    """`x` as an int64 operand; other integers are widened."""
    t = _tensor_of(x, what)
    if t._data is None and t.dtype.is_integer:
        return trace.lift(t if t.dtype is int64 else t.astype(int64))
    if t._data is not None and t.dtype.is_integer:
        x = np.asarray(t._data)
    return lifted(trace, x, int64, what)


def _unknown(shape: ComponentShape) -> int:
    """How many sizes depend on the step."""
    return sum(n is None for n in shape or ())


def tensor(trace: Trace, resource: Resource, op: str) -> Tensor:
    """The one tensor of an op whose only operand is the handle."""
    return trace.tensor(emit(trace, resource, op)[0])


# ------------------------------------------------------------------------------------------- tables
def _keys(trace: Trace, owner: Any, keys: Any, operation: str) -> Value:
    t = owner._table
    return lifted(trace, keys, t.key_dtype, f"{t.describe()} ({t}): {operation}: keys")


def _pairs(trace: Trace, owner: Any, keys: Any, values: Any, operation: str) -> list[Value]:
    t = owner._table
    what = f"{t.describe()} ({t}): {operation}: values"
    return [_keys(trace, owner, keys, operation), lifted(trace, values, t.value_dtype, what)]


def lookup(
    trace: Trace, owner: Any, keys: Any, dynamic_default_values: Any = None, name: str | None = None
) -> Tensor:
    """The values of keys when a step asks."""
    operands = [_keys(trace, owner, keys, "lookup")]
    if dynamic_default_values is not None:
        operands = _pairs(trace, owner, keys, dynamic_default_values, "lookup")
    return trace.tensor(emit(trace, owner._table, "table_lookup", operands)[0])


def insert(trace: Trace, owner: Any, keys: Any, values: Any, name: str | None = None) -> Effect:
    """An effect that stores values for keys."""
    operands = _pairs(trace, owner, keys, values, "insert")
    return effect(trace, owner._table, "table_insert", operands, name=name)


def import_values(
    trace: Trace, owner: Any, keys: Any, values: Any, name: str | None = None
) -> Effect:
    """An effect after which the table holds exactly these."""
    operands = _pairs(trace, owner, keys, values, "import")
    return effect(trace, owner._table, "table_import", operands, name=name)


def remove(trace: Trace, owner: Any, keys: Any, name: str | None = None) -> Effect:
    """An effect that forgets keys."""
    operands = [_keys(trace, owner, keys, "remove")]
    return effect(trace, owner._table, "table_remove", operands, name=name)


def export(trace: Trace, owner: Any, name: str | None = None) -> tuple[Tensor, Tensor]:
    """All keys and values when a step asks; how many is not known before."""
    sizes = {"sizes": fresh_sizes(trace, "table_export", 1)}
    keys, values = emit(trace, owner._table, "table_export", (), sizes)
    return trace.tensor(keys), trace.tensor(values)


def table_size(trace: Trace, owner: Any, name: str | None = None) -> Tensor:
    """The number of keys when a step asks."""
    return tensor(trace, owner._table, "table_size")


# ----------------------------------------------------------------------------------------- barriers
def insert_many(
    trace: Trace, owner: Any, component_index: int, keys: Any, values: Any, name: str | None = None
) -> Effect:
    """An effect that gives one component of some elements their values."""
    barrier = owner._barrier
    i = owner._component(component_index)
    what = f"{barrier.parts.owner}: insert_many"
    operands = [
        lifted(trace, keys, string, f"{what}: keys"),
        lifted(trace, values, barrier.parts.dtypes[i], f"{what}: {barrier.parts.label(i)}"),
    ]
    return effect(trace, barrier, "barrier_insert_many", operands, {"component": i}, name)


def take_many(
    trace: Trace, owner: Any, num_elements: int, allow_small_batch: bool = False,
    timeout: float | None = None, name: str | None = None, *, cancel: object = None,
) -> tuple[Tensor, Tensor, list[Tensor]]:  # fmt: skip
    """(indices, keys, values) of complete elements; how many there are is not known before if a
    small batch is allowed."""
    refuse_waiting("take_many", timeout, cancel)
    barrier = owner._barrier
    barrier.check_batches("take_many")
    n = integer(num_elements, f"{barrier.describe()}: take_many: num_elements")
    attrs: dict[str, Any] = {"n": n}
    op = "barrier_take_many"
    if allow_small_batch:
        op = "barrier_take_up_to"
        attrs["sizes"] = fresh_sizes(trace, "take_many", 1)
    indices, keys, *values = map(trace.tensor, emit(trace, barrier, op, (), attrs))
    return indices, keys, values


def close_barrier(
    trace: Trace, owner: Any, cancel_pending_enqueues: bool = False, name: str | None = None
) -> Effect:
    """An effect that closes the barrier."""
    attrs = {"cancel_pending": bool(cancel_pending_enqueues)}
    return effect(trace, owner._barrier, "barrier_close", (), attrs, name)


def ready_size(trace: Trace, owner: Any, name: str | None = None) -> Tensor:
    """The number of complete elements when a step asks."""
    return tensor(trace, owner._barrier, "barrier_ready_size")


def incomplete_size(trace: Trace, owner: Any, name: str | None = None) -> Tensor:
    """The number of keys that miss components when a step asks."""
    return tensor(trace, owner._barrier, "barrier_incomplete_size")


# ------------------------------------------------------------------------------------- accumulators
def apply_grad(
    trace: Trace, owner: Any, grad: Any, local_step: Any = 0, name: str | None = None
) -> Effect:
    """An effect that adds a gradient, unless it is stale."""
    a = owner._accumulator
    operands = [
        whole(trace, local_step, f"{a.describe()}: local_step"),
        lifted(trace, grad, a.dtype, f"{a.describe()}: apply_grad: the gradient"),
    ]
    return effect(trace, a, "accumulator_apply_gradient", operands, name=name)


def apply_rows(
    trace: Trace, owner: Any, grad_indices: Any, grad_values: Any, grad_shape: Any = None,
    local_step: Any = 0, name: str | None = None,
) -> Effect:  # fmt: skip
    """An effect that adds rows, unless they are stale."""
    a = owner._accumulator
    what = f"{a.describe()}: apply_grad"
    owner._check_shape(grad_shape, what)
    operands = [
        whole(trace, local_step, f"{a.describe()}: local_step"),
        whole(trace, grad_indices, f"{what}: grad_indices"),
        lifted(trace, grad_values, a.dtype, f"{what}: the gradient"),
    ]
    return effect(trace, a, "sparse_accumulator_apply_gradient", operands, name=name)


def take_grad(
    trace: Trace, owner: Any, num_required: Any, name: str | None = None, *,
    timeout: float | None = None, cancel: object = None,
) -> Tensor:  # fmt: skip
    """The mean (or sum) of the gradients, when there are enough."""
    operands = [_required(trace, owner, num_required, timeout, cancel)]
    sizes = {"sizes": fresh_sizes(trace, "take_grad", _unknown(owner._accumulator.shape))}
    made = emit(trace, owner._accumulator, "accumulator_take_gradient", operands, sizes)
    return trace.tensor(made[0])


def take_rows(
    trace: Trace, owner: Any, num_required: Any, name: str | None = None, *,
    timeout: float | None = None, cancel: object = None,
) -> Any:  # fmt: skip
    """The rows that are there, when there are enough gradients: a SparseGradient."""
    operands = [_required(trace, owner, num_required, timeout, cancel)]
    count = 1 + _unknown((owner._accumulator.shape or ())[1:])
    sizes = {"sizes": fresh_sizes(trace, "take_grad", count)}
    op = "sparse_accumulator_take_gradient"
    indices, values = emit(trace, owner._accumulator, op, operands, sizes)
    made = owner._gradient_of(trace.tensor(indices), trace.tensor(values))
    shape = None if made.shape is None else trace.tensor(trace.lift(made.shape))
    return made._replace(shape=shape)


def _required(trace: Trace, owner: Any, given: Any, timeout: object, cancel: object) -> Value:
    refuse_waiting("take_grad", timeout, cancel)
    what = f"{owner._accumulator.describe()}: num_required"
    if not isinstance(given, Tensor):
        given = integer(given, what, 1)
    return whole(trace, given, what)


def set_global_step(
    trace: Trace, owner: Any, new_global_step: Any, name: str | None = None
) -> Effect:
    """An effect after which gradients of earlier steps are dropped."""
    a = owner._accumulator
    step = whole(trace, new_global_step, f"{a.describe()}: new_global_step")
    return effect(trace, a, "accumulator_set_global_step", [step], name=name)


def num_accumulated(trace: Trace, owner: Any, name: str | None = None) -> Tensor:
    """How many gradients there are when a step asks."""
    return tensor(trace, owner._accumulator, "accumulator_num_accumulated")


def slices_of(grad: Any, what: str) -> IndexedSlices:
    """`grad` as IndexedSlices: anything with values, indices and dense_shape."""
    if isinstance(grad, IndexedSlices):
        return grad
    try:
        return IndexedSlices(grad.values, grad.indices, tuple(grad.dense_shape))
    except AttributeError:
        raise InvalidArgumentError(
            f"{what} takes wf.IndexedSlices, got a {type(grad).__name__}",
            hint="apply_grad takes indices and values",
        ) from None


# ------------------------------------------------------------------------------------------- stacks
def push(trace: Trace, owner: Any, value: Any, name: str | None = None) -> Tensor:
    """Puts a value on top, and gives it back."""
    s = owner._stack
    operand = lifted(trace, value, s.dtype, f"{s.describe()}: push")
    return trace.tensor(emit(trace, s, "host_stack_push", [operand])[0])


def pop(trace: Trace, owner: Any, name: str | None = None) -> Tensor:
    """The value on top, taken."""
    sizes = {"sizes": fresh_sizes(trace, "pop", _unknown(owner._stack.shape))}
    return trace.tensor(emit(trace, owner._stack, "host_stack_pop", (), sizes)[0])


def stack_size(trace: Trace, owner: Any, name: str | None = None) -> Tensor:
    """The number of values when a step asks."""
    return tensor(trace, owner._stack, "host_stack_size")


def close_stack(trace: Trace, owner: Any, name: str | None = None) -> Effect:
    """An effect that frees the values."""
    return effect(trace, owner._stack, "host_stack_close", name=name)
