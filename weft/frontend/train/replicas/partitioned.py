"""`create_partitioned_variables`: one table as several variables (TensorFlow 1's function)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.frontend.tensor import as_tensor
from weft.frontend.tracing.trace import current_trace
from weft.frontend.variable import Variable
from weft.ir.dims import format_shape
from weft.ir.dtypes import as_dtype
from weft.ir.errors import InvalidArgumentError, ShapeError
from weft.ir.locations import caller_location


def create_partitioned_variables(
    shape: Sequence[int],
    slicing: Sequence[int],
    initializer: Callable[..., Any] | Any,
    trainable: bool = True,
    name: str | None = None,
    dtype: object = None,
) -> list[Variable]:
    """The parts of a variable of `shape`, cut along the one axis on which `slicing` is not 1, as
    variables `name/part_0`, `name/part_1`, ...; the first ones are one longer where it does not
    divide. `wf.nn.embedding_lookup` and the losses of `wf.nn` take the list.

    initializer: a value of `shape`, of which each part gets its slice, or a function that gives a
    part's from its shape, called as `initializer(shape)` or, with a dtype, `initializer(shape,
    dtype=dtype)`: nothing as large as the whole is made then. InvalidArgumentError for a slicing
    that cuts several axes or into more parts than there are rows.
    """
    full, cuts = tuple(shape), tuple(slicing)
    whole = all(type(n) is int for n in (*full, *cuts)) and len(full) == len(cuts)
    cut = [axis for axis, n in enumerate(cuts) if n != 1]
    if not whole or len(cut) > 1 or any(not 1 <= n <= d for n, d in zip(cuts, full, strict=True)):
        raise InvalidArgumentError(
            f"create_partitioned_variables: slicing={list(cuts)} of shape={list(full)}",
            hint="one number for each axis: the parts along one of them, at most its size; else 1",
            location=caller_location(),
        )
    axis = cut[0] if cut else 0
    count = cuts[axis] if cuts else 1
    value = None if callable(initializer) else _value(initializer, full, dtype)
    trace = current_trace()
    label = f"{name or 'variable'}/part"
    if trace is not None and f"{trace.name_scope}{label}_0" in trace.variables:
        raise InvalidArgumentError(
            f"create_partitioned_variables: there is a variable '{label}_0' already",
            hint="give each table a name of its own",
            location=caller_location(),
        )
    made, start = [], 0
    for number in range(count):
        size = full[axis] // count + (number < full[axis] % count) if full else 1
        part = (*full[:axis], size, *full[axis + 1 :]) if full else ()
        if value is None:
            given = initializer(part) if dtype is None else initializer(part, dtype=as_dtype(dtype))
        else:
            given = value[(slice(None),) * axis + (slice(start, start + size),)] if full else value
        made.append(Variable(given, trainable=trainable, dtype=dtype, name=f"{label}_{number}"))
        start += size
    return made


def _value(initializer: Any, full: tuple[int, ...], dtype: object) -> np.ndarray[Any, Any]:
    t = as_tensor(initializer, None if dtype is None else as_dtype(dtype))
    if t.shape != full:
        raise ShapeError(
            f"create_partitioned_variables: an initializer of shape {format_shape(t.shape)} for a "
            f"variable of shape {list(full)}",
            location=caller_location(),
        )
    return t._concrete("the initial value of a partitioned variable", "pass a function of a shape")
