"""A kernel as Python source: one function of arrays and sizes, and what a call passes for them.

The text depends on the kernel's structure alone, as machine code does: sizes, strides and constants
are arguments. An array argument is a view: it has one axis for each loop that moves it, with that
loop's stride; so `in0[i0, i1]` says which loops an access depends on, and a broadcast operand has
fewer axes. 16-bit floats come as uint16, which `from_f16` and `to_f16` convert."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from weft.codegen.call import Address, Pool, Scratch, Stacks
from weft.codegen.numba.replacements import MARK
from weft.codegen.numba.user_functions import HOME, definitions, float_names, is_called
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import as_dtype

HALVES = ("f16", "bf16")
#: What kernels call of `arena`; the other helpers are of `functions`.
OF_ARENA = frozenset({
    "arena_begin", "arena_end", "arena_held", "arena_push", "below", "copy_begun", "put_below",
    "top_of",
})  # fmt: skip


def numpy_name(dtype: str) -> str:
    """The name of the NumPy scalar type that the elements of a dtype are computed in."""
    return "float32" if dtype in HALVES else as_dtype(dtype).name.replace("bool", "bool_")


def array_dtype(dtype: str) -> str:
    """The name of the dtype of an array argument of elements of a dtype."""
    return "uint16" if dtype in HALVES else numpy_name(dtype)


@dataclass(frozen=True, slots=True)
class View:
    """An array argument. address: where its first element is; shape, strides (in elements): of its
    axes. at: bytes to add to the address. written: whether the kernel stores to it.

    An array without axes is one of a single element.
    """

    name: str
    dtype: str
    address: Address | Pool | Scratch | Stacks
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    written: bool = False
    at: int = 0

    def pattern(self) -> str:
        """Per axis `1` (contiguous) or `s` (a stride that is an argument)."""
        return "".join("1" if s == 1 else "s" for s in self.strides)


@dataclass(frozen=True, slots=True)
class Number:
    """An int64 argument."""

    name: str
    value: int


Param = View | Number


@dataclass(frozen=True)
class KernelSource:
    """A kernel as source. key: what its text depends on; lines: the body of the function, from the
    first indentation on; helpers: what it imports of `functions`, and functions of the user's that
    it calls, as `user_functions.called_name` says; checks: whether it takes `faults`
    (indices out of bounds); stops: whether it takes `faults` and `worker`, by which a loop hears
    that it is to end; units: how many parts threads may do, [lo, hi) of which a call is given
    (None: it does all at once, and takes no lo and hi); nanoseconds: of one unit.
    """

    key: str
    name: str
    params: tuple[Param, ...]
    lines: tuple[str, ...]
    helpers: frozenset[str] = frozenset()
    checks: bool = False
    units: int | None = None
    nanoseconds: float = 0.0
    stops: bool = False

    def arguments(self) -> list[str]:
        """The names of the function's arguments, in order."""
        names = [p.name for p in self.params]
        names += ["faults"] * (self.checks or self.stops) + ["worker"] * self.stops
        return names + ["lo", "hi"] * (self.units is not None)

    def text(self, header: Sequence[str] = ()) -> str:
        """The module: header, imports, the function `kernel`."""
        lines = [f"{MARK}{self.key}", *(f"# {line}".rstrip() for line in header)]
        types = {t for t in _TYPES if any(_names(t, line) for line in self.lines)}
        types |= float_names(self.helpers)
        helpers = sorted(h for h in self.helpers if not is_called(h))
        users = definitions(self.helpers, {*types, *helpers})
        lines += ["", *users.imports, "import numpy as np"]
        lines += [f"from numpy import {', '.join(sorted(types))}"] if types else []
        lines += [""] if helpers or users.weft else []
        lines += _imports("weft.codegen.numba.arena", [h for h in helpers if h in OF_ARENA])
        lines += _imports("weft.codegen.numba.functions", [h for h in helpers if h not in OF_ARENA])
        lines += _imports(HOME, users.weft)
        given = ", ".join(self.arguments())
        return "\n".join([*lines, *users.lines, "", "", f"def kernel({given}):", *self.lines, ""])

    def describe_params(self) -> list[str]:
        """What each argument is here, for the header."""
        lines = []
        for p in self.params:
            if isinstance(p, Number):
                lines.append(f"{p.name} = {int(p.value)}")
                continue
            shape, strides = tuple(map(int, p.shape)), tuple(map(int, p.strides))
            what = f"{p.name}: {as_dtype(p.dtype).name}{list(shape)}"
            what += f", strides {list(strides)} (elements)" if strides else " of one element"
            if isinstance(p.address, Pool):
                held = p.address.array.array
                what += f" = {held.item()}" if held.size == 1 else ", a constant"
            elif isinstance(p.address, Scratch):
                what += ", memory of this step"
            elif isinstance(p.address, Stacks):
                what += ", where the step's stacks lie"
            lines.append(what + (", written" if p.written else ""))
        return lines


_TYPES = (
    *("bool_", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float32", "float64", "complex64", "complex128"),
)


def _names(name: str, line: str) -> bool:
    return re.search(rf"(?<![\w.]){name}\b", line) is not None


def _imports(module: str, names: Sequence[str]) -> list[str]:
    one = f"from {module} import {', '.join(names)}"
    if len(one) <= 100:
        return [one] if names else []
    return [f"from {module} import (", *(f"    {n}," for n in names), ")"]


class Names:
    """Gives names that are not taken: `in0`, then `in0_1`."""

    def __init__(self) -> None:
        self._taken: dict[str, int] = {}

    def __call__(self, name: str) -> str:
        count = self._taken.get(name, 0)
        self._taken[name] = count + 1
        return f"{name}_{count}" if count else name

    def number(self, name: str) -> str:
        """The next of `in0`, `in1`, ..."""
        count = self._taken.get(name, 0)
        self._taken[name] = count + 1
        return f"{name}{count}"


class Lines:
    """The lines of a function, as they are written; `depth`: of indentation."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 1

    def __call__(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def many(self, text: str, **values: str) -> None:
        """Several lines, indented as they stand to each other; `$name` becomes a value."""
        rows = text.strip("\n").splitlines()
        cut = min((len(r) - len(r.lstrip()) for r in rows if r.strip()), default=0)
        for row in rows:
            self("" if not row.strip() else substitute(row[cut:], values))


def substitute(text: str, values: Mapping[str, str]) -> str:
    """`$name` in a text becomes a value."""
    return re.sub(r"\$(\w+)", lambda m: values[m[1]], text)


def element(name: str, index: Sequence[str]) -> str:
    """`in0[i0, i1]`; of an array without axes its one element."""
    return f"{name}[{', '.join(index) or '0'}]"


def load_text(where: str, dtype: str, helpers: set[str]) -> str:
    """An element of an array argument as a value to compute with."""
    if dtype in HALVES:
        helpers.add(f"from_{dtype}")
        return f"from_{dtype}({where})"
    return where


def store_text(where: str, value: str, dtype: str, helpers: set[str]) -> str:
    """The statement that stores a value."""
    return f"{where} = {stored(value, dtype, helpers)}"


def stored(value: str, dtype: str, helpers: set[str]) -> str:
    """A value as what an array holds."""
    if dtype in HALVES:
        helpers.add(f"to_{dtype}")
        return f"to_{dtype}({value})"
    return value
