"""Every op of the IR is whole: a meaning, a gradient (or none, and said so), native code, a user.

Each test names all missing rows and the file that wants them.
"""

from __future__ import annotations

from paths import ROOT

from weft.codegen.kernels.lowerings import LOWERINGS
from weft.codegen.steps.plan import NO_CODE
from weft.ir.analysis.index_maps import INDEX_MAPS
from weft.ir.ops import OPS
from weft.ir.ops.collectives import COLLECTIVES
from weft.ir.ops.control_flow import COMMUNICATION_TABLE, CONTROL, DATAFLOW, STACK_OPS
from weft.ir.ops.state import TABLE as STATE_TABLE
from weft.ir.ops.state import UPDATES
from weft.ir.ops.strings import TABLE as STRING_TABLE
from weft.ir.ops.text_processing import TABLE as TEXT_TABLE
from weft.passes.autodiff.table import GRADIENTS, NO_GRADIENT
from weft.passes.fusion.rules import REDUCTIONS
from weft.runtime.dataflow.host_ops import HOST_OPS

WEFT = ROOT / "weft"
#: Where ops are named that users ask for; objects that graphs name are made by the runtime.
USERS = (WEFT / "frontend", WEFT / "runtime" / "resources")
#: Stacks as autodiff sees them; passes make handles of them.
TRACED_STACKS = {"stack_new", "stack_push", "stack_pop", "stack_add"}
#: Ops that the interpreter and the walker of plans carry out themselves.
STATE = {"group", *(spec.name for spec in STATE_TABLE), *CONTROL, *DATAFLOW}
#: What Python carries out, and the handles of the objects that it works on.
HOST = {n for n, s in OPS.items() if s.traits & {"host", "handle"}}
#: On strings: the host carries them out by their references.
STRINGS = {spec.name for spec in (*STRING_TABLE, *TEXT_TABLE)}
#: Made by fusion.
NESTS = {"fused", "unrolled"}
#: Made or removed by passes before code is generated.
STRUCTURE = {
    *NESTS, "custom_gradient", "custom_rule", "stop_gradient", "tap", "loop_mark", "row_guard",
    *TRACED_STACKS, *UPDATES,
    *COLLECTIVES,
}  # fmt: skip
#: Made by gradient rules only.
ADJOINTS = {
    *("index_add", "scatter_along_axis_add"),
    *("conv_kernel", "window_spread", "window_pick", "window_place"),
    *TRACED_STACKS,
}
#: Made by passes only.
REWRITES = {
    *("arena_push", "arena_pop", "arena_add"),
    *("attention", "attention_grad"),
    *("sparse_matmul", "quantized_matmul"),
    *("loop_mark", "row_guard"),
    *("first_occurrence", "enter", "exit", "next_iteration", "loop_cond"),
    *(spec.name for spec in COMMUNICATION_TABLE),
}


def test_every_op_has_a_meaning_in_numpy() -> None:
    others = STATE | HOST | STACK_OPS | NESTS | {"custom_rule"}
    missing = [n for n, s in OPS.items() if s.reference is None and n not in others]
    assert not missing, f"no reference in weft/ir/ops/*.py: {missing}"


def test_every_op_says_what_it_is() -> None:
    missing = [n for n, s in OPS.items() if not s.doc.endswith(".")]
    assert not missing, f"no one-sentence doc in weft/ir/ops/*.py: {missing}"


def test_every_op_has_a_gradient_or_none() -> None:
    missing = [n for n in OPS if n not in GRADIENTS and n not in NO_GRADIENT]
    assert not missing, f"no row in weft/passes/autodiff/*.py, nor in NO_GRADIENT: {missing}"


def test_every_op_has_native_code() -> None:
    nests = {n for n, s in OPS.items() if "elementwise" in s.traits} | REDUCTIONS | INDEX_MAPS
    known = {*nests, *LOWERINGS, *NO_CODE, *STRUCTURE, *CONTROL, *DATAFLOW, *HOST, *STRINGS}
    missing = [n for n in OPS if n not in known]
    assert not missing, f"no row in weft/codegen/kernels/lowerings.py, and no loop nest: {missing}"


def test_every_host_op_is_carried_out() -> None:
    wanted = {n for n, s in OPS.items() if "host" in s.traits}
    assert wanted == set(HOST_OPS), "the rows of weft/runtime/dataflow/host_ops are others"


def test_every_op_has_a_user() -> None:
    source = "\n".join(p.read_text() for folder in USERS for p in folder.rglob("*.py"))
    missing = [n for n in OPS if f'"{n}"' not in source and n not in ADJOINTS | REWRITES | NESTS]
    assert not missing, f"no function in weft/frontend/ops/*.py uses: {missing}"
