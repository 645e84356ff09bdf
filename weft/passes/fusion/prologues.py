"""Prologue fusion: an operand that a product alone reads is computed while it is multiplied.

Before::

    %2 = fused(%x, %shift) { add, maximum } : f32[512,100]
    %3 = matmul(%2, %w) : f32[512,64]

After: one ``fused`` op whose region holds the nest and the product. The product's kernel computes a
block of the operand at a time, in place of packing it: it is never stored. The rules:

* the nest is plain, has one f32 or f64 result and no reductions, and only the product reads it;
* its result has `PROLOGUE_BYTES` or more: a smaller one stays in the caches, where a pass of its
  own is as fast, or faster: it runs over long loops, and its results are read while others are
  multiplied;
* each of its elements is computed once. Of A: C has no more than `PROLOGUE_COLUMNS` columns, one
  block of them, and no row of A is longer than `PROLOGUE_DEPTH`. Of B: it is not transposed and C
  has no more than `PROLOGUE_ROWS` rows. Where there are more blocks, packing would compute the
  operand again for each: storing it costs less;
* what it reads moves through the rows of a stack of matrices as through one matrix, and there are
  as many matrices as in the result;
* no variable that it reads is written anywhere in the graph."""

from __future__ import annotations

import math

from weft.ir.analysis.index_maps import is_gather, is_index_map, over_rows, read_of, static_shape
from weft.ir.cost.thresholds import PROLOGUE_BYTES, PROLOGUE_COLUMNS, PROLOGUE_DEPTH, PROLOGUE_ROWS
from weft.ir.dtypes import float32, float64
from weft.ir.graph import Graph, Operation, Value
from weft.ir.locations import merge_locations
from weft.ir.ops import lookup
from weft.ir.ops.builder import Builder
from weft.ir.sizes import hint
from weft.ir.types import TensorType
from weft.passes.fusion.epilogues import is_deep, matmul_of, variable_of
from weft.passes.rewriting.rewrite import in_regions, readers_of


def fuse_prologues(graph: Graph) -> Graph:
    """Move nests into the matmul that is their only reader, where the module's rules allow."""
    return _Prologues(in_regions(graph, fuse_prologues)).run()


def prologue_reasons(graph: Graph) -> list[tuple[Operation, str]]:
    """For people: of each plain nest that a matmul reads, before this pass, what became of it."""
    joining = _Prologues(graph)
    nests = [op for op in graph.ops if op.name == "fused" and joining.product_after(op)]
    return [(op, joining.why(op) or "computed by the product that reads it") for op in nests]


class _Prologues:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.readers = readers_of(graph)
        assigns = [op for op in graph.ops if op.name == "assign"]
        self.written = {variable_of(op.operands[0]) for op in assigns}

    def run(self) -> Graph:
        nests = {
            op: product
            for op in self.graph.ops
            if (product := self.product_after(op)) is not None and not self.why(op)
        }
        if not nests:
            return self.graph
        builder = Builder([a.type for a in self.graph.args])
        mapping: dict[Value, Value] = dict(zip(self.graph.args, builder.args, strict=True))
        for op in self.graph.ops:
            joined = [nest for nest, product in nests.items() if product is op]
            if joined:
                self._emit(builder, op, joined, mapping)
            elif op not in nests:
                mapping.update(zip(op.results, builder.clone(op, mapping), strict=True))
        results = [mapping[v] for v in self.graph.results]
        graph = self.graph
        return builder.graph(graph.name, graph.arg_names, results, graph.stage)

    # -- which ------------------------------------------------------------------------------------

    def product_after(self, nest: Operation) -> Operation | None:
        """The product that is the only reader of a nest of one result."""
        if nest.name != "fused" or len(nest.results) != 1 or matmul_of(nest) is not None:
            return None
        readers = self.readers.get(nest.result, [])
        if len(readers) != 1 or readers[0] is None or matmul_of(readers[0]) is None:
            return None
        return readers[0] if nest.result not in readers[0].control else None

    def why(self, nest: Operation) -> str:
        """The first rule that keeps a nest, which a product alone reads, by itself; "" if none."""
        reader = self.product_after(nest)
        assert reader is not None
        product = matmul_of(reader)
        assert product is not None
        side = _side(reader, product, nest.result)
        if side is None:
            return "stored: the product reads it through an index map, or twice"
        if not _is_plain(nest) or nest.control:
            return "stored: it is no plain nest over the rows of an f32 or f64 matrix"
        if any(variable_of(v) in self.written - {None} for v in nest.operands):
            return "stored: a variable that it reads is written in this step"
        if is_deep(product) or is_index_map(
            reader.regions[0].results[0].op if reader.regions else None
        ):
            return "stored: the product is summed in pieces of k, or writes through an index map"
        held = nest.result.type
        assert isinstance(held, TensorType)
        nbytes = math.prod(held.static_shape) * held.dtype.itemsize
        if nbytes < PROLOGUE_BYTES:
            return f"stored: of {hint(nbytes)} bytes it stays in the caches"
        return _repeats(product, side)

    # -- emission ---------------------------------------------------------------------------------

    @staticmethod
    def _emit(
        builder: Builder, op: Operation, nests: list[Operation], mapping: dict[Value, Value]
    ) -> None:
        made = {nest.result: nest for nest in nests}
        given: dict[Value, None] = {}
        for value in op.operands:
            given.update(dict.fromkeys(made[value].operands if value in made else [value]))
        inner = Builder()
        arg = {value: inner.add_arg(value.type) for value in given}
        seen = dict(arg)
        for value, nest in made.items():
            seen[value] = _repeat(inner, nest, [arg[v] for v in nest.operands])
        if op.name == "fused":
            results = _repeat_all(inner, op, [seen[v] for v in op.operands])
        else:
            results = list(inner.clone(op, seen))
        kind = str(op.attrs["kind"]) if op.name == "fused" else op.name
        before = "_".join(str(nest.attrs["kind"]) for nest in nests)
        out = builder.emit(
            "fused",
            [mapping[v] for v in given],
            {"kind": f"{before}_{kind}"},
            regions=[inner.block(results)],
            control=[mapping[v] for v in op.control],
            locations=merge_locations(*(o.locations for o in (*nests, op))),
        )
        mapping.update(zip(op.results, out, strict=True))


