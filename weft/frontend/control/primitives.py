"""Switch and Merge as the paper has them (section 3.4): branches of one's own in a `wf.Graph`."""

from __future__ import annotations

from collections.abc import Sequence

from weft.frontend.control.region import predicate
from weft.frontend.ops.dispatch import apply_many
from weft.frontend.ops.promotion import TensorLike
from weft.frontend.tensor import Tensor, as_tensor
from weft.frontend.tracing.trace import current_trace
from weft.ir.errors import TypeRuleError, UnsupportedError
from weft.ir.source import caller_location


def switch(data: TensorLike, pred: TensorLike) -> tuple[Tensor, Tensor]:
    """(output_false, output_true): `data` on the side that `pred` says; the other one is dead.

    pred: a bool without axes. An op with a dead operand or control dependency does not run, and
    what it gives is dead, up to a `wf.merge`. A fetch that may be dead is an InvalidArgumentError.
    Only in a `wf.Graph`: UnsupportedError elsewhere. It has no gradient; `wf.cond` has.
    """
    _check_graph("wf.switch")
    outputs = apply_many("switch", [as_tensor(data), predicate("wf.switch: pred", pred)], {})
    return outputs[0], outputs[1]


def merge(inputs: Sequence[TensorLike]) -> tuple[Tensor, Tensor]:
    """(output, index): the one of `inputs` that is live, and its number, an int32 without axes.

    All have one dtype and shape (TypeRuleError). Both results are dead only if all inputs are; two
    that are live are an InvalidArgumentError when the graph runs. Only in a `wf.Graph`.
    """
    _check_graph("wf.merge")
    if not isinstance(inputs, (list, tuple)):
        raise TypeRuleError(
            f"wf.merge: inputs is a {type(inputs).__name__}, not a list of tensors",
            hint="wf.merge([a, b])",
            location=caller_location(),
        )
    output, index = apply_many("merge", [as_tensor(x) for x in inputs], {"loop": False})
    return output, index


def _check_graph(name: str) -> None:
    trace = current_trace()
    if trace is None or trace.kind != "graph":
        where = "outside of any graph" if trace is None else f"in {trace.describe()}"
        raise UnsupportedError(
            f"{name} belongs to a wf.Graph, and was called {where}",
            hint="call it inside `with graph.as_default():`, or use wf.cond",
            location=caller_location(),
        )
