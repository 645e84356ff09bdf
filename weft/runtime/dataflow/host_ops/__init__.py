"""Host ops: how Python carries each out, one row for each op, one file for each family.

Enters: an op, its object and arrays. Leaves: arrays, given to a callback. Imports: `runtime.files`,
`resources`, `checkpoint`; nothing of the executor."""

from __future__ import annotations

from collections.abc import Mapping

from weft.runtime.dataflow.host_ops import communication, files, functions, resources, variables
from weft.runtime.dataflow.host_ops.row import HostRow

#: What each op does.
HOST_OPS: Mapping[str, HostRow] = {
    **communication.ROWS, **functions.ROWS, **files.READER_ROWS, **files.FILE_ROWS,
    **resources.QUEUE_ROWS, **resources.TABLE_ROWS, **resources.BARRIER_ROWS,
    **resources.ACCUMULATOR_ROWS, **resources.STACK_ROWS, **variables.ROWS,
}  # fmt: skip
