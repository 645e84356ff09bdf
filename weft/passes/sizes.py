"""Symbolic sizes: give them numbers, so that a graph for any batch size becomes one for this batch,
and order ops after the values that tell them.

Before `specialize`, with ``sizes={"b": 32}``::

    graph @step(%x: f32[b,784]) -> (f32[b]) {
      %0 = reshape(%x) {shape=[b,28,28]} : f32[b,28,28]

After: ``%x: f32[32,784]`` and ``%0 = reshape(%x) {shape=[32,28,28]} : f32[32,28,28]``. Every type
is inferred anew, so a size that does not fit is an error at the user's line. Sizes that depend on
values stay symbols; `specialize_inputs` fills them in for the ops that come after.

Before `tie_sizes`, where only %0 says what n is::

    %0 = nonzero(%x) {sizes=["n"]} : i64[n,1]
    %1 = broadcast_to(%one) {shape=[n]} : f32[n]

After: ``%1 = broadcast_to(%one) {shape=[n]} after(%0)``. A branch or loop that needs a size inside
is given the value as a further operand. So wherever the parts of a graph run, in a region of a plan
or an iteration of a loop, each finds all its sizes in the shapes of what it is given."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence

from weft.ir.analysis.effects import is_string
from weft.ir.dims import Dim, SymbolicDim, format_dim, format_shape, solve_dims, substitute_dim
from weft.ir.errors import ShapeError
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.ops.builder import Builder, make_op
from weft.ir.spec import AttrValue, int_attr
from weft.ir.types import TensorType, Type, substitute_type


def specialize(
    graph: Graph,
    sizes: Mapping[str, int],
    input_shapes: Sequence[Sequence[int]] | None = None,
) -> Graph:
    """`graph` with the symbols in `sizes` replaced in types and attributes, and all types inferred.

    input_shapes: the shapes of the inputs; they also fill in dimensions that are unknown (`?`).
    Symbols that are not in `sizes` stay. Raises ShapeError, naming the op and the user's line,
    where a size does not fit. The same object if nothing is symbolic.
    """
    types: list[Type] = [substitute_type(a.type, sizes) for a in graph.args]
    if input_shapes is not None:
        types = [_filled(t, shape) for t, shape in zip(types, input_shapes, strict=True)]
    if not is_symbolic(graph.block) and types == [a.type for a in graph.args]:
        return graph
    known = _Sizes(sizes)
    for arg, t in zip(graph.args, types, strict=True):
        if isinstance(arg.type, TensorType) and isinstance(t, TensorType):
            known.learn(arg.type.shape, t.shape)
    block = _specialize_block(graph.block, types, known)
    return Graph(graph.name, block, graph.arg_names, graph.stage)


def specialize_inputs(graph: Graph, shapes: Sequence[Sequence[int]]) -> Graph:
    """`graph` for inputs of these shapes, whose symbols may be sizes that depended on values.

    A dimension need not be decided by its symbols: that it is that of an input is enough. Raises
    ShapeError where two sizes differ that were taken to be equal.
    """
    sizes = _Sizes()
    for name, arg, shape in zip(graph.arg_names, graph.args, shapes, strict=True):
        if isinstance(arg.type, TensorType):
            wrong = sizes.learn(arg.type.shape, shape)
            if wrong is not None:
                raise ShapeError(f"input '{name}' is {arg.type}: {wrong}", hint=_EQUAL)
    types = [_filled(a.type, shape) for a, shape in zip(graph.args, shapes, strict=True)]
    return Graph(
        graph.name, _specialize_block(graph.block, types, sizes), graph.arg_names, graph.stage
    )


_EQUAL = (
    "sizes that depend on values are not broadcast against each other; those that meet must be "
    "equal"
)


class _Sizes:
    """The known sizes of symbols, and of dimensions as a whole."""

    def __init__(self, known: Mapping[str, int] | None = None) -> None:
        self.known = dict(known or {})
        self._whole: dict[SymbolicDim, int] = {}

    def of(self, dim: Dim) -> Dim:
        """The dimension, as far as it is known."""
        if not isinstance(dim, SymbolicDim):
            return dim
        found = substitute_dim(dim, self.known)
        return self._whole.get(dim, found) if isinstance(found, SymbolicDim) else found

    def learn(self, shape: Sequence[Dim], sizes: Sequence[Dim]) -> str | None:
        """Note that `shape` has these sizes. What is wrong, if one of them is known to differ."""
        for dim, size in zip(shape, sizes, strict=True):
            if not isinstance(dim, SymbolicDim) or not isinstance(size, int):
                continue
            known = self.of(dim)
            if isinstance(known, int) and known != size:
                return f"the size {dim} is {known} and {size}"
            if not isinstance(known, int):
                self._whole[dim] = size
                self.known = solve_dims(self._whole.items(), self.known)
        return None


def _filled(t: Type, shape: Sequence[int]) -> Type:
    if not isinstance(t, TensorType) or t.is_static:
        return t
    pairs = zip(t.shape, shape, strict=True)
    return TensorType(t.dtype, tuple(d if isinstance(d, int) else n for d, n in pairs))


def has_open_inputs(graph: Graph) -> bool:
    """Whether the size of an input is a symbol or unknown."""
    types = [a.type for a in graph.args]
    return any(isinstance(t, TensorType) and not t.is_static for t in types)


def is_symbolic(block: Block) -> bool:
    """Whether a size in the block is a symbol or unknown."""
    for op in block.ops:
        dims = [d for v in op.attrs.values() if isinstance(v, tuple) for d in v]
        dims += [v for v in op.attrs.values() if isinstance(v, SymbolicDim)]
        dims += [d for r in op.results if isinstance(r.type, TensorType) for d in r.type.shape]
        if any(d is None or isinstance(d, SymbolicDim) for d in dims):
            return True
        if any(is_symbolic(region) for region in op.regions):
            return True
    return any(not t.is_static for a in block.args if isinstance(t := a.type, TensorType))


def _specialize_block(block: Block, types: Sequence[Type], sizes: _Sizes) -> Block:
    builder = Builder(types)
    mapping: dict[Value, Value] = dict(zip(block.args, builder.args, strict=True))
    for op in block.ops:
        given = [mapping[v].type for v in op.operands]
        regions = [
            _specialize_block(r, _region_types(op, r, given, sizes.known), sizes)
            for r in op.regions
        ]
        new = make_op(
            op.name,
            [mapping[v] for v in op.operands],
            {k: _substituted(v, sizes, k) for k, v in op.attrs.items()},
            regions=regions,
            control=[mapping[v] for v in op.control if not _says_nothing(mapping[v])],
            locations=op.locations,
            device=op.device,
            group=op.group,
        )
        _check_meeting(op, new)
        for old, made in zip(op.results, new.results, strict=True):
            if isinstance(old.type, TensorType) and isinstance(made.type, TensorType):
                wrong = sizes.learn(old.type.shape, made.type.shape)
                if wrong is not None:
                    given_types = ", ".join(map(str, given))
                    raise ShapeError(
                        f"op '{op.name}' on ({given_types}): {wrong}", hint=_EQUAL,
                        location=op.locations,
                    )  # fmt: skip
        builder.ops.append(new)
        mapping.update(zip(op.results, new.results, strict=True))
    return builder.block([mapping[v] for v in block.results])


def _check_meeting(op: Operation, new: Operation) -> None:
    """ShapeError where a size that was a symbol, and so was taken to be equal to the one that it
    meets, is 1 and would be broadcast; `new`: the op with its sizes filled in."""
    if op.name not in ("broadcast_to", "matmul"):
        return
    axes = 2 if op.name == "matmul" else 0  # those that do not broadcast
    target = new.results[0].type
    assert isinstance(target, TensorType)
    for old, given in zip(op.operands, new.operands, strict=True):
        assert isinstance(old.type, TensorType)
        assert isinstance(given.type, TensorType)
        wide = target.shape[target.rank - given.type.rank :]
        rows = zip(old.type.shape, given.type.shape, wide, strict=True)
        for dim, size, wanted in list(rows)[: len(wide) - axes]:
            if dim != 1 and size == 1 and isinstance(wanted, int) and wanted != 1:
                raise ShapeError(
                    f"op '{op.name}' on {given.type}: the size {format_dim(dim)} is 1 where "
                    f"{wanted} is needed: only a size that is 1 in the graph is broadcast",
                    hint=_EQUAL,
                    location=op.locations,
                )


def _says_nothing(waited_for: Value) -> bool:
    """Whether a control operand is an argument that told a size, which is known now."""
    t = waited_for.type
    return waited_for.op is None and isinstance(t, TensorType) and t.is_static


def _region_types(
    op: Operation, region: Block, given: Sequence[Type], sizes: Mapping[str, int]
) -> Sequence[Type]:
    """The types of a region's arguments, from those of the operands that they stand for."""
    if op.name == "fused":
        return given
    if op.name == "custom_gradient":  # the cotangents of the outputs, and the captures
        outputs, inputs = int_attr(op.attrs, "outputs"), int_attr(op.attrs, "inputs")
        return [*given[:outputs], *given[outputs + inputs :]]
    if op.name == "cond":
        return given[1:]
    if op.name == "while":
        return given
    if op.name == "scan":
        count, sequences = int_attr(op.attrs, "carries"), int_attr(op.attrs, "sequences")
        rows = given[count : count + sequences]
        parts = [TensorType(t.dtype, t.shape[1:]) for t in rows if isinstance(t, TensorType)]
        return [*given[:count], *parts, *given[count + sequences :]]
    return [substitute_type(a.type, sizes) for a in region.args]


