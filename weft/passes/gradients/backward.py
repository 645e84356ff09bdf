"""The loop back: what the gradients of `scan` and `while` have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weft.ir.builder import Builder
from weft.ir.graph import Block, Operation, Value
from weft.ir.rules import int_attr
from weft.ir.types import StackType, Type
from weft.passes.control.loops import LOOPS
from weft.passes.expression import Expr
from weft.passes.fold import uniform
from weft.passes.gradients.residuals import Joint, Residuals, copy_ops
from weft.passes.gradients.rule import Site
from weft.passes.gradients.stack import popped, zeros_like
from weft.passes.rewrite import with_operands


class Backward:
    """The body of the backward loop: carries (cotangents, sums, stacks), rows, other operands."""

    def __init__(self, s: Site, j: Joint, carries: int) -> None:
        self.s, self.j, self.carries = s, j, carries
        self.builder = Builder()
        self.mapping: dict[Value, Value] = {}
        self.stacks: list[Expr] = []
        self.left: list[Value] = []  # of the stacks after the iteration
        self.rows: list[Expr] = []
        self.others: list[Expr] = []
        self.moving = [i for i in range(carries) if j.seeds[i] is not None]
        first = len(j.args) - self._invariants()
        self.summed = [i for i in range(first, len(j.args)) if j.grads[i] is not None]
        for i in self.moving:
            seed = j.seeds[i]
            assert seed is not None
            self.mapping[seed] = self.builder.add_arg(seed.type)
        self.sums = {i: self.builder.add_arg(j.args[i].type) for i in self.summed}

    def _invariants(self) -> int:
        rows = int_attr(self.s.attrs, "sequences") if self.s.op.name == "scan" else 0
        return len(self.j.args) - self.carries - rows

    def pop(self, value: Value, stack: Expr) -> None:
        """`value` is the top of `stack` in each iteration. Comes before `row` and `rest`."""
        self.stacks.append(stack)
        carried = Expr(self.builder, self.builder.add_arg(stack.value.type), stack.locations)
        rest, top = popped(carried)
        self.mapping[value] = top.value
        self.left.append(rest.value)

    def row(self, value: Value, operand: Expr) -> None:
        """`value` comes as a row of `operand`."""
        self.rows.append(operand)
        self.mapping[value] = self.builder.add_arg(value.type)

    def rest(self, value: Value, operand: Expr) -> None:
        """`value` is a loop invariant."""
        self.others.append(operand)
        self.mapping[value] = self.builder.add_arg(operand.value.type)

    def starts(self) -> list[Value]:
        """The first values of the carries: the given cotangents, zeros for the sums, stacks."""
        out = []
        for i in self.moving:
            g = self.s.cotangents[i]
            out.append((zeros_like(self.s.results[i]) if g is None else g).value)
        out += [zeros_like(self.s.operands[i]).value for i in self.summed]
        return out + [stack.value for stack in self.stacks]

    def carried(self, kept: Residuals) -> list[Value]:
        """Append the ops; the carries after the iteration."""
        copy_ops(self.builder, kept.ops, self.mapping)
        continued = self._continue_sums() if self.s.attrs.get("recompute") else set()
        out = []
        for i in self.moving:
            g, seed = self.j.grads[i], self.j.seeds[i]
            assert seed is not None
            like = self.mapping[seed]
            out.append(or_zero(self.s, self.builder, like, None if g is None else self.mapping[g]))
        for i, total in self.sums.items():
            g = self.j.grads[i]
            assert g is not None
            made = self.mapping[g]
            out.append(made if i in continued else self._added(total, made))
        return out + self.left

    def _continue_sums(self) -> set[int]:
        """Let the loops over the iterations of a segment add to this loop's sums, not to zeros: in
        the order in which one loop over all iterations adds. Gives the numbers of the sums."""
        starts: dict[Operation, dict[int, Value]] = {}
        found: set[int] = set()
        for i, total in self.sums.items():
            grad = self.j.grads[i]
            made = None if grad is None else self.mapping[grad]
            if made is None or made.op is None or not _is_sum(made, self.builder.ops):
                continue
            begun = starts.setdefault(made.op, {})
            if made.index not in begun:
                begun[made.index] = total
                found.add(i)
        fresh: dict[Value, Value] = {}
        for k, op in enumerate(self.builder.ops):
            new = with_operands(op, fresh)
            if op in starts:
                operands = [starts[op].get(n, v) for n, v in enumerate(new.operands)]
                types = [r.type for r in op.results]
                new = Operation(
                    op.name, operands, op.attrs, types, op.regions, op.control, op.locations
                )
                new.device, new.group = op.device, op.group
            self.builder.ops[k] = new
            fresh.update(zip(op.results, new.results, strict=True))
        self.mapping = {v: fresh.get(x, x) for v, x in self.mapping.items()}
        self.left = [fresh.get(v, v) for v in self.left]
        return found

    def _added(self, total: Value, g: Value) -> Value:
        """The sum; an update of zeros becomes one of the total itself."""
        where = self.s.op.locations
        op = g.op
        if op is not None and op.name in ("index_add", "scatter_nd_add", "scatter_along_axis_add"):
            zero = uniform(op.operands[0])
            if zero is not None and zero.item() == 0:
                operands = [total, *op.operands[1:]]
                return self.builder.emit(op.name, operands, op.attrs, locations=where)[0]
        add = "stack_add" if isinstance(total.type, StackType) else "add"
        return self.builder.emit1(add, total, g, locations=where)

    def block(self, kept: Residuals, ys: Sequence[Value]) -> tuple[Block, list[Value]]:
        """The region, which also yields `ys`, and the first carries."""
        results = self.carried(kept)
        return self.builder.block([*results, *(self.mapping[y] for y in ys)]), self.starts()

    def split(self, values: Sequence[Value]) -> tuple[list[Expr | None], list[Expr | None]]:
        """The cotangents of the carries and of the invariants, from the loop's final carries."""
        final = iter(map(self.s.x.wrap, values))
        firsts = [next(final) if i in self.moving else None for i in range(self.carries)]
        start = len(self.j.args) - self._invariants()
        sums = [next(final) if i in self.sums else None for i in range(start, len(self.j.args))]
        return firsts, sums


