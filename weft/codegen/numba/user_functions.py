"""Scalar functions of the user's in printed kernels: the name by which a kernel calls one, and its
source text, so that the file says all that the kernel does.

The text is the user's own, without decorators and annotations, compiled under `all_floats`
(`scalar_typing.py`); what it finds around it stands before it: numbers, imports of `math` and
NumPy, and the functions of numbers that it calls. It is printed only if it compiles to the very
bytecode of the function: a file that was edited since, or one of two lambdas of a line, is not
taken for it. What has no such text is named instead, by module and digest, and found in the process
(`named_function`); the file then says why."""

from __future__ import annotations

import ast
import builtins
import inspect
import keyword
import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from weft.codegen.llvm.scalar_texts import split_name
from weft.codegen.native_language import parse
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import as_dtype
from weft.ir.errors import WeftError
from weft.ir.ops.scalar_function import find_scalar_function
from weft.ir.python_function import (
    fingerprint,
    global_names,
    scalar_function,
    surroundings,
)

#: Where the names of a printed module are from that a user's function needs.
HOME = "weft.codegen.numba.scalar_typing"
_MARK = " = "
_PREFIX = "user_"
#: What a user's global must not hide where its function is defined.
_OWN = frozenset({"all_floats", "named_function", "kernel", "float32", "float64"})


# ------------------------------------------------------------------------------------------- names
def called_name(statement: str, dtype: str, helpers: set[str]) -> str:
    """The name by which a kernel calls a user's function; `helpers` gets the function."""
    held = f"{statement} {dtype}"
    known = dict(_parted(helpers))
    for name, what in known.items():
        if what == held:
            return name
    name = base = _PREFIX + _plain(split_name(statement)[0])
    while name in known:
        name = f"{base}_{int(name[len(base) + 1 :] or 1) + 1}"
    helpers.add(f"{name}{_MARK}{held}")
    return name


def _plain(name: str) -> str:
    last = name.rpartition(".")[2]
    return last if last.isidentifier() and not keyword.iskeyword(last) else "function"


def _parted(helpers: Iterable[str]) -> Iterator[tuple[str, str]]:
    for helper in helpers:
        name, mark, what = helper.partition(_MARK)
        if mark:
            yield name, what


def is_called(helper: str) -> bool:
    """Whether what a kernel calls is a function of the user's, and none of weft's."""
    return _MARK in helper


def float_names(helpers: Iterable[str]) -> set[str]:
    """NumPy's names of the floats in which functions of the user's compute."""
    return {as_dtype(what.rpartition(" ")[2]).name for _, what in _parted(helpers)}


# ------------------------------------------------------------------------------------- definitions
@dataclass
class Definitions:
    """Functions of the user's as a printed module has them. imports: lines of `math` and NumPy;
    weft: names from `HOME`; lines: the definitions."""

    imports: list[str]
    weft: list[str]
    lines: list[str]


def definitions(helpers: Iterable[str], taken: Iterable[str]) -> Definitions:
    """Those that a kernel calls. taken: names that the module has already."""
    called = sorted(_parted(helpers))
    made = _Module([*taken, *(name for name, _ in called)])
    for name, what in called:
        statement, _, dtype = what.rpartition(" ")
        made.add(name, statement, as_dtype(dtype).name)
    imports = sorted(made.imports, key=lambda line: (line.startswith("from "), line))
    return Definitions(imports, sorted(made.weft), made.lines)


class _NoText(Exception):
    """Why a function is not printed."""