def _side(reader: Operation, product: Operation, value: Value) -> int | None:
    """Which operand of the product a value is, if nothing else there reads it: 0 or 1."""
    if reader is product:
        uses = [k for k, v in enumerate(product.operands) if v is value]
        return uses[0] if len(uses) == 1 else None
    (region,) = reader.regions
    inside = [region.args[k] for k, v in enumerate(reader.operands) if v is value]
    users = [op for op in region.ops if set(inside) & set(op.operands)]
    if len(inside) != 1 or users != [product]:
        return None
    uses = [k for k, v in enumerate(product.operands) if v is inside[0]]
    return uses[0] if len(uses) == 1 else None


def _is_plain(nest: Operation) -> bool:
    """Elementwise ops and index maps over the rows of an f32 or f64 matrix."""
    (region,) = nest.regions
    (result,) = region.results
    values = [v for op in region.ops for v in (*op.operands, *op.results)]
    if not all(isinstance(v.type, TensorType) and v.type.is_static for v in values):
        return False
    space = static_shape(result)
    held = result.type
    if not isinstance(held, TensorType) or held.dtype not in (float32, float64):
        return False
    if result.op is None or is_index_map(result.op) or len(space) < 2 or 0 in space:
        return False
    for op in region.ops:
        if is_gather(op) or not (is_index_map(op) or "elementwise" in lookup(op.name).traits):
            return False
        for value in () if is_index_map(op) else op.operands:
            if over_rows(read_of(value).strides, space) is None:
                return False
    return True


def _repeats(product: Operation, side: int) -> str:
    """Why the operand would be computed more than once, or not by its own rows; "" if not so."""
    *batch, m, n = static_shape(product.result)
    shapes = [static_shape(v)[:-2] for v in product.operands]
    merged = math.prod(shapes[1]) == 1 and not product.attrs["transpose_a"]
    merged = merged and math.prod(shapes[0]) == math.prod(batch)
    merged = merged and _is_one_matrix(product.operands[0])
    rows = m * math.prod(batch) if merged else m
    if list(shapes[side]) != batch and not (merged and side == 1):
        return "stored: several of the product's matrices read it"
    depth = static_shape(product.operands[0])[-2 if product.attrs["transpose_a"] else -1]
    if side == 0 and depth > PROLOGUE_DEPTH:
        return f"stored: its rows of {hint(depth)} elements would not stay in the cache"
    if side == 0:
        repeats = f"stored: {hint(n)} columns would compute it more than once"
        return "" if n <= PROLOGUE_COLUMNS else repeats
    if product.attrs["transpose_b"]:
        return "stored: the product packs it transposed"
    return (
        ""
        if rows <= PROLOGUE_ROWS
        else f"stored: {hint(rows)} rows would compute it more than once"
    )


def _is_one_matrix(a: Value) -> bool:
    """Whether the rows of all matrices of A, as the product reads it, are those of one matrix."""
    return over_rows(read_of(a).strides, static_shape(a)) is not None


def _repeat(inner: Builder, nest: Operation, operands: list[Value]) -> Value:
    return _repeat_all(inner, nest, operands)[0]


def _repeat_all(inner: Builder, op: Operation, operands: list[Value]) -> list[Value]:
    """The ops of a fused op's region, on these operands."""
    (region,) = op.regions
    local = dict(zip(region.args, operands, strict=True))
    for member in region.ops:
        local.update(zip(member.results, inner.clone(member, local), strict=True))
    return [local[v] for v in region.results]
