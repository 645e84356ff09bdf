"""Shards of a mesh in one graph: a block is written into it once for each shard.

Before, for one shard of two along the axis "d"::

    %0 = matmul(%x, %w) : f32[4,3]
    %1 = psum(%0) {axis_name="d"} : f32[4,3]

After, where all devices add what is small themselves::

    %0 = matmul(%x0, %w) : f32[4,3] device(0)
    %1 = matmul(%x1, %w) : f32[4,3] device(1)
    %2 = add(%0, %1) : f32[4,3] device(0)
    %3 = add(%0, %1) : f32[4,3] device(1)

One walk in program order. An op is copied for each shard if an operand is one for each; what no
collective and no cut argument has gone into is computed once, wherever placement puts it.
Collectives become slices, sums in the order of ranks and `concat`, between the shards; what of
larger arrays is added is a slice on each device, which the others then get. A value that is the
same in all shards and is needed outside of them (by an update of a variable, by a result) is made
there from those slices (`outside`). Branches, loops and gradients of the user's with collectives in
them are one op for all shards; their regions hold the ops of all."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from math import prod

import numpy as np

from weft.ir.dataclass import dataclass
from weft.ir.dtypes import DType, bfloat16, bool_, float16, float32
from weft.ir.errors import UnsupportedError
from weft.ir.graph import Block, Operation, Value
from weft.ir.locations import Locations
from weft.ir.ops import lookup
from weft.ir.ops.builder import Builder
from weft.ir.ops.collectives import COLLECTIVES
from weft.ir.ops.control_flow import CONTROL
from weft.ir.ops.state import UPDATES
from weft.ir.spec import ConstArray, int_attr, ints_attr
from weft.ir.types import TensorType
from weft.passes.rewriting.expression import Expr

#: Bytes of an array up to which each device gets all of them, and adds up by itself.
WHOLE_BYTES = 1 << 14
_COMBINED = {"psum": "add", "pmax": "maximum", "pmin": "minimum"}
_NARROW: tuple[DType, ...] = (float16, bfloat16)  # added as float32, and rounded once
_ACTS = frozenset({"host", "handle", "writes_state", "no_dce"})
#: Ops that are not done once more outside of the shards, where the first shard's result will do.
_PRODUCTS = frozenset({"matmul", "conv", "conv_input", "conv_kernel"})
_NONE: frozenset[str] = frozenset()


class Grid:
    """The shards of a mesh, numbered in row-major order. places: of each, what its ops are put by;
    shards of equal ones are together."""

    def __init__(self, shape: Mapping[str, int], places: Sequence[Hashable]) -> None:
        self.shape, self.places = dict(shape), tuple(places)
        self.count = prod(self.shape.values())
        self._steps: dict[str, int] = {}
        step = self.count
        for name, size in self.shape.items():
            step //= size
            self._steps[name] = step

    def rank(self, shard: int, axis: str) -> int:
        """The index of a shard along an axis."""
        return shard // self._steps[axis] % self.shape[axis]

    def group(self, shard: int, axis: str) -> tuple[int, ...]:
        """The shards that differ from this one in their index along the axis alone, by that."""
        step = self._steps[axis]
        first = shard - self.rank(shard, axis) * step
        return tuple(range(first, first + step * self.shape[axis], step))


@dataclass(frozen=True, slots=True)
class Sharded:
    """What a value of the block has become: one value, or one for each shard. varies: the axes of
    the mesh along which they may differ."""

    values: tuple[Value, ...]
    varies: frozenset[str] = _NONE

    @property
    def once(self) -> bool:
        """Whether it is one value for all shards."""
        return len(self.values) == 1

    def at(self, shard: int | None) -> Value:
        """That of a shard; None: of what is computed once."""
        return self.values[0 if self.once or shard is None else shard]


#: Along which axes a value may differ, and whether it is a variable's, or made of such.
_Fact = tuple[frozenset[str], bool]
#: Says on which device an op is that was appended, or is in a region of one: that of a shard, or of
#: what is computed once (None). The op has the marks of the block's op that it was made of.
Place = Callable[[Operation, "int | None"], None]


class Walk:
    """The walk over one block."""

    def __init__(self, builder: Builder, grid: Grid, place: Place) -> None:
        self.builder, self.grid, self.place = builder, grid, place
        self.known: dict[Value, Sharded] = {}
        self._drawn: set[Value] = set()  # values of variables, and what is made of them
        self._outside: dict[Value, Value] = {}
        self._near: Operation | None = None  # what needs what is made outside
        #: How the result of a collective is made outside of all shards.
        self._makers: dict[Value, Callable[[int | None], Value]] = {}

    # -- whole arrays and shards ------------------------------------------------------------------

    def cut(
        self,
        whole: Value,
        cuts: Sequence[tuple[int, str]],
        like: Operation | None,
        where: Locations,
    ) -> Sharded:
        """The shards of a whole, cut along dimensions over axes, the first of which varies slowest
        along its dimension. like: what has the device of the ops that cut."""
        if not cuts:
            return Sharded((whole,))
        held = {0: whole}
        for dim, axis in cuts:
            held = {
                shard: part
                for first, x in held.items()
                for shard, part in zip(
                    self.grid.group(first, axis),
                    self._parts(x, dim, axis, like, where),
                    strict=True,
                )
            }
        names = {axis for _, axis in cuts}
        values = tuple(held[self._first(k, names)] for k in range(self.grid.count))
        return Sharded(values, frozenset(names))

    def _parts(
        self, x: Value, dim: int, axis: str, like: Operation | None, where: Locations
    ) -> Sequence[Value]:
        """The parts of one size along a dimension; of what was joined so, what was joined."""
        size = self.grid.shape[axis]
        if x.op is not None and x.op.name == "concat" and int_attr(x.op.attrs, "axis") == dim:
            if len(x.op.operands) == size and len({v.type for v in x.op.operands}) == 1:
                return x.op.operands
        with self._made(None, like):
            whole = Expr(self.builder, x, where)
            length = whole.shape[dim]
            assert isinstance(length, int)
            step = length // size
            return [whole.slice_axis(dim, k * step, (k + 1) * step).value for k in range(size)]

    def joined(self, value: Value, cuts: Sequence[tuple[int, str]], where: Locations) -> Value:
        """The whole of which `value` of the block is a shard; what was not cut, outside."""
        if not cuts:
            return self.outside(value)
        found, names = self.known[value], {axis for _, axis in cuts}
        held = {k: found.at(k) for k in range(self.grid.count) if k == self._first(k, names)}
        for dim, axis in reversed(cuts):
            groups = {self.grid.group(k, axis) for k in held}
            with self._made(None, None):
                held = {g[0]: self._concat([held[k] for k in g], dim, where) for g in groups}
        return held[0]

    def _first(self, shard: int, axes: Iterable[str]) -> int:
        """The shard with the same indices along these axes, and 0 along the others."""
        for axis in self.grid.shape:
            if axis not in axes:
                shard = self.grid.group(shard, axis)[0]
        return shard

    def _concat(self, values: Sequence[Value], dim: int, where: Locations) -> Value:
        if len(values) == 1:
            return values[0]
        return self.builder.emit1("concat", *values, axis=dim, locations=where)

    # -- the walk ---------------------------------------------------------------------------------

    def block(self, block: Block, operands: Sequence[Sharded], states: Iterable[Value]) -> None:
        """Append the ops of the block for all shards. operands: of each of its arguments. states:
        arguments that are read from variables. UnsupportedError for what would give variables a
        value for each shard, and for collectives that not all shards come to."""
        self.known.update(zip(block.args, operands, strict=True))
        self._drawn.update(states)
        for op in block.ops:
            self._op(op)

    def outside(self, value: Value) -> Value:
        """What a value of the block that is the same in all shards is outside of them. What is made
        for that is where what needs it first is, if that has marks."""
        stack: list[tuple[Value, Operation | None]] = [(value, None)]
        while stack:
            top, near = stack[-1]
            found, op = self.known[top], top.op
            self._near = near
            if top in self._outside:
                stack.pop()
            elif top in self._makers:
                self._outside[top] = self._makers[top](None)
            elif found.once or found.varies or op is None or not _repeatable(op):
                self._outside[top] = found.at(None)
            elif missing := [v for v in op.operands if v not in self._outside]:
                near = op if op.device or op.group else near
                stack += [(v, near) for v in missing]
            else:
                made = self._copied(op, {v: self._outside[v] for v in op.operands}, None)
                self._outside.update(zip(op.results, made, strict=True))
        self._near = None
        return self._outside[value]

    def _op(self, op: Operation) -> None:
        if self._is_over(op):
            self.known[op.result] = self._collective(op)
            return
        inside = {o for r in op.regions for o in Block.walk(r) if self._is_over(o)}
        if any(o.name != "axis_index" for o in inside):
            self._with_collectives(op)
            return
        given = [self.known[v] for v in op.operands]
        indices = {str(o.attrs["axis_name"]) for o in inside}
        varies = _NONE.union(indices, *(x.varies for x in given))
        self._check_updates(op, varies)
        facts = self._differing(op, [(self.known[v].varies, v in self._drawn) for v in op.operands])
        acts = any(lookup(o.name).traits & _ACTS for o in (op, *_inner(op)))
        if all(x.once for x in given) and not indices:
            made = [self._copied(op, {v: self.known[v].at(None) for v in op.operands}, None)]
        elif acts and not varies:
            made = [self._copied(op, {v: self.outside(v) for v in op.operands}, None)]
        else:
            made = [
                self._copied(op, {v: self.known[v].at(k) for v in op.operands}, k)
                for k in range(self.grid.count)
            ]
        for (axes, drawn), result, *values in zip(facts, op.results, *made, strict=True):
            self.known[result] = Sharded(tuple(values), axes)
            if drawn:
                self._drawn.add(result)

    def _is_over(self, op: Operation) -> bool:
        """Whether it is a collective over an axis of the mesh."""
        return op.name in COLLECTIVES and op.attrs["axis_name"] in self.grid.shape

    def _check_updates(self, op: Operation, varies: frozenset[str]) -> None:
        """UnsupportedError for what would give variables a value for each shard."""
        if varies and any(o.name in UPDATES or o.name == "assign" for o in (op, *_inner(op))):
            raise differing_variable(op.locations)

    def _differing(self, op: Operation, given: Sequence[_Fact]) -> list[_Fact]:
        """Of each result of an op along which axes it may differ, and whether it is made of a
        variable; given: of each operand. UnsupportedError for numbers that all shards would draw
        alike."""
        axes = _NONE.union(*(x for x, _ in given))
        drawn = op.name == "read" or any(d for _, d in given)
        if op.name == "random_bits" and given[0][1] and not axes:
            raise UnsupportedError(
                "shard_map: the key in a variable gives all shards the same numbers",
                hint="draw with a key of the shard's own: wf.random.fold_in(key, "
                "wf.collectives.axis_index(name))",
                location=op.locations,
            )
        if self._is_over(op):
            return [(axes | {str(op.attrs["axis_name"])}, drawn)]
        if op.name == "cond":
            (decided, _), *rest = given
            sides = [self._through(r, rest) for r in op.regions]
            return [
                (decided.union(*(x for x, _ in both)), drawn or any(d for _, d in both))
                for both in zip(*sides, strict=True)
            ]
        if op.name in ("while", "scan"):
            return self._through_loop(op, list(given))
        for region in op.regions:
            inner = self._through(region, [(axes, drawn)] * len(region.args))
            axes = axes.union(*(x for x, _ in inner))
        return [(axes, drawn)] * len(op.results)

    def _through(self, region: Block, given: Sequence[_Fact]) -> list[_Fact]:
        """Of the results of a region what `_differing` says; given: of its arguments."""
        known = dict(zip(region.args, given, strict=True))
        for op in region.ops:
            known.update(
                zip(op.results, self._differing(op, [known[v] for v in op.operands]), strict=True)
            )
        return [known[v] for v in region.results]

    def _through_loop(self, op: Operation, given: list[_Fact]) -> list[_Fact]:
        """Of the results of a loop: its carries, and what a scan stacks."""
        count, body = int_attr(op.attrs, "carries"), op.regions[-1]
        while True:
            made = self._through(body, given)
            decided = self._through(op.regions[0], given)[0][0] if op.name == "while" else _NONE
            after = [
                (axes | more | decided, drawn or also)
                for (axes, drawn), (more, also) in zip(given[:count], made, strict=False)
            ]
            if after == given[:count]:
                return [*after, *made[count:]]
            given[:count] = after

    @contextmanager
    def _made(self, shard: int | None, like: Operation | None) -> Iterator[None]:
        """What is appended within is put where a shard is, with the marks of the op `like`."""
        start = len(self.builder.ops)
        yield
        for op in self.builder.ops[start:]:
            if like is not None:
                op.device, op.group = like.device, like.group
            self._put(op, shard)

    def _put(self, op: Operation, shard: int | None) -> None:
        near = self._near if shard is None else None
        if near is not None and not (op.device or op.group or op.name == "constant"):
            op.device, op.group = near.device, near.group
        self.place(op, shard)

    def _copied(
        self, op: Operation, mapping: Mapping[Value, Value], shard: int | None
    ) -> tuple[Value, ...]:
        """A copy for a shard, or for what is computed once. mapping: of its operands."""
        control = [v for c in op.control if c in self.known for v in self.known[c].values]
        return self._copy(self.builder, op, mapping, control, shard)

    def _copy(
        self,
        builder: Builder,
        op: Operation,
        mapping: Mapping[Value, Value],
        control: Iterable[Value],
        shard: int | None,
    ) -> tuple[Value, ...]:
        if self._is_over(op):
            assert shard is not None  # `axis_index` in a region
            return (self._index(builder, op, shard),)
        made = Operation(
            op.name, [mapping[v] for v in op.operands], op.attrs, [r.type for r in op.results],
            [self._region(r, shard) for r in op.regions],
            [v for v in dict.fromkeys(control) if v.op is not None], op.locations,
            device=op.device, group=op.group,
        )  # fmt: skip
        builder.ops.append(made)
        self._put(made, shard)
        return made.results

    def _region(self, region: Block, shard: int | None) -> Block:
        """A region without collectives, for a shard."""
        builder = Builder([a.type for a in region.args])
        mapping = dict(zip(region.args, builder.args, strict=True))
        for op in region.ops:
            control = [mapping[v] for v in op.control if v in mapping]
            made = self._copy(builder, op, mapping, control, shard)
            mapping.update(zip(op.results, made, strict=True))
        return builder.block([mapping[v] for v in region.results])

    def _index(self, builder: Builder, op: Operation, shard: int) -> Value:
        """The number of a shard along the axis of an op."""
        number = np.array(self.grid.rank(shard, str(op.attrs["axis_name"])), np.int64)
        return builder.emit1("constant", value=ConstArray(number), locations=op.locations)

    # -- collectives ------------------------------------------------------------------------------

    def _collective(self, op: Operation) -> Sharded:
        axis, shards = str(op.attrs["axis_name"]), range(self.grid.count)
        if op.name == "axis_index":
            values = tuple(self._index(self.builder, op, k) for k in shards)
            return Sharded(values, frozenset({axis}))
        x = self.known[op.operands[0]]
        if op.name in _COMBINED or op.name == "all_gather":
            make = self._summing(op, x, axis) if op.name in _COMBINED else self._all(op, x, axis)
            if x.once:
                return Sharded((make(None),))
            self._makers[op.result] = make
            return Sharded(tuple(map(make, shards)), x.varies - {axis})
        one: Callable[[Operation, Sharded, str, int], Value] = getattr(self, f"_{op.name}")
        return Sharded(tuple(one(op, x, axis, k) for k in shards), x.varies | {axis})

    def _once_for_each_device(
        self, axis: str, make: Callable[[tuple[int, ...], int | None], Value]
    ) -> Callable[[int | None], Value]:
        """What `make` gives for a group and a shard of it, made once for the shards of a device."""
        held: dict[object, Value] = {}

        def at(shard: int | None) -> Value:
            group = self.grid.group(shard or 0, axis)
            key = group, None if shard is None else (self.grid.places[shard],)
            if key not in held:
                held[key] = make(group, shard)
            return held[key]

        return at

    def _summing(self, op: Operation, x: Sharded, axis: str) -> Callable[[int | None], Value]:
        """The sum, or extreme, of a group."""
        kind = op.operands[0].type
        assert isinstance(kind, TensorType)
        apart: dict[tuple[int, ...], list[Value]] = {}

        def make(group: tuple[int, ...], shard: int | None) -> Value:
            together = x.once or len({self.grid.places[k] for k in group}) == 1
            if together or not kind.is_static or kind.nbytes <= WHOLE_BYTES:
                return self._combined(op, [x.at(k) for k in group], shard)
            if group not in apart:
                apart[group] = self._sums_of_slices(op, x, group)
            with self._made(shard, op):
                whole = self._concat(apart[group], 0, op.locations)
                return Expr(self.builder, whole, op.locations).reshape(kind.shape).value

        return self._once_for_each_device(axis, make)

    def _sums_of_slices(self, op: Operation, x: Sharded, group: Sequence[int]) -> list[Value]:
        """On each device of a group the sum of a slice of the flattened arrays."""
        flat: dict[int, Expr] = {}
        for k in group:
            with self._made(k, op):
                flat[k] = Expr(self.builder, x.at(k), op.locations)
                flat[k] = flat[k].reshape((prod(flat[k].type.static_shape),))
        length = flat[group[0]].type.static_shape[0]
        bounds = [length * k // len(group) for k in range(len(group) + 1)]
        sums = []
        for owner, start, stop in zip(group, bounds, bounds[1:], strict=False):
            slices = []
            for k in group:
                with self._made(k, op):
                    slices.append(flat[k].slice_axis(0, start, stop).value)
            sums.append(self._combined(op, slices, owner))
        return sums

    def _combined(self, op: Operation, values: Sequence[Value], shard: int | None) -> Value:
        """The sum, or extreme, of values in their order, on the device of a shard."""
        with self._made(shard, op):
            terms = [Expr(self.builder, v, op.locations) for v in values]
            dtype = terms[0].dtype
            if op.name in ("psum", "psum_scatter") and dtype in _NARROW:
                terms = [t.astype(float32) for t in terms]
            name = _COMBINED.get(op.name, "add")
            return reduce(lambda a, b: a.op(name, b), terms).astype(dtype).value

    def _all(self, op: Operation, x: Sharded, axis: str) -> Callable[[int | None], Value]:
        def make(group: tuple[int, ...], shard: int | None) -> Value:
            with self._made(shard, op):
                return self._stacked(op, [x.at(k) for k in group])

        return self._once_for_each_device(axis, make)

    def _stacked(self, op: Operation, values: Sequence[Value]) -> Value:
        rows = [Expr(self.builder, v, op.locations) for v in values]
        return self._concat([r.reshape((1, *r.shape)).value for r in rows], 0, op.locations)

    def _rows_for(self, op: Operation, x: Sharded, axis: str, shard: int) -> list[Value]:
        """Of the operands of its group the rows that are for a shard."""
        number, rows = self.grid.rank(shard, axis), []
        for k in self.grid.group(shard, axis):
            with self._made(None if x.once else k, op):
                row = Expr(self.builder, x.at(k), op.locations).slice_axis(0, number, number + 1)
                rows.append(row.reshape(row.shape[1:]).value)
        return rows

    def _psum_scatter(self, op: Operation, x: Sharded, axis: str, shard: int) -> Value:
        return self._combined(op, self._rows_for(op, x, axis, shard), shard)

    def _all_to_all(self, op: Operation, x: Sharded, axis: str, shard: int) -> Value:
        rows = self._rows_for(op, x, axis, shard)
        with self._made(shard, op):
            return self._stacked(op, rows)

    def _ppermute(self, op: Operation, x: Sharded, axis: str, shard: int) -> Value:
        source = ints_attr(op.attrs, "sources")[self.grid.rank(shard, axis)]
        if source >= 0:
            return x.at(self.grid.group(shard, axis)[source])
        with self._made(shard, op):
            return Expr(self.builder, x.at(shard), op.locations).full(0).value

    # -- branches and loops with collectives ------------------------------------------------------

    def _with_collectives(self, op: Operation) -> None:
        """What all shards go through together, as one op for all of them: a branch, a loop, a
        gradient of the user's."""
        assert op.name in (*CONTROL, "custom_gradient")  # what is traced has no other regions
        getattr(self, f"_{op.name}")(op)

    def _inside(
        self, op: Operation, number: int, given: Sequence[Sharded], outer: Sequence[Value]
    ) -> tuple[Walk, Block]:
        """The walk through a region, and the region. given: of each of its arguments, what the
        operand `outer` of it is; the new arguments are as many values, in that order."""
        region = op.regions[number]
        kinds = [a.type for a, x in zip(region.args, given, strict=True) for _ in x.values]
        inner = Walk(Builder(kinds), self.grid, self.place)
        args = iter(inner.builder.args)
        operands = [Sharded(tuple(next(args) for _ in x.values), x.varies) for x in given]
        drawn = [a for a, v in zip(region.args, outer, strict=True) if v in self._drawn]
        inner.block(region, operands, drawn)
        return inner, region

    def _emit(
        self,
        op: Operation,
        operands: Sequence[Value],
        regions: Sequence[Block],
        results: Sequence[Sharded],
        **attrs: int,
    ) -> None:
        """The op for all shards. results: as many values of each result, along which axes they
        differ; the values themselves are those of a region."""
        control = [v for c in op.control if c in self.known for v in self.known[c].values]
        made = iter(
            self.builder.emit(
                op.name, operands, {**op.attrs, **attrs}, regions=regions, control=control,
                locations=op.locations, device=op.device, group=op.group,
            )
        )  # fmt: skip
        self.place(self.builder.ops[-1], None)
        for result, x in zip(op.results, results, strict=True):
            self.known[result] = Sharded(tuple(next(made) for _ in x.values), x.varies)

    def _same_in_all(self, op: Operation, value: Value, what: str) -> None:
        """UnsupportedError for a predicate that differs along an axis."""
        if self.known[value].varies:
            raise UnsupportedError(
                f"shard_map: {what} of op '{op.name}' differs from shard to shard, and a "
                "collective in it needs all shards",
                hint="decide by what is the same in all, as wf.collectives.psum(x, name) is; or do "
                "the collective outside",
                location=op.locations,
            )

    def _cond(self, op: Operation) -> None:
        predicate, *operands = op.operands
        self._same_in_all(op, predicate, "the predicate")
        given = [self.known[v] for v in operands]
        sides = [self._inside(op, k, given, operands) for k in range(2)]
        results = [
            _met([inner.known[region.results[k]] for inner, region in sides])
            for k in range(len(op.results))
        ]
        regions = [inner.builder.block(_like(inner, r.results, results)) for inner, r in sides]
        values = [self.outside(predicate), *(v for x in given for v in x.values)]
        self._emit(op, values, regions, results)

    def _while(self, op: Operation) -> None:
        count = int_attr(op.attrs, "carries")
        given, (inner, body) = self._settled(op, 1, count)
        test, region = self._inside(op, 0, given, op.operands)
        test._same_in_all(op, region.results[0], "the test")
        done = test.builder.block([test.outside(region.results[0])])
        step = inner.builder.block(_like(inner, body.results, given[:count]))
        values = [v for x in given for v in x.values]
        carries = sum(len(x.values) for x in given[:count])
        self._emit(op, values, [done, step], given[:count], carries=carries)

    def _scan(self, op: Operation) -> None:
        count, rows = int_attr(op.attrs, "carries"), int_attr(op.attrs, "sequences")
        given, (inner, body) = self._settled(op, 0, count)
        results = [*given[:count], *(inner.known[v] for v in body.results[count:])]
        step = inner.builder.block(_like(inner, body.results, results))
        values = [v for x in given for v in x.values]
        carries = sum(len(x.values) for x in given[:count])
        sequences = sum(len(x.values) for x in given[count : count + rows])
        self._emit(op, values, [step], results, carries=carries, sequences=sequences)

    def _custom_gradient(self, op: Operation) -> None:
        """Each result is one for each shard, as it may have a cotangent in each; the gradient of an
        input that is one for all is the sum of those of the shards."""
        outputs, inputs = int_attr(op.attrs, "outputs"), int_attr(op.attrs, "inputs")
        rest = op.operands[outputs + inputs :]
        made = [self._of_each(v) for v in op.operands[:outputs]]
        taken = [self.known[v] for v in op.operands[outputs : outputs + inputs]]
        more = [self.known[v] for v in rest]
        inner, region = self._inside(op, 0, [*made, *more], [*op.operands[:outputs], *rest])
        slopes: list[Value] = []
        for x, value in zip(taken, region.results, strict=True):
            found = inner._of_each(value).values
            if x.once and isinstance(x.values[0].type, TensorType):
                is_bool = x.values[0].type.dtype is bool_  # no gradient, whatever it is
                found = found[:1] if is_bool else (inner._added(found, op.locations),)
            slopes += found
        operands = [v for x in (*made, *taken, *more) for v in x.values]
        counts = {"outputs": outputs * self.grid.count, "inputs": len(slopes)}
        self._emit(op, operands, [inner.builder.block(slopes)], made, **counts)

    def _of_each(self, value: Value) -> Sharded:
        """What a value of the block is, as one value for each shard."""
        found = self.known[value]
        return Sharded(tuple(map(found.at, range(self.grid.count))), found.varies)

    def _added(self, values: Sequence[Value], where: Locations) -> Value:
        with self._made(None, None):
            terms = [Expr(self.builder, v, where) for v in values]
            return reduce(lambda a, b: a + b, terms).value

    def _settled(
        self, op: Operation, number: int, count: int
    ) -> tuple[list[Sharded], tuple[Walk, Block]]:
        """The operands of a loop, whose first `count` are its carries, and the walk through its
        body, which gives carries that are as those operands: one for all, or one for each shard."""
        given = [self.known[v] for v in op.operands]
        while True:
            inner, body = self._inside(op, number, given, op.operands)
            after = [
                _met([x, inner.known[v]], x)
                for x, v in zip(given[:count], body.results, strict=False)
            ]
            kept = [(len(x.values), x.varies) for x in given[:count]]
            if kept == [(len(x.values), x.varies) for x in after]:
                return given, (inner, body)
            given[:count] = after


