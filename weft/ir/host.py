"""Which ops Python carries out when a step runs: those of the host, and all that touch strings."""

from __future__ import annotations

from weft.ir.dtypes import string
from weft.ir.graph import Operation
from weft.ir.ops import OPS
from weft.ir.types import TensorType, Type


def is_string(t: Type) -> bool:
    """Whether values of the type are strings, which native code cannot look into."""
    return isinstance(t, TensorType) and t.dtype is string


def runs_on_host(op: Operation) -> bool:
    """Whether no compiled step holds the op: it has the trait "host", or an operand or result of
    strings, the elements of which are Python's objects."""
    strings = any(is_string(v.type) for v in (*op.operands, *op.results))
    return strings or "host" in OPS[op.name].traits
