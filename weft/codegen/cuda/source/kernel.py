"""CUDA kernel as source, its launch in terms of SSA values, and the fault words it reports in; the
kernel language: its vocabulary, the signatures of its names, and the types of its expressions.

A kernel reports an index out of bounds in the two words behind `call.Status`. Both are zero before
a step and grow by atomic maxima, so that of several faults the one at the smallest position stays.
Word 0 is that of `codegen/faults.py`. Word 1 has the index in its lower 32 bits (one that has more
is cut to the nearest number that fits), above them the number of the op in the launch and the
position, so that both words tell of the same fault.

The kernel language is Python over scalars: assignments, `if`, `while`, `for ... in range(...)`,
tuples that are taken apart at once, arithmetic and comparisons, conditional expressions, calls of
the names below and of the device functions that stand before the kernel in its source.
`typecheck.py` settles its types. The same text is compiled (`cubins/compile.py`), and carried out
over NumPy values without a GPU (`emulator/`); tests hold the two against each other. A variable has
one dtype, and so have both sides of an operator (the amount of a shift may be a bare integer, which
is an i64 anywhere else); integers of every width wrap.

* Threads: `cuda.threadIdx.x`, `cuda.blockIdx.x`, `cuda.blockDim.x`, `cuda.gridDim.x` (grids and
  blocks have one dimension), `cuda.laneid`.
* Barriers, shuffles, votes: `cuda.syncthreads()`, `cuda.syncwarp(mask)`;
  `cuda.shfl_sync(mask, v, lane)`, `shfl_xor_sync`, `shfl_up_sync`, `shfl_down_sync` on values of
  32 and 64 bits (not bool); `cuda.ballot_sync(mask, b)` (u32), `any_sync`, `all_sync`,
  `cuda.syncthreads_or(b)` (bool). Only in the kernel itself, never in device functions.
* Tensor cores: `c0, c1, c2, c3 = cuda.mma_sync_f16(a0, a1, a2, a3, b0, b1, c0, c1, c2, c3)`, and
  `cuda.mma_sync_bf16(...)`: all 32 lanes of a warp make A B + C of A: 16 x 16, B: 16 x 8, in f32.
  The a and b are u32 of two 16-bit floats, the lower half first; the c are f32. Lane 4 g + t has of
  A the numbers of k 2 t and 2 t + 1 of row g (a0) and of row g + 8 (a1), and 8 further in k a2 and
  a3; of B those of k of column g (b0), and 8 further b1; of C the columns 2 t (c0) and 2 t + 1 (c1)
  of row g, and of row g + 8 (c2, c3). (PTX ISA, "Matrix Fragments for mma.m16n8k16"; CUTLASS,
  `MMA_Traits<SM80_16x8x16_F32F16F16F32_TN>`.) Products are exact; in which order a GPU adds them up
  and how it rounds on the way is its own (docs/reference/reproducibility.md). The emulator adds in
  f64, k after k, and rounds once. Only in the kernel itself.
* Shared memory: `cuda.shared.array(N, f32)`, N a literal; it is not cleared. One array each line.
  `cuda.local.array(N, f32)`: of one thread; its indices should be literals (registers).
* Pointers are indexed by one integer, from 0 on: `p[i]`; bools in memory are u8.
* `cuda.atomic.add/max/min(p, i, v)`: on integers alone, as sums of floats must have an order.
* Casts and constants: `f32(x)`, `f64(x)`, `i8(x)` ... `u64(x)`, `boolean(x)`. Every constant is
  wrapped, and every arithmetic result on integers of less than 64 bits: it is of 64 bits if the
  cast is to another dtype, `i64(a * b)`.
* `LOADS`, `STORES`: 128 bits at an address that is a multiple of 16 bytes, where shared arrays
  begin: `load_f32x4(p, i)` is a tuple of p[i] ... p[i + 3]; `store_f32x4(p, i, a, b, c, d)`.
* 16-bit floats lie in memory as u16: `f16_to_f32(u)`, `f32_to_f16(x)`, `bf16_to_f32(u)`,
  `f32_to_bf16(x)`, rounded to nearest even.
* `BITS`: `bits_f32(x)` is the u32 with the bits of x, `f32_bits(u)` the inverse; the same for f64.
* Maths: the names of `MATHS` with `_f32` and `_f64`, e.g. `exp_f32(x)`; NaN, inf and signed zeros
  as in NumPy, errors as CUDA's libdevice has them. `fma_f32(a, b, c)` rounds once.
* `user_CODE_LETTERS_RESULT_DTYPE(...)`: a scalar function of the user's (`user_function`).
* `mul_high_u32(a, b)`, `mul_high_u64`: the upper half of the product.
* `dp4a_i32(a, b, c)`, `dp4a_u32`: c and the products of the four bytes of a with those of b, i8 or
  u8; it wraps. (PTX ISA, "dp4a".)
* `div_u32(a, b)`, `rem_u32(a, b)`, and of u64: a // b and a % b where b is not 0. (The
  operators give 0 there, which takes instructions of its own.)"""

