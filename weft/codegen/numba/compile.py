"""Printed kernels, compiled by Numba, under weft's kernel ABI `void kernel(i64* args, i64 lo, i64
hi, i64 worker)`.

Around the function goes an entry, made here, that turns the words of the call into arrays: for each
`View` its address and the byte offset, then size and, unless it is 1, stride of each axis; a word
for each `Number`. The first word is the step's status (`call.Status`): a function that raises sets
it to `RAISED`, and the step stops after the call. What `functions` imports is imported here, so
kernels that are not compiled cost no Numba."""

from __future__ import annotations

import ctypes
import hashlib
import linecache
import os
from collections.abc import Callable
from functools import cache
from typing import Any

from llvmlite import ir
from numba.core.imputils import impl_ret_borrowed
from numba.np import arrayobj

from weft.codegen.faults import RAISED, FaultWords
from weft.codegen.llvm import numba_kernels as adopted
from weft.codegen.llvm.target import isa
from weft.codegen.numba.source import KernelSource, Number, View, array_dtype
from weft.ir.errors import TypeRuleError, WeftError

_numba: Any = adopted._numba
_types: Any = adopted._types
_intrinsic: Any = adopted._intrinsic
#: Numba is annotated in part only.
_arrays: Any = arrayobj
_borrowed: Any = impl_ret_borrowed
_I64 = ir.IntType(64)


def compile_source(source: KernelSource, text: str, where: str) -> adopted.NumbaCode:
    """Machine code of the function `kernel` in `text`, called as `source` says. where: the file,
    for people. TypeRuleError, with what Numba says, if it does not compile."""
    function = load_function(text, where)
    _check_arguments(function, source, where)
    adopted.check_isa(f"the Numba kernel '{source.name}'", isa())
    entry = _entry_text(source)
    name = f"<weft kernel entry of {source.key}>"
    linecache.cache[name] = (len(entry), None, entry.splitlines(True), name)
    scope: dict[str, Any] = {
        "kernel": _numba.njit(error_model="numpy", forceinline=True)(function),
        "njit": _numba.njit(error_model="numpy"),
        "carray": _numba.carray, "to_i64": adopted._pointer("i64"), "natural": _natural,
    }  # fmt: skip
    for p in source.params:
        if isinstance(p, View):
            scope[f"view_{array_dtype(p.dtype)}"] = view(array_dtype(p.dtype))
    exec(compile(entry, name, "exec"), scope)
    try:
        made = _numba.cfunc(adopted._ABI, nopython=True)(scope["entry"])
    except Exception as error:  # Numba's own, and what a look at the function raises
        full = os.environ.get("WEFT_TRACEBACK") == "full"
        said = str(error) if full else adopted._in_short(str(error))
        raise TypeRuleError(
            f"Numba cannot compile the kernel '{source.name}' ({source.key}, {where}):\n{said}",
            hint="`weft kernel check FILE` tries a file; its arguments are those in its header",
        ) from (error if full else None)
    return adopted.NumbaCode(made.address, made.native_name, adopted.NumbaLibrary(made._library))


def _check_arguments(function: Callable[..., Any], source: KernelSource, where: str) -> None:
    """TypeRuleError for a function that takes something else than the kernel is given."""
    code = function.__code__
    given = list(code.co_varnames[: code.co_argcount])
    if given != source.arguments():
        raise TypeRuleError(
            f"the kernel in {where} takes ({', '.join(given)}), but '{source.key}' is called with "
            f"({', '.join(source.arguments())})",
            hint="keep the arguments of the function as they are printed",
        )


