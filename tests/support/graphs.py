"""Random valid graphs over the whole op table, and inputs for them (hypothesis strategies).

    @given(graphs())
    def test_a_pass(graph): ...

    @given(graph_and_inputs(stage="traced"))
    def test_against_the_interpreter(case):
        interpret(case.graph, case.inputs, DictState(case.state))

Each row of the op table has a maker in `graph_makers` that draws operands and attributes which fit;
a new op without one fails `test_text.test_every_op_has_a_maker`. The meaning of a graph is defined
for its inputs: indices are in range, floats are cast to integers only where they fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from hypothesis import strategies as st

from weft.ir.dims import Dim, Shape, SymbolicDim
from weft.ir.dtypes import ALL, DType, string
from weft.ir.errors import WeftError
from weft.ir.graph import STAGES, Block, Graph, Value
from weft.ir.locations import Location
from weft.ir.ops import OPS
from weft.ir.ops.builder import Builder
from weft.ir.ops.collectives import COLLECTIVES
from weft.ir.spec import AttrValue, ConstArray
from weft.ir.types import TensorType

Array = np.ndarray[Any, Any]
Draw = Callable[[st.SearchStrategy[Any]], Any]

SIZES = (2, 3, 1, 0, 5, 7)
MAX_ELEMENTS = 700
NAMES = ("x", "y", "batch", "params.w", "params['w'][0]", "9", "naïve", 'q"uote', "", "a0", "é\n")
FILES = ("model.py", "/home/me/a b.py", 'odd"name\\.py', "C:\\x.py", "é.py", "<stdin>")


#: A strategy for each range: hypothesis checks and labels each new one, which takes longer than
#: to draw from it.
integers = cache(st.integers)
BOOLEANS = st.booleans()


class Unfit(Exception):
    """A maker found nothing that fits: another op is drawn instead."""


@dataclass
class Case:
    """A graph with inputs for its arguments, values for its variables, and the names of its queues
    (of int64[], without a bound)."""

    graph: Graph
    inputs: list[Array]
    state: dict[str, Array]
    queues: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"{self.graph}on {self.inputs}, {self.state}"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What hypothesis prints of a case that fails."""
        printer.text(repr(self))


