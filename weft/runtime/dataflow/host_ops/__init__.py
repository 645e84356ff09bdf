"""Host ops: how Python carries each out, one row for each op.

Enters: an op, its object and arrays. Leaves: arrays, given to a callback. Imports: `runtime.files`,
`resources`, `checkpoint`; nothing of the executor."""

from __future__ import annotations

from collections.abc import Mapping

from weft.runtime.dataflow.host_ops import communication, rows
from weft.runtime.dataflow.host_ops.row import HostRow

#: What each op does.
HOST_OPS: Mapping[str, HostRow] = {
    **communication.ROWS, **rows.CALL_ROWS, **rows.READER_ROWS, **rows.FILE_ROWS,
    **rows.QUEUE_ROWS, **rows.TABLE_ROWS, **rows.BARRIER_ROWS,
    **rows.ACCUMULATOR_ROWS, **rows.STACK_ROWS, **rows.VARIABLE_ROWS,
}  # fmt: skip
