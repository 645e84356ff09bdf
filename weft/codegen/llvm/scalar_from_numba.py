"""Scalar functions from Numba: the LLVM IR of a plain Python function of numbers, as text that can
be put into any module.

Numba compiles it for float64, int64, uint64 and bool alone: with all floats of one dtype no literal
widens another. Its module is optimised until one function without memory is left, `SYMBOL`, and the
text is made free of what belongs to that module and processor. `scalar_texts.py` keeps it.

Numba's own module is a private part of its compiler (`_final_module`), of the version that weft
asks for."""

from __future__ import annotations

import os
import re
from types import FunctionType
from typing import Any

import numba
from llvmlite import binding as llvm
from numba.core import compiler
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target as _target

from weft.codegen.llvm.numba_kernels import _in_short
from weft.codegen.llvm.target import create_machine
from weft.ir.errors import TypeRuleError, UnsupportedError
from weft.ir.ops.scalar_function import by_position
from weft.ir.python_function import copied

_numba: Any = numba
_compiler: Any = compiler
cpu_target: Any = _target
_types: Any = numba.types
_TYPES = {"f": _types.float64, "i": _types.int64, "u": _types.uint64, "b": _types.boolean}
_LLVM = {"f": "double", "i": "i64", "u": "i64", "b": "i1"}
#: The function in its own text.
SYMBOL = "weft.scalar"

_DEFINE = re.compile(r"^define [^\n]*?@(\"[^\"]+\"|[\w.$]+)\(", re.MULTILINE)
# What refers to the module around: attribute groups, metadata.
_LOOSE = re.compile(r" #\d+\b|, !(?:[\w.]+) !\d+")
_RAISES = re.compile(r"^\s*store .*%excinfo\b", re.MULTILINE)
_MEMORY = re.compile(r"\b(alloca|load|store|getelementptr|inttoptr|ptrtoint)\b")
# Out of range LLVM's plain conversion has no value.
_TO_INTEGER = re.compile(r"\bfpto([us])i double (\S+) to (i\d+)")


def numba_version() -> str:
    """The version of the compiler, a part of the key of what it made."""
    return str(_numba.__version__)


@global_compiler_lock  # type: ignore[untyped-decorator]
def compile_scalar(function: FunctionType, letters: str) -> tuple[str, str]:
    """The function for operands of these dtypes, one letter each: its text, and the letter of its
    result. TypeRuleError, with what Numba says, for one that it cannot compile; UnsupportedError
    for one that raises, or needs memory."""
    plain = by_position(copied(function, lambda value: value, _jitted))
    flags = _compiler.Flags()
    flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
    flags.error_model = "numpy"
    flags.nrt = flags.enable_pyobject = False
    config = _numba.config
    before = config.LOOP_VECTORIZE, config.SLP_VECTORIZE
    config.LOOP_VECTORIZE = config.SLP_VECTORIZE = 0  # the loop around it is what is vectorised
    try:
        contexts: tuple[Any, Any] = cpu_target.typing_context, cpu_target.target_context
        for context in contexts:
            context.refresh()
        types = tuple(_TYPES[letter] for letter in letters)
        made: Any = _compiler.compile_extra(*contexts, plain, types, None, flags, {})
        result = _letter(made.signature.return_type)
        if result is None:
            raise _refused(
                function, letters, f"it returns a {made.signature.return_type}, not a number"
            )
        return _text(function, made, letters, result), result
    except (TypeRuleError, UnsupportedError):
        raise
    except Exception as error:  # Numba raises its own, and what a look at the function raises
        full = os.environ.get("WEFT_TRACEBACK") == "full"
        said = str(error) if full else _in_short(str(error))
        raise _refused(function, letters, said.strip()) from (error if full else None)
    finally:
        config.LOOP_VECTORIZE, config.SLP_VECTORIZE = before


def _jitted(function: FunctionType) -> Any:
    """A function that the compiled one calls."""
    return _numba.njit(error_model="numpy")(by_position(function))


def _letter(given: Any) -> str | None:
    for letter, known in _TYPES.items():
        if given == known:
            return letter
    if isinstance(given, _types.Float):
        return "f"
    if isinstance(given, _types.Boolean):
        return "b"
    if isinstance(given, _types.Integer):
        return "i" if given.signed else "u"
    return None


def where(function: FunctionType) -> str:
    """The place of a function's definition, for errors."""
    return f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"


