"""Loops and branches in registers: which `cond`, `while` and `scan` ops become one kernel.

Every value of the regions must hold one element, or, of a loop on small arrays, at most `SMALL` of
them, each of which is a register then: its code is the elements' ops, one after another, and ops
that only move elements become nothing. Larger arrays may come in as invariants, as rows of
sequences, or as carries that are updated in place element by element; they stay in memory, are read
and written at computed indices, and only their newest version may be read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from weft.codegen.llvm.emitter import DTYPES, HALVES
from weft.codegen.llvm.target import narrower
from weft.codegen.scalar.elementwise import supported
from weft.codegen.scalar.replaced_ops import replacement_of
from weft.codegen.stacks import keeps_no_stacks
from weft.ir.analysis.verify import KERNELS
from weft.ir.cost.rates import (
    AXES_IN_LOOP_NS,
    FOLD_IN_LOOP_NS,
    KERNEL_IN_LOOP_NS,
    KERNELS_IN_LOOPS_NS,
    LATENCY,
    ONE_BY_ONE,
    ONE_BY_ONE_PLAIN,
    ONE_INSTRUCTION_NS,
    arithmetic,
)
from weft.ir.cost.thresholds import MOST_OPS, MOST_UNROLLED
from weft.ir.dataclass import dataclass
from weft.ir.graph import Block, Operation, Value
from weft.ir.interpreter.evaluate import evaluate_op
from weft.ir.ops import lookup
from weft.ir.ops.control_flow import CONTROL
from weft.ir.ops.data_movement import COMBINES
from weft.ir.ops.io import PYTHON_CALLS
from weft.ir.ops.reduction import FOLDS
from weft.ir.spec import int_attr
from weft.ir.types import TensorType

#: The most elements of a value that is kept in registers, where a loop is on small arrays.
SMALL = 64
#: Ops that move elements as the positions alone say.
MOVES = frozenset(
    {
        "reshape", "broadcast_to", "permute_dims", "slice", "identity", "stop_gradient", "tap",
        "concat", "slice_update", "pad",
    }
)  # fmt: skip


def tensor(value: Value) -> TensorType:
    """The type of a value that is a tensor."""
    assert isinstance(value.type, TensorType)
    return value.type


def elements(value: Value) -> int:
    """How many elements a value has."""
    return math.prod(tensor(value).static_shape)


def is_single(value: Value) -> bool:
    """Whether a value holds one element."""
    return all(d == 1 for d in tensor(value).shape)


def fits(value: Value, limit: int) -> bool:
    """Whether a value's elements are in registers, if those of at most `limit` elements are."""
    return is_single(value) or 0 < elements(value) <= limit


def moved(op: Operation) -> list[tuple[int, int]]:
    """Per element of the result of an op in `MOVES`: (number of the operand, element of it)."""
    given, names = [], list[tuple[int, int]]()
    for k, operand in enumerate(op.operands):
        count = elements(operand)
        given.append(np.arange(count).reshape(tensor(operand).static_shape) + len(names))
        names += [(k, j) for j in range(count)]
    (made,) = evaluate_op(op.name, given, op.attrs)
    return [names[j] for j in made.reshape(-1).tolist()]


def folded(op: Operation) -> list[list[int]]:
    """Per element of the result of an op in `FOLDS`: the elements of the operand, in order."""
    axes: tuple[int, ...] = op.attrs["axes"]  # type: ignore[assignment]
    shape = tensor(op.operands[0]).static_shape
    index = np.arange(math.prod(shape)).reshape(shape)
    last = np.moveaxis(index, axes, range(len(shape) - len(axes), len(shape)))
    rows: list[list[int]] = last.reshape(elements(op.result), -1).tolist()
    return rows


def multiplied(op: Operation) -> list[list[tuple[int, int]]]:
    """Per element of the result of a matmul: the pairs of elements to multiply, in order."""
    a, b = (np.arange(elements(v)).reshape(tensor(v).static_shape) for v in op.operands)
    a = a.swapaxes(-1, -2) if op.attrs["transpose_a"] else a
    b = b.swapaxes(-1, -2) if op.attrs["transpose_b"] else b
    *batch, m, n = tensor(op.result).static_shape
    a = np.broadcast_to(a, (*batch, *a.shape[-2:])).reshape(-1, m, a.shape[-1])
    b = np.broadcast_to(b, (*batch, *b.shape[-2:])).reshape(-1, b.shape[-2], n)
    return [
        list(zip(x[i].tolist(), y[:, j].tolist(), strict=True))
        for x, y in zip(a, b, strict=True)
        for i in range(m)
        for j in range(n)
    ]


