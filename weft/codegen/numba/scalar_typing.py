"""Python functions of numbers, compiled by Numba with all floats of one dtype: what a printed
kernel calls for a function of `wf.elementwise`, of `wf.reducer`, or of `wf.register_kernel`.

To Numba a literal is float64, and so is float32 with an integer; to weft a number is as weak in a
function as it is beside a tensor. `all_floats(float32)` compiles a function where float64 does not
exist: literals and constants of modules are float32, an integer that meets a float becomes one, and
so does what is float in one branch and integer in another. Nothing in the function is rewritten,
and the helpers that it calls are compiled in the same way. This is Numba's own typing with a few
answers changed, and knows nothing of the text that the LLVM engine narrows
(`codegen/scalar/user_functions.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from types import FunctionType
from typing import Any

import numba
import numpy as np
from numba.core import dispatcher, registry
from numba.core.typing import context as typing_rules

from weft.ir.ops.scalar_function import by_position, find_scalar_function
from weft.ir.python_function import copied

_numba: Any = numba
_types: Any = numba.types
_cpu: Any = registry.cpu_target
_CPUTarget: Any = registry.CPUTarget
_Context: Any = typing_rules.Context
_Dispatcher: Any = dispatcher.Dispatcher


def all_floats(kind: Any) -> Callable[[Callable[..., Any]], Any]:
    """Decorate a function of numbers: Numba compiles it into what calls it, with all its floats of
    `kind`, NumPy's float32 or float64. Its keyword-only parameters are plain ones."""

    def decorate(function: Callable[..., Any]) -> Any:
        assert isinstance(function, FunctionType)
        plain = by_position(function)
        if kind is np.float32:
            return _InFloat32(plain, targetoptions=dict(_OPTIONS, nopython=True, boundscheck=None))
        return _numba.njit(**_OPTIONS)(plain)

    return decorate


def named_function(name: str, code: str, kind: Any) -> Any:
    """A function that this process has defined, for a kernel whose text does not have its source.
    FailedPreconditionError if there is none of that name and digest."""
    decorate = all_floats(kind)
    return decorate(copied(find_scalar_function(name, code), lambda value: value, decorate))


#: Division by zero gives what NumPy gives.
_OPTIONS: dict[str, Any] = {"error_model": "numpy", "forceinline": True}


def _narrow(kind: Any) -> Any:
    if isinstance(kind, _types.BaseTuple):
        return _types.Tuple([_narrow(k) for k in kind.types])
    return _types.float32 if kind == _types.float64 else kind


class _Float32Context(_Context):  # type: ignore[misc]
    """Numba's rules of types without float64."""

    def resolve_value_type(self, val: Any) -> Any:
        """The type of a literal, or of a global's value."""
        return _narrow(super().resolve_value_type(val))

    def resolve_module_constants(self, typ: Any, attr: str) -> Any:
        """The type of `math.pi`."""
        return _narrow(super().resolve_module_constants(typ, attr))

    def resolve_getattr(self, typ: Any, attr: str) -> Any:
        """The type of an attribute."""
        return _narrow(super().resolve_getattr(typ, attr))

    def unify_pairs(self, first: Any, second: Any) -> Any:
        """The type of a variable that has one or the other."""
        return first if first == second else _narrow(super().unify_pairs(first, second))

    def resolve_function_type(self, func: Any, args: Sequence[Any], kws: Any) -> Any:
        """What a call takes and returns: where that would be float64, what it does for float32."""
        if isinstance(func, _types.NumberClass) and func.instance_type == _types.float64:
            func = _types.NumberClass(_types.float32)
        if getattr(func, "typing_key", None) is isinstance:  # which knows float64 as Python's float
            args = [_types.float64 if a == _types.float32 else a for a in args]
            return super().resolve_function_type(func, tuple(args), kws)
        made = super().resolve_function_type(func, args, kws)
        if made is None or _types.float64 not in (made.return_type, *made.args):
            return made
        given = tuple(map(_as_float, args))
        return super().resolve_function_type(func, given, kws) or made


def _as_float(kind: Any) -> Any:
    number = isinstance(kind, _types.Integer | _types.Boolean) or kind == _types.float64
    return _types.float32 if number else kind


class _Float32Target(_CPUTarget):  # type: ignore[misc]
    """The CPU, with those rules; code that was made for it is called from any other."""

    @cached_property
    def _toplevel_typing_context(self) -> Any:
        return _Float32Context()

    @cached_property
    def _toplevel_target_context(self) -> Any:
        whole = _cpu.target_context
        whole.refresh()
        return whole.subtarget(typing_context=self.typing_context)


class _InFloat32(_Dispatcher):  # type: ignore[misc]
    """A function that is compiled by those rules for the types of each call."""

    targetdescr = _Float32Target("cpu")
