"""Writer of kernel source: parameters with their arguments, lines, blocks, fresh names.

Index arithmetic is in u32 where a kernel's buffers have less than 2**31 elements, else in i64; the
methods of `Source` wrap it as the vocabulary (`kernel.py`) asks for."""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from weft.codegen.call import Arg
from weft.codegen.cuda.source import kernel as language
from weft.codegen.cuda.source.elementwise import device_functions
from weft.codegen.cuda.source.kernel import THREADS, CudaKernel, Launch, Parameter, memory_dtype
from weft.codegen.engines import engine
from weft.ir.sizes import of_sizes

IndexDtype = Literal["u32", "i64"]
#: Names that mean something in kernel source.
_VOCABULARY = frozenset(
    [
        *("cuda", "boolean", "range"),
        *(*language.CASTS, *language.HALVES, *language.BITS),
        *(*language.HIGH, *language.DOTS, *language.DIVISIONS),
        *(*language.LOADS.values(), *language.STORES.values()),
        *(f"{name}_{dtype}" for name in language.MATHS for dtype in ("f32", "f64")),
    ]
)
#: Buffers, and loops, of so many elements have indices in i64.
MANY = 2**31


def index_dtype(*counts: int) -> IndexDtype:
    """The dtype of indices into buffers, or counts of iterations, of these sizes."""
    return "u32" if all(count < MANY for count in counts) else "i64"