#: Reads of one element at an index in memory.
READS = frozenset({"gather_nd", "take"})
#: Updates of one element in memory, and how the update meets what is there (None: replaces it).
WRITES = {op: combine for op, combine in COMBINES.items() if op != "scatter_along_axis_add"}
#: Ops on stacks whose elements are in registers.
STACKS = frozenset({"arena_push", "arena_pop"})


class Refused(Exception):
    """The reason why an op does not become one kernel."""


@dataclass(eq=False, slots=True)
class Memory:
    """An array in memory: `newest` is the value that holds its present contents."""

    newest: Value
    writable: bool


def why_not_in_registers(op: Operation) -> str | None:
    """Why the op does not become one kernel; None if it does."""
    found = _limit(op)
    return found if isinstance(found, str) else None


def in_registers(op: Operation) -> int:
    """The most elements of what is kept in registers if the op becomes one kernel: 1, or `SMALL`
    for a loop on small arrays; 0 if it does not become one.
    """
    if op.name == "unrolled":  # of a loop that was
        return SMALL
    found = _limit(op)
    return 0 if isinstance(found, str) else found


def _limit(op: Operation) -> int | str:
    if op.name not in CONTROL:
        return "it is no control flow"
    if sum(1 for region in op.regions for _ in region.walk()) > MOST_OPS:
        return f"it holds more than {MOST_OPS} ops"
    try:
        _check_top(op, 1)
    except Refused as single:
        try:
            _check_small(op)
        except Refused as small:
            return f"{single}; nor is it on small arrays: {small}"
        return SMALL
    return 1


def _check_small(op: Operation) -> None:
    """Refuses what is no loop on small arrays, or takes longer in single registers."""
    if op.name == "cond":
        raise Refused("it is no loop")
    _check_top(op, SMALL)
    inner = [o for region in op.regions for o in region.walk() if not o.regions]
    if sum(_unrolled(o) for o in inner) > MOST_UNROLLED:
        raise Refused(f"its elements take more than {MOST_UNROLLED} ops")
    latency = LATENCY * sum(_price(o) for o in inner if o.operands)
    calls = sum(_kernel_nanoseconds(o) for region in op.regions for o in region.ops)
    if sum(_unrolled(o) * _one_by_one(_price(o)) for o in inner) > latency + calls:
        raise Refused("one by one its elements take longer than its kernels, which use vectors")


def _kernel_nanoseconds(op: Operation) -> float:
    """What the kernel call of an op takes besides the arithmetic, on small arrays."""
    if op.name not in KERNELS:
        return KERNELS_IN_LOOPS_NS.get(op.name, KERNEL_IN_LOOP_NS)
    inner = op.regions[0].ops
    folds = any(o.name in FOLDS for o in inner)
    values = [v for o in inner if o.name in MOVES or o.name in FOLDS for v in o.operands]
    axes = any(tensor(v).rank > 1 and not is_single(v) for v in values)
    return KERNEL_IN_LOOP_NS + FOLD_IN_LOOP_NS * folds + AXES_IN_LOOP_NS * axes


def _price(op: Operation) -> float:
    """Nanoseconds of one element in a vectorised loop."""
    if op.name in MOVES or op.name in STACKS or op.name in ("constant", "iota"):
        return 0.0
    dtype = tensor(op.operands[-1]).dtype.short
    name = "multiply" if op.name == "matmul" else FOLDS.get(op.name, op.name)
    return arithmetic([(name, dtype)]) * narrower()


def _one_by_one(price: float) -> float:
    """Nanoseconds of one element among others, no vectors: LLVM finds vectors of sums itself."""
    return price * (ONE_BY_ONE_PLAIN if price <= ONE_INSTRUCTION_NS else ONE_BY_ONE)


def _unrolled(op: Operation) -> int:
    """How many ops on single elements an op becomes."""
    if op.name in MOVES or op.name in ("constant", "iota"):
        return 0
    if op.name in STACKS:
        return elements((*op.operands, *op.results)[2 if op.name == "arena_pop" else 1])
    if op.name == "matmul":
        depth = tensor(op.operands[0]).static_shape[-2 if op.attrs["transpose_a"] else -1]
        return elements(op.result) * depth
    return elements(op.operands[0] if op.name in FOLDS else op.result)


