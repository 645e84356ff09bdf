"""Gradients of `cond`, `scan`, `while` and of stacks: further ops of the same kinds, so any order
exists; and the residuals, what the forward loop must store for the backward loop.

A loop's gradient is a second forward loop, which also keeps the residuals (`merge_loops` makes one
of the two), and a loop in the other direction that carries the cotangents of the carries and the
sums of the cotangents of the loop invariants.

The residuals of a `while` go to stacks, one push for each in an iteration, so a loop may run for as
long as it does; its backward loop counts back. The cotangent of a stack is a stack of its elements'
cotangents: of a push it is popped, of a pop pushed. So loops that keep values on stacks, the
gradients of other loops, have gradients again.

The pullback of one iteration is taken in a block that holds the body's ops, too. Everything that
does not depend on the cotangents can be computed in the forward loop. Of that the backward loop

* recomputes what depends on loop invariants only (it is moved out of the loop later);
* recomputes cheap elementwise ops and views of what it has anyway;
* takes the rows of the loop's own sequences and stacked results as they are;
* and finds the rest in stacks that the forward loop writes, one row per iteration: the *residuals*.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial

from weft.ir.analysis.known_values import trip_count, uniform
from weft.ir.cost.rates import ELEMENTWISE, PLAIN
from weft.ir.cost.thresholds import WORTH_KEEPING_NS
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import bool_, int64
from weft.ir.errors import GradientError, InternalError
from weft.ir.graph import Block, Operation, Value
from weft.ir.ops import lookup
from weft.ir.ops.builder import Builder
from weft.ir.ops.control_flow import length_attr
from weft.ir.spec import AttrValue, int_attr
from weft.ir.types import StackType, TensorType, Type
from weft.passes.autodiff.rule import Rule, Site, accumulate
from weft.passes.control.loops import LOOPS, hoist
from weft.passes.rewriting.expression import Expr, guarded
from weft.passes.rewriting.rewrite import with_operands
from weft.passes.simplify.cse_dce import cse_block
from weft.passes.sizes import depends_on, made_in

#: Whether loops are for one example of a batch, whose rows may leave them one by one.
_in_batch: ContextVar[bool] = ContextVar("in_batch", default=False)


@contextmanager
def in_batch() -> Iterator[None]:
    """Gradients that are made within are of one example, and of a batch afterwards."""
    token = _in_batch.set(True)
    try:
        yield
    finally:
        _in_batch.reset(token)


#: Ops that make nothing new of their operand: where their result is needed, that is kept instead.
_VIEWS = frozenset(
    (
        *("broadcast_to", "reshape", "permute_dims", "identity", "stop_gradient", "tap"),
        *("stack_pop", "row_guard"),
    )
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
    cheap = ELEMENTWISE.get(op.name, PLAIN).ns < WORTH_KEEPING_NS
    return cheap and "elementwise" in lookup(op.name).traits


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


def new_stack(at: Expr, element: Type) -> Expr:
    """A stack without elements, of values of type `element`, where `at` is."""
    if not isinstance(element, TensorType | StackType):
        raise InternalError(f"no stack holds a {element}", location=at.locations)
    held = StackType(element)
    attrs: dict[str, AttrValue] = {
        "dtype": held.tensor.dtype,
        "shape": held.tensor.shape,
        "depth": held.depth,
    }
    return at.wrap(at.builder.emit("stack_new", (), attrs, locations=at.locations)[0])


def zeros_like(x: Expr) -> Expr:
    """The zero of the type of `x`: of a stack the one without elements."""
    held = x.value.type
    return new_stack(x, held.element) if isinstance(held, StackType) else x.full(0)


def pushed(stack: Expr, value: Expr, limit: int = -1) -> Expr:
    """The stack with `value` on top."""
    return stack.op("stack_push", value, limit=limit)


def popped(stack: Expr) -> tuple[Expr, Expr]:
    """The stack without its top, and the top."""
    below, top = stack.builder.emit("stack_pop", (stack.value,), locations=stack.locations)
    return stack.wrap(below), stack.wrap(top)


def _push(s: Site) -> Sequence[Expr | None]:
    return popped(s.g)


def _pop(s: Site) -> Sequence[Expr | None]:
    below, top = s.cotangents
    rest = zeros_like(s.results[0]) if below is None else below
    return [pushed(rest, zeros_like(s.results[1]) if top is None else top)]


def _row_guard(s: Site) -> Sequence[Expr | None]:
    """The cotangent where the flags are true, else 0: of a row that a loop or branch is not for,
    what the body computes may be NaN."""
    return [s.operands[1].spread(s.g.shape).where(s.g, 0), None]


STACK_GRADIENTS: dict[str, Rule] = {
    "row_guard": _row_guard,
    "stack_push": _push,
    "stack_pop": _pop,
    "stack_add": lambda s: [s.g, s.g],
}
#: After autodiff there are handles for stacks.
NO_STACK_GRADIENT: frozenset[str] = frozenset({"stack_new", "arena_push", "arena_pop", "arena_add"})


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
        self.mapping[value] = self.top(stack).value

    def top(self, stack: Expr) -> Expr:
        """The top of `stack` in each iteration. Comes before `row` and `rest`."""
        self.stacks.append(stack)
        carried = Expr(self.builder, self.builder.add_arg(stack.value.type), stack.locations)
        rest, top = popped(carried)
        self.left.append(rest.value)
        return top

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
        where = self.s.x.locations
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
    return zeros_like(Expr(builder, like, s.x.locations)).value if grad is None else grad


def copy_args(
    args: Sequence[Value], at: int = 0, extra: Iterable[Type] = ()
) -> tuple[Builder, dict[Value, Value]]:
    """A builder with arguments of the same types and `extra` ones from place `at` on."""
    more = list(extra)
    builder = Builder([*(a.type for a in args[:at]), *more, *(a.type for a in args[at:])])
    own = [*builder.args[:at], *builder.args[at + len(more) :]]
    return builder, dict(zip(args, own, strict=True))


def gradient_of_while(s: Site) -> Sequence[Expr | None]:
    """The cotangents of the operands of a `while` whose number of iterations is not known."""
    carries = int_attr(s.attrs, "carries")
    body = s.op.regions[1]
    moving = moving_carries(s, body, carries, s.needed)
    wanted = [*moving, *s.needed[carries:]]
    j = joint(s, body, moving, wanted)
    kept = residuals(j, carries, 0, (), recompute=bool(s.attrs["recompute"]))
    return _Loops(s, j, kept).run()


class _Loops:
    """The forward loop that puts residuals on stacks, and the loop back.

    In a batch, rows leave the forward loop one by one, but each of its iterations is one of the
    loop back for all rows: the count goes on for all, and the flags, a stack too, say of each
    iteration which rows it was for. For others the loop back keeps the cotangents.
    """

    def __init__(self, s: Site, j: Joint, kept: Residuals) -> None:
        self.s, self.j, self.kept = s, j, kept
        self.carries = int_attr(s.attrs, "carries")
        self.in_batch = _in_batch.get()

    def _attrs(self, carries: int) -> dict[str, AttrValue]:
        return {**self.s.attrs, "carries": carries}

    def run(self) -> Sequence[Expr | None]:
        """The cotangents of the operands."""
        count, stacks = self._forward()
        return self._back(count, stacks)

    def _forward(self) -> tuple[Expr, Sequence[Expr]]:
        """The number of iterations, and a stack for each residual and for flags, from a loop that
        does what the given one does."""
        s, carries = self.s, self.carries
        starts = [s.x.scalar(0, int64), *(new_stack(s.x, v.type) for v in self.kept.stored)]
        if self.in_batch:
            starts.append(new_stack(s.x, TensorType(bool_, ())))
        extra: list[Type] = [x.value.type for x in starts]
        test = s.op.regions[0]
        builder, mapping = copy_args(test.args, carries, extra)
        copy_ops(builder, test.ops, mapping)
        regions = (builder.block([mapping[v] for v in test.results]), self._body(extra))
        given = [x.value for x in s.operands]
        operands = [*given[:carries], *(x.value for x in starts), *given[carries:]]
        attrs = self._attrs(carries + len(extra))
        values = s.x.builder.emit(
            "while", operands, attrs, regions=regions, locations=s.x.locations
        )
        count, *stacks = map(s.x.wrap, values[carries:])
        return count, stacks

    def _body(self, extra: Sequence[Type]) -> Block:
        j, where = self.j, self.s.x.locations
        builder, mapping = copy_args(j.args, self.carries, extra)
        given = builder.args[self.carries :][: len(extra)]
        count, *before = (Expr(builder, v, where) for v in given)
        copy_ops(builder, ops_for(j.ops, [*j.results, *self.kept.stored]), mapping)
        limit = int_attr(self.s.attrs, "gradient_memory")
        after = [
            pushed(stack, stack.wrap(mapping[value]), limit).value
            for stack, value in zip(before, self.kept.stored, strict=False)
        ]
        after_it = count + 1
        if self.in_batch:
            flag = (after_it > 0).op("loop_mark", live=True)
            after.append(pushed(before[-1], flag, limit).value)
            after_it = after_it.op("loop_mark", live=False)
        return builder.block([*(mapping[v] for v in j.results), after_it.value, *after])

    def _back(self, count: Expr, stacks: Sequence[Expr]) -> Sequence[Expr | None]:
        """The loop back: it counts down to 0 and pops the stacks."""
        s, j, where = self.s, self.j, self.s.x.locations
        back = Backward(s, j, self.carries)
        builder = back.builder
        for value, stack in zip(self.kept.stored, stacks, strict=False):
            back.pop(value, stack)
        flag = back.top(stacks[-1]) if self.in_batch else None
        k = Expr(builder, builder.add_arg(count.value.type), where) - 1
        for value, operand in zip(j.args[self.carries :], s.operands[self.carries :], strict=True):
            if value in self.kept.needs:
                back.rest(value, operand)
        if flag is not None:
            back.mapping = {v: guarded(x, flag) for v, x in back.mapping.items()}
        results = [*back.carried(self.kept), k.value]
        if flag is not None:
            kept = builder.args[: len(back.moving) + len(back.summed)]
            results[: len(kept)] = map(partial(_where, flag), results, kept)
        starts = [*back.starts(), count.value]
        operands = [*starts, *(x.value for x in back.others)]
        test = Builder([v.type for v in operands])
        left = Expr(test, test.args[len(starts) - 1], where)
        regions = (test.block([(left > 0).value]), builder.block(results))
        attrs = self._attrs(len(starts))
        values = s.x.builder.emit("while", operands, attrs, regions=regions, locations=where)
        firsts, sums = back.split(values)
        return [*firsts, *sums]


def _where(flag: Expr, yes: Value, no: Value) -> Value:
    """`yes` where the flag is true, else `no`: of stacks always `yes`, an element on which is for
    an iteration of all rows."""
    if isinstance(yes.type, StackType):
        return yes
    a, b = flag.wrap(yes), flag.wrap(no)
    return flag.broadcast_to(a.shape).where(a, b).value


# ------------------------------------------------------------------------------------------- cond


def _cond(s: Site) -> Sequence[Expr | None]:
    """A cond of the branches' pullbacks; the branch computes its forward part once more."""
    moved = [g is not None for g in s.cotangents]
    wanted = s.needed[1:]
    joints = [joint(s, region, moved, wanted) for region in s.op.regions]
    found = [any(j.grads[i] is not None for j in joints) for i in range(len(wanted))]
    regions = [_pullback_branch(s, j, found) for j in joints]
    operands = [x.value for x in s.operands] + [g.value for g in s.cotangents if g is not None]
    values = iter(s.x.builder.emit("cond", operands, regions=regions, locations=s.x.locations))
    return [None, *(s.x.wrap(next(values)) if f else None for f in found)]


