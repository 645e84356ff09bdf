"""The op `scalar_function`: a plain Python function of numbers, applied element by element
(`wf.elementwise`), where it branches or loops on its operands.

The attributes say which function: `function` is its module and name, for people and for whoever
looks it up; `code` the digest of its bytecode and constants (`python_function.py`). The text of a
graph has no code: a process that evaluates the op must have defined the same function.

Operands are f32, f64, i64, u64 and bool, floats all of one dtype, in which the function computes
all floats; integers compute in 64 bits and wrap. `dtype` is that of the result. The meaning is the
Python function itself, called for each element, with NumPy's functions in place of `math`'s: no
error, but inf and NaN, where a function has no value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import numpy as np

from weft.ir import dtypes
from weft.ir.dtypes import DType
from weft.ir.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    TypeRuleError,
    WeftError,
)
from weft.ir.graph import Block, Operation
from weft.ir.process import ForkLock
from weft.ir.python_function import copied, fingerprint
from weft.ir.scalar_numbers import number_class, of_numbers
from weft.ir.spec import (
    Array,
    Attrs,
    AttrSpec,
    OpSpec,
    dtype_attr,
    elementwise_shape,
    quietly,
    tensors,
)
from weft.ir.types import TensorType, Type

#: The letter of each dtype that operands and results have, in the signature of a function.
KINDS = {
    dtypes.float32: "f", dtypes.float64: "f", dtypes.int64: "i", dtypes.uint64: "u",
    dtypes.bool_: "b",
}  # fmt: skip

Dtypes = tuple[DType, ...]
#: Elementwise ops whose code is a function of the user's (`codegen/scalar/replaced_ops.py`), each
#: with the dtypes of operands that it is for: one for all, or one for each.
REPLACED: dict[str, list[tuple[FunctionType, Dtypes]]] = {}

_lock = ForkLock()
_by_name: dict[str, list[FunctionType]] = {}
_by_code: dict[tuple[str, str], FunctionType] = {}
_meanings: dict[tuple[str, str], Callable[..., Any]] = {}


def full_name(function: FunctionType) -> str:
    """The module and the name of a function, by which a graph's text names it."""
    return f"{function.__module__}.{function.__qualname__}"


def define_scalar_function(function: FunctionType) -> None:
    """Make a function known to this process by its name; one that had the name before stays known
    to the graphs that were built with it."""
    with _lock:
        _by_name.setdefault(full_name(function), []).append(function)


def code_of(function: FunctionType) -> str:
    """The digest of a function that was defined; from now on it is found by that, as it is now:
    a copy keeps the values of its globals and closure."""
    key = full_name(function), fingerprint(function)
    if key not in _by_code:
        _by_code[key] = copied(function, lambda value: value)
    return key[1]


def defined_function(name: str) -> FunctionType | None:
    """The function of this name that was defined last; None if there is none. What a script has
    defined, `__main__.f`, is found in the module that the script's file is when it is imported."""
    found = _defined(name)
    return found[-1] if found else None


def _defined(name: str) -> list[FunctionType]:
    module, _, own = name.partition(".")
    if name in _by_name or module != "__main__":
        return _by_name.get(name, [])
    return [f for held in _by_name.values() for f in held if f.__qualname__ == own]


def find_scalar_function(name: str, code: str) -> FunctionType:
    """The function of that name and digest. FailedPreconditionError if this process has none."""
    found = _by_code.get((name, code))
    if found is not None:
        return found
    defined = _defined(name)
    for function in reversed(defined):
        if code_of(function) == code:
            return _by_code[full_name(function), code]
    module = name.partition(".")[0]
    what = "has other code or other constants here" if defined else "is not defined here"
    raise FailedPreconditionError(
        f"the scalar function '{name}' of the graph {what}",
        hint=f"import the module that defines it with @wf.elementwise before the graph runs "
        f"(weft worker --import {module}; weft kernel check --import {module})",
    )


