"""A kernel of a function in `native_language`: its source is what the function calls, its key that
source and the constants that are set."""

from __future__ import annotations

import ast
import hashlib
import inspect
from collections.abc import Iterator, Sequence
from functools import cache
from types import ModuleType

import numpy as np

from weft.codegen.dynamic import (
    elements,
    examples,
    new_strings,
    pairs,
    parsing,
    selection,
    text_hash,
    unique,
    words,
)
from weft.codegen.llvm.emitter import I64, Emitter
from weft.codegen.llvm.jit import Kernel
from weft.codegen.native_language import LANGUAGE_VERSION, emit_source, parse
from weft.ir.dtypes import DType

_MODULES: tuple[ModuleType, ...] = (
    elements, selection, unique, pairs, text_hash, parsing, examples, new_strings, words
)  # fmt: skip
#: By kind and bytes of a part: the bits of infinity.
_INFINITY = {"f16": 0x7C00, "bf16": 0x7F80, "f32": 0x7F800000, "f64": 0x7FF0000000000000}
_PARTS = {"c64": "f32", "c128": "f64"}
#: Rows of so many bytes are moved by one load and one store.
_WHOLE = frozenset({1, 2, 4, 8})
Constants = tuple[tuple[str, int], ...]


def row_constants(nbytes: int) -> Constants:
    """The constants for rows of so many bytes."""
    return (("ROW", nbytes if nbytes in _WHOLE else 0),)


def element_constants(dtype: DType) -> Constants:
    """The constants for the elements of a numeric dtype, or of bools."""
    short = dtype.short
    part = _PARTS.get(short, short)
    bits = 8 * dtype.itemsize // (2 if short in _PARTS else 1)
    is_float = part in _INFINITY
    cares = (1 << (bits - 1)) - 1 if is_float else -1
    kind = elements.PAIR if short in _PARTS else elements.FLOAT if is_float else elements.PLAIN
    return (
        ("ITEM", dtype.itemsize), ("KIND", kind), ("CARES", cares),
        ("INFINITE", _INFINITY.get(part, 0)), ("SIGNED", int(dtype.numpy.kind == "i")),
        ("IS_BOOL", int(short == "bool")),
    )  # fmt: skip


@cache
def _definitions() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Of each function its text, and the names that it calls."""
    found: dict[str, tuple[str, tuple[str, ...]]] = {}
    for module in _MODULES:
        source = inspect.getsource(module)
        for node in parse(source).body:
            if isinstance(node, ast.FunctionDef):
                names = tuple(dict.fromkeys(_called(node)))
                found[node.name] = (ast.get_source_segment(source, node) or "", names)
    return found


def _called(node: ast.FunctionDef) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Name):
            yield part.func.id


def _constants(given: Constants) -> dict[str, int]:
    held = {n: v for m in _MODULES for n, v in vars(m).items() if type(v) is int}
    return {**held, **dict(given)}


@cache
def scalar_kernel(entry: str, constants: Constants = ()) -> Kernel:
    """The kernel that calls the function `entry` of one of the modules with the address of its
    arguments, and the units lo to hi."""
    known = _definitions()
    order, todo = dict.fromkeys([entry]), [entry]
    while todo:
        for name in known[todo.pop()][1]:
            if name in known and name not in order:
                order[name] = None
                todo.append(name)
    source, held = "\n\n".join(known[name][0] for name in order), _constants(constants)
    used = sorted((n, held[n]) for n in held if n in source)
    text = f"{source}{used}{LANGUAGE_VERSION}"

    def emit(e: Emitter) -> None:
        made = emit_source(e, source, held, ())[entry]
        e.builder.call(made, [e.builder.ptrtoint(e.arguments, I64), e.lo, e.hi])

    return Kernel(f"dynamic-{entry}-{hashlib.sha256(text.encode()).hexdigest()}", entry, emit)


def room_words(left: int, right: int, sizes: Sequence[int]) -> int:
    """Words of scratch that `begin_pairs` and `fill_room` need for so many entries, and rows, inner
    size and columns: the entries by rows, and a mark, a place in a list, and up to a word of a tree
    for each column."""
    rows, inner, columns = sizes
    return rows + inner + 2 * (left + right) + 3 * columns + 16


def powers_of_ten() -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    """The upper 128 bits of 10**e for e from LEAST_POWER to MOST_POWER, rounded up if e < 0:
    u64[n, 2], the lower half first."""
    rows = []
    for e in range(parsing.LEAST_POWER, parsing.MOST_POWER + 1):
        whole = 10 ** abs(e)
        bits = whole.bit_length()
        if e < 0:
            value = (1 << (bits + 127)) // whole + 1
        else:
            value = whole << (128 - bits) if bits <= 128 else whole >> (bits - 128)
        rows.append((value & (2**64 - 1), value >> 64))
    return np.array(rows, np.uint64)
