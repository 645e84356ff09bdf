"""TensorFlow 1's names and argument orders: of ops that the array API calls otherwise, and of
updates of variables and questions about them, as functions.

Each is a thin function over an op of `weft.frontend.ops` or a method of `Variable`, which describes
dtypes and errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import Effect
from weft.frontend.ops import creation as ops_creation
from weft.frontend.ops import elementwise
from weft.frontend.ops import reduction as ops_reduction
from weft.frontend.ops.dispatch import apply, fresh_sizes
from weft.frontend.ops.manipulation import concat, cut, known_size
from weft.frontend.ops.promotion import (
    Axes,
    TensorLike,
    check_axis,
    inexact_tensor,
    scalar_tensor,
    strong_tensor,
    weaken,
)
from weft.frontend.session.graph import get_default_graph, with_name
from weft.frontend.state.scopes import device
from weft.frontend.state.variable import (
    Variable,
    assert_initialized,
    by_place,
    graph_or_none,
)
from weft.ir.errors import ShapeError, TypeRuleError, UnsupportedError
from weft.ir.interpreter.state import missing_names
from weft.ir.locations import caller_location


def cast(x: TensorLike, dtype: object, name: str | None = None) -> Tensor:
    """`astype(x, dtype)`."""
    return with_name(elementwise.astype(x, dtype), name)


def identity(x: TensorLike, name: str | None = None) -> Tensor:
    """x itself, as a value of its own: in a graph it comes after the current control dependencies.

    name: in a graph, what `Session.run(name)` fetches it by.
    """
    t = as_tensor(x)
    out = weaken(apply("identity", t), [t])
    return with_name(out, name)


def fill(dims: Any, value: TensorLike, name: str | None = None) -> Tensor:
    """`full(dims, value)`."""
    return with_name(ops_creation.full(dims, value), name)


def reduce_sum(
    x: TensorLike, axis: Axes = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """`sum`, but integers stay in their own dtype, as TF1 sums them."""
    t = strong_tensor(x)
    dtype = t.dtype if t.dtype.is_numeric else None
    return with_name(ops_reduction.sum(t, axis, dtype=dtype, keepdims=keepdims), name)


def reduce_prod(
    x: TensorLike, axis: Axes = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """`prod`, but integers stay in their own dtype, as TF1 multiplies them."""
    t = strong_tensor(x)
    dtype = t.dtype if t.dtype.is_numeric else None
    return with_name(ops_reduction.prod(t, axis, dtype=dtype, keepdims=keepdims), name)


def reduce_mean(
    x: TensorLike, axis: Axes = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """`mean` (of integers: a float)."""
    return with_name(ops_reduction.mean(x, axis, keepdims=keepdims), name)


def reduce_max(
    x: TensorLike, axis: Axes = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """`max`."""
    return with_name(ops_reduction.max(x, axis, keepdims=keepdims), name)


def reduce_min(
    x: TensorLike, axis: Axes = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """`min`."""
    return with_name(ops_reduction.min(x, axis, keepdims=keepdims), name)


def reduce_all(
    x: TensorLike, axis: Axes = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """`all`."""
    return with_name(ops_reduction.all(x, axis, keepdims=keepdims), name)


def reduce_any(
    x: TensorLike, axis: Axes = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """`any`."""
    return with_name(ops_reduction.any(x, axis, keepdims=keepdims), name)


def reduce_logsumexp(
    x: TensorLike, axis: Axes = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """`logsumexp`."""
    return with_name(ops_reduction.logsumexp(x, axis, keepdims=keepdims), name)


def cumsum(
    x: TensorLike,
    axis: int = 0,
    exclusive: bool = False,
    reverse: bool = False,
    name: str | None = None,
) -> Tensor:
    """TF1's running sum: `reverse` starts at the end, `exclusive` leaves each element itself
    out.
    """
    return with_name(_tf_running("cumulative_sum", x, axis, exclusive, reverse), name)


def cumprod(
    x: TensorLike,
    axis: int = 0,
    exclusive: bool = False,
    reverse: bool = False,
    name: str | None = None,
) -> Tensor:
    """TF1's running product: `reverse` starts at the end, `exclusive` leaves each element itself
    out.
    """
    return with_name(_tf_running("cumulative_prod", x, axis, exclusive, reverse), name)


def logcumsumexp(
    x: TensorLike, axis: int = 0, exclusive: bool = False, reverse: bool = False
) -> Tensor:
    """`cumulative_logsumexp` with TF's arguments (`tf.math.cumulative_logsumexp`), as `cumsum`.

    >>> wf.tf1.logcumsumexp([0.0, 0.0, 0.0], exclusive=True).numpy().round(3)
    array([ -inf, 0.   , 0.693], dtype=float32)
    """
    t = inexact_tensor(x, "logcumsumexp")
    return _tf_running("cumulative_logsumexp", t, axis, exclusive, reverse)


def cummax(x: TensorLike, axis: int = 0, reverse: bool = False) -> Tensor:
    """`cumulative_max` with JAX's arguments (`jax.lax.cummax`): `reverse` starts at the end.

    >>> wf.tf1.cummax([1, 3, 2], reverse=True)
    Tensor([3, 3, 2], dtype=int64)
    """
    return _tf_running("cumulative_max", x, axis, False, reverse)


def cummin(x: TensorLike, axis: int = 0, reverse: bool = False) -> Tensor:
    """`cumulative_min` with JAX's arguments (`jax.lax.cummin`): `reverse` starts at the end.

    >>> wf.tf1.cummin([[3, 1], [2, 4]])
    Tensor([[3, 1],
            [2, 1]], dtype=int64)
    """
    return _tf_running("cumulative_min", x, axis, False, reverse)


#: What comes first in a running reduction that leaves each element itself out.
_FIRST = {"cumulative_sum": 0, "cumulative_prod": 1, "cumulative_logsumexp": -math.inf}


def _tf_running(op: str, x: TensorLike, axis: int, exclusive: bool, reverse: bool) -> Tensor:
    t = strong_tensor(x)
    along = check_axis(op, axis, t.ndim)
    if exclusive:  # shift by one element and start with the neutral one
        size, first = known_size(op, t, along), int(reverse)
        here, none = tuple(int(i == along) for i in range(t.ndim)), (0,) * t.ndim
        fill = scalar_tensor(_FIRST[op], t.dtype)
        t = apply("pad", t, fill, lo=none if reverse else here, hi=here if reverse else none)
        t = cut(t, along, first, size + first)
    return apply(op, t, axis=along, reverse=bool(reverse))


def _variable(ref: Any, function: str) -> Variable:
    if not isinstance(ref, Variable):
        raise TypeRuleError(
            f"wf.{function}: the first argument is a {type(ref).__name__}, not a wf.Variable",
            hint="only variables can be changed; x.at[...] gives a changed tensor",
            location=caller_location(),
        )
    return ref


def assign(
    ref: Variable, value: Any, validate_shape: bool | None = None, use_locking: bool | None = None,
    name: str | None = None,
) -> Tensor:  # fmt: skip
    """`ref.assign(value)`: the new value. use_locking: updates are atomic with it and without.

    TypeRuleError or ShapeError for a value that does not fit. Sizes that are not known are checked
    when a step runs. A variable that was made with validate_shape=False takes any sizes, whatever
    it says here; for one that was not another shape is an UnsupportedError with
    validate_shape=False: compiled steps hold the address and the size of its memory.
    """
    variable = _variable(ref, "assign")
    try:
        return with_name(variable.assign(value, use_locking), name)
    except ShapeError as error:
        if validate_shape is None or validate_shape:
            raise
        raise UnsupportedError(
            f"wf.tf1.assign(validate_shape=False): {error.what}",
            hint="a variable takes values of other sizes if it was made with validate_shape=False",
            location=caller_location(),
        ) from None


def assign_add(
    ref: Variable, value: Any, use_locking: bool | None = None, name: str | None = None
) -> Tensor:
    """`ref.assign_add(value)`, as one access: the new value."""
    return with_name(_variable(ref, "assign_add").assign_add(value, use_locking), name)


def assign_sub(
    ref: Variable, value: Any, use_locking: bool | None = None, name: str | None = None
) -> Tensor:
    """`ref.assign_sub(value)`, as one access: the new value."""
    return with_name(_variable(ref, "assign_sub").assign_sub(value, use_locking), name)


def scatter_add(
    ref: Variable, indices: Any, updates: Any, use_locking: bool | None = None,
    name: str | None = None,
) -> Tensor:  # fmt: skip
    """Add `updates`, of shape indices.shape + ref.shape[1:], to the rows of `ref` at `indices`,
    as one access; duplicates add up. The new value."""
    variable = _variable(ref, "scatter_add")
    return with_name(variable.scatter_add(indices, updates, use_locking), name)


def scatter_sub(
    ref: Variable, indices: Any, updates: Any, use_locking: bool | None = None,
    name: str | None = None,
) -> Tensor:  # fmt: skip
    """As `scatter_add`, subtracting."""
    variable = _variable(ref, "scatter_sub")
    return with_name(variable.scatter_sub(indices, updates, use_locking), name)


def scatter_update(
    ref: Variable, indices: Any, updates: Any, use_locking: bool | None = None,
    name: str | None = None,
) -> Tensor:  # fmt: skip
    """Replace the rows of `ref` at `indices`, as one access; of duplicates the last stays. The
    new value."""
    variable = _variable(ref, "scatter_update")
    return with_name(variable.scatter_update(indices, updates, use_locking), name)


def count_up_to(ref: Variable, limit: int, name: str | None = None) -> Tensor:
    """`ref.count_up_to(limit)`: add 1; the value before. OutOfRangeError if that is `limit`."""
    return with_name(_variable(ref, "count_up_to").count_up_to(limit), name)


# --------------------------------------------------------------------------------------- questions
def is_variable_initialized(variable: Variable) -> Tensor:
    """Whether it has a value, a bool without axes: now, or in a graph when a step asks."""
    return _variable(variable, "is_variable_initialized").is_initialized()


def report_uninitialized_variables(
    var_list: Sequence[Variable] | None = None, name: str | None = None
) -> Tensor:
    """The names of the variables that have no value, as a vector of strings.

    var_list: all variables of the graph so far if None. In a graph they are looked at when a step
    asks, device by device, elsewhere now. UnsupportedError in a compiled function.
    """
    trace = graph_or_none("wf.tf1.report_uninitialized_variables")
    held = _variables(var_list, "report_uninitialized_variables")
    names = tuple(v.name for v in held)
    if trace is None:
        return Tensor(missing_names(names, [v.current_state.initialized for v in held]))
    found: list[Tensor] = []
    for pairs in by_place(trace, held):  # an op is on one device
        sizes = fresh_sizes(trace, "uninitialized", 1)
        attrs = {"names": tuple(v.name for _, v in pairs), "sizes": sizes}
        refs = [handle for handle, _ in pairs]
        found.append(trace.tensor(trace.emit("report_uninitialized", refs, attrs)[0]))
    if len(found) == 1:
        return with_name(found[0], name)
    with device("/cpu:0"):  # strings are not for a GPU, which some of the variables may be on
        return with_name(concat(found), name)


def assert_variables_initialized(var_list: Sequence[Variable] | None = None) -> Effect:
    """An effect that raises FailedPreconditionError, which names them, if variables have no value.

    var_list: all variables of the graph so far if None. Outside a graph it is done at once.
    UnsupportedError in a compiled function.
    """
    return assert_initialized(_variables(var_list, "assert_variables_initialized"))


def _variables(given: Sequence[Variable] | None, function: str) -> list[Variable]:
    if given is None:
        return get_default_graph().variables
    return [_variable(v, function) for v in given]