def _is_sum(value: Value, ops: Sequence[Operation]) -> bool:
    """Whether `value` is a carry of a loop that begins at zero, only adds to it, and is used by no
    other op."""
    op = value.op
    if op is None or op.name not in LOOPS or value.index >= int_attr(op.attrs, "carries"):
        return False
    zero = uniform(op.operands[value.index])
    *tests, body = op.regions
    arg, made = body.args[value.index], body.results[value.index].op
    users = [o for o in body.ops if arg in o.operands]
    adds = made is not None and made.name == "add" and made.operands.count(arg) == 1
    tested = any(t.args[value.index] in o.operands for t in tests for o in t.ops)
    alone = users == [made] and not tested and not any(value in o.operands for o in ops)
    return zero is not None and zero.item() == 0 and adds and alone


def or_zero(s: Site, builder: Builder, like: Value, grad: Value | None) -> Value:
    """The cotangent, or if there is none the zero for a value as `like`."""
    return zeros_like(Expr(builder, like, s.op.locations)).value if grad is None else grad


def copy_args(
    args: Sequence[Value], at: int = 0, extra: Iterable[Type] = ()
) -> tuple[Builder, dict[Value, Value]]:
    """A builder with arguments of the same types and `extra` ones from place `at` on."""
    more = list(extra)
    builder = Builder([*(a.type for a in args[:at]), *more, *(a.type for a in args[at:])])
    own = [*builder.args[:at], *builder.args[at + len(more) :]]
    return builder, dict(zip(args, own, strict=True))
