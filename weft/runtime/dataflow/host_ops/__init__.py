"""Host ops: how Python carries each out, one row for each op, one file for each family.

Enters: an op, its object and arrays. Leaves: arrays, given to a callback. Imports: `runtime.files`,
`resources`, `checkpoint`; nothing of the executor."""

from __future__ import annotations

from collections.abc import Mapping

from weft.runtime.dataflow.host_ops import communication, files, functions, resources, variables
from weft.runtime.dataflow.host_ops.row import Begin

#: How each op begins.
HOST_OPS: Mapping[str, Begin] = {
    **communication.ROWS, **functions.DYNAMIC_ROWS, **files.ROWS, **functions.FUNCTION_ROWS,
    **functions.REPORT_ROWS, **resources.QUEUE_ROWS, **resources.RESOURCE_ROWS,
    **variables.VARIABLE_ROWS,
}  # fmt: skip
