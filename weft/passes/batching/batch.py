"""Batching of a block: each op on one example becomes an op on all examples.

Before, for one row ``%x : f32[3]`` and ``%w : f32[3,2]`` that all rows share::

    %0 = sin(%x) : f32[3]
    %1 = reshape(%0) {shape=[1,3]} : f32[1,3]
    %2 = matmul(%1, %w) : f32[1,2]

After, for ``%x : f32[8,3]``::

    %0 = sin(%x) : f32[8,3]
    %1 = reshape(%0) {shape=[8,1,3]} : f32[8,1,3]
    %2 = reshape(%1) {shape=[8,3]} : f32[8,3]
    %3 = matmul(%2, %w) : f32[8,2]
    %4 = reshape(%3) {shape=[8,1,2]} : f32[8,1,2]

One walk in program order. A batched value has the batch axis first; an op none of whose operands is
batched stays as it is, so what all rows share is computed once. Rules by op are in `rules.py`; here
is control flow. A branch whose predicate differs by row computes both sides and selects; if they
hold loops or prints, a scan takes row by row. A loop whose test differs by row goes on as long as
any row does, and rows that have ended keep their carries; `loop_mark` in a body that keeps values
for a gradient says what is one for all rows, and `row_guard` keeps cotangents of other rows out.
Regions in such a body or side get the rows that it is for as a last operand: no other rows take
part in their loops. An op without a rule is run row by row by a scan, and so are prints, checks and
callbacks.

Shards are rows that are to have the bits that each has by itself, in a process of its own. An op
that adds up, in an order that depends on its shape, is then done for each of them apart, and what
collectives add up is added in the order of the rows.

Random numbers: what is drawn with a key that the block gets from a variable (a generator's state)
differs by row; a key that all rows are given gives all the same numbers, as in JAX."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from weft.ir.dims import Dim
from weft.ir.dtypes import bool_, float32, uint32
from weft.ir.errors import UnsupportedError
from weft.ir.graph import Block, Operation, Value
from weft.ir.ops import lookup
from weft.ir.ops.builder import Builder
from weft.ir.ops.collectives import COLLECTIVES
from weft.ir.ops.control_flow import CONTROL
from weft.ir.ops.core import CustomRule
from weft.ir.ops.io import PYTHON_CALLS
from weft.ir.spec import AttrValue, ConstArray, int_attr
from weft.ir.types import StackType, TensorType, TokenType, Type
from weft.passes.batching.rules import (
    ADDS_UP,
    RULES,
    SharedStack,
    Site,
    batched_type,
    collective,
    draw_rows,
    with_rows,
)
from weft.passes.rewriting.expression import Expr, guarded

Batched = tuple[Value, bool]
_TRUE = ConstArray(np.array(True))
#: Ops that are linear in each operand; and those that are so in their last one.
_PRODUCTS = frozenset({"matmul", "conv", "conv_input", "conv_kernel"})
_SOLVES = frozenset({"lu_solve", "triangular_solve"})


def batch_block(
    builder: Builder,
    block: Block,
    operands: Sequence[Batched],
    size: Dim,
    states: Iterable[Value] = (),
    axis: str = "",
    apart: bool = False,
) -> list[Batched]:
    """Append the block's ops for a batch of `size`; its results, and whether each is batched.

    operands: for each argument of the block the outer value, and whether it has the batch axis in
    front. states: arguments that are read from variables; keys derived from them differ by row.
    axis: the name of the batch's axis, by which collectives in the block mean it. apart: whether
    the rows are shards, whose number is known.
    UnsupportedError for an op that cannot be done for many rows.
    """
    start = len(builder.ops)
    try:
        return _Walk(builder, size, axis, apart=apart).block(block, operands, states)
    except SharedStack:  # a stack of what all rows share meets one that differs: so be all stacks
        del builder.ops[start:]
        walk = _Walk(builder, size, axis, shares_stacks=False, apart=apart)
        return walk.block(block, operands, states)


class _Walk:
    """The state of the walk over one block: by old value, the new one and whether it is batched.

    live: of the body of a loop that rows leave one by one, for each row whether it is still in it.
    rows: of such a body, or of a side of a branch, the rows that it is for.
    shares_stacks: whether a stack may hold what is the same for all rows. apart: whether rows are
    shards; rows_of: by new value its rows, where they were made one by one.
    """

    def __init__(
        self,
        builder: Builder,
        size: Dim,
        axis: str,
        live: Value | None = None,
        rows: Expr | None = None,
        shares_stacks: bool = True,
        apart: bool = False,
    ) -> None:
        self.builder, self.size, self.axis = builder, size, axis
        self.live, self.rows = live, rows
        self.shares_stacks = shares_stacks
        self.apart = apart
        self.rows_of: dict[Value, list[Value]] = {}
        self.known: dict[Value, Batched] = {}
        #: Old values that are keys from variables, or made of such.
        self.states: set[Value] = set()

    def block(
        self, block: Block, operands: Sequence[Batched], states: Iterable[Value]
    ) -> list[Batched]:
        """As `batch_block`."""
        self.states.update(filter(_may_be_key, states))
        self.known.update(zip(block.args, operands, strict=True))
        for op in block.ops:
            self.op(op)
        return [self.known[v] for v in block.results]

    def within(
        self, builder: Builder, live: Value | None = None, rows: Expr | None = None
    ) -> _Walk:
        """A walk over a region."""
        return _Walk(builder, self.size, self.axis, live, rows, self.shares_stacks, self.apart)

    def op(self, op: Operation) -> None:
        """Append what does the work of `op` for all rows."""
        start = len(self.builder.ops)
        if self._draws(op):
            self.states.update(filter(_may_be_key, op.results))
        if self._is_over(op) and self.apart and op.name in ("psum", "psum_scatter"):
            found = [(self._in_order(op), op.name == "psum_scatter")]
        elif self._is_over(op):
            result, differs = collective(self._site(op))
            found = [(result.value, differs)]
        elif op.name in CONTROL and (self._any(op) or self._draws(op) or self._over_rows(op)):
            found = getattr(self, f"_{op.name}")(op)
        elif op.name == "stack_new" and not self.shares_stacks:
            (stack,) = self.builder.clone(op, {})
            found = [(self._forced(self.builder, stack, False, op), True)]
        elif op.name == "loop_mark" and op.attrs["live"] and self.live is not None:
            found = [(self._still_in(op, self.live), True)]
        elif op.name == "custom_gradient" and self._any(op):
            found = self._custom_gradient(op)
        elif op.name == "custom_rule" and self._any(op):
            found = self._custom_rule(op)
        elif op.name == "random_bits" and op.operands[0] in self.states and not self._any(op):
            found = [(draw_rows(self._site(op)).value, True)]
        elif not self._any(op):
            used = (v for v in (*op.operands, *op.control) if v in self.known)
            mapping = {v: self.known[v][0] for v in used}
            found = [(value, False) for value in self.builder.clone(op, mapping)]
        elif self._is_apart(op):
            found = self._each_apart(op)
        else:
            found = self._by_rule(op)
        self.known.update(zip(op.results, found, strict=True))
        for made in self.builder.ops[start:]:
            made.device, made.group = op.device, op.group

    def _is_over(self, op: Operation) -> bool:
        """Whether it is a collective over the axis of this batch."""
        return op.name in COLLECTIVES and op.attrs["axis_name"] == self.axis

    def _over_rows(self, op: Operation) -> bool:
        """Whether one is in its regions."""
        return any(self._is_over(inner) for r in op.regions for inner in Block.walk(r))

    def _any(self, op: Operation) -> bool:
        return any(self.known[v][1] for v in op.operands)

    def _draws(self, op: Operation) -> bool:
        """Whether an op has a key from a variable."""
        return any(v in self.states for v in op.operands)

    def _site(self, op: Operation) -> Site:
        known = [self.known[v] for v in op.operands]
        return Site(
            op,
            self.builder,
            self.size,
            tuple(Expr(self.builder, v, op.locations) for v, _ in known),
            tuple(b for _, b in known),
        )

    def _by_rule(self, op: Operation) -> list[Batched]:
        if op.name == "dim_size":
            (x, _), axis = self.known[op.operands[0]], int_attr(op.attrs, "axis")
            size = self.builder.emit1("dim_size", x, locations=op.locations, axis=axis + 1)
            return [(size, False)]
        rule, site = RULES.get(op.name), self._site(op)
        if self.rows is not None:
            site = self._for_some(site, self.rows)
        made = None if rule is None else rule(site)
        if made is None:
            return self._row_by_row(op)
        return [(x.value, True) for x in made]

    def _for_some(self, site: Site, rows: Expr) -> Site:
        """An op that is computed for some rows only: what all rows share gets no cotangent from the
        others, in which the op may have an infinite derivative. An operand of a product stays
        shared: the rows it is not for are multiplied as zeros."""
        operands, batched = list(site.operands), list(site.batched)
        needed = [not b and _has_cotangent(x.value) for x, b in zip(operands, batched, strict=True)]
        if not any(needed):
            return site
        name = site.op.name
        if name in _PRODUCTS or (name in _SOLVES and not any(batched[:-1])):
            for k, x in enumerate(operands):
                if batched[k]:
                    operands[k] = _of_rows(rows, x)
        elif name in _SOLVES or "elementwise" in lookup(name).traits:
            for k, x in enumerate(operands):
                if needed[k]:
                    own = with_rows(self.builder, x.value, self.size, site.op.locations)
                    operands[k] = x.wrap(self._guarded((own, True), rows)[0])
                    batched[k] = True
        return replace(site, operands=tuple(operands), batched=tuple(batched))

    # -- shards -----------------------------------------------------------------------------------

    def _is_apart(self, op: Operation) -> bool:
        """Whether the bits of the op depend on what else is computed with it."""
        alone = self.apart and self.rows is None and self.live is None
        kinds = [r.type for r in op.results if isinstance(r.type, TensorType)]
        return alone and op.name in ADDS_UP and any(kind.dtype.is_inexact for kind in kinds)

    def _each_apart(self, op: Operation) -> list[Batched]:
        """The op for each row by itself, on what has the shape of a row."""
        assert isinstance(self.size, int)
        rows = {v: self._rows(v, op) for v in op.operands if self.known[v][1]}
        made = []
        for k in range(self.size):
            mapping = {v: self.known[v][0] for v in (*op.operands, *op.control) if v in self.known}
            mapping.update((v, held[k]) for v, held in rows.items())
            made.append(self.builder.clone(op, mapping))
        return [(self._together(list(column), op), True) for column in zip(*made, strict=True)]

    def _rows(self, value: Value, op: Operation) -> list[Value]:
        """Each row of an old value."""
        assert isinstance(self.size, int)
        new, is_batched = self.known[value]
        if not is_batched:
            return [new] * self.size
        if new not in self.rows_of:
            whole = Expr(self.builder, new, op.locations)
            rest = whole.shape[1:]
            ends: Mapping[str, AttrValue] = {"steps": (1,) * whole.rank}
            found = []
            for k in range(self.size):
                starts, stops = (k, *(0,) * len(rest)), (k + 1, *rest)
                row = whole.op("slice", starts=starts, stops=stops, **ends)
                found.append(row.reshape(rest).value)
            self.rows_of[new] = found
        return self.rows_of[new]

    def _together(self, rows: list[Value], op: Operation) -> Value:
        """The new value that has these rows."""
        first, *rest = [self._as_row(Expr(self.builder, v, op.locations)) for v in rows]
        whole = first.op("concat", *rest, axis=0).value if rest else first.value
        self.rows_of[whole] = rows
        return whole

    @staticmethod
    def _as_row(x: Expr) -> Expr:
        return x.reshape((1, *x.shape))

    def _in_order(self, op: Operation) -> Value:
        """The sum over all rows, one after the other, as processes add up: of 16-bit floats in
        float32, rounded once."""
        rows = [Expr(self.builder, v, op.locations) for v in self._rows(op.operands[0], op)]
        kind = rows[0].dtype
        if kind.is_floating and kind.itemsize == 2:
            rows = [x.astype(float32) for x in rows]
        first, *rest = rows
        for x in rest:
            first = first + x
        return first.astype(kind).value

    # -- one row after the other ------------------------------------------------------------------

    def _row_by_row(self, op: Operation) -> list[Batched]:
        """The op in a scan over the rows."""
        self._check_rows(op)
        known = [self.known[v] for v in op.operands]
        order = sorted(range(len(known)), key=lambda i: not known[i][1])
        rows = sum(b for _, b in known)
        body = Builder([op.operands[i].type for i in order])
        mapping = {op.operands[i]: a for i, a in zip(order, body.args, strict=True)}
        clone = Operation(
            op.name,
            [mapping[v] for v in op.operands],
            op.attrs,
            [r.type for r in op.results],
            op.regions,
            (),
            op.locations,
        )
        body.ops.append(clone)
        results = list(clone.results)
        only_tokens = all(isinstance(r.type, TokenType) for r in results)
        if only_tokens:  # what comes after it comes after all rows
            results = [body.emit1("constant", value=_TRUE, locations=op.locations)]
        attrs = {"carries": 0, "sequences": rows, "length": self.size}
        made = self.builder.emit(
            "scan",
            [known[i][0] for i in order],
            attrs,
            regions=(body.block(results),),
            control=self._control(op),
            locations=op.locations,
        )
        if only_tokens:
            (token,) = self.builder.emit("group", control=made, locations=op.locations)
            return [(token, False)] * len(op.results)
        return [(value, True) for value in made]

    def _check_rows(self, op: Operation) -> None:
        """UnsupportedError for an op that rows cannot have one after the other."""
        traits, where = lookup(op.name).traits, op.locations
        if self._over_rows(op):
            raise UnsupportedError(
                f"vmap: op '{op.name}' is done row by row, and a collective over the axis "
                f"'{self.axis}' in it needs all rows at once",
                hint="do it outside of the branch or loop",
                location=where,
            )
        if self._draws(op):
            raise UnsupportedError(
                f"vmap: op '{op.name}' is done row by row, and draws numbers of a generator, which "
                "would be the same in each row",
                hint="draw them before it, or give it a key for each row: wf.random.split",
                location=where,
            )
        if op.name in PYTHON_CALLS:
            return
        if op.attrs.get("sizes"):
            raise UnsupportedError(
                f"vmap: the size of what op '{op.name}' gives depends on values, and would differ "
                "from row to row",
                hint="give it what all rows share, or call the function for each row",
                location=where,
            )
        if traits & {"host", "writes_state", "handle"}:
            raise UnsupportedError(
                f"vmap: op '{op.name}' acts outside the graph, and is given values that differ "
                "from row to row",
                hint="do it outside of what wf.vmap is given, or use wf.scan over the rows",
                location=where,
            )
        if not all(isinstance(v.type, TensorType) for v in (*op.operands, *op.results)):
            raise UnsupportedError(
                f"vmap: op '{op.name}' holds a stack, the memory of the gradient of a loop whose "
                "length differs from row to row",
                hint="differentiate within the function that wf.vmap is given, or around wf.vmap",
                location=where,
            )

    # -- control flow -----------------------------------------------------------------------------

    def _inner(
        self, region: Block, operands: Sequence[Value], flags: Sequence[bool]
    ) -> tuple[Builder, list[Batched]]:
        """A builder with a region's ops for arguments that are batched as `flags` say, and what its
        results are; operands: the old values that its arguments stand for. It has `_more` as
        further arguments."""
        kinds = [self._kind(a.type, b) for a, b in zip(region.args, flags, strict=True)]
        builder = Builder([*kinds, *(v.type for v in self._more())])
        given = list(zip(builder.args[: len(kinds)], flags, strict=True))
        states = self._states(region, operands)
        try:
            rows = self._rows_in(builder)
            return builder, self.within(builder, rows=rows).block(region, given, states)
        except SharedStack as error:
            args = builder.args
            error.number = args.index(error.value) if error.value in args else None
            raise

    def _more(self) -> list[Value]:
        """The further operands of an op whose regions are done for some rows only: which ones."""
        return [] if self.rows is None else [self.rows.value]

    def _rows_in(self, builder: Builder) -> Expr | None:
        """The rows that a region is for, its last argument; None: all."""
        return None if self.rows is None else Expr(builder, builder.args[-1], self.rows.locations)

    def _states(self, region: Block, operands: Sequence[Value]) -> list[Value]:
        """The arguments of a region that are keys from variables."""
        return [a for a, v in zip(region.args, operands, strict=True) if v in self.states]

    def _region(
        self, op: Operation, number: int, flags: Sequence[bool], forced: Sequence[bool] | None
    ) -> tuple[Block, list[bool]]:
        """A region for arguments that are batched as `flags` say, and which results are; `forced`:
        those that have to be."""
        region = op.regions[number]
        operands = op.operands[len(op.operands) - len(region.args) :]
        builder, found = self._inner(region, operands, flags)
        out = [b for _, b in found]
        if forced is not None:
            found = [
                (self._forced(builder, v, b, op) if f else v, f)
                for (v, b), f in zip(found, forced, strict=True)
            ]
        return builder.block([v for v, _ in found]), out

    def _kind(self, kind: Type, batched: bool) -> Type:
        return batched_type(kind, self.size) if batched else kind

    def _forced(self, builder: Builder, value: Value, batched: bool, op: Operation) -> Value:
        """The value with a batch axis."""
        return value if batched else with_rows(builder, value, self.size, op.locations)

    def _cond(self, op: Operation) -> list[Batched]:
        pred, *operands = (self.known[v] for v in op.operands)
        flags = [b for _, b in operands]
        if pred[1]:
            if any(map(_one_by_one, op.regions)):
                return self._row_by_row(op)
            return self._select(op, pred[0])
        sides = [self._region(op, k, flags, None)[1] for k in range(2)]
        forced = [a or b for a, b in zip(*sides, strict=True)]
        regions = [self._region(op, k, flags, forced)[0] for k in range(2)]
        made = self.builder.emit(
            "cond",
            [pred[0], *(v for v, _ in operands), *self._more()],
            regions=regions,
            control=self._control(op),
            locations=op.locations,
        )
        return list(zip(made, forced, strict=True))

    def _control(self, op: Operation) -> list[Value]:
        return [self.known[v][0] for v in op.control if v in self.known]

    def _select(self, op: Operation, pred: Value) -> list[Batched]:
        """Both sides, and of each row what its predicate chooses."""
        operands = [self.known[v] for v in op.operands[1:]]
        sides = []
        rows = Expr(self.builder, pred, op.locations)
        for region, flags in zip(op.regions, (rows, rows.op("logical_not")), strict=True):
            self._check_pure(op, region)
            states = self._states(region, op.operands[1:])
            given = [self._guarded(operand, flags) for operand in operands]
            inner = flags if self.rows is None else flags.op("logical_and", self.rows)
            found = self.within(self.builder, rows=inner).block(region, given, states)
            sides.append([self._forced(self.builder, v, b, op) for v, b in found])
        pairs = zip(*sides, strict=True)
        return [(where_rows(self.builder, op, pred, yes, no), True) for yes, no in pairs]

    def _check_pure(self, op: Operation, region: Block) -> None:
        for inner in region.ops:
            if lookup(inner.name).traits & {"host", "writes_state"}:
                raise UnsupportedError(
                    f"vmap: whether a branch or loop runs differs from row to row, and op "
                    f"'{inner.name}' in it acts outside the graph",
                    hint="do it outside of the branch or loop, or use wf.scan over the rows",
                    location=inner.locations or op.locations,
                )
            for block in inner.regions:
                self._check_pure(op, block)

    def _while(self, op: Operation) -> list[Batched]:
        known = [self.known[v] for v in op.operands]
        count = int_attr(op.attrs, "carries")
        flags = [b for _, b in known]
        goes_on = [_goes_on(v) for v in op.regions[1].results]

        def grown() -> list[bool]:
            test = self._region(op, 0, flags, None)[1][0]
            after = self._region(op, 1, flags, None)[1]
            return [b or (test and not steps) for b, steps in zip(after, goes_on, strict=True)]

        _settle(flags, count, grown)
        if self._region(op, 0, flags, None)[1][0]:
            regions = (self._any_row(op, flags), self._masked(op, flags, count))
        else:
            regions = (
                self._region(op, 0, flags, None)[0],
                self._region(op, 1, flags, flags[:count])[0],
            )
        return self._looped(op, known, flags, count, regions)

    def _test(self, op: Operation, flags: Sequence[bool]) -> tuple[Builder, Expr]:
        """The test of a loop for each row: those that it is not for are not in it, either."""
        builder, ((test, _),) = self._inner(op.regions[0], op.operands, flags)
        found, rows = Expr(builder, test, op.locations), self._rows_in(builder)
        return builder, found if rows is None else found.op("logical_and", rows)

    def _any_row(self, op: Operation, flags: Sequence[bool]) -> Block:
        """The test of a loop that goes on as long as any row does."""
        builder, test = self._test(op, flags)
        row = builder.emit1("any", test.value, locations=op.locations, axes=(0,), keepdims=False)
        return builder.block([row])

    def _masked(self, op: Operation, flags: Sequence[bool], count: int) -> Block:
        """The body of such a loop: rows that have ended keep their carries."""
        builder, rows = self._test(op, flags)
        region, test = op.regions[1], rows.value
        self._check_pure(op, region)
        pairs = zip(builder.args[: len(flags)], flags, strict=True)
        given = [self._guarded((v, b), rows) for v, b in pairs]
        states = self._states(region, op.operands)
        found = self.within(builder, test, rows).block(region, given, states)
        results = []
        for (v, b), before, old in zip(found, builder.args[:count], region.results, strict=True):
            if _goes_on(old) or isinstance(old.type, StackType):  # an element for each iteration
                results.append(v)
            else:
                results.append(
                    where_rows(builder, op, test, self._forced(builder, v, b, op), before)
                )
        return builder.block(results)

    def _guarded(self, given: Batched, flags: Expr) -> Batched:
        """A value for what is computed for some rows only: the others get no cotangent."""
        value, batched = given
        return (guarded(value, flags), True) if batched else given

    def _still_in(self, op: Operation, live: Value) -> Value:
        """A flag of a loop that rows leave one by one, true for those that are still in it."""
        value = self._forced(self.builder, *self.known[op.operands[0]], op)
        x = Expr(self.builder, value, op.locations)
        rows = x.wrap(live).spread(x.shape)
        return x.op("logical_and", rows).op(op.name, live=True).value

    def _scan(self, op: Operation) -> list[Batched]:
        known = [self.known[v] for v in op.operands]
        count, rows = int_attr(op.attrs, "carries"), int_attr(op.attrs, "sequences")
        flags = [b for _, b in known]
        after = _settle(flags, count, lambda: self._region(op, 0, flags, None)[1])
        forced = [*flags[:count], *after[count:]]
        region, _ = self._region(op, 0, flags, forced)
        for k in range(count, count + rows):
            value, is_batched = known[k]
            if is_batched:  # (rows of the batch, steps, ...): a step has all rows of the batch
                known[k] = (_swapped(self.builder, value, op), True)
        made = self._looped(op, known, flags, count, (region,), forced)
        ys = [(_swapped(self.builder, v, op), True) if b else (v, b) for v, b in made[count:]]
        return [*made[:count], *ys]

    def _looped(
        self,
        op: Operation,
        known: Sequence[Batched],
        flags: Sequence[bool],
        count: int,
        regions: Sequence[Block],
        results: Sequence[bool] | None = None,
    ) -> list[Batched]:
        operands = [
            self._forced(self.builder, v, b, op) if f and k < count else v
            for k, ((v, b), f) in enumerate(zip(known, flags, strict=True))
        ]
        made = self.builder.emit(
            op.name,
            [*operands, *self._more()],
            op.attrs,
            regions=regions,
            control=self._control(op),
            locations=op.locations,
        )
        return list(zip(made, results or flags[:count], strict=True))

    def _custom_gradient(self, op: Operation) -> list[Batched]:
        """Results and inputs batched as they are; the gradient of an input that all rows share is
        the sum of those of the rows."""
        outputs, inputs = int_attr(op.attrs, "outputs"), int_attr(op.attrs, "inputs")
        known = [self.known[v] for v in op.operands]
        flags = [b for _, b in known]
        marks = [True] * outputs + flags[outputs + inputs :]
        old = [*op.operands[:outputs], *op.operands[outputs + inputs :]]
        builder, made_of = self._inner(op.regions[0], old, marks)
        found, rows = [], self._rows_in(builder)
        for (v, b), is_batched in zip(made_of, flags[outputs : outputs + inputs], strict=True):
            g = Expr(builder, self._forced(builder, v, b, op), op.locations)
            if not is_batched:
                g = g if rows is None else _of_rows(rows, g)
                is_bool = g.dtype is bool_  # which has no sum: no gradient, whatever it is
                g = g.op("any", axes=(0,), keepdims=False) if is_bool else g.sum((0,))
            found.append(g.value)
        operands = [
            self._forced(self.builder, v, b, op) if k < outputs else v
            for k, (v, b) in enumerate(known)
        ]
        operands += self._more()
        made = self.builder.emit(
            op.name, operands, op.attrs, regions=(builder.block(found),), locations=op.locations
        )
        return [(value, True) for value in made]

    def _custom_rule(self, op: Operation) -> list[Batched]:
        """A rule that is traced later: what it is for all rows then is made then, too."""
        rule, of = op.attrs["rule"], (self.size, self.axis, self.apart)
        if isinstance(rule, CustomRule):
            rule = CustomRule(f"{rule}/vmap", partial(_batched_rule, rule, *of))
        operands = [self._forced(self.builder, *self.known[v], op) for v in op.operands]
        attrs = {**op.attrs, "rule": rule}
        made = self.builder.emit(op.name, operands, attrs, locations=op.locations)
        return [(value, True) for value in made]


def _batched_rule(
    rule: CustomRule, size: Dim, axis: str, apart: bool, types: Sequence[Type]
) -> Block:
    """The block of a rule for a batch of `size`, all of whose operands have the batch axis."""
    rows = [TensorType(t.dtype, t.shape[1:]) for t in types if isinstance(t, TensorType)]
    builder = Builder(types)
    operands = [(a, True) for a in builder.args]
    found = batch_block(builder, rule.block(rows), operands, size, (), axis, apart)
    where = builder.ops[-1].locations if builder.ops else ()
    return builder.block([v if b else with_rows(builder, v, size, where) for v, b in found])


def where_rows(builder: Builder, op: Operation, pred: Value, yes: Value, no: Value) -> Value:
    """Of each row `yes` where the predicate, a bool for each row, is true, else `no`."""
    if isinstance(yes.type, StackType) or isinstance(no.type, StackType):
        raise UnsupportedError(
            "vmap: the gradient of a loop or branch whose length or side differs from row to row",
            hint="differentiate within the function that wf.vmap is given, or around wf.vmap",
            location=op.locations,
        )
    a = Expr(builder, yes, op.locations)
    return a.wrap(pred).spread(a.shape).where(a, a.wrap(no)).value


def _swapped(builder: Builder, value: Value, op: Operation) -> Value:
    """The value with its first two axes exchanged."""
    x = Expr(builder, value, op.locations)
    return x.permute((1, 0, *range(2, x.rank))).value


def _settle(flags: list[bool], count: int, grown: Callable[[], list[bool]]) -> list[bool]:
    """Let flags of the `count` carries of a loop grow by those of the results of its body, which
    `grown` gives for the flags as they are, until nothing changes; all that `grown` gives then."""
    while True:
        try:
            after = grown()
        except SharedStack as error:
            k = error.number
            if k is None or k >= count or flags[k]:
                raise
            flags[k] = True
            continue
        found = [a or b for a, b in zip(flags[:count], after, strict=False)]
        if found == flags[:count]:
            return after
        flags[:count] = found


def _of_rows(rows: Expr, x: Expr) -> Expr:
    """x for some rows, zeros for the others."""
    return rows.spread(x.shape).where(x, 0)


def _has_cotangent(value: Value) -> bool:
    """Whether a value may get a cotangent."""
    is_number = isinstance(value.type, TensorType) and value.type.dtype.is_inexact
    return is_number and (value.op is None or value.op.name != "constant")


def _goes_on(result: Value) -> bool:
    """Whether a carry of a loop goes on for rows that have left it."""
    op = result.op
    return op is not None and op.name == "loop_mark" and not op.attrs["live"]


def _one_by_one(region: Block) -> bool:
    """Whether a branch is not to be computed where its predicate is false: it holds loops, which
    may not end, or prints."""
    return any(
        op.name in ("while", "scan") or op.name in PYTHON_CALLS or any(map(_one_by_one, op.regions))
        for op in region.ops
    )


def _may_be_key(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype is uint32