def _substituted(value: AttrValue, sizes: _Sizes, name: str) -> AttrValue:
    if name == "sizes" and isinstance(value, tuple):  # names of sizes that the op makes
        new = [sizes.of(SymbolicDim.symbol(v)) for v in value]
        return tuple(
            str(d) if isinstance(d, SymbolicDim) else v for d, v in zip(new, value, strict=True)
        )
    if isinstance(value, SymbolicDim):
        return sizes.of(value)
    if isinstance(value, tuple):
        return tuple(sizes.of(v) if isinstance(v, SymbolicDim) else v for v in value)
    return value


def infer_sizes(
    graph: Graph, input_shapes: Sequence[Sequence[int]], *, partial: bool = False
) -> dict[str, int]:
    """The sizes of the symbols in the inputs' types, given the inputs' shapes; with `partial` of
    those that they decide.

    A symbol is found where a dimension is ``coefficient*symbol + constant`` with one symbol not yet
    known. Raises ShapeError naming the input for a rank or size that does not fit, for two inputs
    that disagree, and for a symbol that no input decides.
    """
    if len(input_shapes) != len(graph.args):
        raise ShapeError(
            f"graph '{graph.name}' takes {len(graph.args)} inputs, got {len(input_shapes)}"
        )
    wanted: list[tuple[str, TensorType, tuple[int, ...]]] = []
    for name, arg, shape in zip(graph.arg_names, graph.args, input_shapes, strict=True):
        if isinstance(arg.type, TensorType):
            if len(shape) != arg.type.rank:
                raise _misfit(name, arg.type, shape, "")
            wanted.append((name, arg.type, tuple(shape)))
    pairs = [(d, n) for _, t, shape in wanted for d, n in zip(t.shape, shape, strict=True)]
    sizes = solve_dims(pairs)
    for name, t, shape in wanted:
        for dim, size in zip(t.shape, shape, strict=True):
            found = substitute_dim(dim, sizes)
            if isinstance(found, SymbolicDim):
                if partial:
                    continue
                raise ShapeError(
                    f"the shapes of the inputs do not decide the dimension {found} of input "
                    f"'{name}' ({t})",
                    hint="give an input a dimension that is this symbol alone",
                )
            if found is not None and found != size:
                known = ", ".join(f"{k}={v}" for k, v in sizes.items())
                raise _misfit(name, t, shape, f" with {known}" if known else "")
    return sizes


