"""Batch-parallel loops: scans whose rows do not depend on each other, run in parts of rows.

The batch of an RNN: every carry, and every value of the body that changes, has the same first axis,
and row r of what an iteration makes depends on rows r alone. Then a part, some neighbouring rows,
goes through all iterations by itself: threads take parts and never wait for each other within the
loop, and what a part works on stays in one core's cache. The body is typed anew for the rows of one
part (`Parts.body`), its kernel calls are planned for those, and part p adds p times a part's bytes
to the addresses of values that are split.

How many parts there are follows from the sizes alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from weft.codegen.call import KernelCall, Scratch, Stacks, Status
from weft.codegen.engines import engine
from weft.codegen.kernels.lowerings import LOWERINGS, fused_product_calls
from weft.codegen.llvm.target import narrower
from weft.codegen.nests.calls import nest_calls
from weft.codegen.numba.replacements import replacements
from weft.codegen.products.calls import is_product
from weft.codegen.tiles.micro_kernel import ACCUMULATOR, multiply_adds_per_ns
from weft.ir.analysis.index_maps import is_fold, is_gather
from weft.ir.cost.rates import arithmetic
from weft.ir.cost.thresholds import (
    CHUNKS_PER_PART,
    LONG_PART_NS,
    LOOP_NS,
    MOST_PARTS,
    PART_NS,
    PART_SHARED_BYTES,
)
from weft.ir.dataclass import dataclass
from weft.ir.errors import WeftError
from weft.ir.graph import Block, Operation, Value
from weft.ir.ops import REGISTERED, lookup
from weft.ir.ops.builder import Builder
from weft.ir.ops.control_flow import CONTROL
from weft.ir.ops.io import PYTHON_CALLS
from weft.ir.process import load
from weft.ir.spec import Attrs, AttrValue, int_attr, ints_attr
from weft.ir.types import TensorType

#: Bytes of a cache line: no two parts write the same.
LINE = 64
#: Rows of a part whose body has products: whole tiles on every target (8, or twice 4).
TILE_ROWS = 8


class Whole(Exception):
    """The reason why a loop is not run in parts; `value` is an operand of the region that is to
    blame."""

    def __init__(self, why: str, value: Value | None = None) -> None:
        super().__init__(why)
        self.value = value


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a batch-parallel loop: `count` of `rows` rows each. long: whether each is worth
    waking a thread for. body: the loop's body for one part; origin: the value of the loop's own
    body that each value of it is a part of, or the same as; split: those that are parts.
    """

    count: int
    rows: int
    long: bool
    body: Block
    origin: dict[Value, Value]
    split: set[Value]

    def bytes_between(self, value: Value) -> int:
        """What the address of `value` moves by from one part to the next."""
        assert isinstance(value.type, TensorType)
        return value.type.nbytes if value in self.split else 0


def parts_of(op: Operation) -> Parts | str:
    """The parts of a `while` or `scan`, or why it runs as a whole."""
    try:
        return _parts(op)
    except Whole as reason:
        return str(reason)


def runs_in_parts(op: Operation) -> bool:
    """Whether the op is a loop that runs in parts."""
    return op.name == "scan" and isinstance(parts_of(op), Parts)


