"""User-registered kernels, compiled: plain Python functions in Numba's nopython subset.

Around the user's function goes a wrapper with weft's own kernel ABI, ``void kernel(i64* args, i64
lo, i64 hi, i64 worker)``, written as Python text: it makes arrays of addresses and sizes. Operands
are read-only. A function that raises sets the step's status word; the step then stops after the
call. The machine code is not kept on disk.
"""

from __future__ import annotations

import linecache
import os
import re
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

import numba
from llvmlite import ir
from numba.core.compiler_lock import global_compiler_lock
from numba.extending import intrinsic

from weft.codegen.llvm.target import NATIVE, VARIABLE, default_isa, isa
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import DType, as_dtype
from weft.ir.errors import TypeRuleError, UnsupportedError
from weft.ir.locations import Locations

# Numba is annotated in part only, and not for its extension interface.
_numba: Any = numba
_types: Any = numba.types
_intrinsic: Any = intrinsic

if default_isa() != NATIVE:  # read when Numba compiles for the first time
    _numba.config.CPU_NAME, _numba.config.CPU_FEATURES = default_isa(), ""

#: Numba's types by our dtypes; it has no arithmetic for the others.
NUMBA_TYPES = {
    "bool": _types.boolean,
    **{f"i{n}": getattr(_types, f"int{n}") for n in (8, 16, 32, 64)},
    **{f"u{n}": getattr(_types, f"uint{n}") for n in (8, 16, 32, 64)},
    "f32": _types.float32, "f64": _types.float64,
    "c64": _types.complex64, "c128": _types.complex128,
}  # fmt: skip
_ABI = _types.void(_types.CPointer(_types.int64), _types.int64, _types.int64, _types.int64)


@dataclass(frozen=True, slots=True)
class Signature:
    """The signature that a kernel is compiled for. operands, results: (dtype, rank); numbers:
    attributes that are arguments of the call, as (name, kind, how many words); constants: the
    others, (name, value)."""

    op: str
    operands: tuple[tuple[str, int], ...]
    results: tuple[tuple[str, int], ...]
    numbers: tuple[tuple[str, str, int], ...]
    constants: tuple[tuple[str, object], ...]
    elementwise: bool


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
    """Machine code that Numba made: `weft.codegen.llvm.jit.Code`."""

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


def compile_kernel(
    function: Callable[..., Any], signature: Signature, where: Locations
) -> NumbaCode:
    """Machine code of the function for these types.

    UnsupportedError for a dtype that Numba does not have, TypeRuleError, with what Numba says, for
    a function that it cannot compile.
    """
    check_isa(f"the kernel of '{signature.op}'", isa())
    for short, _ in (*signature.operands, *signature.results):
        if short not in NUMBA_TYPES:
            raise UnsupportedError(
                f"op '{signature.op}': kernels cannot take {short}, which Numba does not have",
                hint="convert the operands with wf.astype; kernels take bool, integers, f32, f64, "
                "c64 and c128",
                location=where,
            )
    text = _text(signature)
    name = f"<weft kernel of {signature.op} {signature.operands}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)  # Numba reads the source
    inner = getattr(function, "py_func", function)  # the user's own @njit: compiled anew
    scope: dict[str, Any] = {
        "function": _numba.njit(error_model="numpy")(_by_position(inner)),
        "view": _numba.carray,
        "njit": _numba.njit(error_model="numpy"),
        "number": _float_of,
        "address": _address,
        "readonly": _readonly,
    }
    for short in {"i64", *(s for s, _ in (*signature.operands, *signature.results))}:
        scope[f"to_{short}"] = _pointer(short)
    for attribute, value in signature.constants:
        scope[f"a_{attribute}"] = _plain(value)
    exec(compile(text, name, "exec"), scope)  # text of ours: the user's names are identifiers
    try:
        compiled = _numba.cfunc(_ABI, nopython=True)(scope["kernel"])
    except Exception as error:  # Numba raises its own, and what a look at the function raises
        full = os.environ.get("WEFT_TRACEBACK") == "full"
        said = str(error) if full else _in_short(str(error))
        raise _refused(inner, signature, where, said) from (error if full else None)
    return NumbaCode(compiled.address, compiled.native_name, NumbaLibrary(compiled._library))


