"""How Python carries out host ops: a module for each family, one row for each op."""

from __future__ import annotations

from collections.abc import Mapping

from weft.runtime.dataflow.host_ops import (
    communication,
    dynamic,
    files,
    functions,
    queues,
    reports,
    resources,
    state,
)
from weft.runtime.dataflow.host_ops.row import Begin

#: How each op begins.
HOST_OPS: Mapping[str, Begin] = {
    **communication.ROWS, **dynamic.ROWS, **files.ROWS, **functions.ROWS, **queues.ROWS,
    **reports.ROWS, **resources.ROWS, **state.ROWS,
}  # fmt: skip
