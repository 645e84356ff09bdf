"""Compiling kernels through Numba: the one module that knows Numba's compiler.

For kernels that call plain Python functions (`Emitter.call_function`), which
`weft.codegen.llvm.engine` cannot compile.  A kernel becomes an internal function of a module, built
inside an ``@intrinsic``; the function around it, explicitly typed, stores its address into a table.
Such kernels are not kept on disk. Functions of the C library that have no vectorised form of ours
are made known to LLVM's JIT (`register_libm`); glibc documents its error bounds (in ULP) in "Known
Maximum Errors in Math Functions" of its manual."""

from __future__ import annotations

import ctypes
import importlib
import itertools
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numba
from llvmlite import ir
from numba.core import compiler, typing
from numba.core.compiler_lock import global_compiler_lock
from numba.core.decorators import cfunc
from numba.extending import intrinsic

from weft.codegen.llvm.elements import SIGNED, UNSIGNED
from weft.codegen.llvm.emitter import emit_kernel
from weft.codegen.llvm.jit import Kernel, Outcome
from weft.codegen.llvm.target import NATIVE, VARIABLE, default_isa
from weft.ir.dataclass import dataclass
from weft.ir.errors import UnsupportedError
from weft.ir.mathematics import mathematics

# f32 and f64 versions exist of each, f32's with the suffix "f".
REAL_FUNCTIONS = (
    *("tan", "asin", "acos", "atan", "asinh", "acosh", "atanh", "atan2", "hypot", "pow"),
    *("sin", "cos", "exp", "expm1", "log", "lgamma_r", "fma"),
)
# double complex versions only: c64 is computed in c128 and rounded.
COMPLEX_FUNCTIONS = (
    *("csqrt", "cexp", "clog", "cpow", "csin", "ccos", "ctan", "casin", "cacos", "catan"),
    *("csinh", "ccosh", "ctanh", "casinh", "cacosh", "catanh"),
)


@cache
def register_libm() -> None:
    """Tell LLVM's JIT the addresses of the functions above; RuntimeError if one is missing.

    The JIT would look through the process's own symbols, among which libm need not be.
    """
    library = mathematics()
    binding = importlib.import_module("llvmlite.binding")
    reals = [name for base in REAL_FUNCTIONS for name in (base, _single(base))]
    for name in (*reals, *COMPLEX_FUNCTIONS):
        try:
            function = getattr(library, name)
        except AttributeError as error:
            raise RuntimeError(f"the C library has no {name}, which weft's code needs") from error
        binding.add_symbol(name, ctypes.cast(function, ctypes.c_void_p).value)


def _single(name: str) -> str:
    return "lgammaf_r" if name == "lgamma_r" else name + "f"


# Numba is annotated in part only, and not for its extension interface.
_numba: Any = numba
_types: Any = numba.types
_typing: Any = typing
_compiler: Any = compiler
_cfunc: Any = cfunc
_intrinsic: Any = intrinsic

_NUMBA_TYPES = {
    **{dtype: getattr(_types, f"int{dtype[1:]}") for dtype in SIGNED},
    **{dtype: getattr(_types, f"uint{dtype[1:]}") for dtype in UNSIGNED},
    "f32": _types.float32,
    "f64": _types.float64,
    "c64": _types.complex64,
    "c128": _types.complex128,
}
if default_isa() != NATIVE:  # read when Numba compiles for the first time
    _numba.config.CPU_NAME, _numba.config.CPU_FEATURES = default_isa(), ""
_TABLE = _types.CPointer(_types.int64)
_numbers = itertools.count()


def check_isa(kernel: str, isa: str) -> None:
    """UnsupportedError if that is not the process's instruction set: Numba has one for all."""
    if isa != default_isa():
        raise UnsupportedError(
            f"{kernel} is a Python function, which Numba compiles for {default_isa()}, as all in "
            f"this process, and not for {isa}",
            hint=f"set {VARIABLE}={isa} for the whole process",
        )


