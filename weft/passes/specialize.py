"""Give symbolic dimensions their sizes: a graph for any batch size becomes one for this batch.

Before, with ``sizes={"b": 32}``::

    graph @step(%x: f32[b,784]) -> (f32[b]) {
      %0 = reshape(%x) {shape=[b,28,28]} : f32[b,28,28]

After: ``%x: f32[32,784]`` and ``%0 = reshape(%x) {shape=[32,28,28]} : f32[32,28,28]``. Every type
is inferred anew, so a size that does not fit is an error at the user's line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.ir.attributes import AttrValue
from weft.ir.builder import Builder, make_op
from weft.ir.dims import Dim, SymbolicDim, format_shape, substitute_dim
from weft.ir.errors import ShapeError
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.rules import int_attr
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
    if not _is_symbolic(graph.block) and types == [a.type for a in graph.args]:
        return graph
    block = _specialize_block(graph.block, types, sizes)
    return Graph(graph.name, block, graph.arg_names, graph.stage)


def _filled(t: Type, shape: Sequence[int]) -> Type:
    if not isinstance(t, TensorType) or None not in t.shape:
        return t
    pairs = zip(t.shape, shape, strict=True)
    return TensorType(t.dtype, tuple(n if d is None else d for d, n in pairs))


def _is_symbolic(block: Block) -> bool:
    for op in block.ops:
        dims = [d for v in op.attrs.values() if isinstance(v, tuple) for d in v]
        dims += [v for v in op.attrs.values() if isinstance(v, SymbolicDim)]
        dims += [d for r in op.results if isinstance(r.type, TensorType) for d in r.type.shape]
        if any(d is None or isinstance(d, SymbolicDim) for d in dims):
            return True
        if any(_is_symbolic(region) for region in op.regions):
            return True
    return any(not t.is_static for a in block.args if isinstance(t := a.type, TensorType))


def _specialize_block(block: Block, types: Sequence[Type], sizes: Mapping[str, int]) -> Block:
    builder = Builder(types)
    mapping: dict[Value, Value] = dict(zip(block.args, builder.args, strict=True))
    for op in block.ops:
        given = [mapping[v].type for v in op.operands]
        regions = [
            _specialize_block(r, _region_types(op, r, given, sizes), sizes) for r in op.regions
        ]
        new = make_op(
            op.name,
            [mapping[v] for v in op.operands],
            {k: _substituted(v, sizes) for k, v in op.attrs.items()},
            regions=regions,
            control=[mapping[v] for v in op.control],
            locations=op.locations,
        )
        builder.ops.append(new)
        mapping.update(zip(op.results, new.results, strict=True))
    return builder.block([mapping[v] for v in block.results])


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


def _substituted(value: AttrValue, sizes: Mapping[str, int]) -> AttrValue:
    if isinstance(value, SymbolicDim):
        return substitute_dim(value, sizes)
    if isinstance(value, tuple):
        return tuple(substitute_dim(v, sizes) if isinstance(v, SymbolicDim) else v for v in value)
    return value


def infer_sizes(graph: Graph, input_shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    """The sizes of the symbols in the inputs' types, given the inputs' shapes.

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
    sizes: dict[str, int] = {}
    while any(_solve(dim, size, sizes) for dim, size in pairs):
        pass
    for name, t, shape in wanted:
        for dim, size in zip(t.shape, shape, strict=True):
            found = substitute_dim(dim, sizes)
            if isinstance(found, SymbolicDim):
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


def _solve(dim: Dim, size: int, sizes: dict[str, int]) -> bool:
    """Note the size of the one unknown symbol of a linear dimension; whether one was found."""
    rest = substitute_dim(dim, sizes)
    if not isinstance(rest, SymbolicDim) or len(rest.symbols) != 1:
        return False
    (name,) = rest.symbols
    terms = dict(rest.terms)
    coefficient, constant = terms.pop((name,), 0), terms.pop((), 0)
    if terms or not coefficient or (size - constant) % coefficient:
        return False
    value = (size - constant) // coefficient
    if value < 0:
        return False
    sizes[name] = value
    return True
