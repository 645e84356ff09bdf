"""What kernels are made of that call LAPACK: loops over matrices, checks that their elements are
finite, copies, the calls, and products of Householder reflections.

Matrices are copied between row-major and column-major order by tiles of blocks that are transposed
in registers (`nests/writer.py`).

Calling convention: Fortran's, with the lengths of strings, which compilers pass last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from weft.codegen.scalar.elementwise import emit_scalar
from weft.codegen.vector.float_builder import BIAS, MANTISSA_BITS


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
        self, name: str, pointers: int, sizes: int, result: ir.Type, *more: ir.Type
    ) -> tuple[ir.Function, Matrices | None]:
        """A function of so many pointers to elements of the dtype, which do not overlap, so many
        sizes, and more; and a position in it, unless it is there already."""
        full = f"{self.e.symbol}.{name}"
        held: ir.Function | None = self.e.module.globals.get(full)
        if held is not None:
            return held, None
        kinds = [memory_type(self.dtype).as_pointer()] * pointers + [I64] * sizes + [*more]
        function, inner = self.e.define_function(full, ir.FunctionType(result, kinds))
        for parameter in function.args[:pointers]:
            parameter.add_attribute("noalias")
        return function, Matrices(inner, self.dtype)

    def check(
        self, bad: ir.Value, source: ir.Value, rows: ir.Value, columns: ir.Value,
        lower: bool = False,
    ) -> ir.Value:  # fmt: skip
        """Set the flag if an element of a matrix is not finite; lower: the other triangle does not
        count. The bits of the largest magnitude of an element, or of a part of one."""
        bits, infinite = (I32, 0x7F800000) if self.real == "f32" else (I64, 0x7FF << 52)
        function, w = self._function("lower_most" if lower else "most", 1, 2, bits)
        if w is not None:
            e, b, parts = w.e, w.b, w.e.index(2 if self.dtype in PART else 1)
            given, height, width = function.args
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
            b.ret(b.load(most))
        found = self.b.call(function, [source, rows, columns])
        self.raise_flag(bad, self.b.icmp_unsigned(">=", found, ir.Constant(bits, infinite)))
        return found

    def powers(self, most: ir.Value) -> tuple[ir.Value, ir.Value]:
        """A power of two whose product with numbers of at most this magnitude (its bits) is near 1,
        and its inverse."""
        b, bits = self.b, most.type
        places, last = MANTISSA_BITS[self.real], 2 * BIAS[self.real]  # of a number's exponent
        shift, least, limit = (ir.Constant(bits, k) for k in (places, 1, last - 1))
        exponent = b.lshr(most, shift)
        exponent = b.select(b.icmp_unsigned("<", exponent, least), least, exponent)
        exponent = b.select(b.icmp_unsigned(">", exponent, limit), limit, exponent)
        other = b.sub(ir.Constant(bits, last), exponent)
        kind = memory_type(self.real)
        down, up = (b.bitcast(b.shl(x, shift), kind) for x in (other, exponent))
        return down, up

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
        lower: bool = False,
    ) -> None:  # fmt: skip
        """target = source; lower: with zeros above the diagonal."""
        function, w = self._function("lower_copied" if lower else "copied", 2, 2, ir.VoidType())
        if w is not None:
            e, b = w.e, w.b
            to, given, height, width = function.args
            zero = constant(self.dtype, 0)
            with e.for_range(w.zero, height) as i:
                start = b.mul(i, width)
                stop = b.add(i, w.one) if lower else width
                with e.for_range(w.zero, stop) as j:
                    value = b.load(e.at(given, b.add(start, j)))
                    b.store(value, e.at(to, b.add(start, j)))
                with e.for_range(stop, width) as j:
                    b.store(zero, e.at(to, b.add(start, j)))
            b.ret_void()
        self.b.call(function, [target, source, rows, columns])

    def exchanged(self, first: ir.Value, second: ir.Value, count: ir.Value) -> None:
        """So many elements change places; they are not the same."""
        function, w = self._function("exchanged", 2, 1, ir.VoidType())
        if w is not None:
            e, b = w.e, w.b
            one, two, size = function.args
            with e.for_range(w.zero, size) as j:
                held, other = b.load(e.at(one, j)), b.load(e.at(two, j))
                b.store(other, e.at(one, j))
                b.store(held, e.at(two, j))
            b.ret_void()
        self.b.call(function, [first, second, count])

    def scaled(
        self, target: ir.Value, source: ir.Value, rows: ir.Value, columns: ir.Value,
        factor: ir.Value,
    ) -> None:  # fmt: skip
        """target = the conjugate of source times a real number."""
        function, w = self._function("scaled", 2, 2, ir.VoidType(), factor.type)
        if w is not None:
            e, b = w.e, w.b
            to, given, height, width, times = function.args
            with e.for_range(w.zero, b.mul(height, width)) as k:
                value = b.load(e.at(given, k))
                if w.dtype in PART:
                    for part, by in enumerate((times, b.fneg(times))):
                        made = b.fmul(b.extract_value(value, part), by)
                        value = b.insert_value(value, made, part)
                else:
                    value = b.fmul(value, times)
                b.store(value, e.at(to, k))
            b.ret_void()
        self.b.call(function, [target, source, rows, columns, factor])

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

    def unit_columns(
        self, target: ir.Value, start: ir.Value, stop: ir.Value, rows: ir.Value
    ) -> None:
        """Columns [start, stop) of a column-major matrix become those of the identity."""
        e, b = self.e, self.b
        with e.for_range(start, stop) as j:
            column = e.at(target, b.mul(j, rows))
            self.fill(column, rows, 0, self.dtype)
            b.store(constant(self.dtype, 1), e.at(column, j))


#: The most reflections of a block, and the fewest of a matrix that has such blocks; others have
#: blocks of half as many.
BLOCK, MANY_REFLECTIONS = 64, 512


class Reflections:
    """Products of Householder reflections, H_1 H_2 ... = I - V T V^H by blocks (Schreiber and Van
    Loan, A storage-efficient WY representation for products of Householder transformations, 1989).
    backward: ... H_2 H_1, of which V has its ones at the ends of its columns and T is lower
    triangular.

    A block is applied by three products of matrices, of which two are large: V is copied, with the
    ones and zeros that are not in memory. (LAPACK's `larfb` leaves V where it is, and takes three
    triangular products beside the two, with copies to and from its work space.)

    count: of all reflections; stride: from one column of the matrices to the next; spaces: for V
    (stride x BLOCK elements), all T (count x BLOCK), V^H V (BLOCK x BLOCK) and T V^H times what it
    is applied to (columns of that x BLOCK)."""

    def __init__(
        self, w: Matrices, count: ir.Value, stride: ir.Value, spaces: Sequence[ir.Value],
        routines: tuple[ir.Value, ir.Value], backward: bool = False,
    ) -> None:  # fmt: skip
        self.backward = backward
        self.w, self.count, self.stride = w, count, stride
        self.v, self.t, self.squares, self.work = spaces
        self.gemm, self.trmm = routines
        e, b = w.e, w.b
        many = b.icmp_signed(">=", count, e.index(MANY_REFLECTIONS))
        self.size = b.select(many, e.index(BLOCK), e.index(BLOCK // 2))
        self.ld = e.index(BLOCK)
        self.numbers = {k: w.cell(constant(w.dtype, k)) for k in (-1, 0, 1)}

    def diagonal(self, i: ir.Value) -> ir.Value:
        """Where element (i, i) of a matrix is."""
        return self.w.b.mul(i, self.w.b.add(self.stride, self.w.one))

    def width(self, i: ir.Value) -> ir.Value:
        """How many reflections the block has whose first one is number i."""
        left = self.w.b.sub(self.count, i)
        return self.w.b.select(self.w.b.icmp_signed("<", left, self.size), left, self.size)

    @contextmanager
    def backwards(self) -> Iterator[ir.Value]:
        """The first reflections of the blocks, from the last block to the first."""
        e, b, w = self.w.e, self.w.b, self.w
        blocks = b.sdiv(b.add(self.count, b.sub(self.size, w.one)), self.size)
        with e.for_range(w.zero, blocks) as step:
            yield b.mul(b.sub(b.sub(blocks, w.one), step), self.size)

    def take(self, corner: ir.Value, height: ir.Value, width: ir.Value) -> None:
        """V becomes what is below the diagonal of so many rows and columns from `corner` on;
        backward: what is above the one that ends where they end."""
        function, w = self.w._function("reflections", 2, 3, ir.VoidType())
        if w is not None:
            e, b = w.e, w.b
            to, given, rows, columns, step = function.args
            with e.for_range(w.zero, columns) as j:
                start = b.mul(j, step)
                one = b.add(b.sub(rows, columns), j) if self.backward else j
                after = b.add(one, w.one)
                empty, full = (w.zero, one), (after, rows)
                if self.backward:
                    empty, full = full, empty
                with e.for_range(*empty) as i:
                    b.store(constant(w.dtype, 0), e.at(to, b.add(start, i)))
                b.store(constant(w.dtype, 1), e.at(to, b.add(start, one)))
                with e.for_range(*full) as i:
                    at = b.add(start, i)
                    b.store(b.load(e.at(given, at)), e.at(to, at))
            b.ret_void()
        self.w.b.call(function, [self.v, corner, height, width, self.stride])

    def combine(self, i: ir.Value, tau: ir.Value, height: ir.Value, width: ir.Value) -> None:
        """The T of the block from number i on. Its column j is tau[j] beside -tau[j] T V^H v[j], of
        the columns before (backward: after) it."""
        self._multiply(("C", "N"), (width, width, height), 1, (self.v, self.stride),
                       (self.v, self.stride), 0, (self.squares, self.ld))  # fmt: skip
        function, w = self.w._function("combine", 3, 1, ir.VoidType())
        if w is not None:
            e, b, dtype, ld = w.e, w.b, w.dtype, w.e.index(BLOCK)
            t, products, taus, size = function.args

            def of(op: str, *args: ir.Value) -> ir.Value:
                return emit_scalar(e, op, dtype, list(args), {})

            with e.for_range(w.zero, size) as step:
                j = b.sub(b.sub(size, w.one), step) if self.backward else step
                own, column = b.load(e.at(taus, j)), e.at(t, b.mul(j, ld))
                others = (b.add(j, w.one), size) if self.backward else (w.zero, j)
                with e.for_range(*others) as r:
                    b.store(constant(dtype, 0), e.at(column, r))
                with e.for_range(*others) as k:
                    product = b.load(e.at(products, b.add(k, b.mul(j, ld))))
                    factor = of("negative", of("multiply", own, product))
                    other = e.at(t, b.mul(k, ld))
                    some = (k, size) if self.backward else (w.zero, b.add(k, w.one))
                    with e.for_range(*some) as r:
                        more = of("multiply", factor, b.load(e.at(other, r)))
                        b.store(of("add", b.load(e.at(column, r)), more), e.at(column, r))
                b.store(own, e.at(column, j))
            b.ret_void()
        self.w.b.call(function, [self._t(i), self.squares, tau, width])

    def apply(
        self, i: ir.Value, matrix: ir.Value, height: ir.Value, columns: ir.Value, adjoint: bool
    ) -> None:
        """Multiply a matrix by the block from number i on, whose V was taken, or its adjoint."""
        width, w, one = self.width(i), self.w, self.numbers[1]
        v, c, work = (self.v, self.stride), (matrix, self.stride), (self.work, self.ld)
        self._multiply(("C", "N"), (width, columns, height), 1, v, c, 0, work)
        flags = "L", "L" if self.backward else "U", "C" if adjoint else "N", "N"
        w.call(self.trmm, *flags, width, columns, one, self._t(i), self.ld, *work, info=False)
        self._multiply(("N", "N"), (height, columns, width), -1, v, work, 1, c)

    def _t(self, i: ir.Value) -> ir.Value:
        return self.w.e.at(self.t, self.w.b.mul(i, self.ld))

    def _multiply(
        self, flags: tuple[str, str], sizes: Sequence[ir.Value], alpha: int,
        a: tuple[ir.Value, ir.Value], b: tuple[ir.Value, ir.Value], beta: int,
        c: tuple[ir.Value, ir.Value],
    ) -> None:  # fmt: skip
        """c = alpha op(a) op(b) + beta c; (pointer, stride) each."""
        first, second = self.numbers[alpha], self.numbers[beta]
        self.w.call(self.gemm, *flags, *sizes, first, *a, *b, second, *c, info=False)
