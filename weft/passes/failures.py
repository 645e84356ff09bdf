"""Which ops may end a step with an error while it runs."""

from __future__ import annotations

from weft.ir.graph import Operation
from weft.ir.ops.index import CHECKED
from weft.ir.registered import REGISTERED


def may_fail(op: Operation) -> bool:
    """Whether the op, or one in it, may: for an index out of bounds, or as kernels of users may."""
    inside = (o for region in op.regions for o in region.ops)
    return op.name in CHECKED or op.name in REGISTERED or any(map(may_fail, inside))
