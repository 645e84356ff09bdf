"""Rates: what one element, byte or product takes, by op and by target.

Prices are nanoseconds on one core, measured with AVX-512 and operands in the caches;
`benchmarks/prices.py` holds them against the clock. Code generation cuts calls for threads by them
(`codegen/call.py`), passes weigh them (`passes/fusion/recompute.py`). `NARROWER` and
`MULTIPLY_ADDS_PER_NS` are the rows of the processors; GPUs, links and the host have their own.

Code size is the number of LLVM instructions that one element of an elementwise op takes. What a
compiler takes for a kernel grows with its instructions, from some thousands on faster than they do:
fusion cuts nests by this measure (`thresholds.MOST_INSTRUCTIONS`). A test holds the table against
the code that is emitted."""

from __future__ import annotations

from collections.abc import Iterable

from weft.ir.cost.thresholds import SHORT_SORT
from weft.ir.dataclass import dataclass
from weft.ir.sizes import smallest

# ------------------------------------------------------------------------------- elementwise ops


@dataclass(frozen=True, slots=True)
class Elementwise:
    """One element of an elementwise op. flops: operations, as `work` counts them; calls: 1 for
    exp, log, tanh, power, ..., which are counted apart. ns: nanoseconds at f32 in a vectorised
    loop. code, code_f64: LLVM instructions at f32 (in which 16-bit floats are computed) and f64.
    """

    flops: int
    calls: int
    ns: float
    code: int
    code_f64: int


#: The ops that are more than one cheap operation; all others are `PLAIN`.
ELEMENTWISE = {
    name: Elementwise(*row)
    for name, row in {
        # name: flops, calls, ns, code, code_f64
        "fma": (2, 0, 0.012, 2, 2),
        "maximum": (1, 0, 0.012, 5, 5),
        "minimum": (1, 0, 0.012, 5, 5),
        "sign": (1, 0, 0.012, 5, 5),
        "logical_xor": (1, 0, 0.012, 5, 5),
        "nextafter": (1, 0, 0.012, 16, 16),
        "divide": (1, 0, 0.06, 2, 2),
        "reciprocal": (1, 0, 0.06, 2, 2),
        "sqrt": (1, 0, 0.06, 2, 2),
        "rsqrt": (2, 0, 0.1, 2, 2),
        "hypot": (4, 0, 0.18, 16, 26),
        "remainder": (4, 0, 0.35, 32, 38),
        "floor_divide": (2, 0, 0.35, 43, 38),
        "exp": (0, 1, 0.06, 24, 26),
        "exp2": (0, 1, 0.06, 24, 26),
        "cosh": (0, 1, 0.1, 24, 26),
        "tanh": (0, 1, 0.1, 24, 38),
        "sigmoid": (0, 1, 0.14, 32, 38),
        "erf": (0, 1, 0.18, 32, 80),
        "expm1": (0, 1, 0.18, 32, 38),
        "log": (0, 1, 0.18, 24, 38),
        "log1p": (0, 1, 0.18, 43, 50),
        "sinh": (0, 1, 0.18, 32, 38),
        "acos": (0, 1, 0.28, 24, 50),
        "asin": (0, 1, 0.28, 24, 50),
        "cos": (0, 1, 0.28, 32, 64),
        "log10": (0, 1, 0.28, 54, 50),
        "log2": (0, 1, 0.28, 54, 50),
        "sin": (0, 1, 0.28, 32, 64),
        "atan": (0, 1, 0.36, 32, 80),
        "tan": (0, 1, 0.36, 32, 80),
        "atan2": (0, 1, 0.52, 54, 127),
        "atanh": (0, 1, 0.52, 43, 64),
        "cbrt": (0, 1, 0.52, 54, 50),
        "logaddexp": (0, 1, 0.52, 72, 80),
        "power": (0, 1, 0.52, 72, 127),
        "acosh": (0, 1, 0.7, 43, 64),
        "asinh": (0, 1, 0.7, 43, 64),
        "erfc": (0, 1, 0.7, 54, 80),
        "erfinv": (0, 1, 1.3, 54, 127),
        "digamma": (0, 1, 2.7, 160, 160),
        "lgamma": (0, 1, 2.8, 160, 160),
        "scalar_function": (0, 1, 1.3, 54, 80),  # any: codegen knows the code of each
    }.items()
}
PLAIN = Elementwise(1, 0, 0.012, 2, 2)

