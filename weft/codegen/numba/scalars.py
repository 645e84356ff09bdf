"""One element of an elementwise op as Python text: what `codegen.scalar` emits as LLVM.

The meaning is the interpreter's. Numba widens small integers to 64 bits, so results are cast back,
which wraps; 16-bit floats are float32 values that each op rounds. What is no operator is a function
of `functions`, by the name of the op."""

from __future__ import annotations

from collections.abc import Sequence

from weft.codegen.llvm.scalar_texts import is_user_function
from weft.codegen.numba.source import HALVES, numpy_name
from weft.codegen.numba.user_functions import called_name
from weft.ir.dtypes import as_dtype
from weft.ir.errors import UnsupportedError

_COMPARE = {
    "equal": "==", "not_equal": "!=", "less": "<", "less_equal": "<=",
    "greater": ">", "greater_equal": ">=",
}  # fmt: skip
_OPERATORS = {"add": "+", "subtract": "-", "multiply": "*"}
_BITS = {"bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^"}
#: Functions of floats that have one by their name in `functions`.
FLOAT_FUNCTIONS = frozenset({
    "sqrt", "cbrt", "rsqrt", "exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "sin",
    "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh",
    "erf", "erfc", "erfinv", "lgamma", "digamma", "sigmoid", "ceil", "floor", "round", "trunc",
    "sign", "power", "atan2", "hypot", "logaddexp", "copysign", "nextafter", "maximum",
    "minimum", "floor_divide", "remainder", "fma", "isnan", "isinf", "isfinite", "signbit"
})  # fmt: skip
_COMPLEX_FUNCTIONS = frozenset({
    "sqrt", "exp", "log", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan", "sinh",
    "cosh", "tanh", "asinh", "acosh", "atanh", "exp2", "expm1", "log1p", "sigmoid", "rsqrt",
    "power", "divide", "reciprocal", "sign", "round", "isnan", "isinf", "isfinite"
})  # fmt: skip
_PREDICATES = frozenset({"isnan", "isinf", "isfinite", "signbit"})
_SAME = frozenset({"conj", "real", "ceil", "floor", "round", "trunc"})


def scalar_text(op: str, dtype: str, args: Sequence[str], result: str, helpers: set[str]) -> str:
    """The expression of `op` on the names `args`, operands of `dtype` (for `where` those after the
    condition; for a function of the user's that of its floats). `helpers` gets the functions that
    it calls. UnsupportedError for what has none.
    """
    if is_user_function(op):
        call = f"{called_name(op, dtype, helpers)}({', '.join(args)})"
        return f"{numpy_name(result)}({call})" if as_dtype(result).is_integer else call
    made = _text(op, dtype, list(args), result, helpers)
    if made is None:
        raise UnsupportedError(
            f"op '{op}' on {as_dtype(dtype).name} has no Numba source",
            hint="WEFT_ENGINE=llvm, which is the default, compiles it",
        )
    return made


def _text(op: str, dtype: str, args: list[str], result: str, helpers: set[str]) -> str | None:
    if op == "astype":
        return cast_text(dtype, result, args[0], helpers)
    if op == "bitcast":
        return _bitcast(dtype, result, args[0], helpers)
    if op == "where":
        return f"{args[1]} if {args[0]} else {args[2]}"
    kind = as_dtype(dtype).kind
    if op in _COMPARE and not (as_dtype(dtype).is_complex and op not in ("equal", "not_equal")):
        return f"{args[0]} {_COMPARE[op]} {args[1]}"
    if kind == "bool":
        return _bool(op, args)
    if as_dtype(dtype).is_complex:
        return _complex(op, dtype, args, helpers)
    if as_dtype(dtype).is_floating:
        return _float(op, dtype, args, helpers)
    return _integer(op, dtype, args, helpers)


