"""Operands of products: narrow integers are taken unwidened, which packing widens, and permuted
arrays through index maps, not as copies (attention's heads).

`narrow_products`. Before::

    %2 = fused(%x) { astype } : i32[512,100]
    %3 = fused(%w) { astype } : i32[100,64]
    %4 = matmul(%2, %3) : i32[512,64]

After: ``%4 = fused(%x, %w) { astype, astype, matmul }``, which reads the i8 of `%x` and `%w`. What
is widened is never stored, and several products of narrow integers are one instruction
(`weft.codegen.tiles.micro_kernel`). The rules:

* the product is i32 or u32, and each operand ends with a conversion from i8, u8 or i16, perhaps
  reshaped or copied since, or is a constant whose elements fit such a type;
* operands of two types are both taken as i16, which holds all three;
* a nest, or a product before, that computes more than the conversion gives the narrow value
  instead, or besides if something else reads the wide one;
* no variable that such a nest reads is written anywhere in the graph.

`stride_products`. Before::

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
from weft.ir.analysis.known_values import constant_of
from weft.ir.cost.thresholds import STRIDED_RUN
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import ALL, DType, float32, float64, int16, uint8
from weft.ir.graph import Graph, Operation, Value
from weft.ir.locations import merge_locations
from weft.ir.ops import lookup
from weft.ir.ops.builder import Builder
from weft.ir.ops.products import NARROW, WIDE, is_widening
from weft.ir.spec import ConstArray
from weft.ir.types import TensorType
from weft.passes.fusion.epilogues import matmul_of, variable_of
from weft.passes.fusion.rules import nest_name
from weft.passes.rewriting.rewrite import behind_views, in_regions, readers_of, tensor


def narrow_products(graph: Graph) -> Graph:
    """Let products of integers read what their operands are converted from, where the module's
    rules allow.
    """
    return _Narrowing(in_regions(graph, narrow_products)).run()


def narrow_reasons(graph: Graph) -> list[tuple[Operation, str]]:
    """For people: of each product of narrow integers, before this pass, what it reads."""
    taken = _Narrowing(graph).products.items()
    return [
        (product, f"reads {dtype.short}, which it widens as it packs them")
        for op, dtype in taken
        if (product := matmul_of(op)) is not None
    ]


#: A wide value, and the dtype that it is narrowed to.
_Narrow = tuple[Value, DType]


@dataclass(slots=True)
class _Narrowing:
    """The products to narrow. products: those that read something narrow, and of which dtype.
    wanted: which results of nests are to be there narrow, too. passed: the ops between these and
    the products; live: what is still read of them. held: wide values as narrow ones of the new
    graph."""

    graph: Graph
    products: dict[Operation, DType] = field(default_factory=dict)
    wanted: dict[Operation, dict[_Narrow, None]] = field(default_factory=dict)
    passed: set[Operation] = field(default_factory=set)
    live: set[Value] = field(default_factory=set)
    builder: Builder = field(default_factory=Builder)
    mapping: dict[Value, Value] = field(default_factory=dict)
    held: dict[_Narrow, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assigns = [op for op in self.graph.ops if op.name == "assign"]
        written = {variable_of(op.operands[0]) for op in assigns} - {None}
        for op in self.graph.ops:
            dtype = _dtype_of(op, written)
            if dtype is not None:
                self.products[op] = dtype

    def run(self) -> Graph:
        graph = self.graph
        if not self.products:
            return graph
        for op, dtype in self.products.items():
            for value in _operands(op):
                self._want(value, dtype)
        self._find_live()
        self.builder = Builder([a.type for a in graph.args])
        self.mapping = dict(zip(graph.args, self.builder.args, strict=True))
        for op in graph.ops:
            if op in self.products:
                self._emit_product(op)
            elif op in self.wanted:
                self._emit_nest(op)
            elif op not in self.passed or not self.live.isdisjoint(op.results):
                made = self.builder.clone(op, self.mapping)
                self.mapping.update(zip(op.results, made, strict=True))
        results = [self.mapping[v] for v in graph.results]
        return self.builder.graph(graph.name, graph.arg_names, results, graph.stage)

    # -- what is read -----------------------------------------------------------------------------

    def _want(self, value: Value, dtype: DType) -> None:
        """Note where a narrow operand comes from."""
        op = value.op
        assert op is not None
        self.passed.add(op)
        if _moved(op) is not None:
            self._want(op.operands[0], dtype)
        elif op.name != "constant":
            self.wanted.setdefault(op, {})[value, dtype] = None

    def _find_live(self) -> None:
        self.live.update(self.graph.results)
        for op in reversed(self.graph.ops):
            dead = op in self.passed and self.live.isdisjoint(op.results)
            if dead and op not in self.wanted:
                continue
            taken = _operands(op) if op in self.products else ()
            self.live.update(v for v in op.operands if v not in taken)
            self.live.update(op.control)

    def _narrow(self, value: Value, dtype: DType) -> Value:
        """An operand of a product in the new graph, as narrow as that."""
        if (value, dtype) in self.held:
            return self.held[value, dtype]
        op, builder = value.op, self.builder
        assert op is not None
        constant, moved = constant_of(value), _moved(op)
        if constant is not None:
            array = ConstArray(constant.array.astype(dtype.numpy))
            made = builder.emit1("constant", value=array, locations=op.locations)
        else:
            assert moved is not None
            made = _move(builder, op, moved, self._narrow(op.operands[0], dtype))
        self.held[value, dtype] = made
        return made

    # -- emission ---------------------------------------------------------------------------------

    def _emit_nest(self, op: Operation) -> None:
        """What is still read of a nest, and what it converts for products."""
        nest = _Nest(op)
        stay = [v for v in op.results if v in self.live]
        values = [nest.bring(op.regions[0].results[v.index]) for v in stay]
        more = list[_Narrow]()
        for value, dtype in self.wanted[op]:
            source = _source(value)
            if source.op is None and tensor(source).dtype == dtype:
                self.held[value, dtype] = self.mapping[nest.outside[source]]
            elif source.op is None or is_index_map(source.op):  # what only moves is no part of it
                copy = _Nest(op)
                self.held[value, dtype] = self._emit(copy, [copy.bring_as(source, dtype)])[0]
            else:
                more.append((value, dtype))
                values.append(nest.bring_as(source, dtype))
        if values:
            results = self._emit(nest, values)
            self.mapping.update(zip(stay, results, strict=False))
            self.held.update(zip(more, results[len(stay) :], strict=True))

    def _emit(self, nest: _Nest, values: list[Value]) -> tuple[Value, ...]:
        operands = [self.mapping[v] for v in nest.given]
        return _emit_fused(self.builder, operands, nest.inner, values, nest.op)

    def _emit_product(self, op: Operation) -> None:
        dtype, product, taken = self.products[op], matmul_of(op), set(_operands(op))
        assert product is not None
        seen = {v: self._narrow(v, dtype) if v in taken else self.mapping[v] for v in op.operands}
        inner = Builder()
        arg: dict[Value, Value] = {}
        for made in dict.fromkeys(seen.values()):
            arg[made] = inner.add_arg(made.type)
        local = {v: arg[made] for v, made in seen.items()}
        wide, where = tensor(product.operands[0]).dtype, product.locations
        for value in dict.fromkeys(_operands(op)):
            local[value] = inner.emit1("astype", local[value], dtype=wide, locations=where)
        members = (op,) if op is product else op.regions[0].ops
        if op is not product:
            local = {a: local[v] for a, v in zip(op.regions[0].args, op.operands, strict=True)}
        for member in members:
            local.update(zip(member.results, inner.clone(member, local), strict=True))
        # of what the next product reads narrow, the wide value only if something else reads it
        wanted = list(self.wanted.get(op, ()))
        stay = [v for v in op.results if v in self.live] if wanted else list(op.results)
        made_here = (op if op is product else op.regions[0]).results
        values = [local[made_here[v.index]] for v in stay]
        values += [_as(inner, local[_source(v)], d, op) for v, d in wanted]
        block = inner.block(values)
        kind = op.attrs["kind"] if op.name == "fused" else op.name
        locations = merge_locations(op.locations, *(v.op.locations for v in taken if v.op))
        results = self.builder.emit(
            "fused",
            list(arg),
            {"kind": f"astype_{kind}"},
            regions=[block],
            control=[self.mapping[v] for v in op.control],
            locations=locations,
        )
        self.mapping.update(zip(stay, results, strict=False))
        self.held.update(zip(wanted, results[len(stay) :], strict=True))


class _Nest:
    """A nest under construction from what is needed of another one."""

    def __init__(self, op: Operation) -> None:
        self.op = op
        self.outside = dict(zip(op.regions[0].args, op.operands, strict=True))
        self.inner = Builder()
        self.given: list[Value] = []
        self._local: dict[Value, Value] = {}

    def bring(self, value: Value) -> Value:
        """A value of the other's region in this one."""
        if value not in self._local:
            if value.op is None:
                self.given.append(self.outside[value])
                self._local[value] = self.inner.add_arg(value.type)
            else:
                for operand in value.op.operands:
                    self.bring(operand)
                made = self.inner.clone(value.op, self._local)
                self._local.update(zip(value.op.results, made, strict=True))
        return self._local[value]

    def bring_as(self, value: Value, dtype: DType) -> Value:
        """The same, of that dtype."""
        return _as(self.inner, self.bring(value), dtype, self.op)


