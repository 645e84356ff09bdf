"""The op table: every op of the IR by name, collected from the `ops_*` modules."""

from __future__ import annotations

from weft.ir import (
    ops_control,
    ops_conv,
    ops_core,
    ops_elementwise,
    ops_index,
    ops_linalg,
    ops_random,
    ops_reduction,
    ops_shape,
    ops_sort,
    ops_window,
)
from weft.ir.errors import NotFoundError, suggest
from weft.ir.spec import OpSpec

_TABLES = (
    ops_core.TABLE,
    ops_elementwise.TABLE,
    ops_shape.TABLE,
    ops_reduction.TABLE,
    ops_index.TABLE,
    ops_sort.TABLE,
    ops_linalg.TABLE,
    ops_random.TABLE,
    ops_control.TABLE,
    ops_conv.TABLE,
    ops_window.TABLE,
)

OPS: dict[str, OpSpec] = {spec.name: spec for table in _TABLES for spec in table}


def lookup(name: str) -> OpSpec:
    """The row of op `name`. Raises NotFoundError with the closest names."""
    spec = OPS.get(name)
    if spec is None:
        raise NotFoundError(f"there is no op '{name}'{suggest(name, list(OPS))}")
    return spec
