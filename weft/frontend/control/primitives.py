"""Dataflow primitives of a `wf.Graph` (the paper, section 3.4): Switch, Merge and the ops of
frames, of which users build branches and loops themselves."""

from __future__ import annotations

from collections.abc import Sequence

from weft.frontend.control.region import predicate
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import Effect, current_trace
from weft.frontend.ops.dispatch import apply_many
from weft.frontend.ops.promotion import TensorLike
from weft.ir.errors import TypeRuleError, UnsupportedError
from weft.ir.locations import caller_location
from weft.ir.spec import AttrValue


def switch(data: TensorLike, pred: TensorLike) -> tuple[Tensor, Tensor]:
    """(output_false, output_true): `data` on the side that `pred` says; the other one is dead.

    pred: a bool without axes. An op with a dead operand or control dependency does not run, and
    what it gives is dead, up to a `wf.merge`. A fetch that may be dead is an InvalidArgumentError.
    Only in a `wf.Graph`: UnsupportedError elsewhere. It has no gradient; `wf.cond` has.
    """
    _check_graph("wf.switch")
    outputs = apply_many("switch", [as_tensor(data), predicate("wf.switch: pred", pred)], {})
    return outputs[0], outputs[1]


def merge(inputs: Sequence[TensorLike], *, loop: bool = False) -> tuple[Tensor, Tensor]:
    """(output, index): the one of `inputs` that is live, and its number, an int32 without axes.

    All have one dtype and shape (TypeRuleError). Both results are dead only if all inputs are; two
    that are live are an InvalidArgumentError when the graph runs. loop: the merge at the head of a
    loop, with one input, what `wf.enter` gives; `wf.next_iteration` brings it the others. Only in a
    `wf.Graph`.
    """
    _check_graph("wf.merge")
    if not isinstance(inputs, (list, tuple)):
        raise TypeRuleError(
            f"wf.merge: inputs is a {type(inputs).__name__}, not a list of tensors",
            hint="wf.merge([a, b])",
            location=caller_location(),
        )
    output, index = apply_many("merge", [as_tensor(x) for x in inputs], {"loop": bool(loop)})
    return output, index


def enter(
    data: TensorLike, frame_name: str, is_constant: bool = False, parallel_iterations: int = 10
) -> Tensor:
    """`data` in the frame (the loop) of that name; is_constant: in each of its iterations.

    parallel_iterations: how many of the frame's iterations may be under way at once. A loop by
    hand: enter, `wf.merge([entered], loop=True)`, `wf.loop_cond`, `wf.switch`, then `wf.exit` on
    the false and `wf.next_iteration` on the true side. Only in a `wf.Graph`; what no frame allows
    (ops on values of two frames) is an error that names the ops. `wf.while_loop` does it all.
    """
    _check_graph("wf.enter")
    attrs: dict[str, AttrValue] = {
        "frame": frame_name,
        "constant": bool(is_constant),
        "parallel_iterations": parallel_iterations,
    }
    return apply_many("enter", [as_tensor(data)], attrs)[0]


def exit(data: TensorLike) -> Tensor:
    """`data` in the frame around its own: what the loop gives, when it has ended."""
    _check_graph("wf.exit")
    return apply_many("exit", [as_tensor(data)], {})[0]


def loop_cond(pred: TensorLike) -> Tensor:
    """`pred`, a bool without axes, as that which decides whether the loop goes on."""
    _check_graph("wf.loop_cond")
    return apply_many("loop_cond", [predicate("wf.loop_cond: pred", pred)], {})[0]


def next_iteration(data: TensorLike, merge_output: Tensor) -> Effect:
    """The next iteration's value of a `wf.merge(..., loop=True)`, whose output is `merge_output`.

    It gives no value: the graph has no cycle, and the merge gets it. A step that needs the merge
    does it.
    """
    _check_graph("wf.next_iteration")
    trace = current_trace()
    assert trace is not None
    values = [trace.lift(as_tensor(data)), trace.lift(as_tensor(merge_output))]
    (token,) = trace.emit("next_iteration", values)
    return Effect(trace.name_scope + "next_iteration", token, trace)


def _check_graph(name: str) -> None:
    trace = current_trace()
    if trace is None or trace.kind != "graph":
        where = "outside of any graph" if trace is None else f"in {trace.describe()}"
        raise UnsupportedError(
            f"{name} belongs to a wf.Graph, and was called {where}",
            hint="call it inside `with graph.as_default():`, or use wf.cond",
            location=caller_location(),
        )
