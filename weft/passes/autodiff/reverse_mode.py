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

`without_effects`, for branches and loops that act on objects of the host or on state: A gradient
runs the forward part of a body again, so it must not do what that does. Ops whose results nobody in
the body needs (an enqueue, a print) are left out. What the body gets from outside (a dequeue, a
read of a live variable) it would get anew, so the value that it had is taken instead, if the op has
it: among the results of a cond, stacked among those of a scan. Else there is no gradient.

`refuse_by_state`: gradients that would lead through a variable that a branch or loop changes as it
runs. What such a body stores in the variable and reads again, perhaps in a later iteration, has no
cotangent: the read is an op of its own, and what the variable was at each moment is not kept. So
here is found what the results owe to the operands that way."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from functools import partial

from weft.ir.analysis.effects import StateKey, region_keys, state_key
from weft.ir.dataclass import dataclass
from weft.ir.errors import GradientError, InternalError, suggest
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.locations import Locations, caller_location, gradient_locations
from weft.ir.ops import lookup
from weft.ir.ops.builder import Builder
from weft.ir.ops.control_flow import CONTROL
from weft.ir.spec import AttrValue, fits, int_attr
from weft.ir.types import RefType, StackType, TensorType
from weft.passes.autodiff.raised_loops import raised
from weft.passes.autodiff.rule import Placed, Site, accumulate, is_inexact
from weft.passes.autodiff.table import GRADIENTS, NO_GRADIENT
from weft.passes.control.loops import LOOPS, Loop
from weft.passes.rewriting.expression import Expr
from weft.passes.rewriting.rewrite import extend, has_effect


@dataclass(frozen=True, slots=True, eq=False)
class Twin:
    """An op without effects that computes what another one did. Its operands are those of the other
    and, from number `at` on, `given`: results of the other."""

    op: Operation
    given: tuple[Value, ...] = ()
    at: int = 0


#: Ops that a gradient may do again: all processes do so, and get the same.
_REPEATABLE = frozenset({"exchange"})


def without_effects(op: Operation) -> Twin:
    """`op` itself, or if it has effects its twin. GradientError if they are needed."""
    if op.name not in CONTROL or not has_effect(op):
        return Twin(op)
    plans = [_Plan(op, region) for region in op.regions]
    first = int_attr(op.attrs, "carries") if op.name == "scan" else 0
    numbers = dict.fromkeys(
        _result_number(op, region, value, first)
        for plan, region in zip(plans, op.regions, strict=True)
        for value in plan.taken
    )
    given = tuple(op.results[k] for k in numbers)
    at = len(op.operands)
    attrs: Mapping[str, AttrValue] = op.attrs
    if op.name == "scan":
        rows = int_attr(op.attrs, "sequences")
        at = first + rows
        attrs = {**op.attrs, "sequences": rows + len(given)}
    inside = at - 1 if op.name == "cond" else at  # the number of the first of them in a region
    regions = [plan.block(list(numbers), inside) for plan in plans]
    operands = (*op.operands[:at], *given, *op.operands[at:])
    types = [r.type for r in op.results]
    twin = Operation(op.name, operands, attrs, types, regions, (), op.locations)
    twin.device, twin.group = op.device, op.group
    return Twin(twin, given, at)


def _result_number(op: Operation, region: Block, value: Value, first: int) -> int:
    """The number of the result that has the value."""
    if op.name != "while":
        for k in range(first, len(region.results)):
            if region.results[k] is value:
                return k
    assert value.op is not None
    what = "let the body return it, too" if op.name != "while" else "use wf.scan"
    raise GradientError(
        f"the gradient of op '{op.name}' needs what op '{value.op.name}' in it gives, and cannot "
        "get it a second time",
        hint=f"do that before the loop or branch; or {what}: the gradient uses the value again",
        location=value.op.locations or op.locations,
    )


class _Plan:
    """The part of a region that its results need: ops, and values that ops with effects gave
    (`taken`)."""

    def __init__(self, op: Operation, region: Block) -> None:
        self.region = region
        self.kept: list[tuple[Operation, Twin]] = []
        self.taken: dict[Value, None] = {}
        needed = set(region.results)
        for inner in reversed(region.ops):
            found = [r for r in inner.results if r in needed]
            if not found:
                continue
            if inner.name not in (*CONTROL, *_REPEATABLE) and has_effect(inner):
                self.taken.update(dict.fromkeys(found))
                continue
            twin = without_effects(inner)
            self.taken.update(dict.fromkeys(twin.given))
            self.kept.append((inner, twin))
            needed.update(v for v in twin.op.operands if v not in twin.given)

    def block(self, numbers: list[int], at: int) -> Block:
        """The region without effects; it takes the results with these numbers from `at` on."""
        types = [a.type for a in self.region.args]
        values = [self.region.results[k] for k in numbers]
        builder = Builder([*types[:at], *(v.type for v in values), *types[at:]])
        more = builder.args[at : at + len(values)]
        own = [*builder.args[:at], *builder.args[at + len(values) :]]
        mapping = dict(zip(self.region.args, own, strict=True))
        again = {v: a for v, a in zip(values, more, strict=True) if v in self.taken}
        mapping.update(again)
        for inner, twin in reversed(self.kept):
            types = [r.type for r in inner.results]
            operands = [mapping[v] for v in twin.op.operands]
            made = Operation(
                inner.name, operands, twin.op.attrs, types, twin.op.regions, (), inner.locations
            )
            made.device, made.group = inner.device, inner.group
            builder.ops.append(made)
            pairs = zip(inner.results, made.results, strict=True)
            mapping.update((old, new) for old, new in pairs if old not in again)
        return builder.block([mapping[v] for v in self.region.results])


