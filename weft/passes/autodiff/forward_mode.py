"""Forward-mode differentiation: a block with the tangents of its results.

Before, for ``%x : f32[4]``::

    %0 = sin(%x) : f32[4]
    %1 = sum(%0) {axes=[0], keepdims=false} : f32[]

After, for ``%x`` and its tangent ``%t : f32[4]``::

    %0 = sin(%x) : f32[4]
    %1 = cos(%x) : f32[4]
    %2 = multiply(%t, %1) : f32[4]
    %3 = sum(%0) {axes=[0], keepdims=false} : f32[]
    %4 = sum(%2) {axes=[0], keepdims=false} : f32[]

One walk in program order carries each value and its tangent, which is None where it is zero. There
is no table of forward rules. Elementwise ops have their slopes in the table of gradients; an op
that is linear in an operand is its own derivative (`LINEAR`, `MULTILINEAR`); for any other the rule
is made from its gradient: that is linear in the cotangent, and the gradient of a linear function is
its transpose, so the gradient of the gradient by the cotangent gives the tangent (J. Townsend,
"A new trick for calculating Jacobian vector products", 2017). Loops carry tangents beside values,
so memory does not grow with their length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.ir.dataclass import dataclass
from weft.ir.graph import Block, Operation, Value
from weft.ir.locations import Locations, gradient_locations
from weft.ir.ops.builder import Builder
from weft.ir.ops.control_flow import CONTROL
from weft.ir.spec import AttrValue, int_attr
from weft.ir.types import StackType
from weft.passes.autodiff.reverse_mode import pull_back
from weft.passes.autodiff.rule import is_inexact
from weft.passes.autodiff.table import BINARY, DERIVATIVES, NO_GRADIENT
from weft.passes.rewriting.expression import Expr

#: Ops that are linear in all of these operands together; the others (None: there are none) are
#: indices, predicates and the like.
LINEAR: Mapping[str, tuple[int, ...] | None] = {
    **dict.fromkeys(
        (
            "identity", "tap", "optimization_barrier", "reshape", "permute_dims", "broadcast_to",
            "sum", "slice", "concat",
            "pad", "negative", "add", "subtract", "conj", "real", "imag", "cumulative_sum",
            "window_sum", "window_spread", "slice_update", "stack_push", "stack_pop", "stack_add",
            "fft", "rfft", "irfft", "psum", "all_gather", "psum_scatter", "all_to_all", "ppermute",
            "exchange",
        )
    ),
    **dict.fromkeys(("take", "take_along_axis", "gather_nd"), (0,)),
    **dict.fromkeys(
        ("index_add", "scatter_nd_add", "scatter_nd_update", "scatter_along_axis_add"), (0, 2)
    ),
    "where": (1, 2),
    "row_guard": (0,),
}  # fmt: skip

#: Ops that are linear in each of these operands alone.
MULTILINEAR: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("matmul", "multiply", "conv", "conv_input", "conv_kernel"), (0, 1)),
    **dict.fromkeys(("window_pick", "window_place"), (1,)),
}

#: Kinds of exchanges that are not linear, or of which one at a time is under way.
_BY_GRADIENT = frozenset({"pmax", "pmin", "start", "done"})


@dataclass(frozen=True, slots=True)
class Dual:
    """A value, and its tangent: None if that is zero."""

    value: Value
    tangent: Value | None


def push_forward(builder: Builder, block: Block, operands: Sequence[Dual]) -> list[Dual]:
    """Append the ops of a block and those of the tangents; its results.

    operands: one for each argument; no two are the same value. GradientError for an op without a
    gradient on the way of a tangent.
    """
    walk = _Walk(builder, copy=True)
    walk.known.update(zip(block.args, operands, strict=True))
    for op in block.ops:
        walk.op(op)
    return [walk.known[v] for v in block.results]


def tangents_beside(
    builder: Builder,
    ops: Sequence[Operation],
    xs: Sequence[Value],
    along: Sequence[Value],
    ys: Sequence[Value],
) -> list[Value | None]:
    """Append the tangents of ys along those of the distinct xs, by way of ops that are there
    already: none is copied but the loops and branches that carry tangents. None: it is zero."""
    walk = _Walk(builder, copy=False)
    walk.known.update((x, Dual(x, t)) for x, t in zip(xs, along, strict=True))
    for op in ops:
        if any(v in walk.known for v in op.operands):
            walk.op(op)
    return [walk.of(y).tangent for y in ys]


def zero_tangent(builder: Builder, value: Value, where: Locations) -> Value:
    """The tangent of a constant."""
    if isinstance(value.type, StackType):
        held = value.type.tensor
        attrs: Mapping[str, AttrValue] = {
            "dtype": held.dtype, "shape": held.shape, "depth": value.type.depth,
        }  # fmt: skip
        return builder.emit("stack_new", (), attrs, locations=where)[0]
    return Expr(builder, value, where).full(0).value


class _Walk:
    """The walk over one block: by old value the new one with its tangent."""

    def __init__(self, builder: Builder, copy: bool) -> None:
        self.builder, self.copy = builder, copy
        self.known: dict[Value, Dual] = {}

    def of(self, value: Value) -> Dual:
        """What stands for an old value: where ops are not copied, one without a tangent itself."""
        return self.known[value] if self.copy else self.known.get(value, Dual(value, None))

    def op(self, op: Operation) -> None:
        """Append the op and what its tangents need."""
        moves = any(self.of(v).tangent is not None for v in op.operands)
        if op.name in CONTROL and moves:
            found = getattr(self, f"_{op.name}")(op)
        else:
            new = self._copied(op) if self.copy else op
            values = new.results
            tangents: Sequence[Value | None] = [None] * len(values)
            if moves and op.name not in NO_GRADIENT and any(map(is_inexact, values)):
                tangents = self._tangents(op, new)
            found = [Dual(v, t) for v, t in zip(values, tangents, strict=True)]
        self.known.update(zip(op.results, found, strict=True))

    def _copied(self, op: Operation) -> Operation:
        self.builder.clone(op, {v: self.of(v).value for v in (*op.operands, *op.control)})
        return self.builder.ops[-1]

    # -- ops --------------------------------------------------------------------------------------

    def _tangents(self, op: Operation, new: Operation) -> list[Value | None]:
        """The tangents of the results of `new`, which does what `op` did."""
        where = gradient_locations(op.locations, op.name)
        given = [self.of(v).tangent for v in op.operands]
        start = len(self.builder.ops)
        if new.name in LINEAR and new.attrs.get("kind") not in _BY_GRADIENT:
            made = self._linear(new, given, where)
        elif new.name in MULTILINEAR:
            made = [self._multilinear(new, given, where)]
        else:
            slope = self._by_slope(new, given, where)
            made = self._transposed(new, given, where) if slope is None else [slope]
        for added in self.builder.ops[start:]:
            added.device, added.group = op.device, op.group
        return made

    def _linear(
        self, op: Operation, given: Sequence[Value | None], where: Locations
    ) -> list[Value | None]:
        numbers = LINEAR[op.name]
        moving = range(len(given)) if numbers is None else numbers
        if all(given[k] is None for k in moving):
            return [None] * len(op.results)
        operands = list(op.operands)
        for k in moving:
            t = given[k]
            operands[k] = zero_tangent(self.builder, op.operands[k], where) if t is None else t
        # a tap names the value alone
        name, attrs = ("identity", {}) if op.name == "tap" else (op.name, op.attrs)
        return list(self.builder.emit(name, operands, attrs, locations=where))

    def _multilinear(
        self, op: Operation, given: Sequence[Value | None], where: Locations
    ) -> Value | None:
        total: Expr | None = None
        for k in MULTILINEAR[op.name]:
            t = given[k]
            if t is None:
                continue
            operands = [*op.operands[:k], t, *op.operands[k + 1 :]]
            (made,) = self.builder.emit(op.name, operands, op.attrs, locations=where)
            part = Expr(self.builder, made, where)
            total = part if total is None else total + part
        return None if total is None else total.value

    def _by_slope(
        self, op: Operation, given: Sequence[Value | None], where: Locations
    ) -> Value | None:
        """The tangent of an elementwise op by its slopes; None for one that has none here."""
        if op.name not in DERIVATIVES and op.name not in BINARY and op.name != "astype":
            return None
        x, *more = (Expr(self.builder, v, where) for v in op.operands)
        y = x.wrap(op.result)
        tangents = [None if t is None else x.wrap(t) for t in given]
        if op.name in DERIVATIVES:
            (t,) = tangents
            assert t is not None
            return (t * DERIVATIVES[op.name](x, y)).value
        if op.name == "astype":
            (t,) = tangents
            assert t is not None
            if x.dtype.is_complex and not y.dtype.is_complex:
                t = t.op("real")
            return t.astype(y.dtype).value
        total: Expr | None = None
        for t, partial in zip(tangents, BINARY[op.name], strict=True):
            if t is None or partial is None:
                continue
            # the cotangent of the operand is g times the conjugate of the slope
            part = partial(t.conj(), x, more[0], y).conj()
            total = part if total is None else total + part
        return None if total is None else total.value

    def _transposed(
        self, op: Operation, given: Sequence[Value | None], where: Locations
    ) -> list[Value | None]:
        """The tangents as the gradient, by the cotangents, of the op's gradient."""
        builder = self.builder
        made = [k for k, r in enumerate(op.results) if is_inexact(r)]
        seeds: list[Value | None] = [None] * len(op.results)
        for k in made:
            zeros = zero_tangent(builder, op.results[k], where)
            # values of their own, of which no rule knows that they are zeros
            seeds[k] = builder.emit1("identity", zeros, locations=where)
        moving = [(v, t) for v, t in zip(op.operands, given, strict=True) if t is not None]
        unique = dict(moving)
        start = len(builder.ops)
        pulled = pull_back(builder, [op], op.results, seeds, list(unique))
        found = [(g, t) for g, t in zip(pulled, unique.values(), strict=True) if g is not None]
        dummies = [s for s in seeds if s is not None]
        pushed = iter(
            pull_back(
                builder, builder.ops[start:], [g for g, _ in found], [t for _, t in found], dummies
            )
        )
        return [None if s is None else next(pushed) for s in seeds]

    # -- control flow -----------------------------------------------------------------------------

    def _region(
        self, region: Block, moving: Sequence[bool], order: Sequence[tuple[int, bool]]
    ) -> tuple[Builder, list[Dual]]:
        """A region with arguments in a new order: (number, whether it is the tangent of that)."""
        builder = Builder([region.args[k].type for k, _ in order])
        made = dict(zip(order, builder.args, strict=True))
        duals = [Dual(made[k, False], made.get((k, True))) for k in range(len(region.args))]
        assert [d.tangent is not None for d in duals] == list(moving)
        return builder, push_forward(builder, region, duals)

    def _forced(self, builder: Builder, dual: Dual, where: Locations) -> Value:
        if dual.tangent is not None:
            return dual.tangent
        return zero_tangent(builder, dual.value, where)

    def _operands(self, op: Operation, order: Sequence[tuple[int, bool]]) -> list[Value]:
        out = []
        for k, is_tangent in order:
            dual = self.of(op.operands[k])
            out.append(self._forced(self.builder, dual, op.locations) if is_tangent else dual.value)
        return out

    def _emit(
        self, op: Operation, operands: Sequence[Value], regions: Sequence[Block], **attrs: int
    ) -> tuple[Value, ...]:
        control = tuple(self.of(v).value for v in op.control)
        made = self.builder.emit(
            op.name,
            operands,
            {**op.attrs, **attrs},
            regions=regions,
            control=control,
            locations=op.locations,
        )
        self.builder.ops[-1].device, self.builder.ops[-1].group = op.device, op.group
        return made

    def _cond(self, op: Operation) -> list[Dual]:
        moving = [self.of(v).tangent is not None for v in op.operands[1:]]
        order = _order([range(len(moving))], moving)
        sides = [self._region(region, moving, order) for region in op.regions]
        flags = [
            a.tangent is not None or b.tangent is not None
            for a, b in zip(sides[0][1], sides[1][1], strict=True)
        ]
        regions = []
        for builder, duals in sides:
            tangents = [
                self._forced(builder, d, op.locations)
                for d, f in zip(duals, flags, strict=True)
                if f
            ]
            regions.append(builder.block([*(d.value for d in duals), *tangents]))
        operands = self._operands(op, [(k + 1, t) for k, t in order])
        made = self._emit(op, [self.of(op.operands[0]).value, *operands], regions)
        return _duals(made, flags)

    def _carried(self, op: Operation, body: Block, groups: Sequence[range]) -> list[bool]:
        """Which operands of a loop have tangents: those of carries that get one in the body do."""
        moving = [self.of(v).tangent is not None for v in op.operands]
        count = int_attr(op.attrs, "carries")
        while True:
            _, found = self._region(body, moving, _order(groups, moving))
            after = [
                m or d.tangent is not None for m, d in zip(moving[:count], found, strict=False)
            ]
            if after == moving[:count]:
                return moving
            moving[:count] = after

    def _while(self, op: Operation) -> list[Dual]:
        count = int_attr(op.attrs, "carries")
        groups = [range(count), range(count, len(op.operands))]
        test, body = op.regions
        moving = self._carried(op, body, groups)
        order = _order(groups, moving)
        builder = Builder([test.args[k].type for k, _ in order])
        own = [a for a, (_, t) in zip(builder.args, order, strict=True) if not t]
        tested = builder.block(builder.inline(test, own))
        inner, found = self._region(body, moving, order)
        results = _with_tangents(self, inner, found, moving[:count], op)
        made = self._emit(
            op,
            self._operands(op, order),
            (tested, inner.block(results)),
            carries=count + sum(moving[:count]),
        )
        return _duals(made, moving[:count])

    def _scan(self, op: Operation) -> list[Dual]:
        count, rows = int_attr(op.attrs, "carries"), int_attr(op.attrs, "sequences")
        groups = [
            range(count), range(count, count + rows), range(count + rows, len(op.operands)),
        ]  # fmt: skip
        (body,) = op.regions
        moving = self._carried(op, body, groups)
        order = _order(groups, moving)
        inner, found = self._region(body, moving, order)
        carried = _with_tangents(self, inner, found[:count], moving[:count], op)
        ys = found[count:]
        flags = [d.tangent is not None for d in ys]
        stacked = _with_tangents(self, inner, ys, flags, op)
        carries = count + sum(moving[:count])
        made = self._emit(
            op,
            self._operands(op, order),
            (inner.block([*carried, *stacked]),),
            carries=carries,
            sequences=rows + sum(moving[count : count + rows]),
        )
        return [*_duals(made[:carries], moving[:count]), *_duals(made[carries:], flags)]


def _order(groups: Sequence[range], moving: Sequence[bool]) -> list[tuple[int, bool]]:
    """The operands by group, and behind each group its tangents."""
    out: list[tuple[int, bool]] = []
    for group in groups:
        out += [(k, False) for k in group]
        out += [(k, True) for k in group if moving[k]]
    return out


def _with_tangents(
    walk: _Walk, builder: Builder, found: Sequence[Dual], flags: Sequence[bool], op: Operation
) -> list[Value]:
    """The values, and behind them the tangents of those that have one."""
    tangents = [
        walk._forced(builder, d, op.locations) for d, f in zip(found, flags, strict=True) if f
    ]
    return [*(d.value for d in found), *tangents]


def _duals(made: Sequence[Value], flags: Sequence[bool]) -> list[Dual]:
    """Values and then tangents of those with a flag, as pairs."""
    tangents = iter(made[len(flags) :])
    return [
        Dual(v, next(tangents) if f else None)
        for v, f in zip(made[: len(flags)], flags, strict=True)
    ]
