"""Epilogue fusion: the nest that reads a product or a convolution joins its kernel. And the split
of epilogues: ops that follow from a nest's sums leave it, so that a product can take it over.

`fuse_matmul`, for the CPU. Before::

    %2 = matmul(%x, %w) : f32[32,100]
    %3 = fused(%2, %b) { add, maximum } : f32[32,100]

After: one ``fused`` op whose region begins with the matmul. Its kernel applies the nest to each
block of the product while that is in the cache (bias, activation, residual, the mask of a gradient,
an optimizer's update), and the product itself is never stored. The rules:

* the product is f32 or f64, or a matmul of integers of 32 or 64 bits, and nobody else needs it;
* the nest is plain, and its space is the shape of the product;
* what it reduces are sums over all rows of a matmul (the gradient of a bias): each block of rows
  leaves a partial sum, and these are added up in order afterwards;
* what else it reads moves through the rows of a stack of matrices as through one matrix;
* its sums over k are not cut into pieces, which are complete only after it;
* no variable that the product reads is written between the two.

`fuse_epilogues`, for GPUs. Before::

    %2 = matmul(%x, %w) : f16[32,100]
    %3 = fused(%2, %b) { add, tanh } : f16[32,100]
    %4 = fused(%2, %g) { multiply } : f16[32,100]

After: ``%3, %2 = fused(%x, %w, %b) { matmul, add, tanh }``, one kernel that writes both: the sums
are in registers when they are finished, so the nest's reads of them cost nothing. The rules:

* the nest is the first op that reads the product; who else needs it reads what the kernel writes;
* the nest is elementwise over the shape of the product, of numbers that a GPU has; it may sum over
  all rows (the gradient of a bias) where a matmul has many blocks: its k is not cut then;
* a convolution is `conv` or `conv_input`: what `conv_kernel` gives is small;
* neighbouring columns of all else that it reads are neighbours in memory, or one element;
* no variable that the product reads is written between the two, as for `fuse_matmul`.

Unlike for the latter: any dtype, sums over k that are cut into parts, matrices whose other operands
move in any way from row to row, and any convolution.

`split_tails`. Before::

    %2 = matmul(%dy, %w) : f32[256,512]
    %3, %4 = fused(%2, %mask, %b) { multiply; sum over axis 0; an update of %b with the sum }

After: one ``fused`` op that multiplies and sums, which `fuse_matmul` lets the product do in its
blocks, and one of 512 elements that updates. Without a product before it a nest keeps its tail: it
is no pass over large arrays less. The rules:

* an operand is a product that only this nest needs, and whose shape the nest runs over;
* the results of other shapes are sums, or follow from sums and what is no larger than them;
* without the latter the nest is one that the product can take over."""

from __future__ import annotations

import math
from collections.abc import Mapping, Set

from weft.ir.analysis.index_maps import (
    is_index_map,
    over_rows,
    read_of,
    row_space_of,
    shape_of,
    static_shape,
)
from weft.ir.cost.thresholds import k_pieces
from weft.ir.dtypes import float32, float64, int32, int64, uint32, uint64
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.locations import merge_locations
from weft.ir.ops import lookup
from weft.ir.ops.builder import Builder
from weft.ir.ops.windows import is_dense
from weft.ir.types import TensorType
from weft.passes.fusion.rules import nest_name
from weft.passes.rewriting.rewrite import behind_views, in_regions

#: Products whose sums are of their own dtype: what follows reads them unrounded.
_FLOATS, _INTEGERS = (float32, float64), (int32, int64, uint32, uint64)


def fuse_matmul(graph: Graph) -> Graph:
    """Move each matmul into the nest that is its only reader, where the module's rules allow."""
    return _Joining(in_regions(graph, fuse_matmul)).run()


def product_reasons(graph: Graph) -> list[tuple[Operation, str]]:
    """For people: of each product of a graph that `fuse` has made, what it is joined with or why it
    is not.
    """
    joining = _Joining(graph)
    return [(op, joining.why(op)) for op in graph.walk() if is_product(op)]