class Source:
    """A kernel in the making. Names that it gives out are new ones; texts are operands of Python
    expressions that need no parentheses."""

    def __init__(
        self, name: str, index: IndexDtype = "u32", threads: int = THREADS, blocks: int = 0
    ) -> None:
        name = _identifier(name)
        name = f"{name}_kernel" if name in _VOCABULARY else name
        self.name = f"{name}_i64" if index == "i64" else name
        self.index = index
        self.threads = threads
        self.least_blocks = blocks
        self._parameters: list[Parameter] = []
        self._args: list[Arg] = []
        self._head: list[str] = []
        self._functions: list[str] = []
        self._lines: list[str] = []
        self._depth = 1
        self._taken = {self.name, *_VOCABULARY}
        #: the numbers of u32 by their names; (multiplier, shift) of those that divide positions
        self._values: dict[str, int] = {}
        self._divisors: dict[str, tuple[str, str]] = {}

    # -- parameters -------------------------------------------------------------------------------

    def pointer(self, name: str, dtype: str, arg: Arg) -> str:
        """A parameter that points to elements of `dtype`, for which `arg` is passed."""
        name = self.fresh(name)
        self._parameters.append(Parameter(name, "pointer", memory_dtype(dtype)))
        self._args.append(arg)
        return name

    def number(self, name: str, value: int) -> str:
        """A parameter of i64, for which `value` is passed, as a number of the index dtype."""
        name = self.fresh(name)
        if self.index == "i64":
            given = name
        else:
            given = self.fresh(f"given_{name}")
            self._head.append(f"    {name} = u32({given})")
            self._values[name] = value
        self._parameters.append(Parameter(given, "integer"))
        self._args.append(value)
        return name

    # -- lines ------------------------------------------------------------------------------------

    def fresh(self, hint: str) -> str:
        """A name that nothing else has: the hint, or the hint and a number."""
        hint, name, k = _identifier(hint), _identifier(hint), 1
        while name in self._taken:
            k += 1
            name = f"{hint}_{k}"
        self._taken.add(name)
        return name

    def line(self, text: str) -> None:
        """A statement."""
        self._lines.append("    " * self._depth + text)

    def let(self, expression: str, hint: str = "v") -> str:
        """A new name for the value of an expression."""
        name = self.fresh(hint)
        self.line(f"{name} = {expression}")
        return name

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """Lines below a header such as `while i < n`."""
        self.line(header + ":")
        self._depth += 1
        before = len(self._lines)
        yield
        if len(self._lines) == before:
            self.line("pass")
        self._depth -= 1

    @contextmanager
    def loop(self, start: str, stop: str, step: str, hint: str = "i") -> Iterator[str]:
        """A loop whose variable goes from `start` by `step` while it is less than `stop`."""
        name = self.let(start, hint)
        with self.block(f"while {name} < {stop}"):
            yield name
            self.line(f"{name} = {self.add(name, step)}")

    def function(self, text: str) -> None:
        """A device function of this kernel alone, its whole text."""
        self._functions.append(text)

    # -- index arithmetic -------------------------------------------------------------------------

    def const(self, value: int) -> str:
        """A number."""
        return f"{self.index}({value})"

    def cast(self, text: str) -> str:
        """A number of another dtype as an index."""
        return f"{self.index}({text})"

    def add(self, a: str, b: str) -> str:
        """a + b"""
        zero = self.const(0)
        return b if a == zero else a if b == zero else self._wrapped(f"{a} + {b}")

    def sub(self, a: str, b: str) -> str:
        """a - b"""
        return a if b == self.const(0) else self._wrapped(f"{a} - {b}")

    def mul(self, a: str, b: str) -> str:
        """a * b"""
        zero, one = self.const(0), self.const(1)
        if zero in (a, b):
            return zero
        return b if a == one else a if b == one else self._wrapped(f"{a} * {b}")

    def div(self, a: str, b: str) -> str:
        """a // b of numbers that are not negative."""
        return a if b == self.const(1) else self._divided("div", a, b)

    def mod(self, a: str, b: str) -> str:
        """a % b of numbers that are not negative."""
        return self._divided("rem", a, b)

    def _divided(self, name: str, a: str, b: str) -> str:
        if self.index == "u32":
            return f"{name}_u32({a}, {b})"
        return f"i64({name}_u64(u64({a}), u64({b})))"

    def total(self, terms: Sequence[str]) -> str:
        """The sum of terms; 0 of none."""
        out = self.const(0)
        for term in terms:
            out = self.add(out, term)
        return out

    def _wrapped(self, text: str) -> str:
        return f"{self.index}({text})"

    def quotient(self, position: str, extent: str) -> str:
        """position // extent of a position, which is less than 2**31. A division of u32 takes 18
        instructions of an H100; for a parameter of the kernel the host passes what makes it a
        multiplication and a shift (`multiplier`)."""
        if extent not in self._values:
            return self.div(position, extent)
        if extent not in self._divisors:
            given, names = self.fresh(f"given_by_{extent}"), (self.fresh("by"), self.fresh("shift"))
            (packed,) = multiplier(self._values[extent])
            self._parameters.append(Parameter(given, "integer"))
            self._args.append(packed)
            self._head.append(f"    {names[0]} = u32({given})")
            self._head.append(f"    {names[1]} = u32(u64(u64({given}) >> u64(32)))")
            self._divisors[extent] = names
        by, shift = self._divisors[extent]
        return f"u32(mul_high_u32(u32({position} << u32(1)), {by}) >> {shift})"

    def split(self, position: str, extents: Sequence[str], hint: str = "i") -> list[str]:
        """The index in each loop of a position in them all, the innermost loop last."""
        names: list[str] = []
        for k in range(len(extents) - 1, 0, -1):
            outer = self.let(self.quotient(position, extents[k]), "q")
            inner = self.sub(position, self.mul(outer, extents[k]))
            names.append(self.let(inner, f"{hint}{k}"))
            position = outer
        if extents:
            names.append(position)
        return names[::-1]

    @property
    def thread(self) -> str:
        """The number of a thread in its block."""
        return self.cast("cuda.threadIdx.x")

    @property
    def block_index(self) -> str:
        """The number of a block."""
        return self.cast("cuda.blockIdx.x")

    @property
    def block_count(self) -> str:
        """How many blocks there are."""
        return self.cast("cuda.gridDim.x")

    # -- the kernel -------------------------------------------------------------------------------

    def kernel(self) -> CudaKernel:
        """The kernel as it has been written."""
        names = ", ".join(p.name for p in self._parameters)
        body = [*self._head, *self._lines] or ["    pass"]
        own = "\n".join([*self._functions, f"def {self.name}({names}):", *body, ""])
        source = device_functions(own) + own
        parameters = tuple(self._parameters)
        return CudaKernel(
            self.name, source, parameters, self.threads, self.least_blocks, engine=engine()
        )

    def launch(self, blocks: int, threads: int = 0) -> Launch:
        """The launch of the kernel on the arguments of its parameters."""
        return Launch(self.kernel(), tuple(self._args), blocks, threads)


def _identifier(text: str) -> str:
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_") or "kernel"
    return f"k_{name}" if name[0].isdigit() or keyword.iskeyword(name) else name


@of_sizes
def multiplier(divisor: int) -> tuple[int, ...]:
    """(m + 2**32 * s,) for which a // divisor is 2 * a * m >> 32 + s for all a < 2**31; 0 < divisor
    < 2**31. (m is 2**(31 + s) / divisor rounded up, and its error times a is less than 2**(31 + s):
    T. Granlund and P. Montgomery, "Division by Invariant Integers using Multiplication", 1994.)"""
    shift = (divisor - 1).bit_length() if divisor > 1 else 0
    return (-(-(1 << (31 + shift)) // max(divisor, 1)) + (shift << 32),)


def product(sizes: Sequence[int]) -> int:
    """Of all sizes."""
    return math.prod(sizes)
