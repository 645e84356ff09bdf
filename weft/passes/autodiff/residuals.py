"""Residuals: what the forward loop must store for the backward loop of a gradient.

The pullback of one iteration is taken in a block that holds the body's ops, too. Everything that
does not depend on the cotangents can be computed in the forward loop. Of that the backward loop

* recomputes what depends on loop invariants only (it is moved out of the loop later);
* recomputes cheap elementwise ops and views of what it has anyway;
* takes the rows of the loop's own sequences and stacked results as they are;
* and finds the rest in stacks that the forward loop writes, one row per iteration: the *residuals*.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from weft.ir.dataclass import dataclass
from weft.ir.errors import GradientError
from weft.ir.graph import Block, Operation, Value
from weft.ir.ops import lookup
from weft.ir.ops.builder import Builder
from weft.passes.autodiff.rule import Site
from weft.passes.sizes.tie_sizes import depends_on, made_in

#: Elementwise ops that cost more than a load from memory.
# fmt: off
_DEAR = frozenset(
    (
        "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "power", "atan2", "hypot",
        "logaddexp", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh",
        "asinh", "acosh", "atanh", "erf", "erfc", "erfinv", "lgamma", "digamma", "sigmoid",
        "remainder", "floor_divide", "nextafter", "rsqrt", "sqrt", "divide", "reciprocal",
    )
)
# fmt: on
#: Ops that make nothing new of their operand: where their result is needed, that is kept instead.
_VIEWS = frozenset(
    ("broadcast_to", "reshape", "permute_dims", "identity", "stop_gradient", "stack_pop")
)
_NO_OPERANDS = frozenset(("constant", "iota"))


@dataclass(frozen=True, slots=True, eq=False)
class Joint:
    """One iteration and its pullback.

    ops: forward ops, then those that the pullback appended. args, results: of the copy of the body.
    seeds: the cotangents of `results` (None: there is none). grads: the cotangents of `args`.
    """

    args: tuple[Value, ...]
    results: tuple[Value, ...]
    seeds: tuple[Value | None, ...]
    grads: tuple[Value | None, ...]
    ops: tuple[Operation, ...]


def joint(s: Site, body: Block, moved: Sequence[bool], wanted: Sequence[bool]) -> Joint:
    """The body with the cotangents of the results that are `moved`, pulled back to the arguments
    that are `wanted`."""
    builder = Builder()
    args = [builder.add_arg(a.type) for a in body.args]
    results = builder.inline(body, args)
    seeds = [builder.add_arg(r.type) if m else None for r, m in zip(results, moved, strict=True)]
    xs = [a for a, w in zip(args, wanted, strict=True) if w]
    found = iter(s.pull_back(builder, tuple(builder.ops), results, seeds, xs))
    grads = [next(found) if w else None for w in wanted]
    return Joint(tuple(args), results, tuple(seeds), tuple(grads), tuple(builder.ops))


def moving_carries(s: Site, body: Block, count: int, wanted: Sequence[bool]) -> list[bool]:
    """Of the carries, the first `count` arguments and results, those that have cotangents.

    They depend on wanted operands, and the results whose cotangents are given depend on them.
    wanted: for each argument of the body. Cotangents: s.cotangents, one for each result.
    """
    active: set[Value] = set()
    ahead = list(wanted)
    while True:
        xs = [a for a, w in zip(body.args, ahead, strict=True) if w]
        active = s.active(xs, body.ops)
        grown = [w or body.results[i] in active for i, w in enumerate(ahead[:count])]
        if grown == ahead[:count]:
            break
        ahead[:count] = grown
    behind = [g is not None for g in s.cotangents]
    while True:
        reached = {r for r, b in zip(body.results, behind, strict=True) if b and r in active}
        for op in reversed(body.ops):
            if any(r in reached for r in op.results):
                reached.update(v for v in op.operands if v in active)
        grown = [
            b or (a and body.args[i] in reached)
            for i, (b, a) in enumerate(zip(behind[:count], ahead[:count], strict=True))
        ]
        if grown == behind[:count]:
            return [a and b for a, b in zip(ahead[:count], behind[:count], strict=True)]
        behind[:count] = grown


@dataclass(frozen=True, slots=True, eq=False)
class Residuals:
    """The values of an iteration that the backward loop needs.

    stored: values for the forward loop to stack. ops: all ops that the backward loop runs.
    """

    stored: tuple[Value, ...]
    ops: tuple[Operation, ...]
    needs: frozenset[Value]


def residuals(
    j: Joint, carries: int, rows: int, stacked: Iterable[Value], recompute: bool = False
) -> Residuals:
    """Choose what to store. stacked: values that the forward loop stacks already. recompute: only
    carries, whatever the rest costs."""
    after = {s for s in j.seeds if s is not None}
    forward: list[Operation] = []
    for op in j.ops:
        if any(v in after for v in op.operands):
            after.update(op.results)
        else:
            forward.append(op)
    if recompute:
        starts = dict.fromkeys(j.args[:carries])
        return _closure(j, after, {*starts, *stacked, *j.args}, starts)
    backward = [op for op in j.ops if any(r in after for r in op.results)]
    needed = {v for op in backward for v in op.operands if v not in after}
    needed.update(g for g in j.grads if g is not None and g not in after)
    invariant = set(j.args[carries + rows :])
    free = {*invariant, *j.args[carries : carries + rows], *stacked}
    for op in forward:
        if all(v in invariant for v in op.operands):
            invariant.update(op.results)
    free |= invariant
    wanted = _behind_views(forward, needed, free)
    free |= {a for a in j.args[:carries] if a in wanted}
    stored: dict[Value, None] = dict.fromkeys(a for a in j.args[:carries] if a in wanted)
    varying = made_in(forward)
    for op in forward:
        if all(v in free for v in op.operands) and _is_cheap(op):
            free.update(op.results)
        else:
            found = [r for r in op.results if r in wanted and r not in free]
            kept = [r for r in found if not depends_on(r.type, varying)]
            if len(kept) < len(found):  # of another size in each iteration: made again
                stored.update(dict.fromkeys(j.args[:carries]))
            stored.update(dict.fromkeys(kept))
            free.update(found)
    return _closure(j, after, {*stored, *stacked, *j.args}, stored)


def _behind_views(forward: Sequence[Operation], needed: set[Value], free: set[Value]) -> set[Value]:
    """The needed values, with the operand of a view in place of its result."""
    wanted = set(needed)
    for op in reversed(forward):
        if op.name in _VIEWS:
            made = [r for r in op.results if r in wanted and r not in free]
            wanted.difference_update(made)
            wanted.update(op.operands[:1] if made else ())
    return wanted


def _is_cheap(op: Operation) -> bool:
    if op.name in _VIEWS or op.name in _NO_OPERANDS:
        return True
    return "elementwise" in lookup(op.name).traits and op.name not in _DEAR


def _closure(
    j: Joint, after: set[Value], ends: set[Value], stored: Mapping[Value, None]
) -> Residuals:
    """The ops that lead from `ends` and the cotangents to the gradients."""
    met = {g for g in j.grads if g is not None}
    kept: list[Operation] = []
    for op in reversed(j.ops):
        if any(r in met and r not in ends for r in op.results):
            kept.append(op)
            met.update(op.operands)
    chosen = tuple(v for v in stored if v in met)
    moving = [a for a, s in zip(j.args, j.seeds, strict=False) if s is not None]
    _check_sizes(j, [*chosen, *moving])
    return Residuals(chosen, tuple(reversed(kept)), frozenset(met - after))


def _check_sizes(j: Joint, values: Iterable[Value]) -> None:
    """GradientError for a value to store, or that has a cotangent in each iteration, if its size
    may differ from one to the next."""
    varying = made_in(j.ops)
    for value in values:
        if depends_on(value.type, varying):
            raise GradientError(
                f"the gradient of a loop needs a {value.type} of each iteration, the size of which "
                "depends on values and may change",
                hint="give loop variables one size in all iterations, or loop in Python",
                location=next((op.locations for op in j.ops if op.locations), ()),
            )


def copy_ops(
    builder: Builder, ops: Sequence[Operation], mapping: dict[Value, Value]
) -> dict[Value, Value]:
    """Append copies of `ops`; `mapping` grows by their results and is returned."""
    for op in ops:
        fresh = builder.clone(op, mapping)
        for old, new in zip(op.results, fresh, strict=True):
            mapping.setdefault(old, new)
    return mapping


def ops_for(ops: Sequence[Operation], values: Iterable[Value]) -> list[Operation]:
    """The ops, in order, that compute `values`."""
    met = set(values)
    kept: list[Operation] = []
    for op in reversed(ops):
        if any(r in met for r in op.results):
            kept.append(op)
            met.update(op.operands)
    return kept[::-1]
