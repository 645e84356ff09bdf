"""Reverse-mode differentiation: append to a block the ops that compute gradients.

Before::

    %0 = sin(%x) : f32[4]
    %1 = sum(%0) {axes=[0], keepdims=false} : f32[]

After ``gradients(builder, [%1], [%x])``::

    %2 = constant() {value=f32[] 1.0} : f32[]
    %3 = broadcast_to(%2) {shape=[4]} : f32[4]
    %4 = cos(%x) : f32[4]
    %5 = multiply(%3, %4) : f32[4]

The ops walk backwards from the ys to the xs; cotangents that meet are added. The gradient ops are
ordinary ops at the source lines of the forward ops, so they can be differentiated again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from weft.ir.builder import Builder
from weft.ir.errors import GradientError, InternalError, suggest
from weft.ir.graph import Graph, Operation, Value
from weft.ir.rules import fits
from weft.ir.source import Locations, caller_location
from weft.ir.types import StackType, TensorType
from weft.passes.expression import Expr
from weft.passes.gradients import GRADIENTS, NO_GRADIENT
from weft.passes.gradients.effects import without_effects
from weft.passes.gradients.live import refuse_by_state
from weft.passes.gradients.rule import Site, accumulate
from weft.passes.rewrite import extend

#: Called with an op and the ops that carry cotangents through it.
Placed = Callable[[Operation, Sequence[Operation]], None]


def gradients(
    builder: Builder,
    ys: Sequence[Value],
    xs: Sequence[Value],
    grad_ys: Sequence[Value | None] | None = None,
    placed: Placed | None = None,
) -> list[Value | None]:
    """The gradients of sum_i <grad_ys[i], ys[i]> with respect to each of `xs`, appended to it.

    builder holds the ops that lead from the xs (its arguments, or results of its ops) to the ys.
    A missing grad_y means ones (the y must be real then). A gradient has the dtype and shape of its
    x; it is None where no differentiable path leads from x to the ys. For complex values see
    `gradients/rule.py`. placed: called with each op and those that its gradient added. Raises
    GradientError for ys that have no gradient, naming the user's line.
    """
    seeds = [None] * len(ys) if grad_ys is None else list(grad_ys)
    if len(seeds) != len(ys):
        raise GradientError(
            f"{len(seeds)} gradients are given for {len(ys)} results", location=caller_location()
        )
    ops = builder.ops[: _last_position(builder, ys) + 1]
    given = [_seed(builder, y, seed) for y, seed in zip(ys, seeds, strict=True)]
    return _pull_back(builder, ops, ys, given, xs, placed)


def differentiate(graph: Graph, wrt: Sequence[int] | None = None) -> Graph:
    """Append the gradients of the first result, a real scalar, as further results.

    They are with respect to the arguments `wrt`, or all floating and complex ones; zeros where the
    loss does not depend on one. Raises GradientError for a result that is no scalar.
    """
    loss = graph.results[0]
    if not isinstance(loss.type, TensorType) or loss.type.rank != 0:
        raise GradientError(
            f"the first result of graph '{graph.name}' is a {loss.type}, not a scalar",
            hint="reduce it, with wf.sum or wf.mean, before taking the gradient",
        )
    builder = extend(graph.block)
    builder.ops = list(graph.ops)
    xs = [a for a in graph.args if _is_inexact(a)] if wrt is None else [graph.args[i] for i in wrt]
    grads = gradients(builder, [loss], xs)
    place = _place(loss)
    filled = [
        Expr(builder, x, place).full(0).value if g is None else g
        for x, g in zip(xs, grads, strict=True)
    ]
    results = [*graph.results, *filled]
    return builder.graph(graph.name, graph.arg_names, results, graph.stage)


def _place(value: Value) -> Locations:
    return caller_location() if value.op is None else value.op.locations


def _last_position(builder: Builder, ys: Sequence[Value]) -> int:
    makers = {y.op for y in ys}
    return max((i for i, op in enumerate(builder.ops) if op in makers), default=-1)


def _seed(builder: Builder, y: Value, seed: Value | None) -> Value:
    """The cotangent that the walk starts with at `y`."""
    place = _place(y)
    if not isinstance(y.type, TensorType) or not y.type.dtype.is_inexact:
        raise GradientError(
            f"the gradient of a {y.type} was asked for; only floating and complex values have one",
            hint="convert with wf.astype before the computation, not after it",
            location=place,
        )
    if seed is None:
        if y.type.dtype.is_complex:
            raise GradientError(
                f"the gradient of the complex value {y.type} needs grad_ys",
                hint="take wf.real, wf.imag or wf.abs for a real loss, or pass grad_ys",
                location=place,
            )
        return Expr(builder, y, place).full(1).value
    if not _fits(seed, y):
        raise GradientError(f"a grad_y of type {seed.type} is given for a {y.type}", location=place)
    return seed


def _fits(grad: Value, value: Value) -> bool:
    """Whether `grad` can be the cotangent of `value`."""
    a, b = grad.type, value.type
    if isinstance(a, StackType):
        return a == b
    tensors = isinstance(a, TensorType) and isinstance(b, TensorType)
    return tensors and a.dtype is b.dtype and fits(a.shape, b.shape)  # type: ignore[union-attr]


def _pull_back(
    builder: Builder,
    ops: Sequence[Operation],
    ys: Sequence[Value],
    given: Sequence[Value | None],
    xs: Sequence[Value],
    placed: Placed | None = None,
) -> list[Value | None]:
    """The cotangents of `xs` from those of `ys`, by way of `ops` only."""
    active = _depends_on(xs, ops)
    cotangents: dict[Value, Expr] = {}

    def arrive(value: Value, grad: Expr) -> None:
        if value in cotangents:
            grad = accumulate(grad.wrap(cotangents[value].value), grad)
        cotangents[value] = grad

    for y, seed in zip(ys, given, strict=True):
        if seed is not None and y in active:
            arrive(y, Expr(builder, seed, _place(y)))
    for op in reversed(ops):
        if any(v in active for v in op.operands) and any(r in cotangents for r in op.results):
            start = len(builder.ops)
            found = _apply_rule(builder, op, cotangents, active, placed)
            for value, grad in zip(op.operands, found, strict=True):
                if grad is not None and value in active:
                    arrive(value, grad)
            if placed is not None:
                placed(op, builder.ops[start:])
    return [cotangents[x].value if x in cotangents else None for x in xs]


def _depends_on(xs: Iterable[Value], ops: Sequence[Operation]) -> set[Value]:
    """The xs and what depends on them by way of differentiable ops."""
    active = {x for x in xs if _is_inexact(x)}
    for op in ops:
        if op.name not in NO_GRADIENT and any(v in active for v in op.operands):
            active.update(r for r in op.results if _is_inexact(r))
    return active


def _is_inexact(value: Value) -> bool:
    held = value.type.tensor if isinstance(value.type, StackType) else value.type
    return isinstance(held, TensorType) and held.dtype.is_inexact


def _apply_rule(
    builder: Builder,
    op: Operation,
    cotangents: dict[Value, Expr],
    active: set[Value],
    placed: Placed | None,
) -> Sequence[Expr | None]:
    """The cotangents of the operands of `op`, checked."""
    rule = GRADIENTS.get(op.name)
    if rule is None:
        raise GradientError(
            f"op '{op.name}' has no gradient{suggest(op.name, list(GRADIENTS))}",
            hint="use wf.stop_gradient around it, or give it one with wf.custom_gradient",
            location=op.locations,
        )

    def at_op(value: Value) -> Expr:
        return Expr(builder, value, op.locations)

    arrived = (cotangents.get(r) for r in op.results)
    twin = without_effects(op)
    if twin.op is not op:
        wanted = [v in active for v in op.operands]
        refuse_by_state(op, wanted, [r in cotangents for r in op.results], NO_GRADIENT)
    grads = rule(
        Site(
            twin.op,
            tuple(map(at_op, twin.op.operands)),
            tuple(map(at_op, op.results)),
            tuple(None if g is None else at_op(g.value) for g in arrived),
            tuple(v in active and v not in twin.given for v in twin.op.operands),
            _pull_back if placed is None else partial(_pull_back, placed=placed),
            _depends_on,
        )
    )
    grads = [*grads[: twin.at], *grads[twin.at + len(twin.given) :]]
    for i, (value, grad) in enumerate(zip(op.operands, grads, strict=True)):
        if grad is not None and value in active and not _fits(grad.value, value):
            raise InternalError(
                f"the gradient rule of op '{op.name}' gave a {grad.value.type} for operand {i}, "
                f"which is a {value.type}",
                location=op.locations,
            )
    return grads