def _pullback_branch(s: Site, j: Joint, found: Sequence[bool]) -> Block:
    """(operands, cotangents) -> the cotangents that any of the branches has."""
    seeds = [v for v in j.seeds if v is not None]
    builder = Builder([v.type for v in (*j.args, *seeds)])
    mapping = dict(zip((*j.args, *seeds), builder.args, strict=True))
    copy_ops(builder, ops_for(j.ops, [g for g in j.grads if g is not None]), mapping)
    results = [
        or_zero(s, builder, mapping[a], None if g is None else mapping[g])
        for a, g, f in zip(j.args, j.grads, found, strict=True)
        if f
    ]
    return builder.block(results)


# ------------------------------------------------------------------------------------------- scan


def _scan(s: Site) -> Sequence[Expr | None]:
    carries, rows = int_attr(s.attrs, "carries"), int_attr(s.attrs, "sequences")
    body = s.op.regions[0]
    moving = moving_carries(s, body, carries, s.needed)
    wanted = [*moving, *s.needed[carries:]]
    moved = [*moving, *(g is not None for g in s.cotangents[carries:])]
    j = joint(s, body, moved, wanted)
    stacked = dict(zip(j.results[carries:], s.results[carries:], strict=True))
    kept = residuals(j, carries, rows, stacked)
    stored = _stored_by_scan(s, kept, j)
    piles = {v: x for v, x in stored.items() if isinstance(v.type, StackType)}
    stacked.update((v, x) for v, x in stored.items() if v not in piles)
    return _reverse_scan(s, j, kept, stacked, piles)