def _misfit(name: str, t: TensorType, shape: Sequence[int], known: str) -> ShapeError:
    return ShapeError(
        f"input '{name}' has shape {format_shape(tuple(shape))}, which does not fit {t}{known}"
    )


#: Ops whose regions take further arguments as further operands.
_CARRIERS = frozenset({"cond", "while", "scan"})


def tie_sizes(graph: Graph) -> Graph:
    """`graph` with a control operand for each size that an op cannot tell from its operands; the
    graph itself if all sizes are known."""
    if not is_symbolic(graph.block):
        return graph
    return Graph(graph.name, _tied(graph.block, ()), graph.arg_names, graph.stage)


def made_symbols(graph: Graph) -> set[str]:
    """The sizes that ops of the graph make, by the attribute `sizes`."""
    return {name for op in graph.walk() for name in made_by(op)}


def deciding(
    ops: Sequence[Operation], given: Iterable[Value], others: Iterable[Value]
) -> list[Value]:
    """Those of `others` that are needed besides `given` to tell the sizes in the attributes of
    `ops`."""
    known = _decided(v.type for v in given)
    missing = {s for op in ops for d in _attr_dims(op) for s in d.symbols} - known
    found: dict[str, Value] = {}
    if missing:
        _note(found, others)
    return list(dict.fromkeys(found[s] for s in sorted(missing) if s in found))