def _as(inner: Builder, value: Value, dtype: DType, op: Operation) -> Value:
    """A value of the nest that `op` becomes, of that dtype."""
    if tensor(value).dtype == dtype:
        return value
    return inner.emit1("astype", value, dtype=dtype, locations=op.locations)


def _source(value: Value) -> Value:
    """`_converted` of one that is known to be so."""
    source = _converted(value)
    assert source is not None
    return source


def _emit_fused(
    builder: Builder, operands: list[Value], inner: Builder, values: list[Value], op: Operation
) -> tuple[Value, ...]:
    """A nest in the place of `op`."""
    named = [o for o in inner.ops if o.name not in ("constant", "broadcast_to")]
    return builder.emit(
        "fused",
        operands,
        {"kind": nest_name(named or inner.ops)},
        regions=[inner.block(values)],
        locations=op.locations,
    )


def _move(builder: Builder, op: Operation, maps: tuple[Operation, ...], value: Value) -> Value:
    """What `_moved` found of `op`, of another value."""
    if op.name != "fused":
        return builder.emit(op.name, [value], op.attrs, locations=op.locations)[0]
    inner = Builder([value.type])
    held = inner.args[0]
    for step in maps:
        (held,) = inner.emit(step.name, [held], step.attrs, locations=step.locations)
    return _emit_fused(builder, [value], inner, [held], op)[0]


