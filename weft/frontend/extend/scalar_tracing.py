"""Tracing of scalar Python functions: a copy of one that takes tensors, and whether that works.

A copy's globals are what they were, but for `math` and `numpy`, whose functions are weft's on
tensors, and the builtins `max`, `min`, `float`, `round`, and
`isinstance` and `type`, which cannot be traced. A function can be traced if a run of
the copy on symbolic numbers goes through: it asks no tensor for its truth, and is not longer than
`MOST_OPS`, as loops of constant length are unrolled."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np

from weft.frontend.core.operators import Operators
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import Trace
from weft.frontend.ops import elementwise, special
from weft.frontend.ops.promotion import cast, is_scalar
from weft.ir.dtypes import DType, int64
from weft.ir.errors import TracerError
from weft.ir.graph import Block, Value
from weft.ir.python_function import copied
from weft.ir.spec import Attrs
from weft.ir.types import TensorType

#: A trace of so many ops is a loop that should not be unrolled.
MOST_OPS = 512

#: The functions of `math` that are weft's under another name.
_NAMES = {
    "fabs": elementwise.abs, "pow": special.pow, "degrees": special.rad2deg,
    "radians": special.deg2rad, "copysign": elementwise.copysign, "isnan": elementwise.isnan,
    "isinf": elementwise.isinf, "isfinite": elementwise.isfinite, "fma": elementwise.fma,
    "nextafter": elementwise.nextafter,
}  # fmt: skip
#: NumPy's names of functions that are weft's under another one.
_OF_NUMPY = {
    "arccos": "acos", "arcsin": "asin", "arctan": "atan", "arctan2": "atan2",
    "arccosh": "acosh", "arcsinh": "asinh", "arctanh": "atanh", "absolute": "abs", "power": "pow",
    "mod": "remainder", "invert": "bitwise_invert",
}  # fmt: skip


def tensor_copy(function: FunctionType) -> FunctionType:
    """The function for tensors."""
    return copied(function, _of_tensors)


def _of_tensors(value: Any) -> Any:
    if value is math or value is np:
        return _Maths(value)
    if isinstance(value, (type, BuiltinFunctionType)) and value in _BUILTINS:
        return _on_tensors(value, _BUILTINS[value])
    if isinstance(value, BuiltinFunctionType) and value.__module__ == "math":
        return getattr(_Maths(math), value.__name__)
    if isinstance(value, np.ufunc):
        return getattr(_Maths(np), value.__name__)
    return value


class _Maths:
    """The names of `math` or of `numpy`: on tensors, functions of weft's."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        own = getattr(self._module, name)
        function = _function(self._module, name) if callable(own) else None
        return own if function is None else _on_tensors(own, function)


def _function(module: ModuleType, name: str) -> Callable[..., Any] | None:
    if module is math:
        if name in ("floor", "ceil", "trunc"):  # Python's are integers
            return lambda x: cast(getattr(elementwise, name)(x), int64)
        if name == "fmod":
            return None
        own: Any = _NAMES.get(name)
        return own or _named(special, name)
    name = _OF_NUMPY.get(name, name)
    for holder in (special, elementwise):
        if isinstance(getattr(np, name, None), np.ufunc) or name in ("where", "clip", "abs"):
            found = _named(holder, name)
            if found is not None:
                return found
    return None


def _named(holder: ModuleType, name: str) -> Callable[..., Any] | None:
    found: Callable[..., Any] | None = getattr(holder, name, None)
    return found


def _on_tensors(own: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        symbolic = any(isinstance(a, Operators) for a in (*args, *kwargs.values()))
        return (function if symbolic else own)(*args, **kwargs)

    return call


def _extremum(wins: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Python's max or min: the first one that no other wins against."""

    def call(*given: Any) -> Any:
        best, *others = given if len(given) > 1 else tuple(given[0])
        for other in others:
            best = elementwise.where(wins(other, best), other, best)
        return best

    return call


def _float(x: Any) -> Any:
    held = as_tensor(x)
    return held if held.dtype.is_floating else elementwise.multiply(held, 1.0)


def _round(x: Any, digits: Any = None) -> Any:
    if digits is not None:
        raise TracerError("round(tensor, digits) cannot be traced")
    return cast(elementwise.round(x), int64)


def _of_types(*given: Any) -> Any:
    raise TracerError("the type of a number cannot be asked for while it is traced")


_BUILTINS: dict[Any, Callable[..., Any]] = {
    max: _extremum(lambda a, b: a > b),
    min: _extremum(lambda a, b: a < b),
    float: _float,
    round: _round,
    isinstance: _of_types,
    type: _of_types,
}


class _Trial(Trace):
    """A trace that ends when it gets too long."""

    def emit(
        self,
        name: str,
        operands: Sequence[Value] = (),
        attrs: Attrs | None = None,
        *,
        regions: Sequence[Block] = (),
        control: Sequence[Value] = (),
    ) -> tuple[Value, ...]:
        if len(self.builder.ops) >= MOST_OPS:
            raise TracerError(f"it is longer than {MOST_OPS} ops")
        return super().emit(name, operands, attrs, regions=regions, control=control)


def why_not(
    function: FunctionType, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Exception | None:
    """What a run of `tensor_copy` on numbers like these raises; None if it goes through. Tensors
    among the arguments become symbolic numbers of their dtype."""
    trial = _Trial("function", function.__name__, creates_variables=False)
    trial.symbols = set()

    def symbolic(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return trial.tensor(trial.add_arg(TensorType(value.dtype, ()), "x"), value.weak)

    try:
        with trial.active():
            made = function(*map(symbolic, args), **{n: symbolic(v) for n, v in kwargs.items()})
        if not isinstance(made, Operators) and not is_scalar(made):
            return TypeError(f"it returns a {type(made).__name__}, not a number")
    except Exception as error:
        return error
    return None


def single_op(function: FunctionType, dtype: DType) -> str | None:
    """The op that `tensor_copy` of a function of two numbers of this dtype consists of; None if it
    is more, or cannot be traced."""
    trial = _Trial("function", function.__name__, creates_variables=False)
    trial.symbols = set()
    args = [trial.add_arg(TensorType(dtype, ()), name) for name in "ab"]
    try:
        with trial.active():
            made = function(*map(trial.tensor, args))
    except Exception:
        return None
    op = made._value.op if isinstance(made, Tensor) and made._value is not None else None
    if op is None or op.result.type != TensorType(dtype, ()):
        return None
    return op.name if set(op.operands) == set(args) and len(op.operands) == 2 else None
