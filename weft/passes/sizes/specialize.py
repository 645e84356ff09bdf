"""Give symbolic dimensions their sizes: a graph for any batch size becomes one for this batch.

Before, with ``sizes={"b": 32}``::

    graph @step(%x: f32[b,784]) -> (f32[b]) {
      %0 = reshape(%x) {shape=[b,28,28]} : f32[b,28,28]

After: ``%x: f32[32,784]`` and ``%0 = reshape(%x) {shape=[32,28,28]} : f32[32,28,28]``. Every type
is inferred anew, so a size that does not fit is an error at the user's line. Sizes that depend on
values stay symbols; `specialize_inputs` fills them in for the ops that come after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.ir.dims import Dim, SymbolicDim, format_dim, format_shape, solve_dims, substitute_dim
from weft.ir.errors import ShapeError
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.ops.builder import Builder, make_op
from weft.ir.spec import AttrValue
from weft.ir.type_rules import int_attr
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