def _stored_by_scan(s: Site, kept: Residuals, j: Joint) -> dict[Value, Expr]:
    """What a scan keeps of the residuals that does what the forward one does: the rows of tensors,
    and stacks of stacks."""
    if not kept.stored:
        return {}
    carries = int_attr(s.attrs, "carries")
    rows = [v for v in kept.stored if isinstance(v.type, TensorType)]
    piles = [v for v in kept.stored if isinstance(v.type, StackType)]
    empty = [new_stack(s.x, v.type) for v in piles]
    builder, mapping = copy_args(j.args, carries, [x.value.type for x in empty])
    before = builder.args[carries : carries + len(piles)]
    copy_ops(builder, ops_for(j.ops, [*j.results[:carries], *kept.stored]), mapping)
    after = [
        pushed(Expr(builder, pile, s.x.locations), s.x.wrap(mapping[v])).value
        for pile, v in zip(before, piles, strict=True)
    ]
    ends = [mapping[v] for v in j.results[:carries]]
    region = builder.block([*ends, *after, *(mapping[v] for v in rows)])
    given = [x.value for x in s.operands]
    operands = [*given[:carries], *(x.value for x in empty), *given[carries:]]
    attrs = {**s.attrs, "carries": carries + len(piles)}
    values = s.x.builder.emit("scan", operands, attrs, regions=(region,), locations=s.x.locations)
    return dict(zip((*piles, *rows), map(s.x.wrap, values[carries:]), strict=True))


