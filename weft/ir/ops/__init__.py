"""The op table: every op of the IR by name, collected from its modules."""

from __future__ import annotations

from weft.ir.errors import NotFoundError, suggest
from weft.ir.ops import attention as ops_attention
from weft.ir.ops import communication as ops_communication
from weft.ir.ops import control as ops_control
from weft.ir.ops import conv as ops_conv
from weft.ir.ops import core as ops_core
from weft.ir.ops import dataflow as ops_dataflow
from weft.ir.ops import dynamic as ops_dynamic
from weft.ir.ops import elementwise as ops_elementwise
from weft.ir.ops import files as ops_files
from weft.ir.ops import host_function as ops_host_function
from weft.ir.ops import index as ops_index
from weft.ir.ops import linalg as ops_linalg
from weft.ir.ops import queue as ops_queue
from weft.ir.ops import random as ops_random
from weft.ir.ops import reduction as ops_reduction
from weft.ir.ops import report as ops_report
from weft.ir.ops import resources as ops_resources
from weft.ir.ops import shape as ops_shape
from weft.ir.ops import sort as ops_sort
from weft.ir.ops import stack as ops_stack
from weft.ir.ops import state as ops_state
from weft.ir.ops import strings as ops_strings
from weft.ir.ops import window as ops_window
from weft.ir.spec import OpSpec

_TABLES = (
    ops_core.TABLE,
    ops_state.TABLE,
    ops_elementwise.TABLE,
    ops_shape.TABLE,
    ops_reduction.TABLE,
    ops_index.TABLE,
    ops_sort.TABLE,
    ops_linalg.TABLE,
    ops_attention.TABLE,
    ops_random.TABLE,
    ops_control.TABLE,
    ops_dataflow.TABLE,
    ops_dynamic.TABLE,
    ops_queue.TABLE,
    ops_resources.TABLE,
    ops_host_function.TABLE,
    ops_conv.TABLE,
    ops_window.TABLE,
    ops_strings.TABLE,
    ops_files.TABLE,
    ops_report.TABLE,
    ops_stack.TABLE,
    ops_communication.TABLE,
)

OPS: dict[str, OpSpec] = {spec.name: spec for table in _TABLES for spec in table}


def lookup(name: str) -> OpSpec:
    """The row of op `name`. Raises NotFoundError with the closest names."""
    spec = OPS.get(name)
    if spec is None:
        raise NotFoundError(f"there is no op '{name}'{suggest(name, list(OPS))}")
    return spec