class _Joining:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.position = {op: k for k, op in enumerate(graph.ops)}
        self.uses: dict[Value, int] = {}
        for op in graph.ops:
            for value in (*op.operands, *op.control):
                self.uses[value] = self.uses.get(value, 0) + 1
        for value in graph.results:
            self.uses[value] = self.uses.get(value, 0) + 1

    def run(self) -> Graph:
        joined = {op: k for op in self.graph.ops if (k := self._product_of(op)) is not None}
        if not joined:
            return self.graph
        gone = {op.operands[k].op for op, k in joined.items()}
        builder = Builder([a.type for a in self.graph.args])
        mapping: dict[Value, Value] = dict(zip(self.graph.args, builder.args, strict=True))
        for op in self.graph.ops:
            if op in gone:
                continue
            if op in joined:
                self._emit(builder, op, joined[op], mapping)
            else:
                mapping.update(zip(op.results, builder.clone(op, mapping), strict=True))
        results = [mapping[v] for v in self.graph.results]
        graph = self.graph
        return builder.graph(graph.name, graph.arg_names, results, graph.stage)

    # -- which ------------------------------------------------------------------------------------

    def _product_of(self, op: Operation) -> int | None:
        """The first operand of a nest that is a product which the nest can take over."""
        if op.name != "fused" or not _is_plain(op.regions[0]):
            return None
        for k, value in enumerate(op.operands):
            made = value.op
            if made is None or not is_product(made) or made.control:
                continue
            if is_deep(made) or not _follows(made, op):
                continue
            if (
                self.uses[value] == 1
                and _fits(op.regions[0], k)
                and not is_written_between(self.graph, made, op)
            ):
                return k
        return None

    def why(self, product: Operation) -> str:
        """The first rule that keeps a product by itself, or the nest that takes it over."""
        value = product.result
        if is_deep(product):
            return "by itself: its sums over k are cut into pieces, which are added up after it"
        if product not in self.position:
            return "in a loop or branch: see its body"
        readers = [op for op in self.graph.ops if value in op.operands]
        if not readers:
            return "by itself: nothing follows it, its result is returned"
        if self.uses[value] != 1:
            return f"by itself: its result is needed in {self.uses[value]} places"
        (nest,) = readers
        k = nest.operands.index(value)
        if nest.name != "fused":
            return f"by itself: '{nest.name}', which reads it, has a kernel of its own"
        kind = nest.attrs["kind"]
        if not _is_plain(nest.regions[0]):
            return f"by itself: what reads it ({kind}) does rows, or other folds than sums"
        if not _fits(nest.regions[0], k):
            if _has_sums(nest):
                return f"by itself: what reads it ({kind}) sums otherwise than over all its rows"
            return (
                f"by itself: the nest that reads it ({kind}) is no nest of its dtype over its rows"
            )
        if not _follows(product, nest):
            what = "has reductions" if _has_sums(nest) else "is of integers"
            return f"by itself: the nest that reads it ({kind}) {what}"
        if product.control or is_written_between(self.graph, product, nest):
            return f"by itself: a variable that it reads is written before {kind}"
        if self._product_of(nest) != k:
            return f"by itself: {kind} has taken over another product"
        return f"joined with {kind}, which is applied to its blocks in the cache"

    # -- emission ---------------------------------------------------------------------------------

    def _emit(self, builder: Builder, op: Operation, k: int, mapping: dict[Value, Value]) -> None:
        (region,) = op.regions
        product = op.operands[k].op
        assert product is not None
        others = [i for i in range(len(op.operands)) if i != k]
        given = dict.fromkeys([*(op.operands[i] for i in others), *product.operands])
        inner = Builder()
        arg = {value: inner.add_arg(value.type) for value in given}
        local = {region.args[i]: arg[op.operands[i]] for i in others}
        (local[region.args[k]],) = inner.clone(product, arg)
        for member in region.ops:
            local.update(zip(member.results, inner.clone(member, local), strict=True))
        results = builder.emit(
            "fused",
            [mapping[v] for v in given],
            {"kind": f"{product.name}_{op.attrs['kind']}"},
            regions=[inner.block([local[v] for v in region.results])],
            control=[mapping[v] for v in op.control],
            locations=merge_locations(product.locations, op.locations),
        )
        mapping.update(zip(op.results, results, strict=True))