def telling(kind: TensorType, given: Iterable[Value]) -> list[Value]:
    """Those of `given` that tell the sizes of a type that are symbols, one for each."""
    found: dict[str, Value] = {}
    if not kind.is_static:
        _note(found, given)
    symbols = {s for d in kind.shape if isinstance(d, SymbolicDim) for s in d.symbols}
    return list(dict.fromkeys(found[s] for s in sorted(symbols) if s in found))


def told_by_control(op: Operation) -> list[Value]:
    """The control operands that tell sizes which the op needs and its operands do not decide."""
    undecided = _undecided(op) if op.control else set[str]()
    return [v for v in op.control if undecided and depends_on(v.type, undecided)]


def has_sizes(t: TensorType, known: Collection[str]) -> bool:
    """Whether each size of the type is a number or made of the symbols `known`."""
    return all(
        isinstance(d, int) or (isinstance(d, SymbolicDim) and d.symbols <= set(known))
        for d in t.shape
    )


def made_in(ops: Iterable[Operation]) -> set[str]:
    """The sizes that the ops make, in their regions too."""
    return {name for op in ops for o in (op, *_inside(op)) for name in made_by(o)}


def depends_on(t: Type, symbols: Collection[str]) -> bool:
    """Whether a size of the type is made of one of the symbols."""
    return isinstance(t, TensorType) and any(
        isinstance(d, SymbolicDim) and not d.symbols.isdisjoint(symbols) for d in t.shape
    )


def _tied(block: Block, carried: Sequence[Type]) -> Block:
    """`block` with further arguments of the types `carried`."""
    builder = Builder([*(a.type for a in block.args), *carried])
    mapping: dict[Value, Value] = dict(zip(block.args, builder.args, strict=False))
    known: dict[str, Value] = {}
    _note(known, builder.args)
    for op in block.ops:
        operands = [mapping[v] for v in op.operands]
        control = [mapping[v] for v in op.control]
        regions = op.regions
        if op.name in _CARRIERS:
            inside = {s for r in regions for s in _free(r)}
            given = _tellers(builder, known, inside, op)
            operands += given
            regions = tuple(_tied(r, [v.type for v in given]) for r in regions)
        told = _decided(v.type for v in op.control if not is_string(v.type))
        control += _tellers(builder, known, _undecided(op) - told, op)
        types = [r.type for r in op.results]
        after = tuple(dict.fromkeys(v for v in control if v not in operands))
        new = Operation(op.name, operands, op.attrs, types, regions, after, op.locations)
        new.device, new.group = op.device, op.group
        builder.ops.append(new)
        mapping.update(zip(op.results, new.results, strict=True))
        if (
            op.name in _CARRIERS
        ):  # a size that a loop changes is what it gives, not what it began with
            known.update((s, v) for v in new.results for s in _decided([v.type]))
        _note(known, new.results)
    return builder.block([mapping[v] for v in block.results])


def _tellers(
    builder: Builder, known: dict[str, Value], symbols: Iterable[str], user: Operation
) -> list[Value]:
    """Values that decide the sizes that `user` needs; of one that only strings have, which no
    compiled code takes, their lengths."""
    for symbol in sorted(symbols):
        if symbol in known and is_string(known[symbol].type):
            (lengths,) = builder.emit("string_length", [known[symbol]], locations=user.locations)
            known.update((s, lengths) for s in _decided([lengths.type]))
    return list(dict.fromkeys(known[s] for s in sorted(symbols) if s in known))