def _refused(function: FunctionType, letters: str, said: str) -> TypeRuleError:
    given = ", ".join(str(_TYPES[letter]) for letter in letters)
    return TypeRuleError(
        f"Numba cannot compile the scalar function '{function.__name__}' ({where(function)}) for "
        f"({given}): {said}",
        hint="it takes and returns numbers, and may use Python's control flow, math and other "
        "plain functions; https://numba.readthedocs.io says what Numba knows",
    )


# ----------------------------------------------------------------------------------------- its text
def _text(function: FunctionType, made: Any, letters: str, result: str) -> str:
    """The function of Numba's module, without memory, module and processor."""
    given = str(made.library._final_module)
    name = made.fndesc.mangled_name
    body = _body(given, name)
    if _RAISES.search(body):
        raise UnsupportedError(
            f"the scalar function '{function.__name__}' ({where(function)}) raises an error for "
            "some numbers, which a loop over elements cannot",
            hint="return float('nan') there, or check the operands before the call",
        )
    context = llvm.create_context()
    wrapped = llvm.parse_assembly(given + _wrapper(name, made, letters, result), context)
    for held in wrapped.functions:
        if not held.is_declaration and held.name != SYMBOL:
            held.linkage = "internal"
            held.add_function_attribute("alwaysinline")
    _optimise(wrapped)
    text = str(wrapped.get_function(SYMBOL))
    head, _, rest = text.partition("{\n")
    while not head.lstrip().startswith("define"):  # a comment on its attributes
        head = head.partition("\n")[2]
    rest = _LOOSE.sub("", rest).replace("tail call ", "call ").replace(name, "numba")
    rest = re.sub(r";[^\n]*|\b(?:nsw|nuw) ", "", rest)  # comments; integers wrap
    rest = _TO_INTEGER.sub(r"call \3 @llvm.fpto\1i.sat.\3.f64(double \2)", rest)
    rest = re.sub(r"^[^\S\n]*call void @llvm\.assume\(.*\n", "", rest, flags=re.MULTILINE)
    if _MEMORY.search(rest):
        raise UnsupportedError(
            f"the scalar function '{function.__name__}' ({where(function)}) needs memory: an array "
            "or a tuple that is indexed by a number known only when it runs",
            hint="give arrays as operands, and write tables as conditions, or use wf.register_op",
        )
    parameters = ", ".join(f"{_LLVM[c]} %a{k}" for k, c in enumerate(letters))
    return f"define internal {_LLVM[result]} @{SYMBOL}({parameters}) alwaysinline nounwind {{\n" + (
        rest[: rest.rindex("}")] + "}\n"
    )


def _body(module: str, name: str) -> str:
    """The text of the function of that name."""
    for found in _DEFINE.finditer(module):
        if found[1].strip('"') == name:
            return module[found.start() : module.index("\n}\n", found.start())]
    raise UnsupportedError(f"Numba {numba_version()} has made no function {name}")


def _wrapper(name: str, made: Any, letters: str, result: str) -> str:
    """A function that gives Numba's result as its own."""
    held = {"b": "i8"}
    number = str(made.signature.return_type)
    kind = {"float32": "float", "bool": "i8"}.get(number)
    if kind is None:
        kind = "double" if result == "f" else f"i{made.signature.return_type.bitwidth}"
    lines, arguments = [], ["ptr %result", "ptr %excinfo"]
    for k, letter in enumerate(letters):
        if letter == "b":
            lines.append(f"  %b{k} = zext i1 %a{k} to i8")
        arguments.append(f"{held.get(letter, _LLVM[letter])} %{'b' if letter == 'b' else 'a'}{k}")
    parameters = ", ".join(f"{_LLVM[c]} %a{k}" for k, c in enumerate(letters))
    lines += [
        f"  %result = alloca {kind}", "  %excinfo = alloca ptr",
        f'  %status = call i32 @"{name}"({", ".join(arguments)})',
        f"  %got = load {kind}, ptr %result",
    ]  # fmt: skip
    wanted = _LLVM[result]
    if kind == wanted:
        last = "%got"
    else:
        cast = "fpext" if result == "f" else "trunc" if result == "b" else "zext"
        cast = "sext" if result == "i" else cast
        lines.append(f"  %cast = {cast} {kind} %got to {wanted}")
        last = "%cast"
    head = f"\ndefine {wanted} @{SYMBOL}({parameters}) {{"
    return "\n".join([head, *lines, f"  ret {wanted} {last}", "}", ""])


def _optimise(module: Any) -> None:
    """LLVM's own passes but for vectorisers: everything is inlined and in registers after them."""
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
    builder = llvm.create_pass_builder(create_machine(), options)
    builder.getModulePassManager().run(module, builder)