@dataclass
class GraphMaker:
    """What a graph under construction has so far; the makers of single ops work on it."""

    draw: Draw
    dtypes: Sequence[DType] = ALL
    sizes: Sequence[Dim] = SIZES
    builder: Builder = field(default_factory=Builder)
    pool: list[Value] = field(default_factory=list)  # tensors
    fresh: set[Value] = field(default_factory=set)  # inputs and constants: no computed NaN payloads
    ranges: dict[Value, tuple[int, int]] = field(default_factory=dict)  # inputs used as indices
    effects: dict[str, Effects] = field(default_factory=dict)
    hidden: set[Value] = field(default_factory=set)  # in frames, or dead: nobody else may use them
    region: bool = False
    located: bool = True

    # -------------------------------------------------------------------- drawing

    def pick(self, items: Sequence[Any]) -> Any:
        """One of `items`; Unfit if there are none."""
        if not items:
            raise Unfit
        return items[self.int(0, len(items) - 1)]

    def int(self, low: int, high: int) -> int:
        return int(self.draw(integers(low, high)))

    def flag(self) -> bool:
        return bool(self.draw(BOOLEANS))

    def shape(
        self, low: int = 0, high: int = 4, *, nonempty: bool = False, static: bool = False
    ) -> Shape:
        """A shape of rank `low` to `high` and at most MAX_ELEMENTS elements."""
        rank = self.int(low, high)
        sizes = [
            n
            for n in self.sizes
            if not (nonempty and n == 0) and not (static and not isinstance(n, int))
        ]
        shape: list[Dim] = []
        for _ in range(rank):
            dim = self.pick(sizes)
            if math.prod(d for d in (*shape, dim) if isinstance(d, int)) > MAX_ELEMENTS:
                dim = 1
            shape.append(dim)
        return tuple(shape)

    def dtype(self, allowed: Sequence[DType]) -> DType:
        """One of the allowed dtypes that the caller of `graphs` wants too."""
        found: DType = self.pick([d for d in allowed if d in self.dtypes])
        return found

    # -------------------------------------------------------------------- values

    def emit(
        self,
        op: str,
        operands: Sequence[Value] = (),
        /,
        *,
        control: Sequence[Value] = (),
        regions: Sequence[Block] = (),
        **attrs: AttrValue,
    ) -> tuple[Value, ...]:
        """Append an op with drawn locations; its tensor results join the pool, in a graph of
        static shapes those of static shape."""
        results = self.builder.emit(
            op,
            operands,
            attrs,
            control=tuple(dict.fromkeys(control)),
            regions=regions,
            locations=self.locations(),
        )
        static = all(isinstance(n, int) for n in self.sizes)
        tensors = [r for r in results if isinstance(r.type, TensorType)]
        self.pool += [r for r in tensors if not static or r.type.is_static]
        return results

    def emit1(self, op: str, /, *operands: Value, **attrs: AttrValue) -> Value:
        (result,) = self.emit(op, operands, **attrs)
        return result

    def locations(self) -> tuple[Location, ...]:
        if not self.located:
            return ()
        count = self.pick((1, 1, 1, 3))
        line = len(self.builder.ops) + 1
        file = self.pick(FILES) if count > 1 else "model.py"
        return tuple(Location(file, line + i, 5 * i) for i in range(count))

    def some(
        self,
        fits: Callable[[TensorType], bool] = lambda t: True,
        dtypes: Sequence[DType] = ALL,
        **shape: Any,
    ) -> Value:
        """A tensor whose type fits: from the pool, or a new one of the drawn dtype and shape."""
        known = [v for v in self.pool if v.type.dtype in dtypes and fits(v.type)]
        if known and self.int(0, 3):
            # the newest first: chains are more interesting than stars
            return known[-1 - min(self.int(0, 7), len(known) - 1)]
        t = TensorType(self.dtype(dtypes), self.shape(**shape))
        if not fits(t):
            raise Unfit
        return self.new(t)

    def like(self, dtype: DType, shape: Shape) -> Value:
        """A tensor of exactly this type: from the pool or new."""
        t = TensorType(dtype, shape)
        known = [v for v in self.pool if v.type == t]
        if known and self.int(0, 3):
            return known[-1 - min(self.int(0, 7), len(known) - 1)]
        return self.new(t)

    def new(self, t: TensorType) -> Value:
        """A new input or constant of this type."""
        if self.region:
            raise Unfit
        if t.is_static and self.int(0, 2) == 0:
            value = self.constant(random_array(t.dtype, t.static_shape, self.seed()))
        else:
            value = self.builder.add_arg(t)
            self.pool.append(value)
        self.fresh.add(value)
        return value

    def constant(self, array: Array) -> Value:
        return self.emit1("constant", value=ConstArray(array))

    def seed(self) -> int:
        return self.int(0, 2**32 - 1)

    def indices(self, dtype: DType, shape: Sequence[Dim], size: Dim) -> Value:
        """A tensor of integers in -size .. size-1 (0 .. size-1 if unsigned)."""
        if not isinstance(size, int):
            raise Unfit
        if size == 0 and 0 not in shape:
            raise Unfit
        low, high = (0 if dtype.kind == "uint" else -size, max(size - 1, 0))
        if self.region:
            raise Unfit
        static = [d for d in shape if isinstance(d, int)]
        if len(static) == len(shape) and self.flag():
            rng = np.random.default_rng(self.seed())
            return self.constant(rng.integers(low, high + 1, static).astype(dtype.numpy))
        value = self.builder.add_arg(TensorType(dtype, tuple(shape)))
        self.pool.append(value)
        self.ranges[value] = (low, high)
        return value


@dataclass
class Effects:
    """One variable: its handle, the values that hold its last write and the reads since."""

    ref: Value
    type: TensorType
    last: list[Value] = field(default_factory=list)
    reads: list[Value] = field(default_factory=list)


# ---------------------------------------------------------------------------- arrays


def random_array(
    dtype: DType, shape: Sequence[int], seed: int, limits: tuple[int, int] | None = None
) -> Array:
    """An array with the values that break things (NaN, -0.0, inf, extremes) among plain ones;
    `limits`: integers from the first to the second."""
    rng = np.random.default_rng(seed)
    if limits is not None:
        return np.asarray(rng.integers(limits[0], limits[1] + 1, shape)).astype(dtype.numpy)
    return np.asarray(_random_array(dtype, shape, rng), dtype.numpy)  # NumPy gives () as a scalar


def _random_array(dtype: DType, shape: Sequence[int], rng: np.random.Generator) -> Any:
    size = math.prod(shape)
    if dtype is string:
        words = [b"", b"weft", b"\x00\xff", b'"\\', "é".encode(), b"a b\n"]
        out = np.empty(size, object)
        out[:] = [words[i] for i in rng.integers(0, len(words), size)]
        return out.reshape(shape)
    if dtype.kind == "bool":
        return np.asarray(rng.integers(0, 2, shape)).astype(np.bool_)
    if dtype.is_integer:
        low, high = (-9, 10) if dtype.kind == "int" else (0, 19)
        plain = np.asarray(rng.integers(low, high, shape)).astype(dtype.numpy)
        info = np.iinfo(dtype.numpy)
        return _mixed(rng, plain, np.array([info.min, info.max, 0, 1], dtype.numpy))
    if dtype.is_complex:
        part = np.dtype(f"f{dtype.itemsize // 2}")
        return np.ascontiguousarray(_floats(rng, (*shape, 2), part)).view(dtype.numpy)[..., 0]
    return _floats(rng, tuple(shape), dtype.numpy)


