"""Loop nests: what a `fused` op becomes before LLVM - extents, affine reads, statements, stores.

Index maps (broadcast, permute, slice, iota, unit reshapes) turn into an offset and one stride per
loop. Loops of extent 1 are dropped and neighbouring loops that every access walks contiguously are
merged, so that a nest over any contiguous shape is one loop. What is left of the structure - not
the sizes - is the kernel's key: extents, strides and constants are arguments.

`interleave` and `lanes_of_folds` say how many vectors the innermost loop does at once, and in which
lanes it adds up, by what elementwise work costs. Prices of single ops are those of `weft.ir.cost`
for any target: nanoseconds for one element in a vectorised loop. Nothing but speed depends on
prices."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

from weft.codegen.llvm.emitter import HALVES, width_bits
from weft.codegen.llvm.scalar_texts import (
    is_user_function,
    scalar_text,
    split_name,
    statement_name,
)
from weft.codegen.llvm.target import target_vector_bits
from weft.codegen.scalar.elementwise import supported
from weft.codegen.scalar.replaced_ops import replaced_statement
from weft.codegen.scalar.user_functions import user_nanoseconds
from weft.ir.analysis.index_maps import Pick, contiguous_strides, nest_read
from weft.ir.cost.rates import arithmetic
from weft.ir.cost.thresholds import INTERLEAVED_MOST_NS, INTERLEAVED_NS, INTERLEAVED_TWICE_NS
from weft.ir.dataclass import dataclass
from weft.ir.errors import InternalError, UnsupportedError, WeftError
from weft.ir.graph import Operation, Value
from weft.ir.ops import lookup
from weft.ir.spec import ConstArray
from weft.ir.types import TensorType

INTERLEAVE = 4
#: Short (`vector/avx512.py`): they count for `INTERLEAVED_NS` only. More of them side by side do
#: not wait less, and spill.
BY_TABLES = frozenset({("exp", "f32"), ("log", "f32"), ("erf", "f32")})
#: An innermost loop of a nest over several is not shorter than this, or its remainder, which is not
#: interleaved, is most of the work; or it leaves no remainder. Twice that where a body is
#: interleaved twice as much.
LEAST_INTERLEAVED, NO_REMAINDER = 256, 64


def op_nanoseconds(op: str, dtype: str) -> float:
    """One element of an elementwise op, or of a user's function, at this operand dtype."""
    if is_user_function(op):
        return user_nanoseconds(op, dtype)
    return arithmetic([(op, dtype)])


def interleave(
    ops: Iterable[tuple[str, str]], extents: Sequence[int], chain: float | None = None
) -> int:
    """How many vectors an iteration of the innermost loop over these (op, dtype) pairs should do;
    0: LLVM's choice. LLVM takes long bodies one by one, and they wait for their own results.

    chain: the nanoseconds of what one result follows from, if that is not all: what several results
    need does not wait. A single loop is taken to be long, so that its extent is no matter of the
    kernel.
    """
    done = list(ops)
    prices = [op_nanoseconds(op, dtype) for op, dtype in done]
    work = sum(prices)
    if not extents or not INTERLEAVED_NS <= work <= INTERLEAVED_MOST_NS:
        return 0
    long = [price for op, price in zip(done, prices, strict=True) if op not in BY_TABLES]
    waits = (work if chain is None else chain) - (work - sum(long))
    for times in (2, 1) if waits - max(long, default=0.0) >= INTERLEAVED_TWICE_NS else (1,):
        if is_long(extents, times):
            return times * INTERLEAVE
    return 0


def is_long(extents: Sequence[int], times: int = 1) -> bool:
    """Whether the innermost loop is long enough to be interleaved, or leaves no remainder."""
    if len(extents) < 2:
        return True
    return extents[-1] >= times * LEAST_INTERLEAVED or extents[-1] % (times * NO_REMAINDER) == 0