def refuse_by_state(
    op: Operation, wanted: Sequence[bool], used: Sequence[bool], no_gradient: Collection[str]
) -> None:
    """GradientError if results of a branch or loop that are `used` depend on operands that are
    `wanted` by way of a variable in it."""
    flow = _Flow(no_gradient)
    flow.active.update(v for v, is_wanted in zip(op.operands, wanted, strict=True) if is_wanted)
    flow.op(op, {})
    for result, is_used in zip(op.results, used, strict=True):
        if is_used and result in flow.lost:
            read, update = flow.lost[result]
            raise GradientError(
                f"the gradient of op '{op.name}' leads through a variable that changes in it: op "
                f"'{read.name}' gives what op '{update.name}'{_at(update)} has made of it",
                hint="return what is stored, or carry it as a loop variable; wf.stop_gradient "
                "around what is read takes it for a constant",
                location=read.locations or op.locations,
            )


def _at(op: Operation) -> str:
    return f" at {op.locations[0]}" if op.locations else ""


@dataclass(slots=True)
class _Flow:
    """The values that depend on the wanted operands: active by values alone, lost by a variable.

    lost: the op that reads, and the update before it. stored: of a variable that holds such a
    value, the update.
    """

    no_gradient: Collection[str]
    active: set[Value] = field(default_factory=set)
    lost: dict[Value, tuple[Operation, Operation]] = field(default_factory=dict)
    stored: dict[StateKey, Operation] = field(default_factory=dict)

    def op(self, op: Operation, known: Mapping[Value, StateKey]) -> None:
        """Follow one op; known: what the refs among the block's arguments stand for."""
        if op.name in CONTROL:
            (self._loop if op.name in LOOPS else self._branch)(op, known)
        elif op.operands and isinstance(op.operands[0].type, RefType):
            self._access(op, state_key(op.operands[0], known))
        elif op.name not in self.no_gradient:
            for value in op.operands:
                for result in op.results:
                    self._join(value, result)

    def _join(self, source: Value, target: Value) -> None:
        """`target` depends on `source`."""
        held = target.type.tensor if isinstance(target.type, StackType) else target.type
        if not (isinstance(held, TensorType) and held.dtype.is_inexact):
            return
        if source in self.active:
            self.active.add(target)
        if source in self.lost:
            self.lost.setdefault(target, self.lost[source])

    def _access(self, op: Operation, key: StateKey) -> None:
        before = self.stored.get(key)
        if before is not None and op.name != "assign":
            self.lost.update(
                (r, (op, before)) for r in op.results if isinstance(r.type, TensorType)
            )
        if "writes_state" not in lookup(op.name).traits:
            return
        for value in op.operands[1:]:
            for result in op.results:
                self._join(value, result)
        if any(v in self.active or v in self.lost for v in op.operands[1:]):
            self.stored[key] = op
        elif op.name == "assign":
            self.stored.pop(key, None)

    def _block(self, op: Operation, region: Block, known: Mapping[Value, StateKey]) -> None:
        operands = op.operands[1:] if op.name == "cond" else op.operands
        for operand, arg in zip(operands, region.args, strict=True):
            self._join(operand, arg)
        inside = region_keys(op, region, known)
        for inner in region.ops:
            self.op(inner, inside)

    def _branch(self, op: Operation, known: Mapping[Value, StateKey]) -> None:
        before = dict(self.stored)
        after: dict[StateKey, Operation] = {}
        for region in op.regions:
            self.stored = dict(before)
            self._block(op, region, known)
            after = {**self.stored, **after}
            for value, result in zip(region.results, op.results, strict=True):
                self._join(value, result)
        self.stored = after

    def _loop(self, op: Operation, known: Mapping[Value, StateKey]) -> None:
        loop = Loop.of(op)
        while True:  # until an iteration adds nothing
            size = len(self.active) + len(self.lost) + len(self.stored)
            before = dict(self.stored)
            for region in op.regions:
                self._block(op, region, known)
            self.stored = {**self.stored, **before}
            for k, value in enumerate(loop.body.results):
                self._join(value, op.results[k])
                if k < loop.carries:
                    self._join(value, loop.body.args[k])
            if size == len(self.active) + len(self.lost) + len(self.stored):
                break
        for k in range(loop.carries):
            self._join(op.operands[k], op.results[k])