class NumbaLibrary:
    """A Numba code library; ``llvm``/``asm`` cut the functions of one kernel out of its module."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._asm_lines: list[str] = []  # of the whole module, once someone has asked

    @global_compiler_lock  # type: ignore[untyped-decorator]
    def llvm(self, symbol: str) -> str:
        """Optimised LLVM IR of the functions whose name starts with ``symbol``."""
        functions = self._library._final_module.functions
        mine = [str(f) for f in functions if not f.is_declaration and _is_of(f.name, symbol)]
        return "\n".join(mine)

    @global_compiler_lock  # type: ignore[untyped-decorator]
    def asm(self, symbol: str) -> str:
        """Assembly of the functions whose name starts with ``symbol``."""
        parts: list[str] = []
        inside = False
        self._asm_lines = self._asm_lines or self._library.get_asm_str().splitlines()
        for line in self._asm_lines:
            label = re.match(r'"?([^\s":#]+)"?:', line)
            if label and not label[1].startswith(".L"):
                inside = _is_of(label[1], symbol)
            elif line.lstrip().startswith((".section", ".size")):
                inside = False
            if inside:
                parts.append(line)
        return "\n".join(parts)


def _is_of(name: str, symbol: str) -> bool:
    return name == symbol or name.startswith(symbol + ".")


@dataclass(frozen=True)
class NumbaCode:
    """Implements `weft.codegen.llvm.jit.Code`."""

    address: int
    symbol: str
    library: NumbaLibrary  # keeps the machine code alive
    from_disk: bool = False
    can_go: bool = False

    def llvm(self) -> str:
        text: str = self.library.llvm(self.symbol)
        return text

    def asm(self) -> str:
        text: str = self.library.asm(self.symbol)
        return text


class NumbaEngine:
    """Implements `weft.codegen.llvm.jit.Engine`."""

    def compile(self, kernels: Sequence[Kernel]) -> list[Outcome]:
        """The code of each kernel, or the exception that stopped it."""
        return [_outcome(kernel) for kernel in kernels]


def _outcome(kernel: Kernel) -> Outcome:
    try:
        return _compile(kernel)
    except Exception as error:
        return error


def _compile(kernel: Kernel) -> NumbaCode:
    check_isa(kernel.name, kernel.isa)
    register_libm()
    symbol = f"weft_numba{next(_numbers)}"

    @_intrinsic  # type: ignore[untyped-decorator]
    def define_kernel(_typing_context: Any, table: Any) -> Any:
        def codegen(context: Any, builder: ir.IRBuilder, _signature: Any, args: Any) -> Any:
            function = emit_kernel(kernel.emit, builder.module, symbol, context, _call_function)
            function.linkage = "internal"
            function.attributes.add("noinline")
            builder.store(builder.ptrtoint(function, ir.IntType(64)), args[0])
            return context.get_dummy_value()

        return _typing.signature(_types.void, table), codegen

    def store_address(table: Any) -> None:
        define_kernel(table)

    compiled = _cfunc(_types.void(_TABLE), nopython=True)(store_address)
    address = ctypes.c_int64()
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(compiled.address)(ctypes.addressof(address))
    return NumbaCode(address.value, symbol, NumbaLibrary(compiled._library))


def _call_function(
    context: Any,
    builder: ir.IRBuilder,
    function: Callable[..., Any],
    result: str,
    operands: Sequence[str],
    args: list[ir.Value],
) -> ir.Value:
    signature = _typing.signature(
        _NUMBA_TYPES[result], *(_NUMBA_TYPES[dtype] for dtype in operands)
    )
    flags = _compiler.Flags()
    flags.error_model = "numpy"  # x / 0 is inf: nothing to raise
    compiled = context.compile_subroutine(builder, function, signature, flags=flags)
    # Kernels return nothing, so there is no error to hand on: such functions do not raise.
    _, value = context.call_internal_no_propagate(builder, compiled.fndesc, signature, args)
    return value


ENGINE = NumbaEngine()
