"""CUDA kernel as source, its launch in terms of SSA values, and the fault words it reports in.

The source is in the language of `language.py`: the same text is compiled (`cubins/compile.py`) and
carried out thread by thread without a GPU (`emulator/`).

A kernel reports an index out of bounds in the two words behind `call.Status`. Both are zero before
a step and grow by atomic maxima, so that of several faults the one at the smallest position stays.
Word 0 is that of `codegen/faults.py`. Word 1 has the index in its lower 32 bits (one that has more
is cut to the nearest number that fits), above them the number of the op in the launch and the
position, so that both words tell of the same fault."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Literal

from weft.codegen import faults
from weft.codegen.call import Arg
from weft.codegen.cuda.source.language import LANGUAGE_VERSION
from weft.codegen.faults import FAULT_SHIFT
from weft.ir.dataclass import dataclass
from weft.ir.sizes import fixed

#: Blocks of a grid, at most (CUDA C++ Programming Guide, "Technical Specifications").
MOST_BLOCKS = (1 << 31) - 1
#: Threads of a block where nothing speaks for another number: eight warps.
THREADS = 256


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a kernel: a pointer to elements of `dtype` as they lie in memory (16-bit
    floats as u16, bool as u8), or an integer, `i64`."""

    name: str
    kind: Literal["pointer", "integer"]
    dtype: str = "i64"


@dataclass(frozen=True)
class CudaKernel:
    """A kernel as source. `source`: a function `name` of `parameters`, and the device functions
    that it calls before it. `threads`: of a block, at most; `blocks`: least blocks that a
    multiprocessor is to hold (a bound on registers; 0: none). contract: whether a product and a sum
    may become one fma, which depends on what else is in the kernel."""

    name: str
    source: str
    parameters: tuple[Parameter, ...]
    threads: int = THREADS
    blocks: int = 0
    contract: bool = True

    def __post_init__(self) -> None:
        # a kernel is what it is for all sizes that a plan serves
        object.__setattr__(self, "threads", fixed(self.threads))
        object.__setattr__(self, "blocks", fixed(self.blocks))

    @cached_property
    def key(self) -> str:
        """Content key: equal keys, equal machine code for one architecture and toolchain."""
        what = (LANGUAGE_VERSION, self.source, self.parameters, self.threads, self.blocks)
        exact = "" if self.contract else "exact"
        return "cuda-" + hashlib.sha256((repr(what) + exact).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch: `args` as `KernelCall` has them (Address, Pool, Scratch, Status or an integer),
    one for each parameter; `blocks` of the grid, which has one dimension. `threads`: of each block,
    if fewer than the kernel's.

    The bits of the results depend on sizes alone: `blocks` never comes from the device.
    """

    kernel: CudaKernel
    args: tuple[Arg, ...]
    blocks: int
    threads: int = 0

    @property
    def block_threads(self) -> int:
        """Threads of each block."""
        return self.threads or self.kernel.threads


#: Of word 1: bits of the position, from bit 32 on; the op's number is above them.
_POSITION_BITS = 27

#: What a kernel that may meet a fault has among its device functions.
FAULT_FUNCTION = f"""\
def report_fault(status, number, position, index):
    last = i64({(1 << FAULT_SHIFT) - 1})
    word = i64(i64(number << i64({FAULT_SHIFT})) + i64(last - position)) + i64(1)
    cuda.atomic.max(status, 0, word)
    low = i64({-(1 << 31)})
    high = i64({(1 << 31) - 1})
    cut = low if index < low else (high if index > high else index)
    most = i64({(1 << _POSITION_BITS) - 1})
    rank = i64(0) if position > most else i64(most - position)
    order = i64(number << i64({_POSITION_BITS})) + rank
    cuda.atomic.max(status, 1, i64(order << i64(32)) + i64(cut & i64({(1 << 32) - 1})))
"""


def fault_of(word0: int, word1: int) -> tuple[int, int, int]:
    """(number of the op in the launch, position in its index operand, index) of the words of a
    launch that met a fault."""
    number, position = faults.fault_of(word0)
    index = word1 & ((1 << 32) - 1)
    return number, position, index - (1 << 32 if index >= 1 << 31 else 0)