def function_name(attrs: Attrs) -> tuple[str, str]:
    """The name and the digest of an op's function."""
    return str(attrs["function"]), str(attrs["code"])


def working_dtype(operands: Sequence[DType], result: DType) -> DType:
    """The dtype in which a function computes floats: that of the floats among its operands and
    its result, else float64."""
    floats = [d for d in (*operands, result) if d.is_floating]
    return floats[0] if floats else dtypes.float64


def signature_of(op: Operation) -> tuple[str, DType]:
    """The letters of an op's operands, as `KINDS` has them, and the dtype of its floats."""
    held = [v.type.dtype for v in op.operands if isinstance(v.type, TensorType)]
    letters = "".join(KINDS[d] for d in held)
    return letters, working_dtype(held, dtype_attr(op.attrs, "dtype"))


def _infer(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    operands, result = tensors("scalar_function", types), dtype_attr(attrs, "dtype")
    if not operands:
        raise TypeRuleError("op 'scalar_function' takes at least one operand")
    held = [t.dtype for t in operands]
    if any(d not in KINDS for d in (*held, result)):
        raise TypeRuleError(
            f"op 'scalar_function' takes float32, float64, int64, uint64 and bool, got "
            f"({', '.join(map(str, operands))}) -> {result.name}",
            hint="convert operands and result with wf.astype",
        )
    if len({d for d in (*held, result) if d.is_floating}) > 1:
        raise TypeRuleError("op 'scalar_function' takes floats of one dtype")
    return [TensorType(result, elementwise_shape("scalar_function", operands))]


def _evaluate(arrays: Sequence[Array], attrs: Attrs) -> Array:
    return quietly(_element_by_element, arrays, attrs)


def _element_by_element(arrays: Sequence[Array], attrs: Attrs) -> Array:
    key, dtype = function_name(attrs), dtype_attr(attrs, "dtype")
    function = _meanings.get(key)
    if function is None:
        function = _meanings[key] = numpy_copy(find_scalar_function(*key))
    columns = [
        list(map(number_class(a.dtype.type), a.ravel().tolist()))
        if a.dtype.kind == "f"
        else a.ravel().tolist()
        for a in arrays
    ]
    try:
        made = [function(*row) for row in zip(*columns, strict=True)]
    except (WeftError, MemoryError):
        raise
    except Exception as error:
        raise InvalidArgumentError(
            f"the scalar function '{key[0]}' raised {type(error).__name__}: {error}"
        ) from error
    if dtype.is_integer:
        made = [_wrapped(value, dtype) for value in made]
    return np.array(made, dtype.numpy).reshape(arrays[0].shape)


def _wrapped(value: Any, dtype: DType) -> int:
    """An integer of any size as 64 bits hold it."""
    number = int(value) & (1 << 64) - 1
    return number - (1 << 64) if dtype is dtypes.int64 and number >> 63 else number


def numpy_copy(function: FunctionType) -> Callable[..., Any]:
    """The function with NumPy's functions in place of `math`'s, all parameters by position."""
    made = copied(function, of_numbers, by_position)
    return by_position(made)


def by_position(function: FunctionType) -> FunctionType:
    """The function with its keyword-only parameters as plain ones."""
    code = function.__code__
    if not code.co_kwonlyargcount:
        return function
    count = code.co_argcount + code.co_kwonlyargcount
    plain = code.replace(co_argcount=count, co_kwonlyargcount=0)
    scope, closure = function.__globals__, function.__closure__
    return FunctionType(plain, scope, function.__name__, None, closure)


TABLE: tuple[OpSpec, ...] = (
    OpSpec(
        "scalar_function",
        None,
        _infer,
        _evaluate,
        "A Python function of numbers, element by element; `function` and `code` say which.",
        {"function": AttrSpec("str"), "code": AttrSpec("str"), "dtype": AttrSpec("dtype")},
        frozenset({"elementwise", "no_fold"}),
    ),
)
