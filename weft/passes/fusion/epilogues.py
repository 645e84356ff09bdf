"""For GPUs: the kernel of a product or a convolution does the nest that reads its result first.

Before::

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
* no variable that the product reads is written between the two.

Unlike `fuse_matmul`, which does this for the CPU: any dtype, sums over k that are cut into parts,
matrices whose other operands move in any way from row to row, and any convolution.
"""

from __future__ import annotations

import math

from weft.ir.builder import Builder
from weft.ir.graph import Graph, Operation, Value
from weft.ir.index_maps import frame_of, is_index_map, read_of, shape_of, static_shape
from weft.ir.ops import lookup
from weft.ir.source import merge_locations
from weft.ir.types import TensorType
from weft.passes.control.regions import in_regions
from weft.passes.fusion.matmul import is_written_between, sums_rows

#: A product of up to so many blocks of so many rows and columns has its k cut into parts, unless k
#: is short: whole it would take up to 16 times as long, one of more blocks little longer (a test
#: compares). One of few rows or columns has other blocks (`weft.codegen.cuda.products`).
FEW_BLOCKS, BLOCK, SHORT_DEPTH, FEW_LINES = 384, 32, 256, 16
#: Kinds of dtypes that no GPU kernel computes with.
_UNFIT = ("complex", "string")


def fuse_epilogues(graph: Graph) -> Graph:
    """Move each product into the nest that reads it first, where the module's rules allow."""
    return _Joining(in_regions(graph, fuse_epilogues)).run()


def epilogue_reasons(graph: Graph) -> list[tuple[Operation, str]]:
    """For people: of each product of a graph, before this pass, the nest that it does or why it
    does none."""
    joining = _Joining(graph)
    return [(op, joining.why(op) or _joined(joining, op)) for op in graph.walk() if _is_product(op)]


def _joined(joining: _Joining, product: Operation) -> str:
    nest = joining.first_reader(product)
    assert nest is not None
    return f"joined with {nest.attrs['kind']}, which is applied to its sums"


class _Joining:
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
    if frame_of(region) is not None:
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
