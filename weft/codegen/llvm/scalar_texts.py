"""Scalar functions of the user's (`scalar_function`): their names in the statements of nests, and
their code as text, from this process, from disk, or made by Numba.

A statement names such a function as `module.name@code:letters`: the digest of its bytecode and
constants, and a letter for each operand's dtype. The code is LLVM IR text that Numba made once
(`scalar_from_numba.py`), in terms of f64 alone; it is kept on disk under the digest, the letters
and the versions of Numba and Python, so that the next process does not load Numba. Nor does this
file load llvmlite: a step whose plan is on disk needs the text's result alone."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
from functools import cache
from types import FunctionType

from weft.codegen.llvm.cache import SCALAR_SUFFIX, CachedRecord, kernel_cache
from weft.ir.dataclass import dataclass
from weft.ir.errors import UnsupportedError
from weft.ir.graph import Operation
from weft.ir.ops.scalar_function import find_scalar_function, function_name, signature_of
from weft.ir.process import ForkLock

#: Bumped whenever the text that is kept on disk changes.
TEXT_VERSION = 1
SEPARATOR = "@"
#: A call in a text: LLVM's type of the result, the name, the arguments.
CALL = re.compile(r"call (\w+) @([\w.]+)\(([^)]*)\)")


@dataclass(frozen=True, slots=True)
class ScalarText:
    """A function's text, `define internal ... @weft.scalar(...)`, and the letter of its result's
    dtype ("f", "i", "u", "b")."""

    text: str
    result: str


_texts: dict[tuple[str, str], ScalarText] = {}
_lock = ForkLock()

#: Functions of the C library and of LLVM that are ops of weft's on floats.
MATHS = {
    **{
        n: n for n in ("exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "sin", "cos", "tan")
    },
    **{n: n for n in ("asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "hypot", "cbrt")},
    **{n: n for n in ("asinh", "acosh", "atanh", "erf", "erfc", "lgamma")},
    "pow": "power",
    "fmod": "fmod",
}
TWO_OPERANDS = ("power", "atan2", "hypot", "fmod")
#: Those of LLVM that every target has as instructions.
KEPT = (
    *("fabs", "sqrt", "floor", "ceil", "trunc", "rint", "nearbyint", "round", "copysign", "fma"),
    *("fmuladd", "minnum", "maxnum", "minimum", "maximum", "ldexp", "powi", "fptosi", "fptoui"),
    *("abs", "smax", "smin", "umax", "umin", "ctlz", "cttz", "ctpop", "bswap", "fshl", "fshr"),
    *("is", "scmp", "ucmp", "uadd", "usub", "sadd", "ssub"),
)
#: Functions of Numba's own, and LLVM's for them.
RENAMED = {"numba_ldexp": "llvm.ldexp.f64.i32"}


def statement_name(op: Operation) -> tuple[str, str]:
    """The name of a `scalar_function` in the statements of a nest, and the dtype of its floats."""
    letters, dtype = signature_of(op)
    name, code = function_name(op.attrs)
    return f"{name}{SEPARATOR}{code}:{letters}", dtype.short


def is_user_function(statement: str) -> bool:
    """Whether a statement's name is that of a user's function."""
    return SEPARATOR in statement


def split_name(statement: str) -> tuple[str, str, str]:
    """(name, code, letters) of a statement's name."""
    name, _, rest = statement.rpartition(SEPARATOR)
    code, _, letters = rest.partition(":")
    return name, code, letters


def scalar_text(name: str, code: str, letters: str) -> ScalarText:
    """The code of a function for operands of these dtypes, from this process, from disk, or made by
    Numba now. FailedPreconditionError if neither the code nor the function is here; errors of
    `compile_scalar`."""
    found = _texts.get((code, letters))
    if found is None:
        with _lock:
            found = _texts.get((code, letters)) or _stored(code, letters)
            if found is None:
                found = _compiled(find_scalar_function(name, code), letters)
                _store(name, code, letters, found)
            _texts[code, letters] = found
    return found


def _compiled(function: FunctionType, letters: str) -> ScalarText:
    compiler = importlib.import_module("weft.codegen.llvm.scalar_from_numba")
    made = ScalarText(*compiler.compile_scalar(function, letters))
    _check_maths(function, made.text)
    return made


def _check_maths(function: FunctionType, text: str) -> None:
    for _, name, _ in CALL.findall(text):
        if maths_of(name) is None and not _is_kept(name) and name not in RENAMED:
            plain = name.removeprefix("numba_").removeprefix("llvm.").partition(".")[0]
            raise UnsupportedError(
                f"the scalar function '{function.__name__}' ({function.__code__.co_filename}:"
                f"{function.__code__.co_firstlineno}) calls {plain}, for which weft has no code",
                hint=f"functions that it has: {', '.join(sorted(MATHS))}",
            )


def maths_of(name: str) -> str | None:
    """The op of weft's that a called function is; None if it is none."""
    if name.startswith("llvm."):
        plain, _, kind = name.removeprefix("llvm.").partition(".")
        return MATHS.get(plain) if kind in ("f64", "f32") else None
    return MATHS.get(name) or MATHS.get(name.removesuffix("f"))


def _is_kept(name: str) -> bool:
    return name.startswith("llvm.") and name.split(".")[1] in KEPT


# ------------------------------------------------------------------------------------------ on disk
@cache
def _versions() -> str:
    import platform

    return f"numba {importlib.metadata.version('numba')} python {platform.python_version()}"


def _description(code: str, letters: str) -> str:
    return f"weft scalar function {TEXT_VERSION}\n{code}\n{letters}\n{_versions()}"


def _stored(code: str, letters: str) -> ScalarText | None:
    cache = kernel_cache()
    if cache is None or not cache.exists():
        return None
    return cache.load_record(_description(code, letters), SCALAR_SUFFIX, _read)


def _read(record: CachedRecord) -> ScalarText:
    text, result = record.payload.decode(), str(record.fields["result"])
    if result not in "fiub" or not text.startswith("define internal "):
        raise ValueError("it holds no scalar function")
    return ScalarText(text, result)


def _store(name: str, code: str, letters: str, made: ScalarText) -> None:
    cache = kernel_cache()
    if cache is not None:
        record = CachedRecord(name, {"result": made.result}, made.text.encode())
        cache.store_record(_description(code, letters), SCALAR_SUFFIX, record)