#: How many times as long as f32 other operands take.
_WIDER = {"f64": 2.5, "i64": 2.0, "u64": 2.0, "c64": 40.0, "c128": 40.0}
#: ... plain ops at most: also of complex numbers.
_PLAIN_WIDER = 4.0
#: From this price on code is not vectorised, and takes as long at any dtype (ns).
_SCALAR_NS = 2.7
#: Divisions of integers are single instructions at 64 bits, else they are vectors of floats (ns).
_INTEGER_DIVISION, _NARROW_DIVISION = 1.5, 0.2
#: LLVM instructions of integers' ops that are loops of them.
_INTEGERS = dict.fromkeys(("floor_divide", "remainder", "power"), 16)
#: Complex numbers are computed in parts: so many times the code of their parts' dtype.
_COMPLEX = 6
#: What a nest reads from memory: the address of an element, and its load (LLVM instructions).
OF_A_LOAD = 3


def arithmetic(ops: Iterable[tuple[str, str]]) -> float:
    """Nanoseconds of the (op, operand dtype) pairs of a loop's body for one element."""
    return sum(_arithmetic(op, dtype) for op, dtype in ops)


def _arithmetic(op: str, dtype: str) -> float:
    if op in ("remainder", "floor_divide") and dtype[0] in "iu":
        return _INTEGER_DIVISION if dtype in ("i64", "u64") else _NARROW_DIVISION
    price, wider = ELEMENTWISE.get(op, PLAIN).ns, _WIDER.get(dtype, 1.0)
    if price == PLAIN.ns:
        return price * min(wider, _PLAIN_WIDER)
    return price if price >= _SCALAR_NS else price * wider


def instructions(op: str, dtype: str) -> int:
    """About how many LLVM instructions an elementwise op on operands of this dtype takes."""
    kind = dtype[0]
    if kind == "c":
        return _COMPLEX * instructions(op, "f64" if dtype == "c128" else "f32")
    if kind in "fb" and dtype != "bool":
        row = ELEMENTWISE.get(op, PLAIN)
        return row.code_f64 if dtype == "f64" else row.code
    return _INTEGERS.get(op, PLAIN.code)


# ---------------------------------------------------------------------------- memory of a processor

#: Nanoseconds of a byte that is streamed: from memory, and from the caches of one core, which hold
#: so many bytes.
NS_PER_BYTE_STREAMED, NS_PER_BYTE_CACHED, CACHED_BYTES = 0.02, 0.0045, 1 << 20


def streamed(nbytes: float) -> float:
    """Nanoseconds that so many bytes of a call's operands and results take, one after another."""
    cached = min(nbytes, CACHED_BYTES)
    return cached * NS_PER_BYTE_CACHED + (nbytes - cached) * NS_PER_BYTE_STREAMED


# ------------------------------------------------------------------------------------- processors

#: How many times as long vector arithmetic takes as the prices say, which are for AVX-512, by the
#: bits of a vector: x86-64-v4, v3 and v2 (NEON, too). `benchmarks/prices.py` for each set on a Zen
#: 4, whose vectors of 512 bits take two steps: AVX2 1.2 to 2.1 (exp), SSE, without multiply-add,
#: 2.4 to 6.
NARROWER = {512: 1.0, 256: 1.5, 128: 4.0}
#: Multiply-adds of products for a lane of a vector and nanosecond: of one core of 3 GHz with two
#: pipes that multiply and add (AVX2, AVX-512, NEON), or one that multiplies beside one that adds.
MULTIPLY_ADDS_PER_NS, MULTIPLIES_PER_NS = 6.0, 4.0


