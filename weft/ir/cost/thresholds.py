"""Thresholds: from where on one way is faster than another, each with its unit and its reason.

They weigh time against time: threads against one, a message against a tensor of its own, computing
again against reading. The prices that they are compared with are in `rates`. What belongs to the
shape of one algorithm - sides of tiles, registers, lengths of unrolled loops, widths of formats -
stands beside it, and so do limits of what is kept in memory and of how long something is waited
for. Eager calls, which `import weft` prepares, have theirs in `frontend/eager`; links between
tasks, which know no graph, in `comm`."""

from __future__ import annotations

# ------------------------------------------------------------------ threads: calls cut into chunks

#: Nanoseconds. Below this much work a call stays on the calling thread. With a worker awake on a
#: processor that shares a cache, a cut costs 0.1 us and pays from 3 us on; where cache lines travel
#: further it costs 2 us and what half of the operands takes to come over, and pays from about 10 us
#: on.
WORTH_CUTTING_NS = 12_000.0
#: Nanoseconds. A chunk is not smaller than this: taking one moves a cache line between processors.
CHUNK_NS = 4_000.0
#: Nanoseconds. From chunks that take so long on sleeping threads are woken before the first: the
#: microseconds that the caller needs for that are few then, and it would do the first alone.
LONG_CHUNK_NS = 25_000.0
#: Chunks of a call that is cut, at least: two threads that take three end unevenly.
LEAST_CHUNKS = 4
#: Chunks of one call, at most: enough that 32 threads end within a few percent of each other.
MOST_CHUNKS = 128
#: The share of a step's time that is cut over all threads from which on it needs no others.
WIDE_SHARE = 0.7

#: Seconds for which a worker looks for the next call before it sleeps.
SPIN_SECONDS = 40e-6
#: Nanoseconds of work for which sleeping workers are woken (`codegen/pool.py`); more
#: after wakes that came too late, but never more than the second.
WAKE_AFTER_NS, MOST_WAKE_NS = 100_000, 6_400_000

#: Parts of a loop whose batch is divided over threads, at most.
MOST_PARTS = 16
#: Chunks. Kernel calls that are cut into more than so many for each part keep more threads busy.
CHUNKS_PER_PART = 4
#: Nanoseconds. An iteration of one part takes at least so long, or the calls themselves are what
#: takes time; all its iterations, or waking a thread for it does not pay; from the third on a
#: sleeping thread is woken at once.
PART_NS, LOOP_NS, LONG_PART_NS = 300.0, 20_000.0, 100_000.0
#: Bytes. What all parts read, each from its core's cache: a weight, say.
PART_SHARED_BYTES = 1 << 20

# --------------------------------------------------------- the dataflow executor: regions and jobs

#: Nanoseconds. From here on ops are worth a thread of their own: handing them over and back takes
#: 30 us.
EXPENSIVE_NS = 100_000.0
#: Values between parts of a region may take so much of the region's time.
MOST_TRAFFIC = 0.1
#: Cheap parts of one region of a loop that stay apart, at most: each is a node.
MOST_CHEAP = 8
#: Nanoseconds, and ops: a step of at most so many is small, and runs on the thread that was asked.
SMALL_STEP_NS, SMALL_STEP_OPS = 30_000.0, 200
#: Nodes. So many that only pass values on take some ten microseconds.
MOST_BRIEF = 1000
#: Nanoseconds. Where jobs on other threads end later than one after the other, by more than the
#: third, steps work alone for the first, twice as long each time up to the second.
LEAST_PAUSE_NS, MOST_PAUSE_NS, SLACK_NS = 5_000_000, 640_000_000, 100_000
#: Bytes. From so many on it is cheaper to keep an array of Python's than to copy it.
WORTH_A_BOX_BYTES = 1 << 14
#: Nanoseconds. Steps that take less keep the GIL: giving it away and taking it back costs 0.1 us
#: and more.
SHORT_STEP_NS = 5_000

# ------------------------------------------------------------------------------- tasks and devices

