"""Every op that has GPU kernels, compiled for all four architectures, within the budgets."""

from __future__ import annotations

import pytest
from cuda_budget_checks import faults
from cuda_graphs import on_gpu
from cuda_models import graph_kernels
from cuda_toolchain import TARGETS, needs_toolchain
from graphs import Case, graph_and_inputs
from hypothesis import HealthCheck, Phase, given, settings

from weft.codegen.cuda.lowerings import GPU_LOWERINGS
from weft.ir import dtypes
from weft.ir.errors import UnsupportedError
from weft.ir.ops import OPS
from weft.passes.manager import run_passes
from weft.passes.pipelines import GPU

REDUCTIONS = [name for name, spec in OPS.items() if "reduction" in spec.traits]
#: `dim_size` is a constant wherever shapes are; elementwise ops are in `test_cuda_scalars.py`.
OPS_HERE = sorted({*GPU_LOWERINGS, *REDUCTIONS, "broadcast_to", "slice"} - {"dim_size"})
DTYPES = [
    dtypes.float32, dtypes.float64, dtypes.float16, dtypes.int32, dtypes.int64, dtypes.uint8,
    dtypes.bool_,
]  # fmt: skip
#: How many kernels of each op are compiled: that takes its time.
ENOUGH = 3
#: The same graphs in every run, and no search for a smaller one.
SAME = settings(
    max_examples=60,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.slow
@needs_toolchain
@pytest.mark.parametrize("op", OPS_HERE)
def test_every_op_within_the_budgets(op: str) -> None:
    compiled = []

    @SAME
    @given(graph_and_inputs(stage="traced", ops=[op], dtypes=DTYPES, max_ops=2))
    def look(case: Case) -> None:
        if len(compiled) >= ENOUGH:
            return
        fused, _ = run_passes(case.graph, GPU)
        if not any(on_gpu(inner) for inner in fused.ops):
            return  # folded, or a view
        try:
            kernels = graph_kernels(case.graph)
        except UnsupportedError:  # complex numbers, what the plan says it does not take
            return
        wide = any(v.type.dtype.short.endswith("64") for o in fused.walk() for v in o.results)
        for kernel in kernels:
            compiled.append(kernel)
            found = [fault for cc in TARGETS for fault in faults(kernel, cc)]
            # integers of 64 bits are divided as such where the program divides them
            assert [f for f in found if not (wide and f.endswith("64-bit division"))] == []

    look()
    assert compiled
