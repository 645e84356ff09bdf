"""A kernel call of a plan: the kernel and its int64 arguments, still in terms of SSA values."""

from __future__ import annotations

from dataclasses import dataclass

from weft.codegen.jit import Kernel
from weft.ir.attributes import ConstArray
from weft.ir.graph import Value


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a value's buffer plus `offset` bytes."""

    value: Value
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Pool:
    """The address of a small constant that the plan keeps."""

    array: ConstArray


@dataclass(frozen=True, slots=True)
class Scratch:
    """The address of `nbytes` of the arena that only this call uses."""

    nbytes: int


@dataclass(frozen=True, slots=True)
class Status:
    """The address of the step's status word.

    A kernel that meets an index out of bounds stores 1 + the number of the offending element
    (row-major, of its index operand) there and goes on without touching memory out of bounds; the
    step then stops after this call and raises, naming the op and the user's line.
    """


Arg = Address | Pool | Scratch | Status | int


@dataclass(frozen=True, slots=True)
class KernelCall:
    """`kernel(args)`: every argument becomes one int64."""

    kernel: Kernel
    args: tuple[Arg, ...]
