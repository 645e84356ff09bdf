"""When a large tensor is received: as late as it can be, so that it is not in memory for long.

The first op that needs it mostly needs something else, too; the tensor is asked for when the last
of that begins to be computed, so the transfer still runs beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.ir.deadness import TRUE
from weft.ir.graph import Operation, Value
from weft.ir.types import TensorType

if TYPE_CHECKING:
    from weft.passes.partition.builder import Cut, PartBuilder

#: Smaller tensors are received as soon as they come: waiting keeps a transfer from running beside
#: the computation before it, as ops of one region begin together.
LATE_BYTES = 1 << 24


def wait_for(cut: Cut, part: PartBuilder, value: Value, reader: Operation) -> tuple[Value, ...]:
    """What to wait for before `value` is received for `reader` on the device of `part`."""
    kind = value.type
    if not (isinstance(kind, TensorType) and kind.is_static and kind.nbytes >= LATE_BYTES):
        return ()
    others = [v for v in reader.operands if v is not value and _is_computed(cut, part, v)]
    last = max(others, key=lambda v: cut.frames.numbers[v], default=None)
    if last is None or last.op is None:
        return ()
    frame = cut.frames.of_value[value]
    given = [
        v
        for v in last.op.operands
        if _is_computed(cut, part, v)
        and cut.frames.of_value[v] is frame
        and cut.deadness.of_value[v] == TRUE
    ]
    begins = max(given, key=lambda v: cut.frames.numbers[v], default=None)
    return () if begins is None else (part.values[begins],)


def _is_computed(cut: Cut, part: PartBuilder, value: Value) -> bool:
    """Whether the part makes a tensor itself, and has done so."""
    made = value.op
    here = made is not None and cut.homes[made] == part.device and value in part.values
    return here and isinstance(value.type, TensorType)
