"""Which `cond`, `while` and `scan` ops become one kernel with their values in registers.

Every value of the regions must hold one element. Arrays may come in as invariants, as rows of
sequences, or as carries that are updated in place element by element; they stay in memory, are read
and written at computed indices, and only their newest version may be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.codegen.elements import DTYPES, HALVES
from weft.codegen.scalar.scalar import supported
from weft.ir.graph import Block, Operation, Value
from weft.ir.ops import lookup
from weft.ir.ops.control import CONTROL
from weft.ir.rules import int_attr
from weft.ir.types import TensorType

#: Reads of one element at an index in memory.
READS = frozenset({"gather_nd", "take"})
#: Updates of one element in memory, and how the update meets what is there (None: replaces it).
WRITES = {
    "scatter_nd_update": None,
    "scatter_nd_add": "add",
    "index_add": "add",
    "scatter_nd_min": "minimum",
    "scatter_nd_max": "maximum",
}
#: Of one element, the element itself.
SAME = frozenset(
    {
        "reshape", "broadcast_to", "permute_dims", "slice", "sum", "prod", "max", "min", "all",
        "any", "identity", "stop_gradient",
    }
)  # fmt: skip
#: The code of a kernel grows with its ops, and compiling takes more than linear time.
MOST_OPS = 4000


class Refused(Exception):
    """Why an op does not become one kernel."""


@dataclass(eq=False, slots=True)
class Memory:
    """An array in memory: `newest` is the value that holds its present contents."""

    newest: Value
    writable: bool


def tensor(value: Value) -> TensorType:
    """The type of a value that is a tensor."""
    assert isinstance(value.type, TensorType)
    return value.type


def is_single(value: Value) -> bool:
    """Whether a value holds one element."""
    return all(d == 1 for d in tensor(value).shape)


def why_not_in_registers(op: Operation) -> str | None:
    """Why the op does not become one kernel; None if it does."""
    if op.name not in CONTROL:
        return "it is no control flow"
    try:
        if sum(1 for region in op.regions for _ in region.walk()) > MOST_OPS:
            raise Refused(f"it holds more than {MOST_OPS} ops")
        _check_top(op)
    except Refused as reason:
        return str(reason)
    return None


def in_registers(op: Operation) -> bool:
    """Whether the op becomes one kernel."""
    return why_not_in_registers(op) is None


def _check_top(op: Operation) -> None:
    env: dict[Value, Memory | None] = {}
    for value in op.operands:
        single = _dtype_fits(value) and is_single(value)
        env[value] = None if single else Memory(value, False)
    _control(op, env, top=True)


def _dtype_fits(value: Value) -> bool:
    short = tensor(value).dtype.short
    if short not in DTYPES or short in HALVES:
        raise Refused(f"values of {tensor(value).dtype} are rounded in memory")
    return True


_Env = dict[Value, Memory | None]


def _block(block: Block, env: _Env) -> None:
    for arg in block.args:
        _dtype_fits(arg)
    for op in block.ops:
        _op(op, env)


def _op(op: Operation, env: _Env) -> None:
    for value in op.results:
        _dtype_fits(value)
    if op.name in CONTROL:
        _control(op, env)
    elif op.name == "fused":
        (region,) = op.regions
        inner: _Env = {a: env[v] for a, v in zip(region.args, op.operands, strict=True)}
        for arg, value in zip(region.args, op.operands, strict=True):
            memory = inner[arg]
            if memory is not None:
                _current(op, value, memory)
                inner[arg] = Memory(arg, False)
        _block(region, inner)
        _all_single(op, region.results)
        env.update((r, None) for r in op.results)
    elif op.name in READS and env[op.operands[0]] is not None:
        _read(op, env)
        env[op.result] = None
    elif op.name in WRITES and env[op.operands[0]] is not None:
        _all_single(op, op.operands[1:])
        _all_scalars(op, op.operands[1:], env)
        env[op.result] = _written(op, op.operands[0], env[op.operands[0]], op.result)
    elif op.name == "reshape" and env[op.operands[0]] is not None:
        raise Refused("'reshape' of an array inside")
    else:
        _scalar_op(op, env)
        env[op.result] = None


def _scalar_op(op: Operation, env: _Env) -> None:
    _all_single(op, op.results)
    if op.name == "slice" and env[op.operands[0]] is not None:
        _read(op, env)
        return
    _all_scalars(op, op.operands, env)
    _all_single(op, op.operands)
    if op.name in ("constant", "iota"):
        return
    if op.name in SAME:
        if tensor(op.operands[0]).dtype is not tensor(op.result).dtype:
            raise Refused(f"'{op.name}' changes the dtype")
        return
    dtype = tensor(op.operands[-1]).dtype.short if op.operands else ""
    target = {"dtype": tensor(op.result).dtype.short}
    if "elementwise" not in lookup(op.name).traits or not supported(op.name, dtype, target):
        raise Refused(f"'{op.name}' is not done on single elements")


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
        _all_single(op, region.results[carries:])
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
    inner: _Env = {}
    for k, (arg, value) in enumerate(zip(region.args, operands, strict=True)):
        memory = env[value]
        row = op.name == "scan" and tensor(arg).rank < tensor(value).rank
        if memory is not None:
            _current(op, value, memory)
        inner[arg] = (
            None if is_single(arg) and (memory is None or row) else Memory(arg, k < writable)
        )
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
