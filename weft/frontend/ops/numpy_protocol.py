"""What NumPy does when it meets a Tensor: operators give tensors, functions take concrete values
only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.frontend.ops.operators import BINARY, METHODS, Operators
from weft.ir.errors import TracerError
from weft.ir.locations import caller_location

if TYPE_CHECKING:
    from weft.frontend.tensor import Tensor

# `array + tensor` reaches us as numpy.add; these ufuncs are operators and give tensors
_OPERATOR = {
    getattr(np, numpy_name): name
    for name in BINARY
    for numpy_name in (name.removeprefix("bitwise_") if name.endswith("shift") else name,)
}
# where weft's name is not NumPy's
_NAMES = {
    "concatenate": "concat", "hstack": "concat", "vstack": "concat", "transpose": "permute_dims",
    "cumsum": "cumulative_sum", "cumprod": "cumulative_prod", "ravel": "flatten",
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arctan2": "atan2", "arcsinh": "asinh",
    "arccosh": "acosh", "arctanh": "atanh", "invert": "bitwise_invert", "conjugate": "conj",
    "left_shift": "bitwise_left_shift", "right_shift": "bitwise_right_shift", "absolute": "abs",
    "fabs": "abs", "true_divide": "divide", "mod": "remainder", "power": "pow", "rint": "round",
    "around": "round", "amax": "max", "amin": "min", "degrees": "rad2deg", "radians": "deg2rad",
    "norm": "vector_norm", "vdot": "vecdot", "unique": "unique_values",
}  # fmt: skip


def _symbolic(values: Iterable[Any]) -> Tensor | None:
    """The first symbolic tensor in nested lists, tuples and dicts."""
    for value in values:
        if isinstance(value, Operators) and getattr(value, "_trace", None) is not None:
            return value  # type: ignore[return-value]
        if isinstance(value, (list, tuple, dict)):
            found = _symbolic(value.values() if isinstance(value, dict) else value)
            if found is not None:
                return found
    return None


def _arrays(value: Any) -> Any:
    """`value` with the concrete tensors and variables in it as NumPy arrays."""
    if isinstance(value, Operators):
        return np.asarray(value)
    if type(value) in (list, tuple):
        return type(value)(_arrays(v) for v in value)
    return {k: _arrays(v) for k, v in value.items()} if type(value) is dict else value


def _refuse(name: str, tensor: Tensor) -> None:
    raise TracerError(
        f"NumPy cannot compute np.{name} of the symbolic tensor {tensor.describe()}: "
        "it has no value yet",
        hint=numpy_hint(name),
        location=caller_location(),
    )


def numpy_hint(name: str) -> str:
    """What to use for the NumPy function of that name on symbolic tensors."""
    public: Any = sys.modules["weft"]
    mine = _NAMES.get(name, name)
    if mine in public.__all__:
        return f"use wf.{mine}"
    return (
        "weft has no function of that name: return the tensor from the compiled function first, "
        "or build the result of functions that weft has"
    )


def array_ufunc(self: Operators, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
    """NumPy's hook for ufuncs (NEP 13): operators go to weft, the rest needs values."""
    if method == "__call__" and ufunc in _OPERATOR and not options:
        return METHODS[_OPERATOR[ufunc]](*inputs)
    tensor = _symbolic([*inputs, *options.values()])
    if tensor is not None:
        _refuse(ufunc.__name__, tensor)
    return getattr(ufunc, method)(*_arrays(inputs), **_arrays(options))


def array_function(
    self: Operators, func: Callable[..., Any], types: Any, args: Any, kwargs: Any
) -> Any:
    """NumPy's hook for its other functions (NEP 18)."""
    tensor = _symbolic([args, kwargs])
    if tensor is not None:
        _refuse(func.__name__, tensor)
    return func(*_arrays(args), **_arrays(kwargs))