def can_follow(nest: Block, k: int) -> bool:
    """Is a nest one that a product, its argument `k`, can take over, by what it computes?"""
    return _is_plain(nest) and _fits(nest, k)


def is_written_between(graph: Graph, product: Operation, nest: Operation) -> bool:
    """Whether a variable that the product reads is written before the nest, which comes later."""
    held = {variable_of(v) for v in product.operands} - {None}
    if not held:
        return False
    position = {op: k for k, op in enumerate(graph.ops)}
    for op in graph.ops:
        if op.name != "assign" or variable_of(op.operands[0]) not in held:
            continue
        source = behind_views(op.operands[1]).op
        for writer in (op, source):
            if writer in position and position[product] < position[writer] < position[nest]:
                return True
    return False


def is_product(op: Operation) -> bool:
    """A matmul, or a convolution that is carried out like one."""
    if op.name == "matmul":
        return True
    static = all(isinstance(v.type, TensorType) and v.type.is_static for v in op.operands)
    return op.name in ("conv", "conv_input") and static and is_dense(op)


def matmul_of(op: Operation) -> Operation | None:
    """The matmul that an op is or holds."""
    if op.name == "matmul":
        return op
    inside = op.regions[0].ops if op.name == "fused" else ()
    return next((o for o in inside if o.name == "matmul"), None)


def _follows(product: Operation, nest: Operation) -> bool:
    """Whether the code of a product takes over what a nest is made of: a convolution's no sums, and
    no integers, which it does not do in blocks."""
    if product.name == "matmul":
        return True
    held = product.result.type
    return isinstance(held, TensorType) and held.dtype in _FLOATS and not _has_sums(nest)


def _has_sums(nest: Operation) -> bool:
    return any(op.name == "sum" for op in nest.regions[0].ops)


def is_deep(product: Operation) -> bool:
    """Whether its sums over k are cut into pieces (`weft.ir.cost`)."""
    a = product.operands[0].type
    if product.name != "matmul" or not isinstance(a, TensorType) or not a.is_static:
        return False
    out = product.result.type
    if not isinstance(out, TensorType) or not out.is_static:
        return False
    *batch, m, n = out.static_shape
    k = a.static_shape[-2 if product.attrs["transpose_a"] else -1]
    return k_pieces(m, n, k, math.prod(batch)) > 1


def variable_of(value: Value) -> str | None:
    """The variable that a value is, or was read from."""
    op = behind_views(value).op
    if op is not None and op.name == "read":
        op = op.operands[0].op
    return str(op.attrs["name"]) if op is not None and op.name == "variable" else None


def _is_plain(region: Block) -> bool:
    """A nest of elementwise ops, reads through index maps and sums, of static shapes."""
    values = [v for op in region.ops for v in (*op.operands, *op.results)]
    if not all(isinstance(v.type, TensorType) and v.type.is_static for v in values):
        return False
    plain = all(
        op.name == "sum" or is_index_map(op) or "elementwise" in lookup(op.name).traits
        for op in region.ops
    )
    return plain and bool(region.ops) and row_space_of(region) is None


def _fits(region: Block, k: int) -> bool:
    """Does the nest read argument `k` at its own element, and all else as rows of one matrix, and
    sum over all its rows, if anything?
    """
    arg = region.args[k]
    if not isinstance(arg.type, TensorType) or arg.type.dtype not in _FLOATS + _INTEGERS:
        return False
    space = arg.type.static_shape
    if len(space) < 2 or 0 in space:
        return False
    for result in region.results:
        made = result.op
        if made is None or is_index_map(made):
            return False
        if not _sums_rows(made, space) if made.name == "sum" else shape_of(result) != space:
            return False
    for op in region.ops:
        for value in op.operands:
            if is_index_map(op):
                if value is arg:
                    return False
            elif over_rows(read_of(value).strides, space) is None:
                return False
    return True