def _bool(op: str, args: list[str]) -> str | None:
    if op in ("add", "maximum", "bitwise_or", "logical_or"):
        return f"{args[0]} or {args[1]}"
    if op in ("multiply", "minimum", "bitwise_and", "logical_and"):
        return f"{args[0]} and {args[1]}"
    if op in ("logical_xor", "bitwise_xor"):
        return f"{args[0]} != {args[1]}"
    if op in ("logical_not", "bitwise_invert"):
        return f"not {args[0]}"
    return args[0] if op == "abs" else None


def _integer(op: str, dtype: str, args: list[str], helpers: set[str]) -> str | None:
    name, signed = numpy_name(dtype), as_dtype(dtype).kind == "int"
    bits = as_dtype(dtype).bits
    if op in _OPERATORS or op in _BITS:
        return f"{name}({args[0]} {(_OPERATORS | _BITS)[op]} {args[1]})"
    if op in _SAME or (op == "abs" and not signed):
        return args[0]
    simple = {
        "negative": f"{name}(-{args[0]})",
        "square": f"{name}({args[0]} * {args[0]})",
        "abs": f"{name}(abs({args[0]}))",
        "bitwise_invert": f"{name}(~{args[0]})",
        "imag": f"{name}(0)",
        "isnan": "False",
        "isinf": "False",
        "isfinite": "True",
    }
    if op in simple:
        return simple[op]
    kind = "" if signed else "_unsigned"
    if op in ("floor_divide", "remainder", "power"):
        called = f"integer_{op}{kind}"
    elif op in ("bitwise_left_shift", "bitwise_right_shift"):
        helpers.add(op)
        return f"{name}({op}({args[0]}, {args[1]}, {bits}))"
    elif op in ("maximum", "minimum", "sign"):
        called = f"integer_{op}"
    else:
        return None
    helpers.add(called)
    return f"{name}({called}({', '.join(args)}))"


def _float(op: str, dtype: str, args: list[str], helpers: set[str]) -> str | None:
    name = numpy_name(dtype)
    simple: dict[str, str] = {
        "negative": f"-{args[0]}",
        "square": f"{args[0]} * {args[0]}",
        "abs": f"abs({args[0]})",
        "reciprocal": f"{name}(1) / {args[0]}",
        "conj": args[0],
        "real": args[0],
        "imag": f"{name}(0)",
    }
    if op in _OPERATORS:
        made = f"{args[0]} {_OPERATORS[op]} {args[1]}"
    elif op == "divide":
        made = f"{args[0]} / {args[1]}"
    elif op in simple:
        made = simple[op]
    elif op == "nextafter" and dtype in HALVES:
        helpers.add(f"nextafter_{dtype}")
        return f"nextafter_{dtype}({args[0]}, {args[1]})"
    elif op in FLOAT_FUNCTIONS:
        called = {"round": "round_even", "power": "float_power"}.get(op, op)
        helpers.add(called)
        made = f"{called}({', '.join(args)})"
        if op in _PREDICATES:
            return made
    else:
        return None
    return rounded(made, dtype, helpers)


def rounded(text: str, dtype: str, helpers: set[str]) -> str:
    """A float32 value rounded to the 16-bit floats; others as they are."""
    if dtype not in HALVES:
        return text
    helpers.add(f"round_{dtype}")
    return f"round_{dtype}({text})"


def _complex(op: str, dtype: str, args: list[str], helpers: set[str]) -> str | None:
    name = numpy_name(dtype)
    if op in _OPERATORS:
        return f"{args[0]} {_OPERATORS[op]} {args[1]}"
    simple: dict[str, str] = {
        "negative": f"-{args[0]}",
        "square": f"{args[0]} * {args[0]}",
        "conj": f"{args[0]}.conjugate()",
        "real": f"{args[0]}.real",
        "imag": f"{args[0]}.imag",
    }
    if op in simple:
        return simple[op]
    if op == "abs":
        helpers.add("hypot")
        return f"hypot({args[0]}.real, {args[0]}.imag)"
    if op in _COMPARE or op in ("maximum", "minimum") or op in _COMPLEX_FUNCTIONS:
        called = f"complex_{op}"
        helpers.add(called)
        if op in _COMPARE or op in _PREDICATES:
            return f"{called}({', '.join(args)})"
        if op in ("divide", "reciprocal", "sign", "round", "maximum", "minimum"):
            return f"{called}({', '.join(args)})"
        wide = args if dtype == "c128" else [f"complex128({a})" for a in args]
        made = f"{called}({', '.join(wide)})"
        return made if dtype == "c128" else f"{name}({made})"
    return None


