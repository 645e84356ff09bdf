"""A CUDA kernel as source, and a launch of it, still in terms of SSA values.

The source is a part of Python, in the vocabulary of `language.py`: the same text is
compiled (`compile.py`) and carried out thread by thread without a GPU (`emulator/`).
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Literal

from weft.codegen.call import Arg
from weft.codegen.cuda.language import LANGUAGE_VERSION
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
    """`source`: a function `name` of `parameters`, and the device functions that it calls before
    it. `threads`: of a block, at most; `blocks`: least blocks that a multiprocessor is to hold (a
    bound on registers; 0: none). contract: whether a product and a sum may become one fma, which
    depends on what else is in the kernel."""

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
