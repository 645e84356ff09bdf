"""Size dependencies: order an op after a value that tells it the size that it needs.

Before, where only %0 says what n is::

    %0 = nonzero(%x) {sizes=["n"]} : i64[n,1]
    %1 = broadcast_to(%one) {shape=[n]} : f32[n]

After: ``%1 = broadcast_to(%one) {shape=[n]} after(%0)``. A branch or loop that needs a size inside
is given the value as a further operand. So wherever the parts of a graph run, in a region of a plan
or an iteration of a loop, each finds all its sizes in the shapes of what it is given."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Sequence

from weft.ir.analysis.effects import is_string
from weft.ir.dims import Dim, SymbolicDim
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.ops.builder import Builder
from weft.ir.types import TensorType, Type
from weft.passes.sizes.specialize import is_symbolic

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
    return {name for op in graph.walk() for name in _made(op)}


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
    return {name for op in ops for o in (op, *_inside(op)) for name in _made(o)}


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


def _inside(op: Operation) -> Iterator[Operation]:
    for region in op.regions:
        for inner in region.ops:
            yield inner
            yield from _inside(inner)


def _made(op: Operation) -> tuple[str, ...]:
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
    """The symbols in the attributes of `op` that its operands do not decide."""
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
