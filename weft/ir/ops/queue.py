"""Queues in a graph (the paper, section 3.1): ops of the host, which a step may wait for.

They touch an object that other steps share, so nothing orders two of them but operands and control
operands. `runtime.resources` holds the queues, `runtime.dataflow.host_ops` carries the ops out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from weft.ir.attributes import Attrs, AttrSpec
from weft.ir.dims import SymbolicDim
from weft.ir.dtypes import ALL, bool_, int32
from weft.ir.errors import ShapeError, TypeRuleError
from weft.ir.graph import Block
from weft.ir.ops.dynamic import SIZES, fill_sizes, size_names
from weft.ir.rules import fits, int_attr
from weft.ir.spec import OpSpec, tensors
from weft.ir.types import TOKEN, HandleType, TensorType, Type

#: The kinds of queues, by the attribute `kind`.
QUEUE_KINDS = ("fifo", "padding", "shuffle", "priority")
_PART = re.compile(r"(\w+)\[((?:\?|\d+)(?:,(?:\?|\d+))*)?\]")
_DTYPES = {d.short: d for d in ALL}
_HOST = frozenset({"host", "no_fold", "no_cse", "no_dce"})


def part_type(text: str) -> TensorType:
    """The type of a component as the attribute `parts` has it: "f32[3,?]". Raises TypeRuleError."""
    found = _PART.fullmatch(text)
    if found is None or found[1] not in _DTYPES:
        raise TypeRuleError(f"{text!r} is no type of a component, as f32[3,?] is")
    sizes = found[2].split(",") if found[2] else []
    return TensorType(_DTYPES[found[1]], tuple(None if s == "?" else int(s) for s in sizes))


def _queue_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    parts = attrs["parts"]
    assert isinstance(parts, tuple)
    if attrs["kind"] not in QUEUE_KINDS:
        raise TypeRuleError(
            f"op 'queue': there is no kind {attrs['kind']!r}",
            hint=f"the kinds are {', '.join(QUEUE_KINDS)}",
        )
    if not parts:
        raise TypeRuleError("op 'queue': there must be at least one component")
    return [HandleType("queue", tuple(part_type(str(p)) for p in parts))]


def _parts(op: str, types: Sequence[Type]) -> tuple[TensorType, ...]:
    handle = types[0] if types else None
    if not isinstance(handle, HandleType) or handle.kind != "queue":
        raise TypeRuleError(f"op '{op}' takes a queue as its first operand, got {handle}")
    return handle.parts


def _batched(part: TensorType, size: int | None) -> TensorType:
    return TensorType(part.dtype, (size, *part.shape))


def _check_values(op: str, parts: Sequence[TensorType], given: Sequence[Type]) -> None:
    values = tensors(op, given)
    if len(values) != len(parts):
        raise TypeRuleError(
            f"op '{op}': elements of this queue have {len(parts)} components, got {len(values)}"
        )
    for i, (part, value) in enumerate(zip(parts, values, strict=True)):
        if value.dtype is not part.dtype:
            raise TypeRuleError(f"op '{op}': component {i} is {part}, got {value}")
        if not fits(value.shape, part.shape):
            raise ShapeError(f"op '{op}': component {i} is {part}, got {value}")


def _enqueue_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    _check_values("enqueue", _parts("enqueue", types), types[1:])
    return [TOKEN]


def _enqueue_many_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    parts = _parts("enqueue_many", types)
    values = tensors("enqueue_many", types[1:])
    if any(not v.rank for v in values):
        raise ShapeError("op 'enqueue_many': the values need a first axis that counts the elements")
    if len({v.shape[0] for v in values if isinstance(v.shape[0], int)}) > 1:
        raise ShapeError(
            "op 'enqueue_many': the components have different numbers of elements: "
            + ", ".join(map(str, values))
        )
    _check_values("enqueue_many", parts, [TensorType(v.dtype, v.shape[1:]) for v in values])
    return [TOKEN]


def _dequeue_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    return fill_sizes("dequeue", _parts("dequeue", types), attrs)


def _dequeue_many_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    n = int_attr(attrs, "n")
    if n < 0:
        raise ShapeError(f"op 'dequeue_many': n={n} is negative")
    return fill_sizes(
        "dequeue_many", [_batched(p, n) for p in _parts("dequeue_many", types)], attrs
    )


def _dequeue_up_to_type(
    types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]
) -> list[Type]:
    parts, n = _parts("dequeue_up_to", types), int_attr(attrs, "n")
    if n < 0:
        raise ShapeError(f"op 'dequeue_up_to': n={n} is negative")
    names = size_names(attrs)
    count = SymbolicDim.symbol(names[0]) if names else None  # all components have one count
    batches = [TensorType(p.dtype, (count, *p.shape)) for p in parts]
    return fill_sizes("dequeue_up_to", batches, {**attrs, "sizes": names[1:]})


def _size_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    _parts("queue_size", types)
    return [TensorType(int32)]


def _close_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    _parts("queue_close", types)
    return [TOKEN]


def _is_closed_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    _parts("queue_is_closed", types)
    return [TensorType(bool_)]


TABLE = (
    OpSpec(
        "queue",
        0,
        _queue_type,
        None,
        "A handle to the queue called `name`, which steps share; made when a step first needs it.",
        {
            "name": AttrSpec("str"),
            "kind": AttrSpec("str", "fifo"),
            "capacity": AttrSpec("int", -1),
            "parts": AttrSpec("strs"),
            "min_after_dequeue": AttrSpec("int", 0),
            "seed": AttrSpec("int", -1),
        },
        frozenset({"handle", "no_fold"}),
    ),
    OpSpec(
        "enqueue", None, _enqueue_type, None,
        "Append one element, its components the operands after the handle; waits for room.",
        traits=_HOST,
    ),
    OpSpec(
        "enqueue_many", None, _enqueue_many_type, None,
        "Append the elements that lie along the first axis of the operands; waits for room.",
        traits=_HOST,
    ),
    OpSpec(
        "dequeue", 1, _dequeue_type, None,
        "Take one element: its components; waits for it.", SIZES, _HOST,
    ),
    OpSpec(
        "dequeue_many", 1, _dequeue_many_type, None,
        "Take `n` elements, stacked along a new first axis; waits for them.",
        {"n": AttrSpec("int"), **SIZES}, _HOST,
    ),
    OpSpec(
        "dequeue_up_to", 1, _dequeue_up_to_type, None,
        "Take `n` elements, or what is left of a closed queue, stacked along a new first axis.",
        {"n": AttrSpec("int"), **SIZES}, _HOST,
    ),
    OpSpec("queue_size", 1, _size_type, None, "How many elements it holds now.", traits=_HOST),
    OpSpec(
        "queue_close", 1, _close_type, None,
        "Accept no more elements; with cancel_pending not from those that wait either.",
        {"cancel_pending": AttrSpec("bool", False)}, _HOST,
    ),
    OpSpec("queue_is_closed", 1, _is_closed_type, None, "Whether it was closed.", traits=_HOST),
)  # fmt: skip