#: Bytes. A larger array does not go in a message between tasks but as a tensor of the step.
SMALL_MESSAGE_BYTES = 64 << 10
#: Bytes. From so many on a result that a peer on this host reads is computed in shared memory;
#: smaller ones are not worth it: a message carries them.
LENT_BYTES = 1 << 18
#: Bytes. Smaller tensors are received as soon as they come: waiting keeps a transfer from running
#: beside the computation before it, as ops of one region begin together.
LATE_BYTES = 1 << 24
#: Bytes. A control operand that is a tensor of up to so many is sent itself, others as a message
#: without elements.
CONTROL_BYTES = 64
#: Bytes. Constants of up to so many are copied instead of sent.
COPIED_BYTES = 4096
#: A placement that leaves the session's device must be faster by this part: predictions are that
#: good.
MARGIN = 0.1
#: So many single devices are tried, of those that differ.
MOST_SINGLE = 8
#: So many placements are simulated to find one that fits the memory of the devices, where none of
#: the greedy ones does.
REPAIRS = 1000

#: Bytes. An input of a GPU's step that is larger has memory of its own, so that one that is on the
#: device is not copied. A smaller one is, into one block: where the launches find it is always the
#: same then, and what was recorded of them can be launched again.
DEVICE_SMALL_INPUT_BYTES = 1 << 20
#: Bytes: the same of results. All that are small leave the block together, in one copy: it should
#: take little memory if somebody keeps one of them for long.
DEVICE_SMALL_RESULT_BYTES = 4 << 10

# ------------------------------------------------------------------- fusion, and what is not stored

#: LLVM instructions. The most code of a nest that ops join (one op alone may have more): LLVM takes
#: 0.1 to 0.2 s for it. A nest so long computes for 5 to 20 ns an element; what is written and read
#: again at the cut takes 0.04 to 0.2.
MOST_INSTRUCTIONS = 1024
#: Rows. Fewer than this, each of more elements than that, are left to nests of their own: a row
#: kernel would save no traffic, and its threads would have no work.
SPLIT_ROWS, LONG_ROW = 8, 1 << 18
#: Columns that a row kernel does: a block of them, 64 at once, stays in the second-level cache (256
#: KB of each array at f32), and there are enough side by side for vectors. Of elements a power of
#: two apart a cache holds fewer: at most so many times that power.
LONG_COLUMN, FEW_COLUMNS, SAME_SETS = 1024, 16, 1 << 18
#: Bytes next to each other that an index moves, at least, if nests are to read through it: a cache
#: line.
GATHERED_BYTES = 64
#: Elements of a row, or column, that lie side by side where a product reads by strides: a cache
#: line of f32.
STRIDED_RUN = 16
#: Scores. Fewer of an attention stay as they are: their products and nests cost as little.
LEAST_SCORES = 256
#: Elements. A mask of so many at most is computed while compiling, to see whether it is the causal
#: one.
MOST_MASK = 1 << 26

#: Rows of a table for each id of an update of those alone, at least; and elements of the table.
ROWS_PER_ID, LEAST_TABLE = 4, 4096

#: Recomputation. Ops that cost less than to read an element from beyond the first-level cache.
REPEATED = frozenset({
    "add", "subtract", "multiply", "divide", "negative", "abs", "square", "where", "maximum",
    "minimum", "fma",
    "equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "logical_and",
    "logical_or", "logical_not",
})  # fmt: skip
#: So many of them in a row, at most.
MOST_REPEATED = 8
#: Bytes of a result that is worth computing again, at least.
REPEATED_BYTES = 4096
#: Numbers for each row that are read in place of a result are less than this part of it.
ROW_SHARE = 16
#: Arithmetic for the time of traffic. The prices are good to a quarter: then memory decides.
MOST_ARITHMETIC = 1.25

#: Gradients of loops. Nanoseconds of an element of an op that costs more than a load from memory:
#: its result is kept, what follows from it by cheaper ones is computed again.
WORTH_KEEPING_NS = 0.06

#: Bytes of a product's operand that is worth computing in the product
#: (docs/decisions/0026-graph-around-products.md); of what nests of two loops both read.
PROLOGUE_BYTES = 1 << 24
#: Columns of C that a computed A is read for once, and rows of C that a computed B is.
PROLOGUE_COLUMNS, PROLOGUE_ROWS = 1024, 96
#: Elements. Eight rows of so many of A, computed, stay in the L2 cache.
PROLOGUE_DEPTH = 8192