# -- which ----------------------------------------------------------------------------------------


def _dtype_of(op: Operation, written: set[str | None]) -> DType | None:
    """What a product can read in place of its operands; None for other ops."""
    product = matmul_of(op)
    if product is None or tensor(product.result).dtype not in WIDE:
        return None
    if not _reads_only_there(op, product):
        return None
    first, second = _operands(op)
    held = _narrow_dtype(first, written), _narrow_dtype(second, written)
    constants = constant_of(first) is not None and constant_of(second) is not None
    if held[0] is None or held[1] is None or constants:
        return None
    return held[0] if held[0] == held[1] else int16


def _operands(op: Operation) -> tuple[Value, ...]:
    """The values outside of `op` that its product multiplies."""
    product = matmul_of(op)
    if op is product or product is None:
        return op.operands
    outside = dict(zip(op.regions[0].args, op.operands, strict=True))
    return tuple(outside[v] for v in product.operands)


def _reads_only_there(op: Operation, product: Operation) -> bool:
    """Whether the operands of the product are arguments that nothing else in `op` reads."""
    if op is not product:
        (region,) = op.regions
        if not set(product.operands) <= set(region.args):
            return False
        if any(set(product.operands) & set(o.operands) for o in region.ops if o is not product):
            return False
    taken = _operands(op)
    reads = [v for v in op.operands if v in taken]
    return len(set(reads)) == len(reads) or op is product


def _narrow_dtype(value: Value, written: set[str | None]) -> DType | None:
    """The dtype that an operand is converted from, or that holds it."""
    op, constant = value.op, constant_of(value)
    if constant is not None:
        return next((d for d in NARROW if _holds(d, constant)), None)
    if op is None:
        return None
    if _moved(op) is not None:
        return _narrow_dtype(op.operands[0], written)
    source = _converted(value)
    if source is None or any(variable_of(v) in written for v in op.operands):
        return None
    return tensor(source).dtype


def _moved(op: Operation) -> tuple[Operation, ...] | None:
    """The index maps of a nest that only copies; none for a reshape; None for other ops."""
    if op.control or len(op.operands) != 1 or len(op.results) != 1:
        return None
    if op.name == "reshape":
        return ()
    if op.name != "fused":
        return None
    (region,) = op.regions
    maps, value = list[Operation](), region.results[0]
    while value.op is not None:
        if not is_index_map(value.op) or len(value.op.operands) != 1:
            return None
        maps.append(value.op)
        value = value.op.operands[0]
    return tuple(reversed(maps))


def _converted(value: Value) -> Value | None:
    """What a result of a nest is converted from, in its region: an argument, perhaps through index
    maps, or what an elementwise op makes."""
    op = value.op
    if op is None or op.name != "fused" or op.control:
        return None
    made = op.regions[0].results[value.index].op
    if made is None or not is_widening(made):
        return None
    (source,) = made.operands
    base = source
    while base.op is not None and is_index_map(base.op) and len(base.op.operands) == 1:
        base = base.op.operands[0]
    if base.op is not None and (
        base is not source or "elementwise" not in lookup(base.op.name).traits
    ):
        return None
    return source


def _holds(dtype: DType, constant: ConstArray) -> bool:
    """Whether a narrow type holds all elements of a constant matrix."""
    array = constant.array
    if array.ndim < 2 or array.size == 0:
        return False
    low = 0 if dtype == uint8 else -(1 << dtype.bits - 1)
    return low <= int(array.min()) and int(array.max()) < low + (1 << dtype.bits)


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
    """The change to a product: the copies that it reads through, the one that it writes."""

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
