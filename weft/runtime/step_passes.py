"""Which passes a graph goes through on this machine, whole or in regions."""

from __future__ import annotations

from collections.abc import Sequence

from weft.codegen.llvm.target import multiplies_and_adds
from weft.passes.fusion.fuse import fuse
from weft.passes.manager import Pass
from weft.passes.pipelines import GPU, GPU_REPRODUCIBLE, REPRODUCIBLE
from weft.passes.simplify.contract import contract

#: Regions of a graph that has gone through all passes as a whole: what lowering has added.
REGION: tuple[Pass, ...] = (fuse,)


def for_machine(passes: Sequence[Pass]) -> tuple[Pass, ...]:
    """`passes` without `contract` on processors where a multiply-add is a call of a function."""
    return tuple(p for p in passes if multiplies_and_adds() or p is not contract)


def gpu_passes(passes: Sequence[Pass]) -> Sequence[Pass]:
    """The pipeline for a GPU that does what these passes do for the CPU."""
    return GPU_REPRODUCIBLE if tuple(passes) == REPRODUCIBLE else GPU
