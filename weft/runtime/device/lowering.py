"""Which launches the ops of a plan become, by the pipeline that made it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.codegen.cuda.kernel import Launch
from weft.codegen.cuda.lowerings import check_launches, fused_launches, launches_of
from weft.ir.graph import Operation
from weft.passes.manager import Pass
from weft.passes.pipelines import GPU_REPRODUCIBLE
from weft.runtime.device.libraries.ways import ways_of
from weft.runtime.device.planner import Fused, Lowering


def lowering_of(passes: Sequence[Pass]) -> Lowering:
    """Of the pipeline "gpu_reproducible": kernels whose bits do not depend on what else is in them,
    and no library, which would choose among several orders of a sum."""
    return _EXACT if tuple(passes) == GPU_REPRODUCIBLE else _PLAIN


def _exactly(launches: Sequence[Launch]) -> list[Launch]:
    return [replace(one, kernel=replace(one.kernel, contract=False)) for one in launches]


def _fused(op: Operation, pairs: tuple[tuple[int, int], ...]) -> Fused:
    launches, nest = fused_launches(op, pairs)
    return _exactly(launches), nest


_PLAIN = Lowering(fused_launches, launches_of, check_launches, ways_of)
_EXACT = Lowering(_fused, lambda op: _exactly(launches_of(op)), check_launches)
