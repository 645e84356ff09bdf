"""Strided products: read and write through index maps, not copies (attention's heads).

Before::

    %2 = fused(%1) { permute_dims } : f32[8,4,64,32]
    %3 = matmul(%2, %k) : f32[8,4,64,64]

After: one ``fused`` op whose region holds the map and the product, which reads `%1` by its strides;
in the same way a permutation that is the only reader of a product is what the product writes. The
copy is never made. The rules:

* the product is f32 or f64 (on a GPU: of any numbers that it has), and all readers of a copied
  operand are products;
* of each matrix that is read, rows or columns are contiguous runs of `STRIDED_RUN` elements or
  more: shorter ones would load whole cache lines for a few elements, again for every block;
* of the matrices that are written, rows or columns are contiguous;
* what is read is no variable, which might be written between the copy and the product."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import field

from weft.ir.analysis.index_maps import contiguous_strides, is_index_map, read_of, static_shape
from weft.ir.cost.thresholds import STRIDED_RUN
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import ALL, DType, float32, float64
from weft.ir.graph import Graph, Operation, Value
from weft.ir.locations import merge_locations
from weft.ir.ops.builder import Builder
from weft.ir.types import TensorType
from weft.passes.fusion.epilogues import matmul_of
from weft.passes.rewriting.rewrite import behind_views, in_regions, readers_of

#: Whose products read and write by strides.
_ON_CPU = (float32, float64)
_ON_GPU = tuple(d for d in ALL if d.kind in ("float", "int", "uint"))


def stride_products(graph: Graph) -> Graph:
    """Let matmuls read and write through the permutations that they are copied by, where the
    module's rules allow.
    """
    return _Striding(in_regions(graph, stride_products)).run()


def stride_all_products(graph: Graph) -> Graph:
    """`stride_products` for GPUs, whose products read and write any numbers by strides."""
    return _Striding(in_regions(graph, stride_all_products), _ON_GPU).run()


def copy_reasons(graph: Graph) -> list[tuple[Operation, str]]:
    """For people: of each copy next to a matmul, before this pass, what became of it."""
    return _copy_reasons(_Striding(graph))


def copy_reasons_on_gpu(graph: Graph) -> list[tuple[Operation, str]]:
    """The same before `stride_all_products`."""
    return _copy_reasons(_Striding(graph, _ON_GPU))


def _copy_reasons(striding: _Striding) -> list[tuple[Operation, str]]:
    graph = striding.graph
    striding.plan()
    return [(op, striding.why(op)) for op in graph.ops if _is_copy(op) and striding.is_beside(op)]


@dataclass(slots=True)
class _Plan:
    """What becomes of a product: the copies that it reads through, the one that it writes."""

    reads: set[Value] = field(default_factory=set)
    writes: Operation | None = None


class _Striding:
    def __init__(self, graph: Graph, dtypes: Container[DType] = _ON_CPU) -> None:
        self.graph, self.dtypes = graph, dtypes
        self.readers = readers_of(graph)
        self.plans: dict[Operation, _Plan] = {}
        self.gone: set[Operation] = set()

    def plan(self) -> None:
        """Find what products take over."""
        for op in self.graph.ops:
            if _is_copy(op) and not self._written_by_product(op):
                self._read_by_products(op)

    def is_beside(self, copy: Operation) -> bool:
        """Whether a product makes what is copied, or reads the copy."""
        around = [copy.operands[0].op, *self.readers.get(copy.result, [])]
        return any(op is not None and matmul_of(op) is not None for op in around)

    def why(self, copy: Operation) -> str:
        """What became of a copy that a product makes or reads."""
        if copy in self.gone:
            written = any(p.writes is copy for p in self.plans.values())
            return "written by the product" if written else "read through by the product"
        readers = self.readers.get(copy.result, [])
        if _is_variable(copy.operands[0]):
            return "made: a variable may be written before the product reads it"
        if not all(op is not None and matmul_of(op) is not None for op in readers):
            return "made: it is not for products alone, or not all that a product makes"
        return "made: its matrices have no long runs of neighbours where it is read from"

    def run(self) -> Graph:
        self.plan()
        if not self.plans:
            return self.graph
        builder = Builder([a.type for a in self.graph.args])
        mapping: dict[Value, Value] = dict(zip(self.graph.args, builder.args, strict=True))
        for op in self.graph.ops:
            if op in self.plans:
                self._emit(builder, op, self.plans[op], mapping)
            elif op not in self.gone:
                mapping.update(zip(op.results, builder.clone(op, mapping), strict=True))
        results = [mapping[v] for v in self.graph.results]
        graph = self.graph
        return builder.graph(graph.name, graph.arg_names, results, graph.stage)

    # -- which ------------------------------------------------------------------------------------

    def _written_by_product(self, copy: Operation) -> bool:
        """A copy of a matmul's result that nobody else reads: the matmul writes it."""
        made = copy.operands[0].op
        if (
            made is None
            or made.name != "matmul"
            or not self._is_strided(made.result)
            or made.control
        ):
            return False
        if self.readers[made.result] != [copy] or made in self.gone:
            return False
        if not _permutes(copy) or not _keeps_lines(copy):
            return False
        self.plans.setdefault(made, _Plan()).writes = copy
        self.gone.add(copy)
        return True

    def _read_by_products(self, copy: Operation) -> None:
        (result,), readers = copy.results, self.readers.get(copy.result, [])
        if not self._is_strided(result) or not readers or _is_variable(copy.operands[0]):
            return
        if all(op is not None and self._may_read(op, result, copy) for op in readers):
            for op in readers:
                assert op is not None
                self.plans.setdefault(op, _Plan()).reads.add(result)
            self.gone.add(copy)

    @staticmethod
    def _may_read(reader: Operation, value: Value, copy: Operation) -> bool:
        """Is the reader a product that can read the copy's source, and its only use of it?"""
        if value in reader.control:
            return False
        if reader.name == "matmul":
            return _has_runs(copy)
        if reader.name != "fused":
            return False
        (region,) = reader.regions
        product = next((op for op in region.ops if op.name == "matmul"), None)
        inside = {region.args[k] for k, v in enumerate(reader.operands) if v is value}
        users = [op for op in region.ops if inside & set(op.operands)]
        return product is not None and users == [product] and _has_runs(copy)

    def _is_strided(self, value: Value) -> bool:
        return isinstance(value.type, TensorType) and value.type.dtype in self.dtypes

    # -- emission ---------------------------------------------------------------------------------

    def _emit(
        self, builder: Builder, op: Operation, plan: _Plan, mapping: dict[Value, Value]
    ) -> None:
        maps = {v: v.op for v in op.operands if v in plan.reads and v.op is not None}
        given = dict.fromkeys(maps[v].operands[0] if v in maps else v for v in op.operands)
        inner = Builder()
        arg = {value: inner.add_arg(value.type) for value in given}
        seen = dict(arg)
        for value, copy in maps.items():
            seen[value] = _repeat(inner, copy, arg[copy.operands[0]])
        if op.name == "fused":
            (region,) = op.regions
            local = {a: seen[v] for a, v in zip(region.args, op.operands, strict=True)}
            for member in region.ops:
                local.update(zip(member.results, inner.clone(member, local), strict=True))
            results = [local[v] for v in region.results]
        else:
            results = list(inner.clone(op, seen))
        kind = str(op.attrs["kind"]) if op.name == "fused" else op.name
        replaced, locations = op.results, [op.locations, *(c.locations for c in maps.values())]
        if plan.writes is not None:
            results = [_repeat(inner, plan.writes, results[0])]
            kind, replaced = f"{kind}_{plan.writes.attrs['kind']}", plan.writes.results
            locations.append(plan.writes.locations)
        made = builder.emit(
            "fused",
            [mapping[v] for v in given],
            {"kind": kind},
            regions=[inner.block(results)],
            control=[mapping[v] for v in op.control],
            locations=merge_locations(*locations),
        )
        mapping.update(zip(replaced, made, strict=True))