def size_givers(
    ops: Sequence[Operation], given: Container[Value]
) -> tuple[dict[str, Value], frozenset[Dim]]:
    """For each size that the ops make and no value in `given` decides, a value that decides it; and
    the dimensions of the values given."""
    made = made_in(ops)
    known: dict[str, Value] = {}
    if made:
        for op in ops:
            _note_results(known, op)
    fed = [r.type for op in ops for r in op.results if made and r in given]
    made -= _decided(fed)
    whole = frozenset(d for t in fed if isinstance(t, TensorType) for d in t.shape)
    return {s: v for s, v in known.items() if s in made}, whole


def needed_sizes(op: Operation, whole: frozenset[Dim] = frozenset()) -> set[str]:
    """The symbols that an op needs and its operands do not decide; whole: dimensions that are known
    besides."""
    needed = _undecided(op, whole)
    if op.name in _CARRIERS:
        needed |= {s for r in op.regions for s in _free(r)}
    return needed


def needed_ops(
    ops: Sequence[Operation], values: Iterable[Value], given: Container[Value] = ()
) -> tuple[list[Operation], set[Value]]:
    """The ops, in order, that compute or order `values`, or make sizes that these need, and every
    value met on the way.

    The search stops at the values that are `given`. A merge of a loop needs its next_iteration.
    """
    turns = {op.operands[1]: op.result for op in ops if op.name == "next_iteration"}
    wanted = set(values)
    while True:
        kept, met = _reached(ops, wanted, given)
        more = {turn for merged, turn in turns.items() if merged in met and merged not in given}
        if more <= met:
            return kept, met
        wanted |= more


def _reached(
    ops: Sequence[Operation], values: Iterable[Value], given: Container[Value]
) -> tuple[list[Operation], set[Value]]:
    met = set(values)
    sizes, whole = size_givers(ops, given)
    kept: list[Operation] = []
    for op in reversed(ops):
        if any(r in met and r not in given for r in op.results):
            kept.append(op)
            met.update(op.operands)
            met.update(op.control)
            if sizes:
                met.update(sizes[s] for s in needed_sizes(op, whole) if s in sizes)
    return kept[::-1], met


def _inside(op: Operation) -> Iterator[Operation]:
    for region in op.regions:
        for inner in region.ops:
            yield inner
            yield from _inside(inner)


def made_by(op: Operation) -> tuple[str, ...]:
    """The sizes that the op makes, not those that its regions make."""
    names = op.attrs.get("sizes")
    return names if isinstance(names, tuple) else ()


def _note_results(known: dict[str, Value], op: Operation) -> None:
    """A size that a loop makes in its iterations is what it gives, not what it began with."""
    if op.name in _CARRIERS:
        made = made_in([op])
        known.update((s, v) for v in op.results for s in _decided([v.type]) if s in made)
    _note(known, op.results)


def _note(known: dict[str, Value], values: Iterable[Value]) -> None:
    """Keep, for each symbol, the first value that decides it; strings after others."""
    for value in sorted(values, key=lambda v: is_string(v.type)):
        for symbol in _decided([value.type]):
            known.setdefault(symbol, value)


def _decided(types: Iterable[Type]) -> set[str]:
    """The symbols that shapes of these types decide: a dimension of one symbol, to the power 1."""
    return {
        next(iter(d.symbols))
        for t in types
        if isinstance(t, TensorType)
        for d in t.shape
        if isinstance(d, SymbolicDim)
        and len(d.symbols) == 1
        and d.is_polynomial
        and all(len(m) < 2 for m, _ in d.terms)
    }


def _undecided(op: Operation, known: frozenset[Dim] = frozenset()) -> set[str]:
    """The symbols in the attributes of `op` that its operands do not decide. What a recv receives
    says its sizes."""
    if op.name == "recv":
        return set()
    given = {d for v in op.operands if isinstance(v.type, TensorType) for d in v.type.shape}
    whole = known | given
    needed = {s for d in _attr_dims(op) if d not in whole for s in d.symbols}
    return needed - _decided(v.type for v in op.operands) if needed else needed


def _attr_dims(op: Operation) -> list[SymbolicDim]:
    dims = [d for v in op.attrs.values() for d in (v if isinstance(v, tuple) else (v,))]
    return [d for d in dims if isinstance(d, SymbolicDim)]


def _free(block: Block) -> set[str]:
    """The symbols that ops of `block` need and nothing in it decides."""
    known = _decided(a.type for a in block.args)
    free: set[str] = set()
    for op in block.ops:
        free |= needed_sizes(op) - known
        known |= _decided(r.type for r in op.results)
    return free