def product(itemsize: int) -> float:
    """Nanoseconds of a multiply-add of a product whose sums have so many bytes, with AVX-512."""
    return 1.0 / (_lanes(itemsize) * MULTIPLY_ADDS_PER_NS)


def _lanes(itemsize: int) -> int:
    """Of a vector of 512 bits; 16-bit floats are computed in f32."""
    return 64 // max(itemsize, 4)


#: Cycles of a step of k of a product's tile of 1, 2, 3 (4) vectors, by the vectors of a whole tile:
#: of a single vector the loads of 8 rows bind, and the latency of 6 sums.
VECTOR_CYCLES = {4: (0, 4, 6, 9, 12), 3: (0, 5, 8, 12), 2: (0, 4, 6)}
#: Cycles that a tile takes beside its steps of k: the call, its sums to memory; and a block of C
#: beside its tiles.
TILE_CYCLES, BLOCK_CYCLES = 40, 400
#: Cycles of an element of B that is packed; of a step of k of a tile's rows of A, which each block
#: packs anew.
PACK_CYCLES, PACK_ROWS_CYCLES = 0.25, 2.0
#: Cycles of what a block reads again: a vector of B, the rows of a tile of A; so many times as much
#: if the operands are in memory, not in a cache: from so many bytes on.
AGAIN_CYCLES, FAR, FAR_BYTES = 0.6, 8, 1 << 24
CYCLES_PER_NS = 4.0
#: Multiply-adds in the tile that take as long as a vector operation of what is computed around a
#: product, or as an element of C beside its sum: calls, loads and stores.
PRODUCTS_PER_OPERATION = 8

# ---------------------------------------------------------------- kernels of the CPU, nanoseconds

#: A plain vector instruction, memory included: of folds that add up partial results.
FOLDED_PARTIAL_NS = 0.05
#: An element of a nest that is read from a line of its own, across the loops or through an index.
APART_NS = 0.25
#: What a pass of a row kernel takes besides its arithmetic: an element of it, and a row.
PASS_NS, ROW_NS = 0.03, 10.0
#: To check one index and to begin its run of elements; where a gather's runs are single elements.
NS_PER_INDEX, NS_PER_GATHERED = 2.5, 0.4
#: Cumulative ops: an element of a row, where each waits for the last; a byte of columns, which are
#: vectorised; both, of ops that take longer. argmax: an element of a block that is searched.
NS_IN_ROW, NS_PER_COLUMN_BYTE = 0.3, 0.022
NS_DEAR = {"cumulative_logsumexp": (12.0, 0.25)}
NS_SEARCHED = 0.12


def scanned(op: str, inner: int, itemsize: int) -> float:
    """Nanoseconds of an element of a cumulative op, or of argmax, along an axis; inner: elements
    between neighbours there."""
    in_row, per_byte = NS_DEAR.get(op, (NS_IN_ROW, NS_PER_COLUMN_BYTE))
    return in_row if inner == 1 else per_byte * itemsize


#: Sorting: an element compared in a short row; one digit of one element; how many times as long
#: where positions are moved beside the keys. Long rows, one element: its key made, its digit
#: counted, its word moved, its result written.
NS_COMPARED, NS_PER_DIGIT, WIDE_SORT = 0.1, 1.2, 1.5
NS_MADE, NS_COUNTED, NS_MOVED, NS_WRITTEN = 1.0, 0.4, 1.2, 1.0


def sorted_row(n: int, digits: int, wide: bool) -> float:
    """Nanoseconds of sorting n elements; digits: bytes of a key; wide: a position is moved, too."""
    each = NS_PER_DIGIT * (digits + 2) * (WIDE_SORT if wide else 1.0)
    return n * (NS_COMPARED * n if n <= SHORT_SORT else each)