def sequences_of(op: Operation) -> range:
    """The numbers of the operands of a scan of which each iteration gets a row."""
    if op.name != "scan":
        return range(0)
    first = int_attr(op.attrs, "carries")
    return range(first, first + int_attr(op.attrs, "sequences"))


def _check_top(op: Operation, limit: int) -> None:
    env = _Env(limit)
    for k, value in enumerate(op.operands):
        held = _dtype_fits(value) and (
            is_single(value) or (fits(value, limit) and k not in sequences_of(op))
        )
        if value in env and (env[value] is None) != held:
            raise Refused("a sequence is used as a whole, too")
        env[value] = None if held else Memory(value, False)
    _control(op, env, top=True)


def _dtype_fits(value: Value) -> bool:
    short = tensor(value).dtype.short
    if short not in DTYPES or short in HALVES:
        raise Refused(f"values of {tensor(value).dtype} are rounded in memory")
    return True


class _Env(dict[Value, Memory | None]):
    """Where each value is: None if its elements, at most `limit` of them, are in registers."""

    def __init__(self, limit: int, held: Iterable[tuple[Value, Memory | None]] = ()) -> None:
        super().__init__(held)
        self.limit = limit


def _block(block: Block, env: _Env) -> None:
    for arg in block.args:
        _dtype_fits(arg)
    for op in block.ops:
        _op(op, env)


def _op(op: Operation, env: _Env) -> None:
    if op.name in PYTHON_CALLS:
        raise Refused(f"'{op.name}' inside calls Python")
    for value in op.results:
        _dtype_fits(value)
    if op.name in CONTROL:
        _control(op, env)
    elif op.name in KERNELS:
        (region,) = op.regions
        given = zip(region.args, op.operands, strict=True)
        inner = _Env(env.limit, ((a, env[v]) for a, v in given))
        for arg, value in zip(region.args, op.operands, strict=True):
            memory = inner[arg]
            if memory is not None:
                _current(op, value, memory)
                inner[arg] = Memory(arg, False)
        _block(region, inner)
        _all_fit(op, region.results, env.limit)
        env.update((r, None) for r in op.results)
    elif op.name in READS and env[op.operands[0]] is not None:
        _read(op, env)
        env[op.result] = None
    elif op.name in WRITES and env[op.operands[0]] is not None:
        _all_single(op, op.operands[1:])
        _all_scalars(op, op.operands[1:], env)
        env[op.result] = _written(op, op.operands[0], env[op.operands[0]], op.result)
    elif op.name in STACKS:
        _all_fit(op, (*op.operands, *op.results), env.limit)
        _all_scalars(op, op.operands, env)
        env.update((r, None) for r in op.results)
    elif op.name == "reshape" and env[op.operands[0]] is not None:
        raise Refused("'reshape' of an array inside")
    else:
        _scalar_op(op, env)
        env[op.result] = None


def _scalar_op(op: Operation, env: _Env) -> None:
    if len(op.results) != 1:
        raise Refused(f"'{op.name}' is not done on single elements")
    _all_fit(op, op.results, env.limit)
    if op.name == "slice" and env[op.operands[0]] is not None:
        _read(op, env)
        return
    _all_scalars(op, op.operands, env)
    _all_fit(op, op.operands, env.limit)
    if op.name in ("constant", "iota"):
        return
    if op.name in MOVES or op.name in FOLDS:
        if tensor(op.operands[0]).dtype is not tensor(op.result).dtype:
            raise Refused(f"'{op.name}' changes the dtype")
        return
    if op.name == "matmul" and env.limit > 1 and tensor(op.result).dtype.is_inexact:
        return
    dtype = tensor(op.operands[-1]).dtype.short if op.operands else ""
    target = {"dtype": tensor(op.result).dtype.short}
    plain = supported(op.name, dtype, target) and replacement_of(op) is None
    if "elementwise" not in lookup(op.name).traits or not plain:
        raise Refused(f"'{op.name}' is not done on single elements")
    if any(tensor(v).shape != tensor(op.result).shape for v in op.operands):
        if not all(is_single(v) for v in (*op.operands, *op.results)):
            raise Refused(f"'{op.name}' is on different shapes")


def _all_fit(op: Operation, values: Sequence[Value], limit: int) -> None:
    for value in values:
        if not fits(value, limit):
            most = "one element" if limit == 1 else f"1 to {limit} elements"
            raise Refused(f"'{op.name}' is on {value.type}, not on {most}")


