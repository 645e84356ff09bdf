"""What NumPy does when it meets a Tensor: operators give tensors, functions take concrete values
only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.frontend.operators import BINARY, METHODS, Operators
from weft.ir.errors import TracerError
from weft.ir.source import caller_location

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
    "concatenate": "concat", "transpose": "permute_dims", "cumsum": "cumulative_sum",
    "arcsin": "asin", "cumprod": "cumulative_prod", "arccos": "acos", "arctan": "atan",
    "arctan2": "atan2", "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh",
    "invert": "bitwise_invert", "conjugate": "conj", "absolute": "abs", "true_divide": "divide",
    "fmod": "remainder", "mod": "remainder", "swapaxes": "permute_dims",
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
        hint=f"use wf.{_NAMES.get(name, name)}",
        location=caller_location(),
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