def _sums_rows(op: Operation, space: tuple[int, ...]) -> bool:
    """Whether a sum adds up all rows of a nest over `space`, in f32 or f64."""
    held = op.operands[0].type
    floats = isinstance(held, TensorType) and held.dtype in _FLOATS
    return floats and sums_rows(op, space)


def sums_rows(op: Operation, space: tuple[int, ...]) -> bool:
    """Whether a sum adds up all rows of a nest over `space`."""
    (*outer, columns), held = space, op.operands[0].type
    if not isinstance(held, TensorType) or held.shape != space:
        return False
    rows = {axis for axis, size in enumerate(outer) if size != 1}
    axes = op.attrs["axes"]
    assert isinstance(axes, tuple)
    folded = {axis for axis in axes if space[axis] != 1}
    return folded == rows and columns > 1


#: A product of up to so many blocks of so many rows and columns has its k cut into parts, unless k
#: is short: whole it would take up to 16 times as long, one of more blocks little longer (a test
#: compares). One of few rows or columns has other blocks (`weft.codegen.cuda.products`).
FEW_BLOCKS, BLOCK, SHORT_DEPTH, FEW_LINES = 384, 32, 256, 16
#: Kinds of dtypes that no GPU kernel computes with.
_UNFIT = ("complex", "string")


def fuse_epilogues(graph: Graph) -> Graph:
    """Move each product into the nest that reads it first, where the module's rules allow."""
    return _EpilogueJoining(in_regions(graph, fuse_epilogues)).run()


def epilogue_reasons(graph: Graph) -> list[tuple[Operation, str]]:
    """For people: of each product of a graph, before this pass, the nest that it does or why it
    does none."""
    joining = _EpilogueJoining(graph)
    return [(op, joining.why(op) or _joined(joining, op)) for op in graph.walk() if _is_product(op)]


def _joined(joining: _EpilogueJoining, product: Operation) -> str:
    nest = joining.first_reader(product)
    assert nest is not None
    return f"joined with {nest.attrs['kind']}, which is applied to its sums"


class _EpilogueJoining:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.position = {op: k for k, op in enumerate(graph.ops)}
        self.readers: dict[Value, list[Operation]] = {}
        for op in graph.ops:
            for value in dict.fromkeys((*op.operands, *op.control)):
                self.readers.setdefault(value, []).append(op)

    def run(self) -> Graph:
        """The graph with all joins."""
        joined: dict[Operation, Operation] = {}
        for product in self.graph.ops:
            if _is_product(product) and not self.why(product):
                nest = self.first_reader(product)
                assert nest is not None
                joined.setdefault(nest, product)
        if not joined:
            return self.graph
        gone = set(joined.values())
        builder = Builder([a.type for a in self.graph.args])
        mapping: dict[Value, Value] = dict(zip(self.graph.args, builder.args, strict=True))
        for op in self.graph.ops:
            if op in joined:
                self._emit(builder, op, joined[op], mapping)
            elif op not in gone:
                mapping.update(zip(op.results, builder.clone(op, mapping), strict=True))
        results = [mapping[v] for v in self.graph.results]
        graph = self.graph
        return builder.graph(graph.name, graph.arg_names, results, graph.stage)

    def first_reader(self, product: Operation) -> Operation | None:
        """The first op that needs the product's result."""
        return next(iter(self.readers.get(product.result, [])), None)

    def why(self, product: Operation) -> str:
        """The first rule that keeps a product by itself; "" if none."""
        if product not in self.position:
            return "in a loop or branch: see its body"
        nest = self.first_reader(product)
        if nest is None:
            return "by itself: nothing follows it, its result is returned"
        if nest.name != "fused":
            return f"by itself: '{nest.name}', which reads it, has a kernel of its own"
        kind = nest.attrs["kind"]
        if product.result in nest.control or product.control:
            return f"by itself: {kind} is ordered after it by an effect"
        why = _unfit(nest, product)
        if why:
            return f"by itself: what reads it ({kind}) {why}"
        if is_written_between(self.graph, product, nest):
            return f"by itself: a variable that it reads is written before {kind}"
        first = next(v.op for v in nest.operands if v.op is not None and self._takes(v.op, nest))
        return "" if first is product else f"by itself: {kind} has taken over another product"

    def _takes(self, product: Operation, nest: Operation) -> bool:
        """Whether the product fits the nest, whatever else the nest may take over."""
        if not _is_product(product) or product.control or product.result in nest.control:
            return False
        first = self.first_reader(product) is nest
        return (
            first
            and not _unfit(nest, product)
            and not is_written_between(self.graph, product, nest)
        )

    def _emit(
        self, builder: Builder, nest: Operation, product: Operation, mapping: dict[Value, Value]
    ) -> None:
        (region,), made = nest.regions, product.result
        others = [k for k, v in enumerate(nest.operands) if v is not made]
        given = dict.fromkeys([*(nest.operands[k] for k in others), *product.operands])
        inner = Builder()
        arg = {value: inner.add_arg(value.type) for value in given}
        local = {region.args[k]: arg[nest.operands[k]] for k in others}
        (own,) = inner.clone(product, arg)
        local |= {region.args[k]: own for k, v in enumerate(nest.operands) if v is made}
        for member in region.ops:
            local.update(zip(member.results, inner.clone(member, local), strict=True))
        results = [local[v] for v in region.results]
        if len(self.readers[made]) > 1 or made in self.graph.results:
            results.append(own)
        outputs = builder.emit(
            "fused",
            [mapping[v] for v in given],
            {"kind": f"{product.name}_{nest.attrs['kind']}"},
            regions=[inner.block(results)],
            control=[mapping[v] for v in nest.control],
            locations=merge_locations(product.locations, nest.locations),
        )
        mapping.update(zip((*nest.results, made), outputs, strict=False))


