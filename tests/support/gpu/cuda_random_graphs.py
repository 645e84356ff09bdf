"""What random graphs for GPUs are made of, and the pipeline that they go through."""

from __future__ import annotations

from weft.codegen.cuda.lowerings import GPU_LOWERINGS
from weft.ir import dtypes
from weft.ir.graph import Graph
from weft.ir.ops import OPS
from weft.passes.manager import run_passes
from weft.passes.pipelines import GPU

#: What becomes GPU kernels; near the zeros of digamma and lgamma no relative bound holds, and which
#: sign a computed NaN has is undefined.
KERNELS = [n for n in OPS if n in GPU_LOWERINGS or OPS[n].traits & {"elementwise", "reduction"}]
KERNELS += ["broadcast_to", "permute_dims", "slice", "reshape", "iota", "constant", "flip"]
KERNELS = [n for n in KERNELS if n in OPS and not OPS[n].traits & {"host", "handle"}]
FLOATS = [n for n in KERNELS if n not in ("digamma", "lgamma", "copysign", "signbit")]
WHOLE = [d for d in dtypes.ALL if d.kind in ("bool", "int", "uint")]
SINGLE = [dtypes.float32, dtypes.int32, dtypes.int64, dtypes.uint32, dtypes.bool_]
NUMBERS = [d for d in WHOLE if d.kind != "bool"]


def pipeline(graph: Graph) -> Graph:
    """`graph` after the GPU pipeline."""
    return run_passes(graph, GPU)[0]