def gradients(
    builder: Builder,
    ys: Sequence[Value],
    xs: Sequence[Value],
    grad_ys: Sequence[Value | None] | None = None,
    placed: Placed | None = None,
    stopped: Collection[Value] = (),
) -> list[Value | None]:
    """The gradients of sum_i <grad_ys[i], ys[i]> with respect to each of `xs`, appended to it.

    builder holds the ops that lead from the xs (its arguments, or results of its ops) to the ys.
    A missing grad_y means ones (the y must be real then). A gradient has the dtype and shape of its
    x; it is None where no differentiable path leads from x to the ys. For complex values see
    `autodiff/rule.py`. placed: called with each op and those that its gradient added. stopped:
    constants to differentiation, though they have gradients if they are among the xs. Raises
    GradientError for ys that have no gradient, naming the user's line.
    """
    seeds = [None] * len(ys) if grad_ys is None else list(grad_ys)
    if len(seeds) != len(ys):
        raise GradientError(
            f"{len(seeds)} gradients are given for {len(ys)} results", location=caller_location()
        )
    ops = builder.ops[: _last_position(builder, ys) + 1]
    given = [_seed(builder, y, seed) for y, seed in zip(ys, seeds, strict=True)]
    return pull_back(builder, ops, ys, given, xs, placed, stopped)


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
    xs = [a for a in graph.args if is_inexact(a)] if wrt is None else [graph.args[i] for i in wrt]
    grads = gradients(builder, [loss], xs)
    place = _locations_of(loss)
    filled = [
        Expr(builder, x, place).full(0).value if g is None else g
        for x, g in zip(xs, grads, strict=True)
    ]
    results = [*graph.results, *filled]
    return builder.graph(graph.name, graph.arg_names, results, graph.stage)


def _locations_of(value: Value) -> Locations:
    return caller_location() if value.op is None else value.op.locations


def _last_position(builder: Builder, ys: Sequence[Value]) -> int:
    makers = {y.op for y in ys}
    return max((i for i, op in enumerate(builder.ops) if op in makers), default=-1)


def _seed(builder: Builder, y: Value, seed: Value | None) -> Value:
    """The cotangent that the walk starts with at `y`."""
    place = _locations_of(y)
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


def pull_back(
    builder: Builder,
    ops: Sequence[Operation],
    ys: Sequence[Value],
    given: Sequence[Value | None],
    xs: Sequence[Value],
    placed: Placed | None = None,
    stopped: Collection[Value] = (),
) -> list[Value | None]:
    """The cotangents of `xs` from those of `ys`, by way of `ops` only, and through none of the
    values that are `stopped`. Loops by hand among the ops are raised (`raised_loops`)."""
    seeded = [y for y, seed in zip(ys, given, strict=True) if seed is not None]
    ops = raised(builder, ops, seeded, xs, stopped, placed)
    active = _depends_on(xs, ops)
    cotangents: dict[Value, Expr] = {}

    def arrive(value: Value, grad: Expr) -> None:
        if value in cotangents:
            grad = accumulate(grad.wrap(cotangents[value].value), grad)
        cotangents[value] = grad

    for y, seed in zip(ys, given, strict=True):
        if seed is not None and y in active:
            arrive(y, Expr(builder, seed, _locations_of(y)))
    for op in reversed(ops):
        arrived = {r: cotangents[r] for r in op.results if r in cotangents and r not in stopped}
        if arrived and any(v in active for v in op.operands):
            start = len(builder.ops)
            found = _apply_rule(builder, op, arrived, active, placed)
            for value, grad in zip(op.operands, found, strict=True):
                if grad is not None and value in active:
                    arrive(value, grad)
            if placed is not None:
                placed(op, builder.ops[start:])
    return [cotangents[x].value if x in cotangents else None for x in xs]


def _depends_on(xs: Iterable[Value], ops: Sequence[Operation]) -> set[Value]:
    """The xs and what depends on them by way of differentiable ops."""
    active = {x for x in xs if is_inexact(x)}
    for op in ops:
        if op.name not in NO_GRADIENT and any(v in active for v in op.operands):
            active.update(r for r in op.results if is_inexact(r))
    return active


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

    where = gradient_locations(op.locations, op.name)

    def at_op(value: Value) -> Expr:
        return Expr(builder, value, where)

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
            pull_back if placed is None else partial(pull_back, placed=placed),
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