#: Horizontal fusion. Bytes that both nests read, at least: those of a first-level cache.
LEAST_SHARED = 1 << 15
#: Arrays of a nest, read and written: caches of 8 ways hold a line of each, however they lie.
MOST_STREAMS = 8
#: Functions of many instructions in a nest, at most: the constants of more leave no registers; and
#: bytes that are read and written where both have some, at least: less is there sooner than they
#: are done.
MOST_EXPENSIVE, LEAST_EXPENSIVE = 4, 1 << 25
#: Nanoseconds of an element of such a function, at least; instructions that have that price too.
EXPENSIVE_OP_NS, EXPENSIVE_INSTRUCTIONS = 0.06, frozenset({"divide", "sqrt", "reciprocal"})
#: Elements of the innermost loop that nests of different loops have as one, where it is folded too;
#: and rows.
JOINED_RUN, JOINED_FOLD, JOINED_ROWS = 16, 64, 64
#: Of so many bytes that are not read again, one more may be needed in memory.
SPARED = 64

#: Rematerialisation. Bytes of an arena that is worth it: smaller ones stay in or near the last
#: level of the caches; of a tensor.
REMATERIALIZED_ARENA_BYTES, REMATERIALIZED_BYTES = 1 << 25, 1 << 20
#: The part of the step's time that computing again may take.
REMATERIALIZED_TIME = 1 / 50
#: An input that is this part of the tensor may be kept for it, although a result could have its
#: place.
REMATERIALIZED_INPUT_SHARE = 16
#: The part of the arena that one round must save.
REMATERIALIZED_SHARE = 1 / 64

#: Order of ops. Bytes: arenas below this stay in a core's second-level cache, whatever the order.
REORDERED_ARENA_BYTES = 1 << 16
#: Bytes that an op may take more than it gives back, so that others can run.
REORDERED_GROWTH_BYTES = 4096
#: The part of the arena that another order must save.
REORDERED_SHARE = 1 / 32
#: Bytes. An op's scratch memory of so many or more is planned as a value is; what is small is
#: shared by all calls, and stays in the caches.
LARGE_SCRATCH_BYTES = 1 << 20

# -------------------------------------------------------------------------- nests and loops as code

#: Nanoseconds of an element. Bodies that cost at least the first are interleaved, those that cost
#: the second beside their dearest op by twice as much, unless they cost the third (the code takes
#: long to compile).
INTERLEAVED_NS, INTERLEAVED_TWICE_NS, INTERLEAVED_MOST_NS = 0.06, 0.4, 6.0
#: Nanoseconds of an element. A value of a row that costs more to compute again is kept: a store and
#: a load.
KEEP_NS = 0.055
#: Ops of a loop or branch that becomes one kernel, at most: compiling takes more than linear time;
#: of a loop on small arrays, the ops on single elements.
MOST_OPS, MOST_UNROLLED = 4000, 2000
#: Long rows of cumulative ops and argmax are cut into blocks if there are fewer, and they have so
#: many blocks at least.
FEW_ROWS, LEAST_BLOCKS = 16, 4
#: Rows are sorted in blocks by several threads if there are fewer than `FEW_ROWS`, and their sides
#: have more bytes: moving what fits into caches between processors may cost more than the second
#: one gives.
SORTED_BYTES = 64 << 20
#: Elements. Rows of up to so many are sorted by counting ranks, longer ones digit by digit.
SHORT_SORT = 48
#: Bytes of a row that a scatter gives to one thread at least: every thread checks all indices.
SCATTERED_BYTES = 1024
#: The same of a product of a sparse matrix, which reads rows of another tensor besides.
SPARSE_ROW_BYTES = 128
#: Elements. Fewer that a sparse product would add stay ops of their own: a loop on so small arrays
#: keeps them in registers.
LEAST_ADDED = 65

# -------------------------------------------------------------------------- matrix products

#: Rows of x whose product with quantised weights reads those once, not as panels.
FEW_PRODUCT_ROWS = 8

