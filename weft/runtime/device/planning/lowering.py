"""Which launches the ops of a plan become, by the pipeline that made it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.codegen.cuda.kernels.data_movement import check_launches
from weft.codegen.cuda.lowerings import fused_launches, launches_of
from weft.codegen.cuda.source.kernel import Launch
from weft.ir.dtypes import MathMode
from weft.ir.graph import Operation
from weft.passes.manager import Pass
from weft.passes.pipelines import GPU_REPRODUCIBLE
from weft.runtime.device.libraries import cublaslt, cudnn
from weft.runtime.device.libraries.conv_ways import conv_ways, convolution_in
from weft.runtime.device.libraries.ways import Pairs, Way, is_gemm, ways_of
from weft.runtime.device.planning.planner import Fused, Lowering


def lowering_of(passes: Sequence[Pass], ahead: bool = False) -> Lowering:
    """Of the pipeline "gpu_reproducible": kernels whose bits do not depend on what else is in them,
    and no library, which would choose among several orders of a sum. ahead: for a machine that may
    have libraries which this one has not."""
    if tuple(passes) == GPU_REPRODUCIBLE:
        return _EXACT
    return _AHEAD if ahead else _PLAIN


def _ways(op: Operation, pairs: Pairs, math: MathMode) -> Sequence[Way] | None:
    """None for what no library could do."""
    found = ways_of if convolution_in(op) is None else conv_ways
    return found(op, pairs, math) or None


def _ways_here(op: Operation, pairs: Pairs, math: MathMode) -> Sequence[Way] | None:
    """As `_ways`; none where no library is installed, as an eighth of planning goes into them."""
    convolution = convolution_in(op) is not None
    if (cudnn if convolution else cublaslt).installed():
        return _ways(op, pairs, math)
    return () if convolution or is_gemm(op) else None


def _exactly(launches: Sequence[Launch]) -> list[Launch]:
    return [replace(one, kernel=replace(one.kernel, contract=False)) for one in launches]


def _fused(op: Operation, pairs: Pairs) -> Fused:
    launches, nest = fused_launches(op, pairs)
    return _exactly(launches), nest


_PLAIN = Lowering(fused_launches, launches_of, check_launches, _ways_here)
_AHEAD = replace(_PLAIN, ways=_ways)
_EXACT = Lowering(_fused, lambda op: _exactly(launches_of(op)), check_launches)