def _by_position(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its keyword-only parameters as plain ones: Numba knows no others."""
    code = getattr(function, "__code__", None)
    if code is None or not code.co_kwonlyargcount:
        return function
    plain = code.replace(co_argcount=code.co_argcount + code.co_kwonlyargcount, co_kwonlyargcount=0)
    return FunctionType(plain, function.__globals__, _name(function), None, function.__closure__)


def _refused(
    function: Callable[..., Any], signature: Signature, where: Locations, said: str
) -> TypeRuleError:
    code = getattr(function, "__code__", None)
    place = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
    given = ", ".join(_describe(t, signature.elementwise) for t in signature.operands)
    made = ", ".join(_describe(t, signature.elementwise) for t in signature.results)
    return TypeRuleError(
        f"op '{signature.op}': Numba cannot compile the kernel '{_name(function)}'{place} for "
        f"operands ({given}) and results ({made}):\n{said}",
        hint="a scalar function takes one number for each operand and returns the result's"
        if signature.elementwise
        else "a kernel takes the operands' arrays (read-only), the results' arrays to fill, and "
        "the attributes by name",
        location=where,
    )


def _in_short(said: str) -> str:
    """Of what Numba says the fault and its line, without the stages that came upon it, the
    overloads that did not fit, and weft's code around the kernel."""
    said = re.sub(r"\x1b\[[\d;]*m", "", said)  # colours
    fault = re.split(r'^(?:File "|There are |During: )', said, maxsplit=1, flags=re.MULTILINE)[0]
    lines = [x for x in fault.splitlines() if not x.startswith("Failed in nopython mode")]
    what = " ".join(" ".join(line.removeprefix(" >>> ") for line in lines).split())
    places = re.findall(
        r'^File "(.+)", line (\d+):|^During: .* at (.+) \((\d+)\)$', said, re.MULTILINE
    )
    for file, line, other, number in places:
        if not (file or other).startswith("<weft kernel"):
            return f"  {os.path.abspath(file or other)}:{line or number}: {what}"
    return f"  {what}"


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", "kernel"))


def _describe(given: tuple[str, int], elementwise: bool) -> str:
    return given[0] if elementwise else f"{given[0]} array of {given[1]} dimensions"


def _plain(value: object) -> object:
    """An attribute as Numba takes constants: dtypes are NumPy's scalar types."""
    return as_dtype(value).numpy.type if isinstance(value, DType) else value


# --------------------------------------------------------------------------------- the text around
def _text(signature: Signature) -> str:
    arrays, lines, place = [], [], 1  # the address of the status word comes first
    for i, (short, rank) in enumerate((*signature.operands, *signature.results)):
        operand = i < len(signature.operands)
        address = f"args[{place}]"
        sizes = [f"args[{place + 1 + k}]" for k in range(rank)]
        if signature.elementwise:  # from 0 on: no index is negative, which Numba would allow for
            address = f"{address} + lo * {as_dtype(short).itemsize}"
            sizes = ["hi - lo"]
        made = f"view(to_{short}({address}), ({''.join(s + ', ' for s in sizes)}))"
        arrays.append(f"x{i}")
        lines.append(f"    x{i} = {f'readonly({made})' if operand else made}")
        place += 1 + (0 if signature.elementwise else rank)
    scalars = []
    for name, kind, count in signature.numbers:
        scalars.append(f"a_{name}")
        lines.append(f"    a_{name} = {_number(kind, place, count)}")
        place += count
    attributes = [name for name, *_ in (*signature.numbers, *signature.constants)]
    keywords = [f"{name}=a_{name}" for name in attributes]
    given = ", ".join([*arrays, *scalars])
    if signature.elementwise:
        *elements, result = arrays
        call = ", ".join([*(f"{x}[i]" for x in elements), *keywords])
        body = ["    for i in range(n):", f"        {result}[i] = function({call})"]
    else:
        body = [f"    function({', '.join([*arrays, *keywords])})"]
    # a function of its own: LLVM sees no loop through a try block
    return "\n".join([
        "@njit", f"def run(n, {given}):", *body, "",
        "def kernel(args, lo, hi, worker):", *lines, "    try:",
        f"        run(hi - lo, {given})", "    except Exception:",
        "        view(to_i64(args[0]), (1,))[0] = 1", "",
    ])  # fmt: skip


def _number(kind: str, place: int, count: int) -> str:
    match kind:
        case "float":
            return f"number(args[{place}])"
        case "bool":
            return f"args[{place}] != 0"
        case "ints" | "shape":  # an array: Numba does not iterate over empty tuples
            return f"readonly(view(to_i64(address(args) + {8 * place}), ({count},)))"
    return f"args[{place}]"


@cache
def _pointer(short: str) -> Any:
    """An address as a pointer to elements of a dtype."""
    target = _types.CPointer(NUMBA_TYPES[short])

    @_intrinsic  # type: ignore[untyped-decorator]
    def pointer(typing_context: Any, address: Any) -> Any:
        def codegen(context: Any, builder: ir.IRBuilder, _: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(target))

        return target(address), codegen

    return pointer


@_intrinsic  # type: ignore[untyped-decorator]
def _address(typing_context: Any, pointer: Any) -> Any:
    """The opposite."""

    def codegen(context: Any, builder: ir.IRBuilder, _: Any, args: Any) -> Any:
        return builder.ptrtoint(args[0], ir.IntType(64))

    return _types.int64(pointer), codegen


@_intrinsic  # type: ignore[untyped-decorator]
def _float_of(typing_context: Any, word: Any) -> Any:
    """The float64 whose bits a word holds."""

    def codegen(context: Any, builder: ir.IRBuilder, _: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.DoubleType())

    return _types.float64(word), codegen


@_intrinsic  # type: ignore[untyped-decorator]
def _readonly(typing_context: Any, array: Any) -> Any:
    """The same array; Numba refuses to compile what writes to it."""

    def codegen(context: Any, builder: ir.IRBuilder, _: Any, args: Any) -> Any:
        return args[0]

    return array.copy(readonly=True)(array), codegen
