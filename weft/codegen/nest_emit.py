"""Emit a loop nest as LLVM: loops over run-time extents, one noalias pointer per buffer.

Argument layout of the kernel (all int64): one address per output, one per load from a buffer
(operands in place use the output's), then the extents, then the run-time strides of loads and
stores in order, and for "index" loads their offset and strides.

Reductions over the innermost loops accumulate in registers; f32 sums are cut into blocks of
`SUM_BLOCK` elements, summed in f32 by vector lanes, whose totals add up in f64. The shape of that
tree depends on nothing but the extent, so the bits do not change from run to run. Reductions over
outer loops accumulate in the output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from weft.codegen.call import Address, Arg, KernelCall, Pool
from weft.codegen.element_access import constant, load_element, store_element
from weft.codegen.elements import HALVES, memory_type, register_type
from weft.codegen.emitter import I64, Emitter
from weft.codegen.jit import Kernel
from weft.codegen.nest import Access, Nest, Statement, Store, build_nest
from weft.codegen.scalar import emit_scalar
from weft.ir.attributes import ConstArray
from weft.ir.dtypes import as_dtype
from weft.ir.graph import Operation

SUM_BLOCK = 4096
#: What a fold does to two elements, and the value that it starts from.
_FOLDS = {
    "sum": "add",
    "prod": "multiply",
    "max": "maximum",
    "min": "minimum",
    "all": "logical_and",
    "any": "logical_or",
}


def nest_call(op: Operation, in_place: tuple[tuple[int, int], ...] = ()) -> tuple[KernelCall, Nest]:
    """The kernel call for a `fused` op, and the nest for people to read."""
    nest = build_nest(op, in_place)
    outputs = [Address(v) for v in op.results]
    return call_nest(nest, outputs, [Address(v) for v in op.operands]), nest


def call_nest(nest: Nest, outputs: Sequence[Address], operands: Sequence[Address]) -> KernelCall:
    """The call of a nest on these buffers."""
    args: list[Arg] = [outputs[s.output] for s in nest.stores]
    for load in nest.loads:
        if isinstance(load.leaf, ConstArray):
            args.append(Pool(load.leaf))
        elif isinstance(load.leaf, int) and _output_of(nest, load) is None:
            held = operands[load.leaf]
            args.append(
                Address(held.value, held.offset + load.offset * as_dtype(load.dtype).itemsize)
            )
    args += nest.extents
    for walk in _walks(nest):
        if _is_index(walk):
            assert isinstance(walk, Access)
            args += [walk.offset, *walk.strides]
        else:
            args += [s for s in walk.strides if s not in (0, 1)]
    kernel = Kernel(nest.key, nest.name, lambda e: _emit(e, nest))
    return KernelCall(kernel, tuple(args))


def _walks(nest: Nest) -> list[Access | Store]:
    """What moves through the loops by itself: an operand in place moves with its output."""
    apart = [load for load in nest.loads if _output_of(nest, load) is None]
    return [*apart, *nest.stores]


def _output_of(nest: Nest, load: Access) -> int | None:
    """The position in `nest.stores` of the output whose buffer and place the load shares."""
    if not isinstance(load.leaf, int):
        return None
    output = dict(nest.in_place).get(load.leaf)
    return next((k for k, s in enumerate(nest.stores) if s.output == output), None)


def _is_index(walk: Access | Store) -> bool:
    return isinstance(walk, Access) and walk.leaf == "index"


def _emit(e: Emitter, nest: Nest) -> None:
    pointers = [e.pointer_argument(k, s.dtype) for k, s in enumerate(nest.stores)]
    for load in nest.loads:
        if load.leaf != "index" and _output_of(nest, load) is None:
            pointers.append(e.pointer_argument(len(pointers), load.dtype))
    count = len(nest.extents)
    for walk in _walks(nest):
        moving = sum(s not in (0, 1) for s in walk.strides)
        count += 1 + len(walk.strides) if _is_index(walk) else moving
    scalars = [e.argument(len(pointers) + k) for k in range(count)]
    with e.loop_function("nest", pointers, scalars) as (inner, buffers, numbers):
        _Writer(inner, nest, buffers, numbers).write()


class _Walk:
    """A pointer (for "index" a number) that moves through the loops: strides as LLVM values."""

    def __init__(self, base: ir.Value, strides: list[ir.Value | None]) -> None:
        self.base = base
        self.strides = strides  # per loop; None: does not move


class _Writer:
    def __init__(
        self, e: Emitter, nest: Nest, buffers: list[ir.Value], numbers: list[ir.Value]
    ) -> None:
        self.e = e
        self.nest = nest
        self.rank = len(nest.extents)
        self.extents = numbers[: self.rank]
        rest = iter(numbers[self.rank :])
        stores = buffers[: len(nest.stores)]
        others = iter(buffers[len(nest.stores) :])
        self.loads: list[_Walk | int] = []  # a number: moves with that store, from the same pointer
        for load in nest.loads:
            output = _output_of(nest, load)
            if output is not None:
                # LLVM must see one address for both, or it cannot tell that the loop vectorises
                assert load.strides == nest.stores[output].strides
                self.loads.append(output)
            elif load.leaf == "index":
                base = next(rest)
                self.loads.append(_Walk(base, [next(rest) for _ in load.strides]))
            else:
                self.loads.append(_Walk(next(others), self._strides(load.strides, rest)))
        self.stores = [
            _Walk(p, self._strides(s.strides, rest))
            for p, s in zip(stores, nest.stores, strict=True)
        ]
        #: first of the innermost reduced loops: accumulators live in registers from there on
        self.tail = self.rank
        while self.tail > 0 and nest.reduced[self.tail - 1]:
            self.tail -= 1
        self.outer_reduced = any(nest.reduced[: self.tail])
        self.accumulators: dict[int, ir.Value] = {}

    def _strides(self, strides: tuple[int, ...], rest: Any) -> list[ir.Value | None]:
        return [None if s == 0 else self.e.index(1) if s == 1 else next(rest) for s in strides]

    @property
    def folds(self) -> list[tuple[int, Store]]:
        return [(k, s) for k, s in enumerate(self.nest.stores) if s.reduction is not None]

    def write(self) -> None:
        if self.outer_reduced:
            for k, store in self.folds:
                self._fill(k, store)
        stores = [w.base for w in self.stores]
        loads = [
            self._in_place(k, w, stores) if isinstance(w, int) else w.base
            for k, w in enumerate(self.loads)
        ]
        self._loop(0, loads, stores)

    def _in_place(self, load: int, store: int, stores: list[ir.Value]) -> ir.Value:
        """The store's pointer, in the load's dtype (of the same width)."""
        kind = memory_type(self.nest.loads[load].dtype).as_pointer()
        return self.e.builder.bitcast(stores[store], kind)

    # -- loops ------------------------------------------------------------------------------------

    def _fill(self, k: int, store: Store) -> None:
        """Before outer reductions: the output starts as the identity of the fold."""

        def level(loop: int, pointer: ir.Value) -> None:
            if loop == self.rank:
                store_element(self.e, _identity(store), pointer, store.dtype)
            elif self.nest.reduced[loop]:
                level(loop + 1, pointer)
            else:
                with self.e.for_range(self.e.index(0), self.extents[loop]) as i:
                    level(loop + 1, self._step(pointer, i, self.stores[k].strides[loop]))

        level(0, self.stores[k].base)

    def _loop(self, loop: int, loads: list[ir.Value], stores: list[ir.Value]) -> None:
        if loop == self.tail:
            self._open_accumulators()
        if loop == self.rank:
            self._body(loads, stores)
        elif loop == self.rank - 1 and self.tail < self.rank and self._blocked():
            self._blocked_loop(loop, loads, stores)
        else:
            with self.e.for_range(self.e.index(0), self.extents[loop]) as i:
                self._loop(loop + 1, *self._moved(loop, i, loads, stores))
        if loop == self.tail:
            self._close_accumulators(stores)

    def _moved(
        self, loop: int, i: ir.Value, loads: list[ir.Value], stores: list[ir.Value]
    ) -> tuple[list[ir.Value], list[ir.Value]]:
        moved = [
            self._step(p, i, w.strides[loop]) for p, w in zip(stores, self.stores, strict=True)
        ]
        moved_loads = [
            self._in_place(k, w, moved) if isinstance(w, int) else self._step(p, i, w.strides[loop])
            for k, (p, w) in enumerate(zip(loads, self.loads, strict=True))
        ]
        return moved_loads, moved

    def _step(self, place: ir.Value, i: ir.Value, stride: ir.Value | None) -> ir.Value:
        if stride is None:
            return place
        b = self.e.builder
        unit = isinstance(stride, ir.Constant) and stride.constant == 1
        distance = i if unit else b.mul(i, stride, flags=["nsw"])
        return b.add(place, distance) if place.type == I64 else self.e.at(place, distance)

    def _blocked(self) -> bool:
        return any(s.reduction == "sum" and s.dtype in ("f32", *HALVES) for _, s in self.folds)

    def _blocked_loop(self, loop: int, loads: list[ir.Value], stores: list[ir.Value]) -> None:
        e, n = self.e, self.extents[loop]
        with e.for_range(e.index(0), n, e.index(SUM_BLOCK)) as start:
            end = e.builder.add(start, e.index(SUM_BLOCK))
            stop = e.builder.select(e.builder.icmp_signed("<", end, n), end, n)
            for k, store in self.folds:
                if self._wide(store):
                    e.builder.store(_identity(store), self.accumulators[k])
            with e.for_range(start, stop) as i:
                self._loop(loop + 1, *self._moved(loop, i, loads, stores))
            for k, store in self.folds:
                if self._wide(store):
                    part = e.builder.fpext(e.builder.load(self.accumulators[k]), ir.DoubleType())
                    total = e.builder.load(self.totals[k])
                    e.builder.store(e.builder.fadd(total, part), self.totals[k])

    # -- accumulators -----------------------------------------------------------------------------

    def _wide(self, store: Store) -> bool:
        return store.reduction == "sum" and store.dtype in ("f32", *HALVES) and self._blocked()

    def _open_accumulators(self) -> None:
        """Registers for the folds, if the innermost loops are reduced (or all were dropped)."""
        self.totals: dict[int, ir.Value] = {}
        for k, store in self.folds:
            if not self._in_register():
                continue
            slot = self.e.alloca(register_type(store.dtype))
            self.e.builder.store(_identity(store), slot)
            self.accumulators[k] = slot
            if self._wide(store) and self.tail < self.rank:
                self.totals[k] = self.e.alloca(ir.DoubleType())
                self.e.builder.store(ir.Constant(ir.DoubleType(), 0.0), self.totals[k])

    def _in_register(self) -> bool:
        return self.tail < self.rank or not self.outer_reduced

    def _close_accumulators(self, stores: list[ir.Value]) -> None:
        for k, store in self.folds:
            if k not in self.accumulators:
                continue
            if k in self.totals:
                value = self.e.builder.fptrunc(self.e.builder.load(self.totals[k]), ir.FloatType())
            else:
                value = self.e.builder.load(self.accumulators[k])
            if self.outer_reduced:
                held = load_element(self.e, stores[k], store.dtype)
                value = self._fold(store, held, value)
            store_element(self.e, value, stores[k], store.dtype)

    def _fold(self, store: Store, a: ir.Value, b: ir.Value) -> ir.Value:
        assert store.reduction is not None
        op = _FOLDS[store.reduction]
        if store.dtype in ("f32", "f64", *HALVES):
            flags = ("nsz", "reassoc")
            if op == "add":
                return self.e.builder.fadd(a, b, flags=flags)
            if op == "multiply":
                return self.e.builder.fmul(a, b, flags=flags)
            # llvm.maximum propagates NaN as NumPy does, and its reductions vectorise
            binary = ir.FunctionType(a.type, [a.type, a.type])
            intrinsic = self.e.module.declare_intrinsic(f"llvm.{op}", [a.type], binary)
            return self.e.builder.call(intrinsic, [a, b])
        return emit_scalar(self.e, op, store.dtype, [a, b], {})

    # -- the innermost body -----------------------------------------------------------------------

    def _body(self, loads: list[ir.Value], stores: list[ir.Value]) -> None:
        loaded = [self._load(a, p) for a, p in zip(self.nest.loads, loads, strict=True)]
        values: list[ir.Value] = []

        def get(reference: tuple[str, int]) -> ir.Value:
            kind, i = reference
            return loaded[i] if kind == "load" else values[i]

        for statement in self.nest.statements:
            values.append(self._statement(statement, get))
        for k, store in enumerate(self.nest.stores):
            value = get(store.source)
            if store.reduction is None:
                store_element(self.e, value, stores[k], store.dtype)
            elif k in self.accumulators:
                slot = self.accumulators[k]
                self.e.builder.store(self._fold(store, self.e.builder.load(slot), value), slot)
            else:
                held = load_element(self.e, stores[k], store.dtype)
                store_element(self.e, self._fold(store, held, value), stores[k], store.dtype)

    def _load(self, access: Access, place: ir.Value) -> ir.Value:
        if access.leaf == "index":
            return emit_scalar(self.e, "astype", "i64", [place], {"dtype": access.dtype})
        return load_element(self.e, place, access.dtype)

    def _statement(
        self, statement: Statement, get: Callable[[tuple[str, int]], ir.Value]
    ) -> ir.Value:
        args = [get(r) for r in statement.args]
        attrs = {"dtype": statement.result_dtype}
        return emit_scalar(self.e, statement.op, statement.dtype, args, attrs)


def _identity(store: Store) -> ir.Value:
    """The value that a fold starts from."""
    dtype = as_dtype(store.dtype)
    if store.reduction in ("sum", "any"):
        return constant(store.dtype, 0)
    if store.reduction in ("prod", "all"):
        return constant(store.dtype, 1)
    if dtype.is_floating:
        return constant(store.dtype, float("-inf") if store.reduction == "max" else float("inf"))
    lowest, highest = _integer_range(store.dtype)
    return constant(store.dtype, lowest if store.reduction == "max" else highest)


def _integer_range(dtype: str) -> tuple[int, int]:
    bits = as_dtype(dtype).bits
    if as_dtype(dtype).kind == "bool":
        return 0, 1
    return (
        (0, 2**bits - 1)
        if as_dtype(dtype).kind == "uint"
        else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    )