from __future__ import annotations

import hashlib
import math
import re
from functools import cached_property
from typing import Literal

import numpy as np

from weft.codegen import faults
from weft.codegen.call import Arg
from weft.codegen.faults import FAULT_SHIFT
from weft.ir.dataclass import dataclass
from weft.ir.sizes import fixed

#: Bumped when the meaning of kernel source or how it is compiled changes.
LANGUAGE_VERSION = 3

#: How elements lie in memory: what a pointer parameter points to.
MEMORY = {"bool": "u8", "f16": "u16", "bf16": "u16"}

#: Dtype in memory -> elements in 128 bits.
LANES = {"u8": 16, "i8": 16, "u16": 8, "i16": 8, "u32": 4, "i32": 4, "f32": 4}
LANES |= {"u64": 2, "i64": 2, "f64": 2}

LOADS = {dtype: f"load_{dtype}x{n}" for dtype, n in LANES.items()}
STORES = {dtype: f"store_{dtype}x{n}" for dtype, n in LANES.items()}

CASTS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f32", "f64")
HALVES = ("f16_to_f32", "f32_to_f16", "bf16_to_f32", "f32_to_bf16")
BITS = ("bits_f32", "f32_bits", "bits_f64", "f64_bits")
HIGH = ("mul_high_u32", "mul_high_u64")
#: Sums of four products of bytes.
DOTS = ("dp4a_i32", "dp4a_u32")
DIVISIONS = ("div_u32", "rem_u32", "div_u64", "rem_u64")
#: Threads that a shuffle reaches.
WARP = 32
#: Names below `cuda.` that take a mask of lanes; below `cuda.atomic.`.
SHUFFLES = ("shfl_sync", "shfl_xor_sync", "shfl_up_sync", "shfl_down_sync")
ATOMICS = ("add", "max", "min")
#: Products of a warp on tensor cores -> the dtype of their 16-bit elements.
MMAS = {"mma_sync_f16": "f16", "mma_sync_bf16": "bf16"}

#: Functions of one float but for those of `TWO` and `THREE`; each exists as NAME_f32 and NAME_f64.
MATHS = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "cbrt",
    "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh",
    "erf", "erfc", "erfinv", "lgamma", "floor", "ceil", "trunc", "rint", "fabs",
    "pow", "atan2", "hypot", "fmod", "copysign", "nextafter", "fma",
)  # fmt: skip
TWO = ("pow", "atan2", "hypot", "fmod", "copysign", "nextafter")
THREE = ("fma",)


def memory_dtype(dtype: str) -> str:
    """What a pointer to elements of `dtype` points to."""
    return MEMORY.get(dtype, dtype)


#: A dtype ("f32", "bool", ...); "int", "float": a bare literal; "none": of a statement's call.
Scalar = str


@dataclass(frozen=True, slots=True)
class Pointer:
    """Elements of `dtype` in memory of one space; `size`: how many, where the source says it."""

    dtype: str
    space: str = "global"
    size: int = 0


Kind = Scalar | Pointer | tuple[Scalar, ...]

NUMPY = {
    "bool": np.dtype(np.bool_),
    "i8": np.dtype(np.int8),
    "i16": np.dtype(np.int16),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "u8": np.dtype(np.uint8),
    "u16": np.dtype(np.uint16),
    "u32": np.dtype(np.uint32),
    "u64": np.dtype(np.uint64),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
}
FLOATS = frozenset({"f32", "f64"})
INTEGERS = frozenset(CASTS) - FLOATS
#: Integers whose arithmetic is carried out in 64 bits, if it is not cast to them at once.
NARROW = INTEGERS - {"i64", "u64"}

#: Names that a GPU has as instructions of the warp or the block, by what they take after the mask.
VOTES = {"ballot_sync": "u32", "any_sync": "bool", "all_sync": "bool"}
BARRIERS = {"syncthreads": "none", "syncwarp": "none", "syncthreads_or": "bool"}
#: What products of tensor cores take, and give.
MMA = (*("u32",) * 6, *("f32",) * 4), ("f32",) * 4
ATOMIC_DTYPES = frozenset({"i32", "u32", "i64", "u64"})
SPECIAL = frozenset({"threadIdx.x", "blockIdx.x", "blockDim.x", "gridDim.x", "laneid"})
SHARED_LIMIT = 48 * 1024
THREAD_LIMIT = 1024

