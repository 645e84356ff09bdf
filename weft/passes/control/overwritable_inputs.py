"""Overwritable inputs of a region: those that it may update in place if nobody else reads them."""

from __future__ import annotations

from weft.ir.types import RefType
from weft.passes.analysis.in_place import UPDATES
from weft.passes.control.dataflow_regions import Region


def given_inputs(region: Region) -> list[int]:
    """The inputs of a region that it may overwrite if nobody else reads them: those that it
    updates, where the alternative is a copy."""
    if any(isinstance(v.type, RefType) for op in region.ops for v in op.operands):
        return []  # run by Python, on arrays that are not its own
    bases = {op.operands[0] for op in region.ops if op.name in UPDATES}
    return [i for i, v in enumerate(region.inputs) if v in bases]
