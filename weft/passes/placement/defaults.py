"""Ops that name no device, in a step that is about one: they go with it.

This is weaker than what the user says of an op or of one that it must be with, and as strong as
that where there is no kernel: what cannot go along is an error, or moves with soft placement.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.graph import Operation
from weft.ir.types import TensorType
from weft.passes.placement.conflicts import Groups
from weft.passes.placement.constraints import Constraint, Problem, uses_handle
from weft.passes.placement.devices import Device
from weft.passes.rewrite import must_run


def add_defaults(problem: Problem, devices: Sequence[Device], name: str) -> None:
    """Constrain the ops that nothing which the user said keeps from device `name` to it. Constants
    and the like are where they are read; what uses state is where that is."""
    groups = Groups(problem.size, (1 << len(devices)) - 1)
    said = (c for c in problem.constraints if c.kind != "kernel")
    if not all(map(groups.apply, said)):
        return  # a conflict without these
    (k,) = (k for k, d in enumerate(devices) if d.name == name)
    for number, op in enumerate(problem.ops):
        bound = op.device or uses_handle(op) or _is_source(op)
        if not bound and groups.mask(number) >> k & 1:
            what = f"op '{op.name}' names no device and goes with the step's, {name}"
            problem.constraints.append(
                Constraint("default", number, what, op.locations, 1 << k, spec=name)
            )


def _is_source(op: Operation) -> bool:
    """Whether the op needs nothing and only makes a tensor."""
    needs = op.operands or op.control or op.regions or must_run(op)
    return not needs and all(isinstance(v.type, TensorType) for v in op.results)