#: Name -> (dtypes of its arguments, dtype of its result).
FUNCTIONS: dict[str, tuple[tuple[Scalar, ...], Scalar]] = {
    "f16_to_f32": (("u16",), "f32"),
    "bf16_to_f32": (("u16",), "f32"),
    "f32_to_f16": (("f32",), "u16"),
    "f32_to_bf16": (("f32",), "u16"),
    "bits_f32": (("f32",), "u32"),
    "f32_bits": (("u32",), "f32"),
    "bits_f64": (("f64",), "u64"),
    "f64_bits": (("u64",), "f64"),
    "mul_high_u32": (("u32", "u32"), "u32"),
    "mul_high_u64": (("u64", "u64"), "u64"),
}
FUNCTIONS |= {name: ((name[-3:],) * 3, name[-3:]) for name in DOTS}
FUNCTIONS |= {
    f"{name}_{dtype}": ((dtype,) * (3 if name in THREE else 2 if name in TWO else 1), dtype)
    for name in MATHS
    for dtype in ("f32", "f64")
}

#: Scalar functions of the user's (`codegen/llvm/scalar_texts.py`): digest, letters of the
#: operands and of the result, dtype of the floats.
_USER = re.compile(r"user_([0-9a-f]+)_([fiub]+)_([fiub])_(f32|f64)")
_LETTERS = {"i": "i64", "u": "u64", "b": "bool"}


@dataclass(frozen=True, slots=True)
class UserFunction:
    """A scalar function of the user's, as its name in kernel source says it."""

    code: str
    letters: str
    result: str
    dtype: str

    @property
    def name(self) -> str:
        return f"user_{self.code}_{self.letters}_{self.result}_{self.dtype}"

    @property
    def signature(self) -> tuple[tuple[Scalar, ...], Scalar]:
        """The dtypes of its arguments, and that of its result."""
        of = {**_LETTERS, "f": self.dtype}
        return tuple(of[letter] for letter in self.letters), of[self.result]


def user_function(name: str) -> UserFunction | None:
    """The user's function of that name; None if the name is none of one."""
    found = _USER.fullmatch(name)
    return None if found is None else UserFunction(*found.groups())


def signature_of(name: str) -> tuple[tuple[Scalar, ...], Scalar] | None:
    """The signature of one of `FUNCTIONS` or of a user's function; None for any other name."""
    user = user_function(name)
    return FUNCTIONS.get(name) if user is None else user.signature


#: Names of 128-bit accesses -> dtype.
WIDE_LOADS = {name: dtype for dtype, name in LOADS.items()}
WIDE_STORES = {name: dtype for dtype, name in STORES.items()}


def wide(dtype: Scalar) -> Scalar:
    """The dtype in which arithmetic on `dtype` is carried out."""
    if dtype not in NARROW:
        return dtype
    return "u64" if dtype[0] == "u" else "i64"


def lanes(dtype: Scalar) -> int:
    """Elements of `dtype` in 128 bits."""
    return LANES[dtype]


def constant(dtype: Scalar, value: float | int) -> np.generic:
    """`value` as a constant of `dtype`; integers wrap."""
    if dtype in FLOATS or dtype == "bool":
        with np.errstate(over="ignore"):
            number: np.generic = NUMPY[dtype].type(value)
        return number
    assert isinstance(value, int)
    bits = NUMPY[dtype].itemsize * 8
    value &= (1 << bits) - 1
    if dtype[0] == "i" and value >> (bits - 1):
        value -= 1 << bits
    wrapped: np.generic = NUMPY[dtype].type(value)
    return wrapped


def poison(dtype: Scalar) -> np.generic:
    """What memory holds that nothing was written to."""
    return constant(dtype, math.nan if dtype in FLOATS else 0x7B7B7B7B7B7B7B7B)


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
    may become one fma, which depends on what else is in the kernel. engine: the code generator, as
    `codegen/engines.py` has them."""

    name: str
    source: str
    parameters: tuple[Parameter, ...]
    threads: int = THREADS
    blocks: int = 0
    contract: bool = True
    engine: str = "llvm"

    def __post_init__(self) -> None:
        # a kernel is what it is for all sizes that a plan serves
        object.__setattr__(self, "threads", fixed(self.threads))
        object.__setattr__(self, "blocks", fixed(self.blocks))

    @cached_property
    def key(self) -> str:
        """Content key: equal keys, equal machine code for one architecture and toolchain."""
        what = (LANGUAGE_VERSION, self.source, self.parameters, self.threads, self.blocks)
        how = ("" if self.contract else "exact") + self.engine.removeprefix("llvm")
        return "cuda-" + hashlib.sha256((repr(what) + how).encode()).hexdigest()[:32]


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