class _Module:
    def __init__(self, taken: Iterable[str]) -> None:
        #: What each name of the module stands for.
        self.names = dict.fromkeys(taken, "weft's") | {"np": "import numpy as np"}
        self.imports: set[str] = set()
        self.weft: set[str] = set()
        self.lines: list[str] = []

    def add(self, name: str, statement: str, kind: str) -> None:
        """Define a function of the user's; it is named where it cannot be printed."""
        full, code, _ = split_name(statement)
        try:
            try:
                function = find_scalar_function(full, code)
            except WeftError as error:
                raise _NoText("this process has not defined it") from error
            lines = self._printed(name, function, kind)
            self.weft.add("all_floats")
        except _NoText as why:
            self.weft.add("named_function")
            lines = [
                *(f"# {row}" for row in _wrapped(f"{full} is not printed: {why}.")),
                f'{name} = named_function("{full}", "{code}", {kind})',
            ]
        self.lines += ["", "", *lines]

    def _printed(self, name: str, function: FunctionType, kind: str) -> list[str]:
        around = _around(function, kind, ())
        own = _definition(name, function, kind)
        if any(self.names.get(one.name, one.what) != one.what for one in around):
            # a name has another meaning in this module already
            inner = [*_lines(around, 1), *own, "", f"return {name}"]
            made = f"_make_{name}"
            return [f"def {made}():", *_indented(inner), "", "", f"{name} = {made}()"]
        new = [one for one in around if one.name not in self.names]
        self.imports |= {one.text for one in new if one.is_import}
        self.names |= {one.name: one.what for one in new}
        return [*_lines([one for one in new if not one.is_import], 2), *own]


@dataclass(frozen=True, slots=True)
class _Found:
    """What a function finds around it. lines: what defines it, a line or a function; what: the same
    for the same thing."""

    name: str
    lines: tuple[str, ...]
    what: str

    @property
    def text(self) -> str:
        return self.lines[0]

    @property
    def is_import(self) -> bool:
        return self.text.startswith(("import ", "from "))


def _lines(found: Sequence[_Found], blank: int) -> list[str]:
    """Definitions: imports, numbers, functions, with so many blank lines around these."""
    short = sorted((one.text for one in found if len(one.lines) == 1), key=lambda t: " = " in t)
    lines = [*short, *[""] * blank] if short else []
    for one in found:
        if len(one.lines) > 1:
            lines += [*one.lines, *[""] * blank]
    return lines


def _around(function: FunctionType, kind: str, within: tuple[FunctionType, ...]) -> list[_Found]:
    """All that a function and those that it calls find around them, each after what it needs.
    _NoText if that cannot be printed, or one name means two things."""
    found: dict[str, _Found] = {}
    if function in within:
        raise _NoText(f"'{function.__name__}' calls itself")
    own = vars(builtins)
    for name, value in surroundings(function):
        if own.get(name) is value:
            continue
        if name in _OWN and getattr(np, name, None) is not value:
            raise _NoText(f"it has a global '{name}'")
        inner = scalar_function(value)
        if inner is None:
            more = [_constant(name, value)]
        else:
            text = tuple(_definition(name, inner, kind))
            one = _Found(name, text, f"function {fingerprint(inner)} {kind}")
            more = [*_around(inner, kind, (*within, function)), one]
        for one in more:
            if found.setdefault(one.name, one).what != one.what:
                raise _NoText(f"'{one.name}' is something else in a function that it calls")
    return list(found.values())


def _constant(name: str, value: Any) -> _Found:
    """A value as a line of a module."""
    if isinstance(value, ModuleType):
        if value is not math and value is not np:
            raise _NoText(f"it uses the module '{value.__name__}'")
        plain = value.__name__
        line = f"import {plain}" if name == plain else f"import {plain} as {name}"
        return _Found(name, (line,), line)
    for module in (math, np):
        own = getattr(value, "__name__", None)
        known = isinstance(value, BuiltinFunctionType | FunctionType | np.ufunc | type)
        if known and own and getattr(module, own, None) is value:
            line = f"from {module.__name__} import {own}" + (f" as {name}" if own != name else "")
            return _Found(name, (line,), line)
    line = f"{name} = {_number(name, value)}"
    return _Found(name, (line,), line)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 98, break_long_words=False, break_on_hyphens=False)


