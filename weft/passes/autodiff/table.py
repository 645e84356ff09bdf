"""The gradient table: `GRADIENTS` holds a rule for each op, or it is listed in `NO_GRADIENT`.

Collected from the modules beside it; ops that hold other ops are here."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.errors import GradientError
from weft.ir.ops.control_flow import COMMUNICATION, DATAFLOW
from weft.ir.ops.io import FILE_TABLE, REPORT_TABLE
from weft.ir.ops.resources import QUEUE_TABLE, RESOURCE_TABLE
from weft.ir.ops.strings import TABLE as STRING_TABLE
from weft.ir.type_rules import int_attr
from weft.passes.autodiff import array, control_flow, linalg
from weft.passes.autodiff import elementwise as gradients_elementwise
from weft.passes.autodiff.rule import Rule, Site
from weft.passes.rewriting.expression import Expr


def _custom_gradient(s: Site) -> Sequence[Expr | None]:
    """The region computes the cotangents of the inputs from those of the outputs."""
    outputs, inputs = int_attr(s.attrs, "outputs"), int_attr(s.attrs, "inputs")
    pairs = zip(s.results, s.cotangents, strict=True)
    given = [(y.full(0) if g is None else g).value for y, g in pairs]
    captures = [x.value for x in s.operands[outputs + inputs :]]
    grads = s.x.builder.inline(s.op.regions[0], [*given, *captures])
    return [*[None] * outputs, *map(s.x.wrap, grads), *[None] * len(captures)]


def _fused(s: Site) -> Sequence[Expr | None]:
    """Compute the region once more in the open and differentiate that."""
    builder, xs = s.x.builder, [x.value for x in s.operands]
    start = len(builder.ops)
    ys = builder.inline(s.op.regions[0], xs)
    given = [None if g is None else g.value for g in s.cotangents]
    grads = s.pull_back(builder, builder.ops[start:], ys, given, xs)
    return [None if g is None else s.x.wrap(g) for g in grads]


def _of_dataflow(s: Site) -> Sequence[Expr | None]:
    raise GradientError(
        f"op '{s.op.name}' has no gradient: gradients are taken of wf.cond and wf.while_loop, "
        "before these become dataflow",
        hint="write the branch or loop with wf.cond or wf.while_loop",
        location=s.op.locations,
    )


def _of_communication(s: Site) -> Sequence[Expr | None]:
    raise GradientError(
        f"op '{s.op.name}' has no gradient: gradients are taken before a graph is partitioned",
        hint="differentiate the whole graph",
        location=s.op.locations,
    )


def _of_py_function(s: Site) -> Sequence[Expr | None]:
    raise GradientError(
        f"the Python function '{s.attrs['function']}' has no gradient: weft does not see inside it",
        hint="wrap the call with wf.custom_gradient, or its result with wf.stop_gradient",
        location=s.op.locations,
    )


def _of_attention(s: Site) -> Sequence[Expr | None]:
    raise GradientError(
        f"op '{s.op.name}' has no gradient: gradients are taken before the pass fuse_attention",
        hint="differentiate first, or run passes without fuse_attention",
        location=s.op.locations,
    )


GRADIENTS: dict[str, Rule] = {
    **gradients_elementwise.GRADIENTS,
    **array.GRADIENTS,
    **linalg.GRADIENTS,
    **control_flow.GRADIENTS,
    **linalg.CONV_GRADIENTS,
    **array.DYNAMIC_GRADIENTS,
    **array.UPDATE_GRADIENTS,
    **control_flow.STACK_GRADIENTS,
    **dict.fromkeys(sorted(DATAFLOW), _of_dataflow),
    **dict.fromkeys(sorted(COMMUNICATION), _of_communication),
    **dict.fromkeys(("attention", "attention_grad"), _of_attention),
    "identity": lambda s: [s.g],
    "py_function": _of_py_function,
    "custom_gradient": _custom_gradient,
    **dict.fromkeys(("fused", "unrolled"), _fused),
}

NO_GRADIENT: frozenset[str] = frozenset(
    {
        *gradients_elementwise.NO_GRADIENT,
        *(
            spec.name
            for spec in (*QUEUE_TABLE, *RESOURCE_TABLE, *STRING_TABLE, *FILE_TABLE, *REPORT_TABLE)
        ),
        *array.NO_GRADIENT,
        *linalg.NO_GRADIENT,
        *array.NO_DYNAMIC_GRADIENT,
        *control_flow.NO_STACK_GRADIENT,
        *array.NO_UPDATE_GRADIENT,
        *("constant", "group", "stop_gradient"),
        *("random_bits", "random_fold_in"),
    }
)
