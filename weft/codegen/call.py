"""A kernel call of a plan: the kernel and its int64 arguments, still in terms of SSA values; and
whether it is cut over threads, and into chunks of what size.

The answer depends on the call's sizes and on the width of the target's vectors, never on the thread
count: what a thread takes at a time is the same for any number of them, and so are the bits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.codegen.llvm.jit import Kernel
from weft.ir.cost.thresholds import (
    CHUNK_NS,
    LEAST_CHUNKS,
    LONG_CHUNK_NS,
    MOST_CHUNKS,
    WORTH_CUTTING_NS,
)
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import DType
from weft.ir.graph import Operation, Value
from weft.ir.sizes import hint, is_traced, is_wide, now, of_sizes
from weft.ir.spec import Attrs, ConstArray
from weft.ir.types import TensorType


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
class Numbers:
    """The address of integers that lie in the plan's words: sizes that may become others."""

    values: tuple[int, ...]


def table_of(values: Sequence[int]) -> Pool | Numbers:
    """The address of an array of int64."""
    if any(map(is_traced, values)):
        return Numbers(tuple(values))
    return Pool(ConstArray(np.array(values, np.int64)))


@dataclass(frozen=True, slots=True)
class Scratch:
    """The address of `nbytes` of the arena that only this call uses."""

    nbytes: int


@dataclass(frozen=True, slots=True)
class WorkerScratch:
    """The address of `nbytes` for each thread; worker w has them at `w * worker_stride(nbytes)`."""

    nbytes: int


def worker_stride(nbytes: int) -> int:
    """Bytes between the scratch of one worker and the next: no cache line belongs to two."""
    return (nbytes + 63) // 64 * 64


@dataclass(frozen=True, slots=True)
class Status:
    """The address of the step's `faults.FaultWords`, the first of which is its status word.

    A kernel that meets an index out of bounds tells of it there (`faults.emit_fault`) and goes on
    without touching memory out of bounds; the step then stops after this call and raises, naming
    the index, the op and the user's line.
    """


@dataclass(frozen=True, slots=True)
class Stacks:
    """The address of the words of the activation's arena of stacks (`kernels/stack.py`)."""


@dataclass(frozen=True, slots=True)
class Code:
    """The address of another kernel, for a kernel that calls it."""

    kernel: Kernel


@dataclass(frozen=True, slots=True)
class Routine:
    """The address of a BLAS or LAPACK routine ("cgemm"): no int: each process has another one."""

    name: str


@dataclass(frozen=True, slots=True)
class Callee:
    """The address of the Python object that carries an op of the host out (`python_calls.py`)."""

    op: Operation

    def record(self) -> PythonCall:
        """What a plan keeps of it."""
        kinds = tuple(
            tuple((v.type.dtype, v.type.rank) for v in values if isinstance(v.type, TensorType))
            for values in (self.op.operands, self.op.results)
        )
        return PythonCall(self.op.name, self.op.attrs, *kinds)


@dataclass(frozen=True, slots=True)
class PythonCall:
    """An op of the host that a native step carries out: its name and attributes, dtype and rank of
    each operand, and of each result that is a tensor."""

    op: str
    attrs: Attrs
    operands: tuple[tuple[DType, int], ...]
    results: tuple[tuple[DType, int], ...]


Arg = (
    Address
    | Pool
    | Numbers
    | Scratch
    | WorkerScratch
    | Status
    | Stacks
    | Code
    | Routine
    | Callee
    | int
)


@dataclass(frozen=True, slots=True)
class KernelCall:
    """`kernel(args, lo, hi, worker)`: every argument becomes one int64.

    The work is `units` independent units, done in ranges [lo, hi) by any threads in any order, or
    all at once as [0, units): the bits of the results must not depend on how it is cut. `chunk` is
    how many units a thread takes at a time; 0: the call is too small, or cannot be cut. long: a
    chunk takes long enough to wake sleeping threads for before the first.
    """

    kernel: Kernel
    args: tuple[Arg, ...]
    units: int = 1
    chunk: int = 0
    long: bool = False


def cut_call(
    kernel: Kernel,
    args: tuple[Arg, ...],
    units: int,
    nanoseconds_per_unit: float,
    multiple: int = 0,
) -> KernelCall:
    """A call of so many units, cut over threads as the cost model says; multiple: as `split`."""
    chunk = split(units, nanoseconds_per_unit, multiple)
    return KernelCall(kernel, args, units, chunk, is_long(chunk, nanoseconds_per_unit))


def split(units: int, nanoseconds_per_unit: float, multiple: int = 0) -> int:
    """The chunk of a call of so many units: how many a thread takes at a time; 0: do not cut.
    multiple: units that stay together (0: any may be parted)."""
    chunk = _any_chunk(units, nanoseconds_per_unit)
    if not (chunk and multiple):
        return chunk
    chunk = -(-chunk // multiple) * multiple
    return chunk if chunk < units else 0


def _any_chunk(units: int, nanoseconds_per_unit: float) -> int:
    total = units * nanoseconds_per_unit
    if not (is_wide(units) or is_wide(total)) and (units < 2 or total < WORTH_CUTTING_NS):
        return 0
    return _chunk(units, total)[0]


def is_long(chunk: int, nanoseconds_per_unit: float) -> bool:
    """Whether sleeping threads are to be woken before the first chunk of a call."""
    return bool(hint(chunk) and now(chunk * nanoseconds_per_unit) >= LONG_CHUNK_NS)


@of_sizes
def _chunk(units: int, total: float) -> tuple[int]:
    if units < 2 or total < WORTH_CUTTING_NS:
        return (0,)
    chunks = max(LEAST_CHUNKS, min(MOST_CHUNKS, int(total // CHUNK_NS)))
    chunk = -(-units // min(chunks, units))
    return (chunk if chunk < units else 0,)