def _is_product(op: Operation) -> bool:
    return op.name in ("matmul", "conv", "conv_input")


def _unfit(nest: Operation, product: Operation) -> str:
    """What keeps a nest from following the product that it reads; "" if nothing."""
    (region,) = nest.regions
    arg = region.args[nest.operands.index(product.result)]
    values = [v for op in region.ops for v in (*op.operands, *op.results)]
    if not all(isinstance(v.type, TensorType) and v.type.is_static for v in values):
        return "has sizes that are not known"
    if any(isinstance(v.type, TensorType) and v.type.dtype.kind in _UNFIT for v in values):
        return "computes with what a GPU does not have"
    if row_space_of(region) is not None:
        return "does rows"
    space, many = static_shape(arg), product.name == "matmul" and _has_many_blocks(product)
    if len(space) < 2 or 0 in space:
        return "has no elements"
    for op in region.ops:
        if op.name == "sum" and sums_rows(op, space):
            if product.name != "matmul":
                return "sums over its rows, which are not those of one matrix"
            if not many:
                return "sums over its rows, and k is cut into parts"
            continue
        if not is_index_map(op) and "elementwise" not in lookup(op.name).traits:
            return f"holds '{op.name}', which is more than elementwise"
        if is_index_map(op):
            if arg in op.operands:
                return "reads it through an index map"
        elif any(_is_across(value) for value in op.operands):
            return "reads something else across its columns"
    for result in region.results:
        if result.op is not None and result.op.name == "sum":
            continue
        if result.op is None or is_index_map(result.op) or shape_of(result) != space:
            return "has a result of another shape"
    return ""