def _floats(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    scale = rng.choice([1.0, 1.0, 30.0])
    plain = np.asarray(rng.standard_normal(shape) * scale).astype(dtype)
    if rng.integers(0, 3) == 0:
        plain = np.round(plain).astype(dtype)
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, 0.5, 1e-3, -1.0, 100.0])
    return _mixed(rng, plain, special.astype(dtype))


def _mixed(rng: np.random.Generator, plain: Array, special: Array) -> Array:
    if rng.integers(0, 2):
        return plain
    where = rng.random(plain.shape) < 0.2
    return np.where(where, rng.choice(special, plain.shape), plain).astype(plain.dtype)


def random_inputs(
    graph: Graph, seed: int, ranges: Sequence[tuple[int, int] | None] | None = None
) -> list[Array]:
    """Inputs for a graph of static types; `ranges` limits the inputs that are used as indices."""
    limits = ranges or [None] * len(graph.args)
    return [
        random_array(a.type.dtype, a.type.static_shape, seed + 7919 * i, r)
        for i, (a, r) in enumerate(zip(graph.args, limits, strict=True))
    ]


# ---------------------------------------------------------------------------- strategies


def _build(
    draw: Draw,
    *,
    stage: str | None,
    ops: Sequence[str] | None,
    dtypes: Sequence[DType],
    sizes: Sequence[Dim],
    max_ops: int,
    located: bool = True,
) -> tuple[GraphMaker, Graph]:
    from graph_makers import MAKERS  # it imports GraphMaker from here
    from graph_makers_array import legal_ops

    stage = stage or draw(st.sampled_from(STAGES))
    # only who asks for them has objects for them
    host = {n for n, spec in OPS.items() if spec.traits & {"host", "handle"}} | COLLECTIVES
    known = [n for n in legal_ops(stage) if n in MAKERS]
    names = [n for n in known if (n not in host if ops is None else n in ops)]
    maker = GraphMaker(draw, dtypes, sizes, located=located)
    wanted = maker.int(1, max_ops)
    strict = all(isinstance(n, int) for n in sizes)
    tries = 0
    while len(maker.builder.ops) < wanted and tries < 3 * max_ops:
        tries += 1
        name = maker.pick(names)
        try:
            MAKERS[name](maker, name)
        except Unfit:
            continue
        except WeftError:
            if strict:
                raise
    return maker, _finish(maker, stage)


def _finish(maker: GraphMaker, stage: str) -> Graph:
    draw, builder = maker.draw, maker.builder
    inner = [v for op in builder.ops for v in op.results if v not in maker.hidden]
    used = {v for op in builder.ops for v in op.operands}
    results = [v for v in inner if v not in used and isinstance(v.type, TensorType)]
    tokens = [v for v in inner if str(v.type) == "token"]
    results += draw(st.lists(st.sampled_from(tokens), max_size=2)) if tokens else []
    results += draw(st.lists(st.sampled_from(maker.pool), max_size=2)) if maker.pool else []
    plain = [f"x{i}" for i in range(len(builder.args))]
    for i, name in enumerate(draw(st.lists(st.sampled_from(NAMES), max_size=3, unique=True))):
        plain[i : i + 1] = [name] if i < len(plain) else []
    name = draw(st.sampled_from(["step", "f.1", "my graph", 'a"b']))
    return builder.graph(name, plain, results, stage)


@st.composite
def graphs(
    draw: Draw,
    *,
    stage: str | None = None,
    ops: Sequence[str] | None = None,
    dtypes: Sequence[DType] = ALL,
    max_ops: int = 12,
    symbolic: bool = False,
    located: bool = True,
) -> Graph:
    """A graph that verifies. stage, ops, dtypes: what to draw from (None: all); symbolic: with
    symbolic and unknown dims too; located: whether its ops have source locations."""
    sizes: tuple[Dim, ...] = SIZES
    if symbolic:
        b = SymbolicDim.symbol("b")
        sizes = (b, None, b * 2 + 1, SymbolicDim.symbol("n") * b, *SIZES)
    _, graph = _build(
        draw,
        stage=stage,
        ops=ops,
        dtypes=dtypes,
        sizes=sizes,
        max_ops=max_ops,
        located=located,
    )
    return graph


@st.composite
def graph_and_inputs(
    draw: Draw,
    *,
    stage: str | None = None,
    ops: Sequence[str] | None = None,
    dtypes: Sequence[DType] = ALL,
    max_ops: int = 12,
) -> Case:
    """A graph of static shapes with inputs and state on which its meaning is defined."""
    maker, graph = _build(draw, stage=stage, ops=ops, dtypes=dtypes, sizes=SIZES, max_ops=max_ops)
    seed = draw(st.integers(0, 2**32 - 1))
    inputs = random_inputs(graph, seed, [maker.ranges.get(a) for a in graph.args])
    state = {
        name: random_array(e.type.dtype, e.type.static_shape, seed ^ (i + 1))
        for i, (name, e) in enumerate(maker.effects.items())
    }
    return Case(graph, inputs, state)
