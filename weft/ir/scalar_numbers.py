"""Floats of the reference evaluation of scalar Python functions: arithmetic and functions are
NumPy's in the dtype of the operands, without errors, and comparisons give Python's bools, of which
a sum counts."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from types import BuiltinFunctionType, ModuleType
from typing import Any

import numpy as np

_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow")
_OPERATORS = (
    *(f"__{name}__" for name in _ARITHMETIC), *(f"__r{name}__" for name in _ARITHMETIC),
    *("__neg__", "__pos__", "__abs__", "__round__"),
    *("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"),
)  # fmt: skip
#: NumPy's names of the functions of `math` that it calls otherwise.
_OTHERWISE = {
    "acos": "arccos", "asin": "arcsin", "atan": "arctan", "atan2": "arctan2", "acosh": "arccosh",
    "asinh": "arcsinh", "atanh": "arctanh",
}  # fmt: skip


class Number(float):
    """A float of the dtype `kind`."""

    __slots__ = ()
    kind: Any = np.float64
    __hash__ = float.__hash__


@cache
def number_class(kind: Any) -> type[Number]:
    """The floats of NumPy's scalar type `kind`."""
    made = type(f"Number_{kind.__name__}", (Number,), {"__slots__": (), "kind": kind})
    for name in _OPERATORS:
        setattr(made, name, _operator(getattr(kind, name), kind, made))
    made.__hash__ = float.__hash__  # type: ignore[method-assign, assignment]
    return made


def _operator(own: Callable[..., Any], kind: Any, held: type[Number]) -> Callable[..., Any]:
    def method(self: Number, *others: Any) -> Any:
        given = [kind(o) if isinstance(o, float) else o for o in others]
        return _held(own(kind(self), *given), held)

    return method


def _held(value: Any, held: type[Number]) -> Any:
    """What NumPy gives as the function sees it."""
    if isinstance(value, np.ndarray) and not value.ndim:
        value = value[()]
    if isinstance(value, np.floating):
        return held(value)
    if isinstance(value, np.bool_):
        return bool(value)
    return tuple([_held(v, held) for v in value]) if isinstance(value, tuple) else value


def of_numbers(value: Any) -> Any:
    """What a scalar function finds around it, for `Number`s: NumPy's functions in place of
    `math`'s."""
    if value is math or value is np:
        return _Module(value)
    if isinstance(value, BuiltinFunctionType) and value.__module__ == "math":
        return getattr(_Module(math), value.__name__)
    return _function(value) if isinstance(value, np.ufunc) else value


class _Module:
    """The names of `math` or `numpy`."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        own = getattr(self._module, name)
        if self._module is np:
            return _function(own) if callable(own) and not isinstance(own, type) else own
        found = getattr(np, _OTHERWISE.get(name, name), None)
        if isinstance(found, np.ufunc) and name not in ("floor", "ceil", "trunc"):
            return _function(found)
        if name in ("erf", "erfc", "lgamma"):
            import scipy.special

            return _function(getattr(scipy.special, {"lgamma": "gammaln"}.get(name, name)))
        return own


def _function(own: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        held = next((type(a) for a in args if isinstance(a, Number)), None)
        if held is None:
            return own(*args, **kwargs)
        given = [a.kind(a) if isinstance(a, Number) else a for a in args]
        return _held(own(*given, **kwargs), held)

    return call