def _is_copy(op: Operation) -> bool:
    """A nest that is nothing but index maps of one array of known shape."""
    if op.name != "fused" or len(op.operands) != 1 or len(op.results) != 1 or op.control:
        return False
    (region,) = op.regions
    values = [v for o in region.ops for v in (*o.operands, *o.results)]
    if not all(isinstance(v.type, TensorType) and v.type.is_static for v in values):
        return False
    single = all(is_index_map(o) and len(o.operands) == 1 for o in region.ops)
    return single and bool(region.ops) and 0 not in static_shape(op.result)


def _permutes(copy: Operation) -> bool:
    """Whether each element of the source is somewhere in the copy, once."""
    return all(o.name in ("permute_dims", "reshape") for o in copy.regions[0].ops)


def _keeps_lines(copy: Operation) -> bool:
    """Whether rows or columns of the matrices in the source are contiguous in the copy."""
    (region,) = copy.regions
    source, seen = static_shape(region.args[0]), read_of(region.results[0])
    own, made = contiguous_strides(source), contiguous_strides(static_shape(region.results[0]))
    place = dict(zip(seen.strides, made, strict=True))
    return len(source) >= 2 and any(step and place[step] == 1 for step in own[-2:])


def _has_runs(copy: Operation) -> bool:
    """Whether rows or columns of the copy's matrices are runs of neighbours in its source."""
    seen, shape = read_of(copy.regions[0].results[0]), static_shape(copy.result)
    if len(shape) < 2:
        return False
    runs = [size for step, size in zip(seen.strides[-2:], shape[-2:], strict=True) if step == 1]
    return any(size >= STRIDED_RUN for size in runs)


def _repeat(inner: Builder, copy: Operation, source: Value) -> Value:
    """The copy's index maps, applied to `source`."""
    (region,) = copy.regions
    local = {region.args[0]: source}
    for member in region.ops:
        local.update(zip(member.results, inner.clone(member, local), strict=True))
    return local[region.results[0]]


def _is_variable(value: Value) -> bool:
    """Whether a value is read from a variable's own buffer."""
    op = behind_views(value).op
    return op is not None and op.name == "read"
