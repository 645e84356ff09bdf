"""Scalar functions of the user's (`scalar_function`) in kernels: a call of their text
(`llvm/scalar_texts.py`) at f32 or f64.

A kernel holds the text as an internal function that is always inlined. At f32 every float of it is
f32: literals are rounded, so that they are as weak as Python numbers are elsewhere in weft.
Functions of `math` become weft's own (`vector/`), which vectorise in a loop, branches selects
(`if_conversion.py`); `%` becomes weft's remainder of two floats."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable
from weakref import WeakKeyDictionary

from llvmlite import ir

from weft.codegen.llvm.emitter import F32, F64, Emitter
from weft.codegen.llvm.scalar_texts import (
    CALL,
    RENAMED,
    TWO_OPERANDS,
    ScalarText,
    is_user_function,
    maths_of,
    scalar_text,
    split_name,
)
from weft.codegen.scalar.floats import FLOAT_OPS
from weft.codegen.scalar.if_conversion import has_loop, if_converted
from weft.codegen.vector.float_builder import (
    FloatBuilder,
    keep_functions,
    truncated_remainder,
)
from weft.ir.cost.rates import arithmetic

#: How often a loop of a function's own is taken to run.
REPEATED = 16
SYMBOL = "weft.scalar"  # in the text that is kept

_FLOAT = re.compile(r"(?<![\w.%@\"])(?:-?\d+\.\d+e[+-]\d+|0x[0-9A-F]{16})(?![\w.])")
_BITS = re.compile(r"\bbitcast (?:double|i64) |\bdouble\*|\bx double>")
_CAST = re.compile(r"\b(?:fptrunc|fpext) (?:double|float) (\S+) to (?:double|float)")
#: LLVM's types of floats.
FLOATS = {"f32": "float", "f64": "double"}
_TYPES = {"double": F64, "float": F32, **{f"i{n}": ir.IntType(n) for n in (1, 8, 16, 32, 64)}}


def user_nanoseconds(statement: str, dtype: str) -> float:
    """An estimate of what one element takes: that of its functions, and of its instructions, which
    a loop of its own repeats `REPEATED` times."""
    text = scalar_text(*split_name(statement)).text
    called = [op for _, name, _ in CALL.findall(text) if (op := maths_of(name)) is not None]
    plain = [line for line in text.splitlines() if " = " in line and " phi " not in line]
    prices = [(op, dtype) for op in called] + [("add", dtype)] * (len(plain) - len(called))
    return arithmetic(prices) * (REPEATED if has_loop(text) else 1)


def how_it_runs(statement: str, dtype: str) -> str:
    """For people: the dtype in which a function computes floats, and whether its loop over elements
    can be one over vectors."""
    text = scalar_text(*split_name(statement)).text
    inside = dtype if can_narrow(text) else "f64, as it looks at the bits of floats"
    loop = (
        "it has a loop or a switch of its own, so the one over elements goes element by element"
        if has_loop(text)
        else "inline, its branches as selects where the loop is over vectors"
    )
    return f"compiled by Numba, computes in {inside}; {loop}"


def loops_inside(statements: Iterable[str]) -> bool:
    """Whether one of these statements is a function with a loop of its own: LLVM leaves the loop
    around it as it is, and would complain of hints on vectors."""
    users = (s for s in statements if is_user_function(s))
    return any(has_loop(scalar_text(*split_name(s)).text) for s in users)


# ----------------------------------------------------------------------------- at a dtype of floats
#: What finds the name of a function that a text calls, and makes it known to the module: of one of
#: `MATHS` (the op of weft's, the dtype), and of LLVM's own (its name, LLVM's types of the result
#: and of the arguments).
Maths = Callable[[str, str], str]
Declare = Callable[[str, str, list[str]], str]


def function_text(
    symbol: str, held: ScalarText, letters: str, dtype: str, maths: Maths, declare: Declare
) -> str:
    """The definition of a function named `symbol`, whose floats are f32 or f64. One that looks at
    the bits of f64 computes in f64 at any dtype."""
    narrow = dtype == "f32" and can_narrow(held.text)
    inside = dtype if narrow else "f64"
    text = narrowed(held.text) if narrow else held.text
    for line, called in RENAMED.items():
        text = text.replace(f"@{line}(", f"@{called if inside == 'f64' else _at_f32(called)}(")

    def replaced(found: re.Match[str]) -> str:
        result, called, given = found.groups()
        op = maths_of(called)
        if op is not None:
            return f"call {result} @{maths(op, inside)}({given})"
        kinds = [argument.split()[0] for argument in given.split(", ")]
        return f"call {result} @{declare(called, result, kinds)}({given})"

    text = CALL.sub(replaced, text)
    if "frem " in text:
        kind, fmod = FLOATS[inside], maths("fmod", inside)
        call = rf"call {kind} @{fmod}({kind} \1, {kind} \2)"
        text = re.sub(r"\bfrem \w+ (\S+), (\S+)", call, text)
    if dtype == inside:
        return text.replace(f"@{SYMBOL}(", f"@{symbol}(", 1)
    wide = text.replace(f"@{SYMBOL}(", f"@{symbol}.wide(", 1)
    return wide + _around(symbol, letters, held.result)


def llvm_types(letters: str, dtype: str) -> list[str]:
    """LLVM's types of the letters of a signature."""
    of = {"f": FLOATS[dtype], "i": "i64", "u": "i64", "b": "i1"}
    return [of[letter] for letter in letters]


