"""Scalar Python functions as data: the digest that identifies one, and copies that see other
globals.

What a function does follows from its bytecode and from the globals and closure that it names: both
are in its digest (`fingerprint`), those of the plain functions that it calls, too. A copy
(`copied`) has these values replaced, so that `math.exp` is a function of tensors while the function
is traced, and NumPy's in the interpreter. An object that stands for a scalar function (that
`wf.elementwise` made) has it as `__scalar__`."""

from __future__ import annotations

import builtins
import dis
import hashlib
import sys
from collections.abc import Callable, Iterator
from functools import cache
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from weft.ir.errors import UnsupportedError

_LOADS = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_MISSING = object()


@cache
def global_names(code: CodeType) -> list[str]:
    """The global names that a code object reads, those of nested functions too."""
    found = {
        str(i.argval): None for i in dis.get_instructions(code) if i.opname in _LOADS
    }  # fmt: skip
    for const in code.co_consts:
        if isinstance(const, CodeType):
            found |= dict.fromkeys(global_names(const))
    return list(found)


def surroundings(function: FunctionType) -> Iterator[tuple[str, object]]:
    """The values that a function takes from around it: globals, builtins, the closure. A name that
    has none (yet) is left out."""
    scope, own = function.__globals__, vars(builtins)
    for name in global_names(function.__code__):
        value = scope.get(name, own.get(name, _MISSING))
        if value is not _MISSING:
            yield name, value
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # assigned to later
            continue


def around(function: FunctionType) -> list[object]:
    """All that a function and the scalar functions that it calls find around them: `is` tells
    whether it has changed since."""
    found: list[object] = []
    rest, seen = [function], {function}
    while rest:
        for _, value in surroundings(rest.pop()):
            found.append(value)
            inner = scalar_function(value)
            if inner is not None and inner not in seen:
                seen.add(inner)
                rest.append(inner)
    return found


def handles_errors(code: CodeType) -> bool:
    """Whether a code object, or one of a function in it, has a `try` or a `with`."""
    inner = (c for c in code.co_consts if isinstance(c, CodeType))
    own = any(i.opname == "PUSH_EXC_INFO" for i in dis.get_instructions(code))
    return own or any(map(handles_errors, inner))


def scalar_function(value: object) -> FunctionType | None:
    """The user's plain function that a value is or stands for (`__scalar__`, Numba's `py_func`);
    None for anything else, a library's function among it."""
    for name in ("__scalar__", "py_func"):
        inner = getattr(value, name, None)
        if isinstance(inner, FunctionType):
            return inner
    if not isinstance(value, FunctionType):
        return None
    root = str(value.__module__ or "").partition(".")[0]
    library = root in sys.stdlib_module_names and root != "__main__"
    return None if library or root in ("numpy", "scipy", "weft", "numba") else value


def fingerprint(function: FunctionType) -> str:
    """The digest of all that a function's meaning depends on: equal in two processes that have the
    same source, constants and Python. UnsupportedError for a global that cannot be part of it."""
    parts = [f"{sys.version_info[0]}.{sys.version_info[1]}", *_describe(function, {})]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]


def _describe(function: FunctionType, seen: dict[int, int]) -> Iterator[str]:
    number = seen.setdefault(id(function), len(seen))
    yield f"function {number}"
    yield from _code(function.__code__)
    names = global_names(function.__code__)
    for name, value in surroundings(function):
        yield f"{name} ="
        yield from _value(function, name, value, names, seen)


def _code(code: CodeType) -> Iterator[str]:
    kinds = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    yield f"code {kinds} {code.co_varnames} {code.co_names} {code.co_freevars}"
    yield code.co_code.hex()
    yield code.co_exceptiontable.hex()
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _code(const)
        else:
            yield f"{type(const).__name__} {const!r}"


def _value(
    function: FunctionType, name: str, value: object, names: list[str], seen: dict[int, int]
) -> Iterator[str]:
    inner = scalar_function(value)
    if inner is not None:
        if id(inner) in seen:
            yield f"function {seen[id(inner)]}"
        else:
            yield from _describe(inner, seen)
    elif isinstance(value, ModuleType):
        yield f"module {value.__name__}"
        for attribute in function.__code__.co_names:
            held = getattr(value, attribute, None)
            if isinstance(held, (bool, int, float, complex, np.generic)):
                yield f"{attribute} {held!r}"
    elif isinstance(value, (bool, int, float, complex, str, bytes, np.generic)) or value is None:
        yield f"{type(value).__name__} {value!r}"
    elif isinstance(value, tuple):
        yield f"tuple {len(value)}"
        for k, element in enumerate(value):
            yield from _value(function, f"{name}[{k}]", element, names, seen)
    elif isinstance(value, (BuiltinFunctionType, np.ufunc, FunctionType, type)):
        yield f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value)}"
    else:
        raise UnsupportedError(
            f"the scalar function '{function.__name__}' uses '{name}', a "
            f"{type(value).__name__}, which cannot be a constant of its code",
            hint="numbers, strings, tuples of them, modules and functions can; give anything else "
            "as an operand",
        )


Replace = Callable[[Any], Any]


def copied(
    function: FunctionType, replace: Replace, finish: Replace = lambda made: made
) -> FunctionType:
    """A copy of a function whose surroundings went through `replace`; scalar functions among them
    are copied in the same way, and then go through `finish`."""
    return _copy(function, replace, finish, {})


def _copy(
    function: FunctionType, replace: Replace, finish: Replace, made: dict[int, Any]
) -> FunctionType:
    scope = dict(function.__globals__)
    cells = tuple(CellType() for _ in function.__closure__ or ())
    copy = FunctionType(
        function.__code__, scope, function.__name__, function.__defaults__, cells or None
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__qualname__, copy.__module__ = function.__qualname__, function.__module__
    made[id(function)] = copy  # a function may call itself
    by_name = dict(zip(function.__code__.co_freevars, cells, strict=True))
    for name, value in surroundings(function):
        inner = scalar_function(value)
        if inner is None:
            new = replace(value)
        elif id(inner) in made:
            new = made[id(inner)]
        else:
            new = finish(_copy(inner, replace, finish, made))
            made[id(inner)] = new
        if name in by_name:
            by_name[name].cell_contents = new
        else:
            scope[name] = new
    return copy