def _has_many_blocks(product: Operation) -> bool:
    """Whether blocks of C alone keep a GPU busy."""
    *batch, m, n = static_shape(product.result)
    if min(m, n) <= FEW_LINES:
        return False
    k = static_shape(product.operands[0])[-2 if product.attrs["transpose_a"] else -1]
    blocks = math.prod(batch) * -(-m // BLOCK) * -(-n // BLOCK)
    return blocks > FEW_BLOCKS or k < SHORT_DEPTH


def _is_across(value: Value) -> bool:
    """Whether what is read at neighbouring columns lies apart."""
    read = read_of(value)
    in_memory = read.source.op is None
    return in_memory and bool(read.strides) and read.strides[-1] not in (0, 1)


def split_tails(graph: Graph) -> Graph:
    """Part nests from what follows from their sums, where the module's rules allow."""
    graph = in_regions(graph, split_tails)
    uses: dict[Value, int] = {}
    for value in [v for op in graph.ops for v in (*op.operands, *op.control)] + [*graph.results]:
        uses[value] = uses.get(value, 0) + 1
    parts = {op: found for op in graph.ops if (found := _parts(op, uses)) is not None}
    if not parts:
        return graph
    builder = Builder([a.type for a in graph.args])
    mapping: dict[Value, Value] = dict(zip(graph.args, builder.args, strict=True))
    for op in graph.ops:
        if op not in parts:
            mapping.update(zip(op.results, builder.clone(op, mapping), strict=True))
            continue
        (region,) = op.regions
        known = {a: mapping[v] for a, v in zip(region.args, op.operands, strict=True)}
        for wanted in parts[op]:
            known.update(emit_nest(builder, op, wanted, known))
        mapping.update(zip(op.results, (known[v] for v in region.results), strict=True))
    results = [mapping[v] for v in graph.results]
    return builder.graph(graph.name, graph.arg_names, results, graph.stage)


def _parts(op: Operation, uses: Mapping[Value, int]) -> tuple[list[Value], list[Value]] | None:
    """What the nest before its tail gives, and what the tail; None if they stay together."""
    if op.name != "fused" or op.control:
        return None
    (region,) = op.regions
    for k, value in enumerate(op.operands):
        made = value.op
        if made is None or made.name != "matmul" or uses[value] != 1 or is_deep(made):
            continue
        sums = dict.fromkeys(o.result for o in region.ops if o.name == "sum")  # in order
        tail = [v for v in region.results if v not in sums and not _alike(v, value)]
        follow = _needed(tail, sums.keys())
        limit = max((_elements(v) for v in sums), default=0)
        if not tail or any(_elements(v) > limit for o in follow for v in o.results):
            continue
        read = {v for o in follow for v in o.operands}
        first = [v for v in region.results if v not in tail]
        first += [v for v in sums if v in read and v not in first]
        scratch = Builder([v.type for v in op.operands])
        known = dict(zip(region.args, scratch.args, strict=True))
        if not read & sums.keys() or region.args[k] in read:
            continue
        emit_nest(scratch, op, first, known)
        (nest,) = scratch.ops
        if can_follow(nest.regions[0], nest.operands.index(scratch.args[k])):
            return first, tail
    return None


def emit_nest(
    builder: Builder, op: Operation, wanted: list[Value], known: Mapping[Value, Value]
) -> dict[Value, Value]:
    """A nest of what these values of the region of `op` need besides what is known."""
    members = _needed(wanted, set(known) - set(wanted))
    inner = Builder()
    local: dict[Value, Value] = {}
    given: list[Value] = []
    for member in members:
        for value in member.operands:
            if value not in local:
                local[value] = inner.add_arg(value.type)
                given.append(known[value])
        local.update(zip(member.results, inner.clone(member, local), strict=True))
    results = builder.emit(
        "fused",
        given,
        {"kind": nest_name([o for o in members if o.name not in ("constant", "broadcast_to")])},
        regions=[inner.block([local[v] for v in wanted])],
        locations=op.locations,
    )
    return dict(zip(wanted, results, strict=True))


def _needed(wanted: list[Value], known: Set[Value]) -> list[Operation]:
    """The ops of a region that the values need besides what is known, in order."""
    found: dict[Operation, None] = {}

    def visit(value: Value) -> None:
        op = value.op
        if value in known or op is None or op in found:
            return
        for operand in op.operands:
            visit(operand)
        found[op] = None

    for value in wanted:
        visit(value)
    return list(found)


def _alike(a: Value, b: Value) -> bool:
    return (
        isinstance(a.type, TensorType)
        and isinstance(b.type, TensorType)
        and (a.type.shape == b.type.shape)
    )


def _elements(value: Value) -> int:
    held = value.type
    if not isinstance(held, TensorType) or not held.is_static:
        return 1 << 62
    return held.nbytes // max(held.dtype.itemsize, 1)