def lanes_of_folds(
    folds: Iterable[tuple[str, str]], ops: int, extents: Sequence[int], interleave: int
) -> tuple[int, int]:
    """How many vectors the innermost of these loops does at once, of how many lanes, if it folds
    (reduction, dtype) over the results of so many ops; 0: LLVM's choice. interleave: what its ops
    alone would have.

    In which lanes a sum adds up decides its last bits, and LLVM would choose by the loop's memory
    accesses: by whether an operand is overwritten, say, which is another kernel of the same nest.
    """
    widths = [width_bits(d) for r, d in folds if r in ("sum", "prod") and d in ("f32", "f64")]
    widths += [32 for r, d in folds if r in ("sum", "prod") and d in HALVES]
    if not widths:
        return interleave, 0
    lanes = target_vector_bits() // max(widths)
    if interleave or not is_long(extents):
        return interleave or 1, lanes if is_long(extents) else short_lanes(extents[-1], lanes)
    many = INTERLEAVE * max(widths) // 32
    return (many if ops <= 8 else many // 2 if ops <= 16 else 1), lanes


def short_lanes(count: int, lanes: int) -> int:
    """The lanes, these or fewer, by which so many elements take the fewest steps: what is left over
    is done one by one."""
    fewer = (lanes >> k for k in range(3) if lanes >> k)
    return min(fewer, key=lambda n: count // n + count % n)


def lanes_key(extents: Sequence[int]) -> str:
    """What `lanes_of_folds` takes of the extents, as text."""
    if is_long(extents):
        return "long"
    return " ".join(["short", *(str(short_lanes(extents[-1], n)) for n in (16, 8, 4, 2))])


#: Bumped whenever the code that is emitted for a nest changes.
EMITTER_VERSION = 9

Leaf = (
    int | ConstArray | Literal["index"]
)  # an operand's number, a constant, or the position itself


@dataclass(frozen=True, slots=True)
class Access:
    """A read of `leaf` at `offset + sum(index[k] * strides[k])` (for "index": that number).

    picks: (load, stride, size) each: what that load reads, an index into an axis of that size,
    times the stride adds to the place.
    """

    leaf: Leaf
    dtype: str
    offset: int
    strides: tuple[int, ...]
    picks: tuple[tuple[int, int, int], ...] = ()

    def pattern(self) -> str:
        """Per loop: `0` not moving, `1` contiguous, `s` strided (a run-time stride)."""
        return pattern(self.strides)


@dataclass(frozen=True, slots=True)
class Statement:
    """`v<number> = op(args)`: args are `("load", k)` or `("value", n)`; dtype is the operands'."""

    op: str
    dtype: str
    args: tuple[tuple[str, int], ...]
    result_dtype: str


@dataclass(frozen=True, slots=True)
class Store:
    """A store: output number `output` gets `source`; `reduction` names the fold (None: each
    element)."""

    output: int
    dtype: str
    source: tuple[str, int]
    reduction: str | None
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Nest:
    """One loop nest. `extents[k]` and `reduced[k]` describe loop k, outermost first.

    in_place: operand number -> output number whose buffer it shares.
    """

    name: str
    extents: tuple[int, ...]
    reduced: tuple[bool, ...]
    loads: tuple[Access, ...]
    statements: tuple[Statement, ...]
    stores: tuple[Store, ...]
    in_place: tuple[tuple[int, int], ...] = ()

    @property
    def interleave(self) -> int:
        """Vectors in one iteration of the innermost loop; 0: as many as LLVM likes."""
        chain = max((self._price(s.source) for s in self.stores), default=0.0)
        return interleave(((s.op, s.dtype) for s in self.statements), self.extents, chain)

    def _price(self, source: tuple[str, int]) -> float:
        """Nanoseconds of all that a value follows from."""
        todo, seen = [source], set[int]()
        while todo:
            kind, n = todo.pop()
            if kind == "value" and n not in seen:
                seen.add(n)
                todo += self.statements[n].args
        return sum(
            op_nanoseconds(s.op, s.dtype) for n, s in enumerate(self.statements) if n in seen
        )

    @property
    def structure(self) -> str:
        """The part of the nest that its machine code depends on, as readable text."""
        leaf_number: dict[object, int] = {}
        rows = [f"v{EMITTER_VERSION} loops " + "".join("R" if r else "P" for r in self.reduced)]
        rows += [f"interleave {self.interleave}"] * (self.interleave > 0)
        rows += [lanes_key(self.extents)] * any(self.reduced)
        shared = dict(self.in_place)
        for load in self.loads:
            kind = "index" if load.leaf == "index" else "buffer"
            alias = (
                f" is-output-{shared[load.leaf]}"
                if isinstance(load.leaf, int) and load.leaf in shared
                else ""
            )
            leaf_number.setdefault(load.leaf, len(leaf_number))
            picks = "".join(f" pick l{k}" for k, _, _ in load.picks)
            rows.append(f"load {kind} {load.dtype} {load.pattern()}{alias}{picks}")
        rows += [f"{s.op} {s.dtype} {_refs(s.args)} -> {s.result_dtype}" for s in self.statements]
        for store in self.stores:
            fold = f"{store.reduction} {_refs((store.source,))}"
            rows.append(f"store {store.output} {store.dtype} {fold} {pattern(store.strides)}")
        return "\n".join(rows)

    @property
    def key(self) -> str:
        """Content key of the kernel."""
        return "nest-" + hashlib.sha256(self.structure.encode()).hexdigest()[:32]

    def describe(self) -> str:
        """The loop nest as pseudo-code."""
        lines = [f"kernel {self.name}  # {self.key}"]
        for k, (extent, reduced) in enumerate(zip(self.extents, self.reduced, strict=True)):
            kind = "reduced" if reduced else "parallel"
            lines.append("  " * (k + 1) + f"for i{k} in range({extent}):  # {kind}")
        pad = "  " * (len(self.extents) + 1)
        for k, load in enumerate(self.loads):
            where = describe_leaf(load.leaf, load.offset, load.strides, load.picks, "l")
            lines.append(f"{pad}l{k}: {load.dtype} = {where}")
        for n, s in enumerate(self.statements):
            args = ", ".join(("l" if kind == "load" else "v") + str(i) for kind, i in s.args)
            lines.append(f"{pad}v{n}: {s.result_dtype} = {s.op}({args})")
        for store in self.stores:
            kind, i = store.source
            where = f"out{store.output}[{affine(0, store.strides)}]"
            source = ("l" if kind == "load" else "v") + str(i)
            lines.append(
                pad
                + (
                    f"{where} = {source}"
                    if store.reduction is None
                    else f"{where} = {store.reduction}({where}, {source})"
                )
            )
        return "\n".join(lines)


def _refs(args: tuple[tuple[str, int], ...]) -> str:
    return " ".join(kind[0] + str(i) for kind, i in args)


def pattern(strides: tuple[int, ...]) -> str:
    """Per loop: `0` not moving, `1` contiguous, `s` strided (a run-time stride)."""
    return "".join("0" if s == 0 else "1" if s == 1 else "s" for s in strides)


def affine(offset: int, strides: tuple[int, ...]) -> str:
    """`3 + i0*64 + i1`: a position in terms of the loops, for people."""
    terms = [f"i{k}" if s == 1 else f"i{k}*{s}" for k, s in enumerate(strides) if s]
    return " + ".join([str(offset)] * (offset != 0 or not terms) + terms)


def describe_leaf(
    leaf: Leaf,
    offset: int,
    strides: tuple[int, ...],
    picks: Sequence[tuple[int, int, int]] = (),
    index: str = "",
) -> str:
    """`in0[i0*64 + i1]`, or the constant; with picks `in0[i1 + l0*64]`, if `index` is "l"."""
    if isinstance(leaf, ConstArray):
        return str(leaf.array)
    where = affine(offset, strides)
    if picks:
        where = "" if where == "0" else f"{where} + "
        where += " + ".join(f"{index}{k}*{s}" if s != 1 else f"{index}{k}" for k, s, _ in picks)
    return where if leaf == "index" else f"in{leaf}[{where}]"


def build_nest(op: Operation, in_place: tuple[tuple[int, int], ...] = ()) -> Nest:
    """The loop nest of a `fused` op of static shapes, simplified.

    Raises UnsupportedError, at the user's line, for an op that has no native code at its dtype.
    """
    return simplify_nest(plain_nest(op, in_place))


def plain_nest(op: Operation, in_place: tuple[tuple[int, int], ...] = ()) -> Nest:
    """The loop nest of a `fused` op as it stands: a loop for each axis. Errors as `build_nest`."""
    return _NestBuilder(op, in_place).build()


def simplify_nest(nest: Nest) -> Nest:
    """Drop loops of extent 1, put them in order, merge neighbours."""
    return _merge_loops(_order_loops(_drop_unit_loops(nest)))


def _tensor(value: Value) -> TensorType:
    if not isinstance(value.type, TensorType):
        raise InternalError(f"a loop nest holds a value of type {value.type}")
    return value.type


def check_native(op: Operation) -> tuple[str, str, str]:
    """An elementwise op's name in a statement, the dtype of its operands (the last one's) and that
    of its result.

    Raises UnsupportedError, at the user's line, if there is no native code for them.
    """
    dtype, result_dtype = _tensor(op.operands[-1]).dtype.short, _tensor(op.result).dtype.short
    try:
        user = _user_statement(op)
    except WeftError as error:
        raise error.at(op.locations) from error.__cause__
    if user is not None:
        return *user, result_dtype
    if not supported(op.name, dtype, {"dtype": result_dtype}):
        types = ", ".join(str(v.type) for v in op.operands)
        raise UnsupportedError(
            f"op '{op.name}' on ({types}) -> {op.result.type} has no native code",
            hint="convert with wf.astype first, or call it outside @wf.compile",
            location=op.locations,
        )
    return op.name, dtype, result_dtype


def _user_statement(op: Operation) -> tuple[str, str] | None:
    """The name and the dtype of the floats of a function of the user's that does the op; None if
    none does. Its code is made here: kernels are emitted in other threads."""
    if op.name != "scalar_function":
        return replaced_statement(op)
    name, dtype = statement_name(op)
    scalar_text(*split_name(name))
    return name, dtype


class _NestBuilder:
    def __init__(self, op: Operation, in_place: tuple[tuple[int, int], ...]) -> None:
        self.op = op
        (self.region,) = op.regions
        self.in_place = in_place
        self.loads: dict[Access, int] = {}
        self.statements: list[Statement] = []
        self.number: dict[Value, int] = {}
        self.argument = {value: i for i, value in enumerate(self.region.args)}

    def build(self) -> Nest:
        reductions = [o for o in self.region.ops if "reduction" in lookup(o.name).traits]
        axes: tuple[int, ...] = ()
        if reductions:
            space = _tensor(reductions[0].operands[0]).static_shape
            axes = reductions[0].attrs["axes"]  # type: ignore[assignment]
        else:
            space = _tensor(self.region.results[0]).static_shape
        for op in self.region.ops:
            if "elementwise" in lookup(op.name).traits:
                self._statement(op)
        stores = tuple(self._store(i, v, space) for i, v in enumerate(self.region.results))
        reduced = tuple(k in axes for k in range(len(space)))
        kind = self.op.attrs["kind"]
        return Nest(
            str(kind),
            space,
            reduced,
            tuple(self.loads),
            tuple(self.statements),
            stores,
            self.in_place,
        )

    def _statement(self, op: Operation) -> None:
        args = tuple(self._reference(v) for v in op.operands)
        name, dtype, result_dtype = check_native(op)
        self.number[op.result] = len(self.statements)
        self.statements.append(Statement(name, dtype, args, result_dtype))

    def _reference(self, value: Value) -> tuple[str, int]:
        if value in self.number:
            return ("value", self.number[value])
        access = self._access(value)
        return ("load", self.loads.setdefault(access, len(self.loads)))

    def _store(self, output: int, value: Value, space: tuple[int, ...]) -> Store:
        op, dtype = value.op, _tensor(value).dtype.short
        if op is not None and "reduction" in lookup(op.name).traits:
            axes = op.attrs["axes"]
            assert isinstance(axes, tuple)
            kept = tuple(1 if k in axes else d for k, d in enumerate(space))
            source = self._reference(op.operands[0])
            return Store(output, dtype, source, op.name, contiguous_strides(kept))
        return Store(output, dtype, self._reference(value), None, contiguous_strides(space))

    def _access(self, value: Value) -> Access:
        """Where an element of `value` is found, as strides over the value's own dimensions."""
        read, dtype = nest_read(value), _tensor(value).dtype.short
        op = read.source.op
        if op is None:
            leaf, picks = self.argument[read.source], tuple(self._pick(p) for p in read.picks)
            return Access(leaf, dtype, read.offset, read.strides, picks)
        if op.name == "constant":
            held = op.attrs["value"]
            assert isinstance(held, ConstArray)
            return Access(held, dtype, 0, ())
        if op.name == "iota":
            return Access("index", dtype, read.offset, read.strides)
        raise InternalError(f"a loop nest reads what '{op.name}' made through an index map")

    def _pick(self, pick: Pick) -> tuple[int, int, int]:
        place = pick.index
        dtype = _tensor(place.source).dtype.short
        load = Access(self.argument[place.source], dtype, place.offset, place.strides)
        return self.loads.setdefault(load, len(self.loads)), pick.stride, pick.size


def _select(nest: Nest, loops: list[int]) -> Nest:
    """The nest with only these loops, in this order."""

    def pick(strides: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(strides[k] for k in loops) if strides else (0,) * len(loops)

    return replace(
        nest,
        extents=tuple(nest.extents[k] for k in loops),
        reduced=tuple(nest.reduced[k] for k in loops),
        loads=tuple(replace(a, strides=pick(a.strides)) for a in nest.loads),
        stores=tuple(replace(s, strides=pick(s.strides)) for s in nest.stores),
    )


def _drop_unit_loops(nest: Nest) -> Nest:
    return _select(nest, [k for k, n in enumerate(nest.extents) if n != 1])


def _order_loops(nest: Nest) -> Nest:
    """Reduced loops innermost where the accumulator must stay in a register: 16-bit floats, unless
    the outermost loop is reduced, which makes partial results in f32. Without reductions the loop
    in which an operand is contiguous is the last but one, if it is not the last: it can be tiled.
    """
    loops = list(range(len(nest.extents)))
    halves = any(s.reduction and s.dtype in ("f16", "bf16") for s in nest.stores)
    if halves and nest.reduced[:1] == (False,):
        loops.sort(key=lambda k: nest.reduced[k])
    moving = [a.strides for a in nest.loads if a.leaf != "index" and not a.picks]
    crossed = [w.index(1) for w in moving if 1 in w and w[-1] > 1]
    if crossed and not any(nest.reduced):
        loops.insert(-1, loops.pop(crossed[0]))
    return _select(nest, loops)


def _merge_loops(nest: Nest) -> Nest:
    """Merge neighbouring loops of one kind that every access walks as if they were one."""
    k = len(nest.extents) - 2
    while k >= 0:
        inner = nest.extents[k + 1]
        walks = [a.strides for a in nest.loads] + [s.strides for s in nest.stores]
        if nest.reduced[k] == nest.reduced[k + 1] and all(w[k] == w[k + 1] * inner for w in walks):
            merged = _select(nest, [j for j in range(len(nest.extents)) if j != k])
            extents = list(merged.extents)
            extents[k] = nest.extents[k] * inner
            nest = replace(merged, extents=tuple(extents))
        k -= 1
    return nest