def load_function(text: str, where: str) -> Callable[..., Any]:
    """The function `kernel` of a module's text. TypeRuleError if there is none, or the text is no
    Python."""
    name = where
    if where.startswith("<"):
        name = f"<weft kernel {hashlib.sha256(text.encode()).hexdigest()[:12]}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)  # Numba reads it
    scope: dict[str, Any] = {"__name__": "weft_kernel"}
    try:
        exec(compile(text, name, "exec"), scope)
        made: Callable[..., Any] = scope["kernel"]
    except KeyError:
        raise TypeRuleError(
            f"{where} has no function 'kernel'", hint="keep the name of the function in the file"
        ) from None
    except WeftError as error:
        if where.startswith("<"):
            raise
        error.what += f"\n{where} names it, as it could not be printed"
        error.args = (error._render(),)
        raise
    except Exception as error:
        raise TypeRuleError(
            f"{where} does not run as Python: {type(error).__name__}: {error}",
            hint="the file must define a function 'kernel'",
        ) from None
    function: Callable[..., Any] = getattr(made, "py_func", made)
    return function


def _entry_text(source: KernelSource) -> str:
    names, lines, at = [], [], 1
    for p in source.params:
        names.append(p.name)
        if isinstance(p, Number):
            lines.append(f"    {p.name} = args[{at}]")
            at += 1
            continue
        place = f"args[{at}] + args[{at + 1}]"
        at += 2
        shape, strides = [], []
        for kind in p.pattern():
            shape.append(f"args[{at}]")
            at += 1
            strides.append("1" if kind == "1" else f"args[{at}]")
            at += kind != "1"
        shape, strides = shape or ["1"], strides or ["1"]
        sizes, steps = ("(" + "".join(f"{x}, " for x in row) + ")" for row in (shape, strides))
        lines.append(f"    {p.name} = view_{array_dtype(p.dtype)}({place}, {sizes}, {steps})")
    if source.checks or source.stops:
        words = ctypes.sizeof(FaultWords) // 8
        lines.append(f"    faults = carray(to_i64(args[0]), ({words},))")
        names.append("faults")
    names += ["worker"] if source.stops else []
    names += ["natural(lo)", "hi"] if source.units is not None else []
    return "\n".join([
        "@njit", "def run(args, lo, hi, worker):", *lines, f"    kernel({', '.join(names)})", "",
        "def entry(args, lo, hi, worker):", "    try:", "        run(args, lo, hi, worker)",
        "    except Exception:", f"        carray(to_i64(args[0]), (1,))[0] = {RAISED}", "",
    ])  # fmt: skip


@_intrinsic  # type: ignore[untyped-decorator]
def _natural(typing_context: Any, number: Any) -> Any:
    """The number, which is not negative: then no index is from the end of an array."""

    def codegen(context: Any, builder: ir.IRBuilder, _: Any, args: Any) -> Any:
        assume = builder.module.declare_intrinsic(
            "llvm.assume", (), ir.FunctionType(ir.VoidType(), [ir.IntType(1)])
        )
        builder.call(assume, [builder.icmp_signed(">=", args[0], ir.Constant(_I64, 0))])
        return args[0]

    return _types.int64(_types.int64), codegen


@cache
def view(dtype: str) -> Any:
    """(address, sizes, strides in elements) as an array of elements of a NumPy dtype."""
    kind = _types.boolean if dtype == "bool_" else getattr(_types, dtype)

    @_intrinsic  # type: ignore[untyped-decorator]
    def made(typing_context: Any, address: Any, sizes: Any, strides: Any) -> Any:
        array = _types.Array(kind, len(sizes), "A")
        given = _types.UniTuple(_types.int64, len(sizes))

        def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
            held = _arrays.make_array(array)(context, builder)
            element = context.get_data_type(kind)
            itemsize = ir.Constant(_I64, context.get_abi_sizeof(element))
            shape = [builder.extract_value(args[1], k) for k in range(len(sizes))]
            steps = [builder.mul(builder.extract_value(args[2], k), itemsize)
                     for k in range(len(sizes))]  # fmt: skip
            data = builder.inttoptr(args[0], element.as_pointer())
            _arrays.populate_array(held, data=data, shape=shape, strides=steps,
                                    itemsize=itemsize, meminfo=None)  # fmt: skip
            return _borrowed(context, builder, array, held._getvalue())

        return array(_types.int64, given, given), codegen

    return made