def _all_single(op: Operation, values: Sequence[Value]) -> None:
    for value in values:
        if not is_single(value):
            raise Refused(f"'{op.name}' is on {value.type}, not on one element")


def _all_scalars(op: Operation, values: Sequence[Value], env: _Env) -> None:
    for value in values:
        if env[value] is not None:
            raise Refused(f"'{op.name}' takes a whole array")


def _current(op: Operation, value: Value, memory: Memory) -> None:
    if memory.newest is not value:
        raise Refused(f"'{op.name}' reads an array as it was before an update")


def _read(op: Operation, env: _Env) -> None:
    memory = env[op.operands[0]]
    assert memory is not None
    _all_single(op, [*op.operands[1:], *op.results])
    _all_scalars(op, op.operands[1:], env)
    _current(op, op.operands[0], memory)


def _written(op: Operation, value: Value, memory: Memory | None, result: Value) -> Memory:
    assert memory is not None
    _current(op, value, memory)
    if not memory.writable:
        raise Refused(f"'{op.name}' changes an array that is not a carry")
    memory.newest = result
    return memory


# ---------------------------------------------------------------------------------- control flow


def _control(op: Operation, env: _Env, top: bool = False) -> None:
    arrays = [v for v in op.operands if env[v] is not None]
    if not top and len(set(arrays)) < len(arrays):  # at the top the kernel works on copies
        raise Refused(f"'{op.name}' takes an array twice")
    if op.name == "cond":
        _cond(op, env, top)
        return
    if keeps_no_stacks(op):
        raise Refused("it gives memory of stacks back after each iteration")
    carries = int_attr(op.attrs, "carries")
    for region in op.regions:
        last = region is op.regions[-1]
        inner = _arguments(op, region, op.operands, env, carries if last else 0)
        _block(region, inner)
        if not last:
            _all_single(op, region.results)
            continue
        for arg, result in zip(region.args[:carries], region.results[:carries], strict=True):
            memory = inner[arg]
            if memory is not inner[result] or (memory is not None and memory.newest is not result):
                raise Refused("a carry that is an array is replaced, not updated")
        _all_fit(op, region.results[carries:], env.limit)
        _all_scalars(op, region.results[carries:], inner)
    if top:
        return
    if op.name == "scan" and len(op.results) > carries:
        raise Refused("a scan inside stacks results")
    for operand, result in zip(op.operands[:carries], op.results[:carries], strict=True):
        memory = env[operand]
        env[result] = None if memory is None else _written(op, operand, memory, result)
    env.update((r, None) for r in op.results[carries:])


def _arguments(
    op: Operation, region: Block, operands: Sequence[Value], env: _Env, writable: int
) -> _Env:
    """Each array that comes in is a new one inside; what may be changed there comes in once."""
    inner = _Env(env.limit)
    for k, (arg, value) in enumerate(zip(region.args, operands, strict=True)):
        memory = env[value]
        row = op.name == "scan" and tensor(arg).rank < tensor(value).rank
        if memory is not None:
            _current(op, value, memory)
        elif row and not is_single(value):
            raise Refused(f"'{op.name}' takes rows of a small array")
        held = fits(arg, env.limit) and (memory is None or row)
        inner[arg] = None if held else Memory(arg, k < writable)
    return inner


def _cond(op: Operation, env: _Env, top: bool) -> None:
    sources: list[list[int]] = []
    for region in op.regions:
        inner = _arguments(op, region, op.operands[1:], env, 0 if top else len(region.args))
        held = {m: k for k, a in enumerate(region.args) if (m := inner[a]) is not None}
        _block(region, inner)
        source = [-1 if (m := inner[v]) is None else held[m] for v in region.results]
        kept = {k for k in source if k >= 0}
        if top and kept:
            raise Refused("a branch gives an array")
        for memory, k in held.items():
            if memory.newest is not region.args[k] and k not in kept:
                raise Refused("a branch changes an array that it does not return")
        for value in region.results:
            memory_of = inner[value]
            if memory_of is not None and memory_of.newest is not value:
                raise Refused("a branch gives an array as it was before an update")
        if len(kept) < sum(k >= 0 for k in source):
            raise Refused("a branch gives an array twice")
        sources.append(source)
    if sources[0] != sources[1]:
        raise Refused("the branches give different arrays")
    for k, result in zip(sources[0], op.results, strict=True):
        operand = op.operands[1 + k]
        env[result] = None if k < 0 else _written(op, operand, env[operand], result)