#: A stage of a Fourier transform does a complex point in so many nanoseconds with AVX-512, and
#: loading and storing a point takes as long as so many stages.
NS_PER_POINT, LOADED_STAGES = 0.2, 2.0


def transformed(n: int) -> float:
    """Nanoseconds of a Fourier transform of n complex points, which is computed in f64."""
    stages = max(1, n.bit_length()) / 2 + LOADED_STAGES
    return n * stages * NS_PER_POINT


#: One step of a binary search that misses the cache now and then.
NS_PER_STEP = 2.5
#: One Threefry block in a vectorised loop.
NS_PER_RANDOM_BLOCK = 0.7
#: A score of attention: its exponential and what is around it, times the lanes of a vector.
SCORE_NS = 8.0


def score(itemsize: int) -> float:
    """Nanoseconds of a score of attention beside its products, with AVX-512."""
    return SCORE_NS / _lanes(itemsize)


#: A convolution's product of integers or complex numbers, with the way to it; one multiply-add of a
#: depthwise one over a vector of channels.
NS_PER_PLAIN_PRODUCT, NS_PER_DEPTHWISE = 2.0, 0.025
#: An element of a patch that is copied; of the kernel of a convolution that is packed.
NS_PER_PATCH_ELEMENT, NS_PER_PACKED_ELEMENT = 0.1, 0.5
#: Pooling: a window; a byte of one that is compared, and read and written again.
NS_PER_WINDOW, NS_PER_WINDOW_BYTE = 4.0, 0.03
#: What a scalar function of the user's takes for one element, as far as weft knows.
NS_PER_USER_ELEMENT = 5.0

#: What a kernel call in an iteration of a loop on small arrays adds to the arithmetic: the call,
#: memory between two kernels; of some ops; and what folds, and loops over several short axes, add.
KERNEL_IN_LOOP_NS = 5.0
KERNELS_IN_LOOPS_NS = {
    "constant": 0.0, "reshape": 0.0, "identity": 0.0, "concat": 10.0, "matmul": 25.0,
}  # fmt: skip
FOLD_IN_LOOP_NS, AXES_IN_LOOP_NS = 8.0, 20.0
#: In registers an op's result is there after so many times what one element takes in a vectorised
#: loop. Elements one by one take so many times as long: of ops up to the price of one instruction
#: (LLVM finds vectors of sums itself), and of others.
LATENCY, ONE_INSTRUCTION_NS, ONE_BY_ONE_PLAIN, ONE_BY_ONE = 100.0, 0.03, 6.0, 20.0
#: Of a step of short nests, not to be underestimated: a kernel call; a byte of operands and results
#: in the caches, with some arithmetic on it.
CALL_NS, NS_PER_BYTE_IN_NEST = 20.0, 0.25

# ------------------------------------------------------- a step on several devices, as it is placed

#: Nanoseconds of starting a kernel, of an op that Python carries out, of an op whose work depends
#: on values: a loop of unknown length.
START_NS, HOST_NS, UNKNOWN_NS = 100.0, 10_000.0, 1e6
#: What is taken for sizes, and for numbers of iterations, that nobody knows; bytes of a string.
ASSUMED_SIZE, ASSUMED_TRIPS, ASSUMED_STRING_BYTES = 32, 10, 64

