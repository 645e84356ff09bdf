"""Which ops and dtypes a GPU takes of a traced graph: what placement asks before there is a plan.

It says of an op by its name and its dtypes what `lowerings.py` would say of its launches: what is
neither a nest nor a lowering is for the CPU.
"""

from __future__ import annotations

from weft.codegen.cuda.lowerings import GPU_LOWERINGS
from weft.codegen.cuda.scalars.memory import DTYPES
from weft.codegen.steps.plan import NO_CODE
from weft.ir.analysis.index_maps import INDEX_MAPS
from weft.ir.ops import OPS
from weft.ir.ops.control_flow import CONTROL, STACK_OPS
from weft.ir.ops.state import UPDATES

#: What passes take away or make other ops of before there are launches.
_REWRITTEN = frozenset({"custom_gradient", *UPDATES, *STACK_OPS})
#: What Python does beside a variable, wherever that is; it needs no kernel.
_BESIDE_VARIABLES = frozenset(
    {"is_initialized", "assert_initialized", "report_uninitialized", "count_up_to"}
)

GPU_DTYPES = frozenset(DTYPES)


def gpu_ops() -> frozenset[str]:
    """The ops that a GPU takes, as the table of lowerings is now."""
    in_nests = {
        name
        for name, spec in OPS.items()
        if spec.traits & {"elementwise", "reduction"} or name in INDEX_MAPS
    }
    named = (GPU_LOWERINGS, NO_CODE, CONTROL, _REWRITTEN, _BESIDE_VARIABLES)
    return frozenset(in_nests).union(*named)