def _reverse_scan(
    s: Site, j: Joint, kept: Residuals, stacked: Mapping[Value, Expr], piles: Mapping[Value, Expr]
) -> Sequence[Expr | None]:
    """The loop in the other direction. stacked: of what the forward loop has rows; piles: the
    stacks on which it has put the other residuals."""
    carries, rows = int_attr(s.attrs, "carries"), int_attr(s.attrs, "sequences")
    back = Backward(s, j, carries)
    for value, pile in piles.items():
        back.pop(value, pile)
    for result, g in zip(j.seeds[carries:], s.cotangents[carries:], strict=True):
        if result is not None and g is not None:
            back.row(result, g)
    whole = dict(zip(j.args[carries:], s.operands[carries:], strict=True))
    given = {**whole, **stacked}
    invariant = {*j.args[carries + rows :], *piles}
    for value in dict.fromkeys([*kept.stored, *j.args, *stacked]):
        if value in kept.needs and value in given and value not in invariant:
            back.row(value, given[value])
    for value in j.args[carries + rows :]:
        if value in kept.needs:
            back.rest(value, whole[value])  # though the body may give it as a row, too
    by_row = [(a, g) for a, g in zip(j.args, j.grads, strict=True)][carries : carries + rows]
    region, starts = back.block(kept, [g for _, g in by_row if g is not None])
    attrs: dict[str, AttrValue] = {
        "carries": len(starts),
        "sequences": len(back.rows),
        "length": length_attr(s.attrs),
        "reverse": not s.attrs["reverse"],
    }
    operands = [*starts, *(x.value for x in (*back.rows, *back.others))]
    values = s.x.builder.emit("scan", operands, attrs, regions=(region,), locations=s.x.locations)
    ys = iter(values[len(starts) :])
    per_row = [None if g is None else s.x.wrap(next(ys)) for _, g in by_row]
    firsts, sums = back.split(values)
    return [*firsts, *per_row, *sums]