def _number(name: str, value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(_number(name, v) for v in value)}{',' * (len(value) == 1)})"
    if isinstance(value, np.bool_ | np.integer | np.floating):
        return f"np.{type(value).__name__}({_number(name, value.item())})"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, bool | int | float):
        return repr(value)
    raise _NoText(f"it uses '{name}', a {type(value).__name__}")


# ------------------------------------------------------------------------------------ its own text
def _definition(name: str, function: FunctionType, kind: str) -> list[str]:
    """A function as `name`, all its parameters by position."""
    code = function.__code__
    count = code.co_argcount + code.co_kwonlyargcount
    parameters = list(code.co_varnames[:count])
    given = () if code.co_kwonlyargcount else function.__defaults__ or ()
    for k, value in enumerate(given):
        at = count - len(given) + k
        parameters[at] += f"={_number(parameters[at], value)}"
    head = f"def {name}({', '.join(parameters)}):"
    return [f"@all_floats({kind})", head, *_indented(_body(function))]


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}".rstrip() for line in lines]


def _body(function: FunctionType) -> tuple[str, ...]:
    return _body_of(function.__code__)


@lru_cache(256)
def _body_of(code: CodeType) -> tuple[str, ...]:
    """The lines of a function's body, not indented; _NoText if they are not to be had."""
    where = f"{code.co_filename}:{code.co_firstlineno}"
    try:
        text = textwrap.dedent(inspect.getsource(code))
    except (OSError, TypeError):
        raise _NoText(f"its source is not to be had ({where})") from None
    try:
        tree = parse(text)
    except SyntaxError:
        raise _NoText(f"its source begins amid a longer line ({where})") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            lines = _lines_of(node, text)
            if _is_source(lines, code):
                return tuple(lines)
    raise _NoText(f"the source at {where} is not, or no longer, that of the function")


def _lines_of(node: ast.FunctionDef | ast.Lambda, text: str) -> list[str]:
    if isinstance(node, ast.Lambda):
        return f"return {ast.get_source_segment(text, node.body)}".splitlines()
    first, rows = node.body[0], text.splitlines()
    if rows[first.lineno - 1][: first.col_offset].strip():  # on the line of `def`
        return [row for one in node.body for row in ast.unparse(one).splitlines()]
    body = rows[first.lineno - 1 : node.end_lineno]
    return textwrap.dedent("\n".join(body)).splitlines()


def _is_source(lines: Sequence[str], code: CodeType) -> bool:
    """Whether a function with this body is the function of that code."""
    count = code.co_argcount + code.co_kwonlyargcount
    held = ", ".join(code.co_freevars)
    rows = [f"def outer({held}):", f"    def made({', '.join(code.co_varnames[:count])}):",
            *_indented(_indented(lines))]  # fmt: skip
    # Python calls `math.exp` otherwise where the module has imported `math`
    imports = [f"import {name}" for name in global_names(code)]
    return any(_is_inner([*head, *rows], code) for head in (imports, []))


def _is_inner(rows: Sequence[str], code: CodeType) -> bool:
    """Whether the function in `outer` is the function of that code."""
    try:
        module = compile("\n".join(rows), "<weft>", "exec")
    except SyntaxError:
        return False
    (outer,) = (c for c in module.co_consts if isinstance(c, CodeType))
    made = [c for c in outer.co_consts if isinstance(c, CodeType)]
    return bool(made) and _same(made[0], code)


def _same(a: CodeType, b: CodeType) -> bool:
    kinds = ("co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars")
    if any(getattr(a, k) != getattr(b, k) for k in kinds) or len(a.co_consts) != len(b.co_consts):
        return False
    return all(map(_same_constant, a.co_consts, b.co_consts))


def _same_constant(a: Any, b: Any) -> bool:
    if isinstance(a, CodeType) and isinstance(b, CodeType):
        return _same(a, b)
    if isinstance(a, str) and isinstance(b, str):  # a docstring is indented otherwise
        return a.split() == b.split()
    return type(a) is type(b) and repr(a) == repr(b)