#: A GPU: operations on f32, and bytes of its memory, in a second (an H100's); how much of both
#: kernels reach; seconds of a launch, and until the host knows what a loop or a branch decides by.
GPU_FLOPS, GPU_BYTES_PER_S, GPU_USED, GPU_LAUNCH_S, GPU_READ_S = 67e12, 3.35e12, 0.6, 3e-6, 15e-6
#: How many times as long as operations on f32 others take there; an exp or log, in operations.
GPU_SLOWER = {"f64": 2.0, "i64": 4.0, "u64": 4.0}
GPU_TRANSCENDENTAL = 8
#: Products on a GPU (sm_90): its multiprocessors, and the schedulers of one; cycles between the
#: instructions of a warp; what a block takes beside its steps of k: the first elements from memory,
#: its sums to memory; a launch more, which adds up parts; bytes of them that are written or read in
#: a cycle; multiply-adds of tensor cores in a cycle.
GPU_MULTIPROCESSORS, GPU_SCHEDULERS, GPU_APART_CYCLES = 132, 4, 2
GPU_BLOCK_CYCLES, GPU_LAUNCH_CYCLES, GPU_BYTES_PER_CYCLE, GPU_TENSOR_RATE = 1500, 3000, 2000, 1024

#: Messages between tasks (ZeroMQ over loopback on two cores): seconds one way; bytes a second into
#: or out of one task; seconds for which sender and receiver are busy with each.
LINK_LATENCY_S, LINK_BYTES_PER_S, LINK_MESSAGE_S = 55e-6, 1.2e9, 40e-6
#: Between devices of one task, and into or out of a GPU (PCIe 4.0 with 16 lanes).
LOCAL_LATENCY_S, LOCAL_BYTES_PER_S = 10e-6, 8e9
BUS_LATENCY_S, BUS_BYTES_PER_S = 10e-6, 20e9


#: One operation of a decomposition at f32 or f64, and what a call of LAPACK takes besides.
NS_PER_LAPACK_OPERATION, NS_PER_LAPACK_CALL = 0.25, 600.0


def decomposition_operations(op: str, m: int, n: int, columns: int, vectors: bool) -> float:
    """Operations on one matrix of m rows and n columns, with so many right sides (Golub and Van
    Loan, Matrix Computations, 4th edition, 2013: sections 3.2, 4.2, 5.2, 7.5, 8.3 and 8.6)."""
    k = smallest(m, n)
    match op:
        case "cholesky":
            return n * n * n / 3.0
        case "lu":
            return 2.0 * (m * n * k) - 1.0 * (m + n) * (k * k) + (k * k * k) / 1.5
        case "lu_solve":
            return 2.0 * (n * n * columns)
        case "triangular_solve":
            return 1.0 * (n * n * columns)
        case "qr":
            return 4.0 * (m * n * k) - (k * k * k) * 4.0 / 3.0
        case "eigh":
            return (9.0 if vectors else 4.0 / 3.0) * (n * n * n)
        case "svd":
            plain = 4.0 * (m * n * k) - (k * k * k) * 4.0 / 3.0
            return plain + (2.0 * (m * n * k) + 20.0 * (k * k * k) if vectors else 0.0)
    return (25.0 if vectors else 10.0) * (n * n * n)


def decomposition(op: str, m: int, n: int, columns: int, vectors: bool) -> float:
    """Nanoseconds of that on real numbers."""
    operations = decomposition_operations(op, m, n, columns, vectors)
    return NS_PER_LAPACK_CALL + NS_PER_LAPACK_OPERATION * operations


#: The same of matrices interleaved in vectors: one operation on a whole vector, and what a block
#: takes besides, by rows x columns for the copies.
NS_PER_LANES_OPERATION, NS_PER_LANES_ELEMENT, NS_PER_LANES_BLOCK = 0.3, 0.5, 300.0
#: How many times as long as f32 a block of f64 takes, which has half as many matrices.
LANES_WIDER = {"f64": 1.5}


def interleaved(op: str, m: int, n: int, columns: int, vectors: bool, dtype: str) -> float:
    """Nanoseconds of a decomposition, or solve, of as many matrices as a vector has lanes."""
    operations = decomposition_operations(op, m, n, columns, vectors)
    copied = m * n * NS_PER_LANES_ELEMENT
    ns = NS_PER_LANES_BLOCK + copied + NS_PER_LANES_OPERATION * operations
    return ns * LANES_WIDER.get(dtype, 1.0)