def _while(s: Site) -> Sequence[Expr | None]:
    count = trip_count(s.op)
    return gradient_of_while(s) if count is None else _counted(s, count)


def _counted(s: Site, count: int) -> Sequence[Expr | None]:
    """A loop whose number of iterations is known is a scan."""
    attrs: dict[str, AttrValue] = {
        "carries": int_attr(s.attrs, "carries"), "sequences": 0, "length": count, "reverse": False,
    }  # fmt: skip
    operands = [x.value for x in s.operands]
    regions = (s.op.regions[1],)
    results = s.x.builder.emit("scan", operands, attrs, regions=regions, locations=s.x.locations)
    op = results[0].op
    assert op is not None
    return _scan(replace(s, op=op, results=tuple(map(s.x.wrap, results))))


def _hoisted(rule: Rule) -> Rule:
    """The rule on a loop without its invariant ops, whose own gradients are taken outside, once."""

    def hoisted(s: Site) -> Sequence[Expr | None]:
        builder, count = s.x.builder, len(s.operands)
        start = len(builder.ops)
        regions = tuple(map(cse_block, s.op.regions))  # what is equal is stored and summed once
        s = replace(s, op=with_operands(s.op, {}, regions))
        if hoist(builder, s.op) is None:
            return rule(s)
        op = builder.ops.pop()  # only its body matters: the forward loop is there
        moved = tuple(builder.ops[start:])
        values = [x.value for x in s.operands]
        xs = list(dict.fromkeys(v for v, n in zip(values, s.needed, strict=True) if n))
        active = s.active(xs, moved)
        more = op.operands[count:]
        grads = list(
            rule(
                replace(
                    s,
                    op=op,
                    operands=(*s.operands, *map(s.x.wrap, more)),
                    needed=(*s.needed, *(v in active for v in more)),
                )
            )
        )
        arrived = [None if g is None else g.value for g in grads[count:]]
        pulled = s.pull_back(builder, moved, more, arrived, xs)
        for x, g in zip(xs, pulled, strict=True):
            if g is not None:  # an operand may stand twice: the first place gets it
                i = next(i for i, v in enumerate(values) if v is x and s.needed[i])
                known = grads[i]
                grads[i] = s.x.wrap(g) if known is None else accumulate(known, s.x.wrap(g))
        return grads[:count]

    return hoisted


GRADIENTS: dict[str, Rule] = {
    "cond": _cond,
    "scan": _hoisted(_scan),
    "while": _hoisted(_while),
}