#: Results of up to so many tiles of `TILE` elements are small: too few blocks of C for threads to
#: share, and all of both operands passes through each. Then k is cut (`k_pieces`).
FEW_TILES, TILE = 32, (8, 48)
#: A piece of k has at least so many products, and there are at most so many pieces.
LEAST_DEPTH, MOST_PIECES = 2048, 64


def k_pieces(m: int, n: int, k: int, count: int = 1) -> int:
    """Into how many pieces the sums over k of `count` products of m x k by k x n are cut, each of
    which gives a partial product of its own; they are added up in order."""
    tiles = -(-m // TILE[0]) * -(-n // TILE[1])
    if count != 1 or not 0 < tiles <= FEW_TILES or k < 2 * LEAST_DEPTH:
        return 1
    return min(MOST_PIECES, k // LEAST_DEPTH)


#: Bytes. Steps of k in A so far apart and more are packed: they share few sets of the cache, and
#: pages.
FAR_STEP_BYTES = 4096
#: Bytes of B. Above so many it is packed: read in place, its rows lie on too many pages.
DIRECT_B_BYTES = 1 << 20
#: Bytes of B (all of k). Above so many it is packed run by run, for each block of C anew.
PACKED_B_BYTES = 1 << 22
#: Bytes of a run of k. Up to so many any B is read in place: its pages are few at a time.
DIRECT_RUN_BYTES = 1 << 17
#: Bytes of a block of rows of A that a prologue computes, at most, where possible.
COMPUTED_BYTES = 1 << 18
#: Rows. Below so many, twice as large a B is read in place: packing it costs as much as what it
#: gives to some 500 rows.
MANY_ROWS = 512
#: Rows and panels. From so many on B is packed where a panel has one cache line of each row of B
#: (16 registers): read in place, the lines beside it take their room in L1.
NARROW_ROWS, NARROW_PANELS = 192, 4
#: Bytes of A. It is asked for a tile ahead if it has more: half of the L2 cache or more.
NEAR_A_BYTES = 1 << 20
#: Bytes of B. Up to so many a call before the product packs all of it; of more, each chunk packs
#: the columns that it needs: they stay in L2, and the step's memory does not grow by all of B.
PACKED_BEFORE_BYTES = 1 << 19
#: Nanoseconds that LAPACK takes for one matrix, and matrices. Fewer ones of so many nanoseconds go
#: one after the other, as OpenBLAS cuts the work on each over threads of its own.
ONE_BY_ONE, FEW_MATRICES = 5e6, 4
#: Matrices of up to so many rows and columns are interleaved, one in each lane of a vector; up to
#: fewer if singular vectors are wanted, as turns go through all of a matrix hundreds of times.
INTERLEAVED_ROWS, INTERLEAVED_TURNED = 64, 32
#: The fewest matrices for that, as a share of the lanes: up to so many rows, and of larger ones or
#: with singular vectors. LAPACK does fewer, one after the other.
INTERLEAVED_SMALL, INTERLEAVED_SHARES = 32, (0.25, 0.5)

# ---------------------------------------------------------------------- sizes that depend on values
#: Ops whose results' sizes depend on values, on fewer elements: NumPy's calls take no longer than
#: those of native kernels, some ten microseconds.
FEW_ELEMENTS = 1 << 11
#: The same of the indices of two sparse matrices, of which NumPy makes and sorts all pairs.
FEW_PAIRED = 1 << 7
#: Rows and columns of sparse matrices that a kernel may have a word each for, however few entries
#: there are.
FEW_SIZES = 1 << 16
#: As `FEW_ELEMENTS`, of strings, of which Python's loop takes a microsecond for each.
FEW_STRINGS = 1 << 5
#: The same of ops for which Python calls a function of CPython's, in 40 to 300 nanoseconds each.
FEW_QUICK_STRINGS = 1 << 9
#: tf.train.Examples, of which Python parses one in 15 to 60 microseconds: with so many a process
#: loads the kernels for that, which takes 150 milliseconds (the first time 800: they are compiled).
MANY_EXAMPLES = 1 << 10