def cast_text(source: str, target: str, arg: str, helpers: set[str]) -> str | None:
    """A value of one dtype as another."""
    if source == target:
        return arg
    given, wanted = as_dtype(source), as_dtype(target)
    name = numpy_name(target)
    if target == "bool":
        return f"{arg} != 0"
    if given.is_complex:
        return f"{name}({arg})" if wanted.is_complex else None
    if wanted.is_complex:
        part = "float32" if target == "c64" else "float64"
        return f"{name}({part}({arg}))"
    if target in HALVES:
        if source == "f64" and target == "f16":
            helpers.add("round_f16_once")
            return f"round_f16_once({arg})"
        return rounded(f"float32({arg})", target, helpers)
    if given.is_floating and wanted.is_integer:
        helpers.add(f"float_to_{target}")
        return f"float_to_{target}({arg})"
    return f"{name}({arg})"


def _bitcast(source: str, target: str, arg: str, helpers: set[str]) -> str | None:
    if source == target:
        return arg
    given, wanted = as_dtype(source), as_dtype(target)
    if given.is_complex or wanted.is_complex or given.bits != wanted.bits:
        return None
    if given.is_floating:
        helpers.add(f"{source}_bits")
        arg = f"{source}_bits({arg})"
    if wanted.is_floating:
        helpers.add(f"{target}_of_bits")
        unsigned = f"uint{wanted.bits}"
        return f"{target}_of_bits({unsigned}({arg}))"
    if "bool" in (given.kind, wanted.kind):
        return None
    return f"{numpy_name(target)}({arg})"


# --------------------------------------------------------------------------------------- reductions
def accumulator_dtype(reduction: str, dtype: str) -> str:
    """The dtype that a reduction is accumulated in: float64 for sums of narrower floats."""
    known = as_dtype(dtype)
    if reduction == "sum" and known.is_complex:
        return "c128"
    if reduction == "sum" and known.is_floating:
        return "f64"
    return "f32" if dtype in HALVES else dtype


def identity_text(reduction: str, dtype: str) -> str:
    """What a reduction starts from, in its accumulator's dtype."""
    known = as_dtype(dtype)
    name = numpy_name(dtype)
    if known.kind == "bool":
        return "True" if reduction in ("all", "min", "prod") else "False"
    if reduction in ("sum", "prod"):
        return f"{name}({0 if reduction == 'sum' else 1})"
    if known.is_floating:
        return f"{name}({'-' if reduction == 'max' else ''}np.inf)"
    signed = known.kind == "int"
    low, high = (-(1 << known.bits - 1), (1 << known.bits - 1) - 1) if signed else (
        0, (1 << known.bits) - 1)  # fmt: skip
    return f"{name}({low if reduction == 'max' else high})"


def fold_text(reduction: str, dtype: str, held: str, value: str, helpers: set[str]) -> str:
    """One step of a reduction, in its accumulator's dtype."""
    if reduction in ("all", "any"):
        return f"{held} {'and' if reduction == 'all' else 'or'} {value}"
    op = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum"}[reduction]
    return scalar_text(op, dtype, [held, value], dtype, helpers)


def narrowed(text: str, source: str, target: str, helpers: set[str]) -> str:
    """What was accumulated in one dtype as another, rounded once."""
    if source == target:
        return text
    made = f"{numpy_name(target)}({text})" if source != "f32" or target not in HALVES else text
    return rounded(made, target, helpers)
