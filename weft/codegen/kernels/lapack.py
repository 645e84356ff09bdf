"""What kernels are made of that call LAPACK: loops over matrices, checks that their elements are
finite, copies, and the calls.

Matrices are copied between row-major and column-major order by tiles of blocks that are transposed
in registers (`nests/writer.py`).

Calling convention: Fortran's, with the lengths of strings, which compilers pass last."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from llvmlite import ir

from weft.codegen.llvm.emitter import I1, I8, I32, I64, PART, Emitter, memory_type
from weft.codegen.llvm.link import (
    MUTEX_LOCK,
    MUTEX_UNLOCK,
    THREADS_BEFORE,
    THREADS_CALLS,
    THREADS_GET,
    THREADS_MUTEX,
    THREADS_SET,
)
from weft.codegen.nests.writer import TILE, transpose
from weft.codegen.scalar.element_access import constant


def want_one_thread(e: Emitter, words: ir.Value, wanted: bool) -> None:
    """Have OpenBLAS work on the calling thread alone, or no longer: the first call that wants it so
    keeps the number of threads, the last one sets it again. words: `link.BLAS_THREADS`."""
    b = e.builder

    def call(word: int, result: ir.Type, *given: ir.Value) -> ir.Value:
        kind = ir.FunctionType(result, [v.type for v in given])
        address = b.load(e.at(words, e.index(word)))
        return b.call(b.inttoptr(address, kind.as_pointer()), list(given))

    there = b.load(e.at(words, e.index(THREADS_SET)))
    with b.if_then(b.icmp_signed("!=", there, e.index(0))):
        mutex = e.at(words, e.index(THREADS_MUTEX))
        call(MUTEX_LOCK, I32, mutex)
        calls, before = (e.at(words, e.index(k)) for k in (THREADS_CALLS, THREADS_BEFORE))
        found = b.load(calls)
        left = b.sub(found, e.index(1))
        with b.if_then(b.icmp_signed("==", found if wanted else left, e.index(0))):
            if wanted:
                # a child that was forked meanwhile has the number already
                with b.if_then(b.icmp_signed("==", b.load(before), e.index(0))):
                    b.store(b.sext(call(THREADS_GET, I32), I64), before)
                call(THREADS_SET, ir.VoidType(), ir.Constant(I32, 1))
            else:
                call(THREADS_SET, ir.VoidType(), b.trunc(b.load(before), I32))
                b.store(e.index(0), before)
        b.store(b.add(found, e.index(1)) if wanted else left, calls)
        call(MUTEX_UNLOCK, I32, mutex)


class Matrices:
    """What the kernels are made of: loops over the elements of a matrix, calls of LAPACK."""

    def __init__(self, e: Emitter, dtype: str) -> None:
        self.e, self.b, self.dtype = e, e.builder, dtype
        self.real = PART.get(dtype, dtype)
        self.zero, self.one = e.index(0), e.index(1)

    def scratch(self, position: int) -> ir.Value:
        """The address, as i64, of this thread's scratch memory; its stride is the next argument."""
        e = self.e
        return self.b.add(e.argument(position), self.b.mul(e.worker, e.argument(position + 1)))

    def pointer(self, address: ir.Value, dtype: str, offset: ir.Value | None = None) -> ir.Value:
        """A pointer to elements of dtype, `offset` bytes behind an address."""
        address = address if offset is None else self.b.add(address, offset)
        return self.b.inttoptr(address, memory_type(dtype).as_pointer())

    @contextmanager
    def units(self) -> Iterator[ir.Value]:
        with self.e.for_range(self.e.lo, self.e.hi) as unit:
            yield unit

    @contextmanager
    def elements(self, rows: ir.Value, columns: ir.Value) -> Iterator[tuple[ir.Value, ir.Value]]:
        with self.e.for_range(self.zero, rows) as i, self.e.for_range(self.zero, columns) as j:
            yield i, j

    def flag(self) -> ir.Value:
        """A bool in memory: false."""
        slot = self.e.alloca(I1)
        self.b.store(ir.Constant(I1, 0), slot)
        return slot

    def raise_flag(self, slot: ir.Value, by: ir.Value) -> None:
        self.b.store(self.b.or_(self.b.load(slot), by), slot)

    def _function(
        self, name: str, pointers: int, sizes: int, result: ir.Type
    ) -> tuple[ir.Function, Matrices | None]:
        """A function of so many pointers to elements of the dtype, which do not overlap, and so
        many sizes; and a position in it, unless it is there already."""
        full = f"{self.e.symbol}.{name}"
        held: ir.Function | None = self.e.module.globals.get(full)
        if held is not None:
            return held, None
        kinds = [memory_type(self.dtype).as_pointer()] * pointers + [I64] * sizes
        function, inner = self.e.define_function(full, ir.FunctionType(result, kinds))
        for parameter in function.args[:pointers]:
            parameter.add_attribute("noalias")
        return function, Matrices(inner, self.dtype)

    def check(
        self, bad: ir.Value, source: ir.Value, rows: ir.Value, columns: ir.Value,
        lower: bool = False,
    ) -> None:  # fmt: skip
        """Set the flag if an element of a matrix is not finite; lower: the other triangle does not
        count."""
        function, w = self._function("lower_finite" if lower else "finite", 1, 2, I1)
        if w is not None:
            e, b, parts = w.e, w.b, w.e.index(2 if self.dtype in PART else 1)
            given, height, width = function.args
            bits, infinite = (I32, 0x7F800000) if self.real == "f32" else (I64, 0x7FF << 52)
            magnitude = ir.Constant(bits, 2 ** (bits.width - 1) - 1)
            numbers = b.bitcast(given, bits.as_pointer())
            most = e.alloca(bits)
            b.store(ir.Constant(bits, 0), most)
            with e.for_range(w.zero, height) as i:
                row = e.at(numbers, b.mul(b.mul(i, width), parts))
                with e.for_range(w.zero, b.mul(b.add(i, w.one) if lower else width, parts)) as j:
                    value = b.and_(b.load(e.at(row, j)), magnitude)
                    held = b.load(most)
                    b.store(b.select(b.icmp_unsigned(">", value, held), value, held), most)
            b.ret(b.icmp_unsigned(">=", b.load(most), ir.Constant(bits, infinite)))
        self.raise_flag(bad, self.b.call(function, [source, rows, columns]))

    def transposed(
        self, target: ir.Value, source: ir.Value, rows: ir.Value, columns: ir.Value,
        stride: ir.Value | None = None,
    ) -> None:  # fmt: skip
        """target[j, i] = source[i, j] for the rows and columns of source, without gaps; stride: the
        elements from one row of source to the next."""
        function, w = self._function("transposed", 2, 3, ir.VoidType())
        if w is not None:
            e, b, tile = w.e, w.b, w.e.index(TILE)
            to, given, height, width, step = function.args

            def extent(start: ir.Value, stop: ir.Value) -> ir.Value:
                left = b.sub(stop, start)
                return b.select(b.icmp_signed("<", left, tile), left, tile)

            with e.for_range(w.zero, width, tile) as j, e.for_range(w.zero, height, tile) as i:
                place = e.at(given, b.add(b.mul(i, step), j)), step
                goal = e.at(to, b.add(b.mul(j, height), i)), height
                transpose(e, self.dtype, place, goal, (extent(j, width), extent(i, height)))
            b.ret_void()
        given_step = columns if stride is None else stride
        self.b.call(function, [target, source, rows, columns, given_step])

    def copied(
        self, target: ir.Value, source: ir.Value, rows: ir.Value, columns: ir.Value,
        conjugated: bool = False, lower: bool = False,
    ) -> None:  # fmt: skip
        """target = source, or its conjugate; lower: with zeros above the diagonal."""
        function, w = self._function(
            f"{'lower_' * lower}{'conjugated' if conjugated else 'copied'}", 2, 2, ir.VoidType()
        )
        if w is not None:
            e, b = w.e, w.b
            to, given, height, width = function.args
            zero = constant(self.dtype, 0)
            with e.for_range(w.zero, height) as i:
                start = b.mul(i, width)
                stop = b.add(i, w.one) if lower else width
                with e.for_range(w.zero, stop) as j:
                    value = b.load(e.at(given, b.add(start, j)))
                    if conjugated:
                        value = b.insert_value(value, b.fneg(b.extract_value(value, 1)), 1)
                    b.store(value, e.at(to, b.add(start, j)))
                with e.for_range(stop, width) as j:
                    b.store(zero, e.at(to, b.add(start, j)))
            b.ret_void()
        self.b.call(function, [target, source, rows, columns])

    def fill(self, target: ir.Value, count: ir.Value, number: float, dtype: str) -> None:
        value = constant(dtype, number)
        with self.e.for_range(self.zero, count) as k:
            self.b.store(value, self.e.at(target, k))

    def identity(self, target: ir.Value, n: ir.Value) -> None:
        e, b = self.e, self.b
        with self.elements(n, n) as (i, j):
            at = e.at(target, b.add(b.mul(i, n), j))
            with b.if_else(b.icmp_signed("==", i, j)) as (on, off):
                with on:
                    b.store(constant(self.dtype, 1), at)
                with off:
                    b.store(constant(self.dtype, 0), at)

    def cell(self, value: ir.Value) -> ir.Value:
        """A slot of the stack that holds a size, as int32, or any other value as it is."""
        value = self.b.trunc(value, I32) if value.type == I64 else value
        slot = self.e.alloca(value.type)
        self.b.store(value, slot)
        return slot

    def at_least_one(self, value: ir.Value) -> ir.Value:
        return self.b.select(self.b.icmp_signed(">", value, self.one), value, self.one)

    def call(self, routine: ir.Value, *operands: ir.Value | str, info: bool = True) -> ir.Value:
        """Call a routine (an address as i64): str for a flag, i64 for a size, pointers as they are.
        Its `info`, an i32."""
        b, given, lengths = self.b, [], []
        for operand in operands:
            if isinstance(operand, str):
                given.append(self.cell(ir.Constant(I8, ord(operand))))
                lengths.append(self.one)
            else:
                is_size = isinstance(operand.type, ir.IntType)
                given.append(self.cell(operand) if is_size else operand)
        told = self.cell(ir.Constant(I32, 0))
        given += [told, *lengths] if info else lengths
        kind = ir.FunctionType(ir.VoidType(), [v.type for v in given])
        b.call(b.inttoptr(routine, kind.as_pointer()), given)
        return b.load(told)

    @contextmanager
    def unless(self, slot: ir.Value) -> Iterator[None]:
        """Code that is left out where the flag is set."""
        with self.b.if_then(self.b.not_(self.b.load(slot))):
            yield

    @contextmanager
    def where(self, slot: ir.Value) -> Iterator[None]:
        with self.b.if_then(self.b.load(slot)):
            yield

    def fails(self, slot: ir.Value, info: ir.Value) -> None:
        """Set the flag if a routine has found no result."""
        self.raise_flag(slot, self.b.icmp_signed("!=", info, ir.Constant(I32, 0)))
