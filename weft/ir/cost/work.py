"""The cost of ops: exact work (`work`), and from it about how long they take (`nanoseconds`).

Work is arithmetic, transcendental functions, bytes read and written. The rule: counts are those of
the IR, whatever the kernel does to carry it out (values that it computes twice count once, lanes
that it computes for nothing do not count). Static shapes only.

flops: one for each arithmetic, comparing, rounding, selecting or logical operation on one element,
of integers too; a multiply-add is two. `rates.ELEMENTWISE` has the ops that are more than one, as
their `scalar` expression shows. Folding n elements into one is n - 1 operations, a product of m
x k and k x n matrices 2 m n k, a convolution 2 for each pair of an input element and a tap that
meet (padding meets nothing) per pair of channels, a scatter that adds one for each update. Complex
numbers: an addition is 2, a multiplication 6, a division 11, everything else twice the real count.
transcendentals: calls of exp, log, tanh, power, ... are counted apart, one for each element, as
XLA's HloCostAnalysis does; sqrt is arithmetic (one instruction). `MOVES` only move bytes: they,
conversions among them, have no flops.

bytes: unique bytes touched per operand and result: an element that is read twice, or by every row,
counts once. Reads by index count as many elements as there are indices, at most all. An update in
place reads and writes only what it changes.

Loops count as often as they run; a `while` whose trip count is not provable has no count, and
`Work.unknown` says so; so has a `cond` whose branches differ.

Times are of one core, ops not fused, each by the price in `rates` that code generation cuts its
kernel by: for deciding what is worth a thread of its own (`thresholds.EXPENSIVE_NS`), and what a
placement costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from weft.ir.analysis.index_maps import Read, is_index_map, read_of, static_shape
from weft.ir.analysis.known_values import trip_count
from weft.ir.cost.rates import (
    ELEMENTWISE,
    NS_PER_RANDOM_BLOCK,
    NS_PER_STEP,
    PLAIN,
    UNKNOWN_NS,
    arithmetic,
    decomposition,
    decomposition_operations,
    product,
    scanned,
    score,
    sorted_row,
    streamed,
    transformed,
)
from weft.ir.cost.thresholds import WIDE_SHARE, WORTH_CUTTING_NS
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import DType, float32
from weft.ir.errors import WeftError
from weft.ir.graph import Block, Operation, Value
from weft.ir.ops import lookup
from weft.ir.ops.collectives import COLLECTIVES
from weft.ir.ops.control_flow import COMMUNICATION, DATAFLOW, STACK_OPS, length_attr
from weft.ir.ops.dynamic import TABLE as DYNAMIC_OPS
from weft.ir.ops.fourier import FOURIER
from weft.ir.ops.io import FILE_TABLE, HOST_FUNCTION_TABLE, REPORT_TABLE
from weft.ir.ops.linear_algebra import LINEAR_ALGEBRA
from weft.ir.ops.resources import QUEUE_TABLE, RESOURCE_TABLE
from weft.ir.ops.state import TABLE as STATE_OPS
from weft.ir.ops.state import UPDATES
from weft.ir.ops.strings import TABLE as STRING_OPS
from weft.ir.ops.text_processing import TABLE as TEXT_OPS
from weft.ir.ops.windows import sliding_of
from weft.ir.spec import int_attr
from weft.ir.types import TensorType


@dataclass(frozen=True, slots=True)
class Work:
    """The work of an op. flops, transcendentals: operations, None if `unknown` (why) is not empty.
    bytes_read, bytes_written: unique bytes."""

    flops: int | None
    transcendentals: int | None
    bytes_read: int
    bytes_written: int
    unknown: str = ""


_COMPLEX = {"multiply": 6, "square": 6, "divide": 11, "reciprocal": 6, "abs": 4, "prod": 6}
#: Ops without arithmetic: they move bytes, choose them, name them or make them out of indices.
#: Of sorting and searching the comparisons depend on the values; random bits are counters mixed.
MOVES = frozenset({
    "constant", "identity", "stop_gradient", "tap", "loop_mark", "row_guard",
    "optimization_barrier",
    "group", "custom_gradient", "custom_rule",
    "astype", "bitcast", "real", "imag", "conj", "reshape", "permute_dims",
    "broadcast_to", "concat", "pad", "slice", "slice_update", "iota", "dim_size", "take",
    "take_along_axis", "gather_nd", "scatter_nd_update", "sort", "argsort", "searchsorted",
    *(spec.name for spec in STATE_OPS if spec.name not in UPDATES), "scatter_update",
    "random_bits", "random_fold_in", "first_occurrence", "sparse_pairs_padded", *DATAFLOW,
    *COMMUNICATION,
    *COLLECTIVES, "exchange",
    *(STACK_OPS - {"stack_add", "arena_add"}),
    *(spec.name for spec in (*QUEUE_TABLE, *RESOURCE_TABLE, *STRING_OPS, *FILE_TABLE)),
    *(spec.name for spec in (*REPORT_TABLE, *HOST_FUNCTION_TABLE, *DYNAMIC_OPS)),
    *(spec.name for spec in TEXT_OPS),
})  # fmt: skip
_READS_BY_INDEX = frozenset({"take", "take_along_axis", "gather_nd"})
_UPDATES = frozenset({
    "slice_update", "index_add", "scatter_along_axis_add", "scatter_nd_add", "scatter_nd_update",
    "scatter_nd_min", "scatter_nd_max",
})  # fmt: skip


class _UnknownError(Exception):
    """The count depends on values; the message says on which."""


def work(op: Operation, in_place: bool = False) -> Work:
    """The work of one op, regions included. in_place: its first operand's buffer is the result's
    (matters to updates only)."""
    read, written = _bytes(op, in_place)
    try:
        flops, transcendentals, _ = _operations(op)
    except _UnknownError as unknown:
        return Work(None, None, read, written, str(unknown))
    return Work(flops, transcendentals, read, written)


def has_rule(name: str) -> bool:
    """Whether the ops of this name are counted (a test holds it for every op)."""
    return name in MOVES or name in _RULES or "elementwise" in lookup(name).traits


# ------------------------------------------------------------------------------------- operations


class _Count(NamedTuple):
    """flops, calls: of functions that are counted apart; ns: nanoseconds of both on one core."""

    flops: int
    calls: int
    ns: float


def _operations(op: Operation) -> _Count:
    rule = _RULES.get(op.name)
    if rule is not None:
        return rule(op)
    if op.name in MOVES:
        return _Count(0, 0, 0.0)
    if "elementwise" not in lookup(op.name).traits:
        raise _UnknownError(f"op '{op.name}' has no rule")
    size = _size(op.result)
    calls = size * ELEMENTWISE.get(op.name, PLAIN).calls
    return _Count(size * _weight(op), calls, size * arithmetic([(op.name, _dtype(op).short)]))


def _dtype(op: Operation) -> DType:
    """The dtype that an op computes in: of its last operand."""
    held = (op.operands or op.results)[-1].type
    return held.dtype if isinstance(held, TensorType) else float32


def _folded(op: Operation, count: int) -> _Count:
    """So many elements that are each added to what is there, or what else the op does with them."""
    return _Count(count * _weight(op), 0, count * arithmetic([("add", _dtype(op).short)]))


def _weight(op: Operation) -> int:
    """Operations per element of an elementwise op or a fold."""
    first = op.operands[-1].type
    one = ELEMENTWISE.get(op.name, PLAIN).flops
    if isinstance(first, TensorType) and first.dtype.is_complex:
        return _COMPLEX.get(op.name, 2 * one)
    return one


def _fold(op: Operation) -> _Count:
    return _folded(op, max(0, _size(op.operands[0]) - _size(op.result)))


def _extreme(op: Operation) -> _Count:
    """argmax and argmin."""
    return _fold(op)._replace(ns=_size(op.operands[0]) * _along_axis(op))


def _cumulative(op: Operation) -> _Count:
    size = _size(op.result)
    along = static_shape(op.result)[int_attr(op.attrs, "axis")] if size else 1
    return _Count((size - size // along) * _weight(op), 0, size * _along_axis(op))


def _along_axis(op: Operation) -> float:
    """Nanoseconds of an element of an op that goes along an axis."""
    inner = math.prod(static_shape(op.operands[0])[int_attr(op.attrs, "axis") + 1 :])
    return scanned(op.name, inner, _item(op.operands[0]))


def _sort(op: Operation) -> _Count:
    n = static_shape(op.operands[0])[int_attr(op.attrs, "axis")]
    rows, item = _size(op.operands[0]) // max(n, 1), _item(op.operands[0])
    return _Count(0, 0, rows * sorted_row(n, item, item > 4))


def _fourier(op: Operation) -> _Count:
    """5 n log2(n) operations for a transform of n complex numbers, as benchmarks of FFTs count
    whatever the algorithm is (FFTW's "mflops"); half of it for real ones."""
    real = op.result if op.name == "irfft" else op.operands[0]
    n = static_shape(real)[int_attr(op.attrs, "axis")]
    lines = _size(real) // max(n, 1)
    points = n if op.name == "fft" else n // 2
    flops = (5.0 if op.name == "fft" else 2.5) * n * math.log2(max(n, 1))
    return _Count(lines * round(flops), 0, lines * transformed(points))


def _search(op: Operation) -> _Count:
    steps = max(1, static_shape(op.operands[0])[0].bit_length())
    return _Count(0, 0, _size(op.result) * NS_PER_STEP * steps)


def _random(op: Operation) -> _Count:
    return _Count(0, 0, _size(op.result) * NS_PER_RANDOM_BLOCK / 2)


def _updates(op: Operation) -> _Count:
    return _folded(op, _size(op.operands[-1]))


def _matmul(op: Operation) -> _Count:
    inner = static_shape(op.operands[0])[-2 if op.attrs["transpose_a"] else -1]
    return _products(op, _size(op.result) * inner)


def _products(op: Operation, count: int) -> _Count:
    """So many multiply-adds; a complex one is four of its parts."""
    held = op.results[0].type  # attention has a second one
    assert isinstance(held, TensorType)
    dtype = held.dtype
    times, part = (4, dtype.itemsize // 2) if dtype.is_complex else (1, dtype.itemsize)
    return _Count(2 * times * count, 0, times * count * product(part))


def _meetings(op: Operation, large: Value, window: Value | str, small: Value) -> int:
    """How many pairs of a position and a tap meet."""
    held: tuple[int, ...] = (
        op.attrs[window] if isinstance(window, str) else static_shape(window)[:-2]  # type: ignore[assignment]
    )
    total = 0
    pairs = sliding_of(op.attrs).meetings(
        static_shape(large)[1:-1], held, static_shape(small)[1:-1]
    )
    for _, _, positions in pairs:
        total += math.prod(max(0, s.stop - s.start) for s in positions)
    return total


def _conv(op: Operation) -> _Count:
    first, second, made = op.operands[0], op.operands[1], op.result
    large, kernel, small = {
        "conv": (first, second, made),
        "conv_input": (made, second, first),
        "conv_kernel": (first, made, second),
    }[op.name]
    inside, outside = static_shape(kernel)[-2:]
    batch = static_shape(large)[0]
    pairs = _meetings(op, large, kernel, small) * batch * inside * outside
    return _products(op, pairs)


def _window(op: Operation) -> _Count:
    first, made = op.operands[0], op.result
    large, small = (made, first) if op.name == "window_spread" else (first, made)
    if op.name == "window_place":
        small = op.operands[1]
    shape = static_shape(large)
    return _folded(op, _meetings(op, large, "window", small) * shape[0] * shape[-1])


def _block(block: Block) -> _Count:
    return _sum(_operations(op) for op in block.ops)


def _sum(counts: Iterable[_Count]) -> _Count:
    return _Count(*map(sum, zip(_Count(0, 0, 0.0), *counts, strict=True)))


def _times(count: _Count, times: int) -> _Count:
    return _Count(count.flops * times, count.calls * times, count.ns * times)


def _while(op: Operation) -> _Count:
    times = trip_count(op)
    if times is None:
        raise _UnknownError("how often the while runs depends on values")
    test, body = map(_block, op.regions)
    return _sum((_times(test, times + 1), _times(body, times)))


def _cond(op: Operation) -> _Count:
    then, orelse = map(_block, op.regions)
    if then[:2] != orelse[:2]:
        raise _UnknownError("the branches of the cond differ")
    return max(then, orelse)


def _scan(op: Operation) -> _Count:
    length = length_attr(op.attrs)
    if not isinstance(length, int):
        raise _UnknownError("how often the scan runs depends on values")
    return _times(_block(op.regions[0]), length)


def _stack_sums(op: Operation) -> _Count:
    raise _UnknownError("how many elements stacks have depends on values")


def _attention(op: Operation) -> _Count:
    """Two products of all scores, five for the gradient, and what is done to each score: all of
    them, also those that a causal mask hides."""
    scores = _size(op.operands[0]) // max(static_shape(op.operands[0])[-1], 1)
    key = static_shape(op.operands[1])
    scores *= key[-3 if op.attrs["heads_inner"] else -2]
    depth, width = static_shape(op.operands[0])[-1], static_shape(op.operands[2])[-1]
    forward = op.name == "attention"
    made = _products(op, scores * (depth + width if forward else 3 * depth + 2 * width))
    return _Count(
        made.flops + (4 if forward else 5) * scores,
        scores,
        made.ns + scores * score(_dtype(op).itemsize),
    )


def _decomposition(op: Operation) -> _Count:
    *batch, m, n = static_shape(op.operands[0])
    right = static_shape(op.result)[-1] if op.name.endswith("solve") else 0
    times = math.prod(batch) * (4 if _dtype(op).is_complex else 1)
    given = op.name, m, n, right, bool(op.attrs.get("vectors", True))
    operations = decomposition_operations(*given)
    return _Count(int(times * operations), 0, times * decomposition(*given))


def _sparse_matmul(op: Operation) -> _Count:
    """A multiplication and an addition for each entry and column."""
    columns = math.prod(static_shape(op.operands[0])[1:])
    return _folded(op, 2 * _size(op.operands[2]) * columns)


_RULES: dict[str, Callable[[Operation], _Count]] = {
    **dict.fromkeys(("sum", "prod", "max", "min", "all", "any"), _fold),
    **dict.fromkeys(("argmax", "argmin"), _extreme),
    **dict.fromkeys(("sort", "argsort"), _sort),
    "searchsorted": _search,
    **dict.fromkeys(FOURIER, _fourier),
    "random_bits": _random,
    **dict.fromkeys(
        ("cumulative_sum", "cumulative_prod", "cumulative_max", "cumulative_min",
         "cumulative_logsumexp"), _cumulative,
    ),
    **dict.fromkeys(
        ("index_add", "scatter_along_axis_add", "scatter_nd_add", "scatter_nd_min",
         "scatter_nd_max", "scatter_add", "scatter_sub"), _updates,
    ),
    **dict.fromkeys(("assign_add", "assign_sub"), _updates),
    "matmul": _matmul,
    "quantized_matmul": lambda op: _products(
        op, _size(op.operands[0]) * static_shape(op.operands[2])[0]
    ),
    "sparse_matmul": _sparse_matmul,
    **dict.fromkeys(("attention", "attention_grad"), _attention),
    **dict.fromkeys(sorted(LINEAR_ALGEBRA), _decomposition),
    **dict.fromkeys(("conv", "conv_input", "conv_kernel"), _conv),
    **dict.fromkeys(
        ("window_sum", "window_spread", "window_max", "window_pick", "window_place"), _window
    ),
    **dict.fromkeys(("fused", "unrolled"), lambda op: _block(op.regions[0])),
    "while": _while,
    "cond": _cond,
    "scan": _scan,
    **dict.fromkeys(("stack_add", "arena_add"), _stack_sums),
}  # fmt: skip


# ------------------------------------------------------------------------------------------ bytes


def _bytes(op: Operation, in_place: bool) -> tuple[int, int]:
    """(read, written)."""
    if op.name == "fused":
        region = op.regions[0]
        read = sum(_touched(region, a) * _item(a) for a in region.args)
        return read, sum(map(_nbytes, op.results))
    if op.name == "dim_size":
        return 0, sum(map(_nbytes, op.results))
    if op.name in UPDATES or (in_place and op.name in _UPDATES):
        changed = min(_size(op.result), _size(op.operands[-1])) * _item(op.result)
        adds = op.name not in ("slice_update", "scatter_nd_update", "scatter_update")
        return sum(map(_nbytes, op.operands[1:])) + changed * adds, changed
    given = [_nbytes(v) for v in op.operands]
    if op.name in _READS_BY_INDEX:
        given[0] = min(given[0], _nbytes(op.result))
    return sum(given), sum(map(_nbytes, op.results))


def _touched(region: Block, argument: Value) -> int:
    """How many elements of an argument the ops of a loop nest read."""
    size = _size(argument)
    reads: set[tuple[Read, tuple[int, ...]]] = set()
    by_index = 0
    users: list[tuple[Operation | None, int, Value]] = [
        (op, k, v) for op in region.ops if not is_index_map(op) for k, v in enumerate(op.operands)
    ]
    users += [(None, 0, v) for v in region.results]
    for op, k, value in users:
        read = read_of(value)
        if read.source is not argument:
            continue
        if op is not None and op.name in _READS_BY_INDEX and k == 0:
            by_index = max(by_index, min(size, _size(op.result)))
        else:
            reads.add((read, static_shape(value)))
    counts = [_distinct(read, shape) for read, shape in reads]
    most = max([by_index, *counts], default=0)
    if len(counts) < 2 or most == size:
        return most
    seen = np.zeros(size, np.bool_)
    for read, shape in reads:
        if math.prod(shape):
            np.lib.stride_tricks.as_strided(seen[read.offset :], shape, read.strides)[...] = True
    return max(int(np.count_nonzero(seen)), by_index)


def _distinct(read: Read, shape: tuple[int, ...]) -> int:
    if not math.prod(shape):
        return 0
    return math.prod(d for d, s in zip(shape, read.strides, strict=True) if s != 0)


def _size(value: Value) -> int:
    return math.prod(static_shape(value)) if isinstance(value.type, TensorType) else 0


def _item(value: Value) -> int:
    assert isinstance(value.type, TensorType)
    return value.type.dtype.itemsize


def _nbytes(value: Value) -> int:
    return _size(value) * _item(value) if isinstance(value.type, TensorType) else 0


def nanoseconds(ops: Iterable[Operation]) -> float:
    """The ops one after the other, none fused. Ops whose sizes are not known count nothing."""
    return sum(map(_nanoseconds, ops))


def arithmetic_nanoseconds(ops: Iterable[Operation]) -> float:
    """As `nanoseconds`, of the arithmetic alone: what ops of one kernel read of each other costs
    nothing."""
    return sum(_nanoseconds(op, memory=False) for op in ops)


def _nanoseconds(op: Operation, memory: bool = True) -> float:
    try:
        moved = streamed(sum(_bytes(op, in_place=False))) if memory else 0.0
        return _operations(op).ns + moved
    except _UnknownError:
        return UNKNOWN_NS
    except (WeftError, ValueError):  # a size that depends on values
        return 0.0


def is_wide(ops: Iterable[Operation]) -> bool:
    """Whether most of the time goes into ops that are worth all threads themselves."""
    each = [_nanoseconds(op) for op in ops]
    return sum(ns for ns in each if ns >= WORTH_CUTTING_NS) > WIDE_SHARE * sum(each)