def _parts(op: Operation) -> Parts:
    if op.name != "scan" or not int_attr(op.attrs, "carries"):
        raise Whole("it is no scan with carries")
    (body,) = op.regions
    for inner in body.walk():
        if inner.name in PYTHON_CALLS:
            raise Whole(f"'{inner.name}' in its body calls Python")
    rows = {_tensor(v).static_shape[:1] for v in body.results}
    if len(rows) != 1 or rows == {()}:
        raise Whole("its carries and rows have no first axis in common")
    ((n,),) = rows
    count = _count(op, n)
    for value in body.args[int_attr(op.attrs, "carries") :]:
        if isinstance(value.type, TensorType) and value.type.nbytes > PART_SHARED_BYTES:
            raise Whole(f"{value.type} is more than what each thread's cache should hold")
    whole: set[Value] = set()
    while True:
        retyping = _Retyping(op, n, n // count, whole)
        try:
            made = retyping.run()
        except Whole as conflict:  # a weight whose first axis is as long as the batch
            if conflict.value not in retyping.guessed or conflict.value in whole:
                raise
            whole.add(conflict.value)
            continue
        calls = [call for inner in made.ops for call in _calls(inner)]
        if any(map(_shares_scratch, made.ops)):
            raise Whole("a printed kernel of the body needs scratch memory")
        if any(isinstance(a, Status | Scratch | Stacks) for call in calls for a in call.args):
            raise Whole("a kernel of the body checks indices or needs scratch memory")
        long = _work(op) / count >= LONG_PART_NS
        return Parts(count, n // count, long, made, retyping.origin, retyping.split)


def _tensor(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type


# ----------------------------------------------------------------------------------- how many parts


def _count(op: Operation, n: int) -> int:
    (body,) = op.regions
    work, length = _work(op), int_attr(op.attrs, "length")
    step = max([1, *(_tile_rows(inner) for inner in body.walk() if inner.name == "matmul")])
    # a nest that folds each of several rows would fold all that it has if there were one
    least = max(step, 2 if any(is_fold(inner) for inner in body.walk()) else 1)
    line = [_tensor(v).nbytes // max(n, 1) for v in body.results]  # bytes of one row
    for count in range(min(MOST_PARTS, n // least), 1, -1):
        rows = n // count
        apart = n % count == 0 and rows % step == 0 and all(rows * b % LINE == 0 for b in line)
        if apart and work / count >= PART_NS * length and work / count >= LOOP_NS:
            cut = [c for inner in body.ops for c in _calls(inner) if c.chunk]
            if all(c.units <= CHUNKS_PER_PART * count * c.chunk for c in cut):
                return count
            raise Whole("its kernel calls are large enough to be cut one by one")
    raise Whole("its parts would be too small")


def _work(op: Operation) -> float:
    """Nanoseconds of all iterations of a scan on one thread."""
    each = sum(_nanoseconds(inner) for inner in op.regions[0].walk())
    return int_attr(op.attrs, "length") * each


def _tile_rows(product: Operation) -> int:
    dtype = _tensor(product.result).dtype.short
    return TILE_ROWS if dtype in ACCUMULATOR else 1


def _nanoseconds(op: Operation) -> float:
    if op.name == "matmul":
        *_, m, n = _tensor(op.result).static_shape
        depth = _tensor(op.operands[0]).static_shape[-2 if op.attrs["transpose_a"] else -1]
        count = math.prod(_tensor(op.result).static_shape[:-2])
        dtype = _tensor(op.result).dtype.short
        return count * m * n * depth / multiply_adds_per_ns(dtype)
    if "elementwise" in lookup(op.name).traits and op.operands:
        held = _tensor(op.operands[-1])
        return math.prod(held.static_shape) * (
            arithmetic([(op.name, held.dtype.short)]) * narrower()
        )
    return 0.0


def _calls(op: Operation) -> Sequence[KernelCall]:
    """The kernel calls of an op of a body, wherever its values are."""
    gathers = [o.name for o in _inner(op) if is_gather(o)]
    if op.name in CONTROL or gathers:
        raise Whole(f"'{(*gathers, op.name)[0]}' in its body")
    if is_product(op):
        return [call for call, _, _ in fused_product_calls(op)]
    if op.name == "fused":
        return nest_calls(op)[0]
    lower = LOWERINGS.get(op.name)
    try:
        return lower(op) if lower is not None else ()
    except WeftError as error:
        raise Whole(error.args[0]) from None


def _shares_scratch(op: Operation) -> bool:
    """Whether an op's printed kernels are called, and need scratch memory: there is one for all."""
    numba = engine() == "numba"
    if not (numba or replacements()) or op.name in REGISTERED or not _calls(op):
        return False
    # who uses weft's own code generator alone does not wait for these modules
    printed: Any = load("weft.codegen.numba.calls", "planned_kernels")
    made = printed(op, (), not numba) or ()
    return any(isinstance(a, Scratch) for call, _, _ in made for a in call.args)


def _inner(op: Operation) -> Sequence[Operation]:
    return op.regions[0].ops if op.name == "fused" else ()


# -------------------------------------------------------------------------------- rows of one part


class _Retyping:
    """The body for `rows` of `n` rows. guessed: arguments that could be split or not; they are if
    their first axis is as long as the batch, but for those in `whole`.
    """

    def __init__(self, op: Operation, n: int, rows: int, whole: set[Value]) -> None:
        self.op, self.n, self.rows = op, n, rows
        (self.body,) = op.regions
        carries = int_attr(op.attrs, "carries")
        self.guessed = set(self.body.args[carries:])
        self.whole = whole
        self.origin: dict[Value, Value] = {}
        self.split: set[Value] = set()

    def run(self) -> Block:
        builder = Builder()
        given: dict[Value, Value] = {}
        for arg in self.body.args:
            held = _tensor(arg)
            apart = held.rank > 0 and held.shape[0] == self.n and arg not in self.whole
            given[arg] = builder.add_arg(self._typed(held) if apart else held)
            if apart:
                self.split.add(given[arg])
        for op in self.body.ops:
            made = self._op(builder, op, given)
            given.update(zip(op.results, made, strict=True))
            if op.name != "constant" and not all(v in self.split for v in made):
                raise Whole(f"'{op.name}' makes what all rows share")
        results = [given[v] for v in self.body.results]
        for old, value in zip(self.body.results, results, strict=True):
            if value not in self.split:
                raise Whole("a carry or a row of a result is the same for all rows", old)
        self.origin.update((new, old) for old, new in given.items())
        return builder.block(results)

    def _typed(self, held: TensorType) -> TensorType:
        return TensorType(held.dtype, (self.rows, *held.shape[1:]))

    def _block(self, builder: Builder, block: Block, given: dict[Value, Value]) -> list[Value]:
        for op in block.ops:
            given.update(zip(op.results, self._op(builder, op, given), strict=True))
        return [given[v] for v in block.results]

    def _op(self, builder: Builder, op: Operation, given: dict[Value, Value]) -> Sequence[Value]:
        operands = [given[v] for v in op.operands]
        if op.name == "fused":
            return self._fused(builder, op, operands)
        apart = [v in self.split for v in operands]
        attrs = self._attrs(op, apart)
        results = builder.emit(
            op.name, operands, op.attrs if attrs is None else attrs, locations=op.locations
        )
        if attrs is not None:
            self.split.update(results)
            for old, new in zip(op.results, results, strict=True):
                if _tensor(new) != self._typed(_tensor(old)):
                    raise Whole(f"'{op.name}' moves the rows")
        return results

    def _fused(self, builder: Builder, op: Operation, operands: Sequence[Value]) -> Sequence[Value]:
        (region,) = op.regions
        inner = Builder([v.type for v in operands])
        self.split.update(a for a, v in zip(inner.args, operands, strict=True) if v in self.split)
        given = dict(zip(region.args, inner.args, strict=True))
        try:
            values = self._block(inner, region, given)
        except Whole as conflict:
            outside = dict(zip(region.args, op.operands, strict=True))
            blamed = conflict.value
            raise Whole(str(conflict), None if blamed is None else outside.get(blamed)) from None
        results = builder.emit(
            "fused", operands, op.attrs, regions=[inner.block(values)], locations=op.locations
        )
        self.split.update(r for r, v in zip(results, values, strict=True) if v in self.split)
        return results

    def _attrs(self, op: Operation, apart: Sequence[bool]) -> Attrs | None:
        """The attributes of an op whose results are split; None if it is the same for all parts.

        Raises `Whole` where a row of the result depends on other rows than those of its part.
        """
        name = op.name
        if name == "broadcast_to":
            return self._broadcast(op, apart[0])
        if name == "iota":
            return self._iota(op)
        if not any(apart):
            return None
        if name == "matmul":
            return self._product(op, apart)
        if not all(apart):
            blamed = op.operands[list(apart).index(False)]
            raise Whole(f"'{name}' meets what all rows share", blamed)
        return self._moved(op)

    def _moved(self, op: Operation) -> Attrs:
        """Of an op all of whose operands are split."""
        name, attrs = op.name, dict(op.attrs)
        if name in ("reshape", "slice"):
            return attrs | self._shaped(op)
        if name == "concat" and int_attr(attrs, "axis") != 0:
            return attrs
        if name == "permute_dims" and ints_attr(attrs, "axes")[:1] == (0,):
            return attrs
        traits = lookup(name).traits
        if "reduction" in traits and 0 not in ints_attr(attrs, "axes"):
            return attrs
        if "elementwise" in traits or name in ("identity", "stop_gradient", "tap"):
            return attrs
        raise Whole(f"'{name}' is not known to keep rows apart")

    def _shaped(self, op: Operation) -> dict[str, AttrValue]:
        old, new = _tensor(op.operands[0]).static_shape, _tensor(op.result).static_shape
        if old[0] != self.n or new[:1] != (self.n,):
            raise Whole(f"'{op.name}' moves the rows")
        if op.name == "reshape":
            return {"shape": (self.rows, *new[1:])}
        starts, steps = ints_attr(op.attrs, "starts"), ints_attr(op.attrs, "steps")
        stops = ints_attr(op.attrs, "stops")
        if (starts[0], stops[0], steps[0]) != (0, self.n, 1):
            raise Whole("'slice' moves the rows")
        return {"stops": (self.rows, *stops[1:])}

    def _broadcast(self, op: Operation, apart: bool) -> Attrs | None:
        old, new = _tensor(op.operands[0]).static_shape, _tensor(op.result).static_shape
        grows = len(new) > len(old) or old[:1] == (1,)
        if apart and grows:
            raise Whole("'broadcast_to' moves the rows", op.operands[0])
        if new[:1] != (self.n,) or not (apart or grows):
            return None
        return {**op.attrs, "shape": (self.rows, *new[1:])}

    def _iota(self, op: Operation) -> Attrs | None:
        shape = _tensor(op.result).static_shape
        if shape[:1] != (self.n,):
            return None
        if int_attr(op.attrs, "axis") == 0:
            raise Whole("'iota' counts the rows")
        return {**op.attrs, "shape": (self.rows, *shape[1:])}

    def _product(self, op: Operation, apart: Sequence[bool]) -> Attrs:
        a, b = (_tensor(v) for v in op.operands)
        alone = a.rank == b.rank == 2 and not op.attrs["transpose_a"]
        if alone and apart[0]:
            if apart[1]:
                raise Whole("'matmul' multiplies rows by rows", op.operands[1])
            return dict(op.attrs)
        if a.rank == b.rank == 3 and all(apart):
            return dict(op.attrs)
        blamed = op.operands[0] if apart[1] else op.operands[1]
        raise Whole("'matmul' sums over the rows", blamed)