def differing_variable(where: Locations) -> UnsupportedError:
    """For a variable that is given what differs by shard."""
    return UnsupportedError(
        "shard_map: a variable would be assigned another value in each shard",
        hint="assign what is the same in all, as wf.collectives.pmean(x, name) is",
        location=where,
    )


def _met(sides: Sequence[Sharded], values: Sharded | None = None) -> Sharded:
    """As many values as any of these has, which differ along all their axes: those of `values`."""
    most = max(len(x.values) for x in sides)
    varies = _NONE.union(*(x.varies for x in sides))
    held = (values or sides[0]).values
    return Sharded(held if len(held) == most else held * most, varies)


def _like(inner: Walk, results: Sequence[Value], wanted: Sequence[Sharded]) -> list[Value]:
    """The results of a region, as many values of each as are wanted."""
    found: list[Value] = []
    for value, x in zip(results, wanted, strict=True):
        made = inner.known[value]
        found += made.values if len(made.values) == len(x.values) else made.values * len(x.values)
    return found


def _repeatable(op: Operation) -> bool:
    """Whether an op may be done once more outside of the shards."""
    return not (op.regions or op.name in _PRODUCTS or lookup(op.name).traits & _ACTS)


def _inner(op: Operation) -> Iterator[Operation]:
    for region in op.regions:
        yield from region.walk()