def _around(symbol: str, letters: str, result: str) -> str:
    """The function at f32 of one that computes at f64."""
    narrow, wide = llvm_types(letters, "f32"), llvm_types(letters, "f64")
    parameters = ", ".join(f"{t} %a{k}" for k, t in enumerate(narrow))
    (out,), (got,) = llvm_types(result, "f32"), llvm_types(result, "f64")
    lines, given = [], []
    for k, letter in enumerate(letters):
        if letter == "f":
            lines.append(f"  %w{k} = fpext float %a{k} to double")
        given.append(f"{wide[k]} %{'w' if letter == 'f' else 'a'}{k}")
    lines.append(f"  %got = call {got} @{symbol}.wide({', '.join(given)})")
    if result == "f":
        lines.append("  %out = fptrunc double %got to float")
    last = "%out" if result == "f" else "%got"
    head = f"\ndefine internal {out} @{symbol}({parameters}) alwaysinline nounwind {{"
    return "\n".join([head, *lines, f"  ret {out} {last}", "}", ""])


def can_narrow(text: str) -> bool:
    """Whether all of a function's floats may become f32: it does not look at their bits."""
    return _BITS.search(text) is None


def narrowed(text: str) -> str:
    """The text at f32 in place of f64: types, literals, names of functions."""
    text = _FLOAT.sub(_literal_at_f32, text)
    text = _CAST.sub(r"bitcast float \1 to float", text)
    text = re.sub(r"\bdouble\b", "float", text)
    return re.sub(r"@(llvm\.[\w.]+)\(", lambda found: f"@{_at_f32(found[1])}(", text)


def _at_f32(name: str) -> str:
    return re.sub(r"\.f64\b", ".f32", name)


def _literal_at_f32(found: re.Match[str]) -> str:
    text = found[0]
    if text.startswith("0x"):
        (value,) = struct.unpack("d", struct.pack("Q", int(text, 16)))
    else:
        value = float(text)
    return f"0x{struct.unpack('Q', struct.pack('d', _rounded(value)))[0]:016X}"


def _rounded(value: float) -> float:
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


# --------------------------------------------------------------------------------- in LLVM modules
_kept: WeakKeyDictionary[ir.Module, set[str]] = WeakKeyDictionary()


class _TextFunction(ir.Function):  # type: ignore[misc]
    """A function whose definition is text."""

    definition = ""

    def __str__(self) -> str:
        return self.definition


def emit_user_function(e: Emitter, statement: str, dtype: str, args: list[ir.Value]) -> ir.Value:
    """A call of a user's function, which is defined in the module where it is not yet; dtype: that
    of its floats, f32 or f64. Errors as `scalar_text`."""
    name, code, letters = split_name(statement)
    symbol = f"weft.user.{code}.{letters}.{dtype}"
    function = e.module.globals.get(symbol)
    if function is None:
        function = _define(e.module, symbol, scalar_text(name, code, letters), letters, dtype)
    return e.builder.call(function, args)


def _define(
    module: ir.Module, symbol: str, held: ScalarText, letters: str, dtype: str
) -> ir.Function:
    def maths(op: str, inside: str) -> str:
        return str(_maths(module, op, inside).name)

    def declare(name: str, result: str, kinds: list[str]) -> str:
        if name not in module.globals:
            signature = ir.FunctionType(_TYPES[result], [_TYPES[kind] for kind in kinds])
            ir.Function(module, signature, name)
        return name

    flat = ScalarText(if_converted(held.text), held.result)
    text = function_text(symbol, flat, letters, dtype, maths, declare)
    _keep_parameters(module, _kept.setdefault(module, set()))
    (result,) = llvm_types(held.result, dtype)
    kinds = [_TYPES[kind] for kind in llvm_types(letters, dtype)]
    function = _TextFunction(module, ir.FunctionType(_TYPES[result], kinds), symbol)
    function.definition = text
    return function


def _keep_parameters(module: ir.Module, kept: set[str]) -> None:
    """Have functions that have vector forms keep the parameters that these have, even if all calls
    pass one literal. kept: the names of those that do."""
    for function in list(module.functions):
        if any("vector-function-abi" in a for a in function.attributes) and (
            function.name not in kept
        ):
            kept.add(function.name)
            keep_functions(module, [function])


def _maths(module: ir.Module, op: str, dtype: str) -> ir.Function:
    """weft's code of an op on floats as a function of the module, which is always inlined."""
    symbol = f"weft.maths.{op}.{dtype}"
    found = module.globals.get(symbol)
    if found is not None:
        return found
    kind = F32 if dtype == "f32" else F64
    count = 2 if op in TWO_OPERANDS else 1
    function = ir.Function(module, ir.FunctionType(kind, [kind] * count), symbol)
    function.linkage = "internal"
    for attribute in ("alwaysinline", "nounwind"):
        function.attributes.add(attribute)
    b = ir.IRBuilder(function.append_basic_block("entry"))
    args = list(function.args)
    if op == "fmod":
        b.ret(truncated_remainder(FloatBuilder(b, dtype), *args))
    else:
        b.ret(FLOAT_OPS[op](Emitter(b, module, symbol), dtype, args))
    return function
