"""Lanes: arithmetic on vectors of one number from each of several matrices, and the copies that
interleave matrices so that their elements lie in such vectors.

`lanes` matrices, each contiguous in memory, become arrays of vectors in a thread's scratch memory:
lane l of vector k is an element of matrix l. Whatever is computed is then done to all of them by
the same instructions, so a matrix's bits depend neither on its neighbours nor on its lane. A batch
that does not fill its last vector has its last matrix in more than one lane, which makes and stores
the same bits each time.

Blocks of lanes x lanes elements are transposed in registers, by halves: first blocks of half the
lanes change places, then quarters of them, down to single elements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce

from llvmlite import ir

from weft.codegen.llvm.emitter import I32, I64, Emitter, memory_type
from weft.codegen.llvm.target import target_vector_bits
from weft.codegen.vector.float_builder import FloatBuilder, intrinsic, lanes_of, splat_constant
from weft.ir.dataclass import dataclass


def tile_size() -> int:
    """Rows and columns of the tiles that sums are held in: what 32 or 16 registers have room
    for."""
    return 4 if target_vector_bits() == 512 else 2


class Lanes:
    """A position in a function on vectors. Pointers are to vectors, `ld` is the distance of rows
    (or columns) of an array in vectors."""

    def __init__(self, e: Emitter, dtype: str) -> None:
        self.e, self.b, self.dtype = e, e.builder, dtype
        self.count = lanes_of(dtype)
        self.number = memory_type(dtype)
        self.number_bytes = 4 if dtype == "f32" else 8
        self.vector = ir.VectorType(self.number, self.count)
        self.m = FloatBuilder(e.builder, dtype, ir.Constant(self.vector, ir.Undefined))
        self.whole = self.m.bits_kind  # vectors of integers as wide as the numbers
        self.zero, self.one = e.index(0), e.index(1)

    # ------------------------------------------------------------------------------------- vectors
    def const(self, value: float) -> ir.Constant:
        """The number in all lanes."""
        return self.m.const(value)

    def splat(self, index: ir.Value) -> ir.Value:
        """An i64 in all lanes, as integers as wide as the numbers."""
        width = self.whole.element
        index = self.b.trunc(index, width) if width != I64 else index
        first = self.b.insert_element(
            ir.Constant(self.whole, ir.Undefined), index, ir.Constant(I32, 0)
        )
        mask = ir.Constant(ir.VectorType(I32, self.count), [0] * self.count)
        return self.b.shuffle_vector(first, first, mask)

    def any(self, mask: ir.Value) -> ir.Value:
        """Whether a lane of a vector of bools is true."""
        bits = self.b.bitcast(mask, ir.IntType(self.count))
        return self.b.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))

    def most(self, x: ir.Value) -> ir.Value:
        """The largest of a vector of integers, as i64."""
        kind = ir.FunctionType(self.whole.element, [self.whole])
        function = intrinsic(self.e.module, "vector.reduce.smax", [self.whole], kind)
        found = self.b.call(function, [x])
        return self.b.sext(found, I64) if found.type != I64 else found

    def load(self, pointer: ir.Value, index: ir.Value | None = None) -> ir.Value:
        """The vector there."""
        return self.b.load(pointer if index is None else self.e.at(pointer, index))

    def store(self, value: ir.Value, pointer: ir.Value, index: ir.Value | None = None) -> None:
        """Put a vector there."""
        self.b.store(value, pointer if index is None else self.e.at(pointer, index))

    def cell(self, value: ir.Value) -> ir.Value:
        """A variable, with this value to begin with."""
        slot = self.e.alloca(value.type)
        self.b.store(value, slot)
        return slot

    def cells(self, count: int) -> list[ir.Value]:
        """Variables of vectors."""
        return [self.e.alloca(self.vector) for _ in range(count)]

    def not_finite(self, x: ir.Value) -> ir.Value:
        """0, or NaN where x is not finite."""
        return self.m.mul(x, 0.0)

    def sqrt(self, x: ir.Value) -> ir.Value:
        """The square root."""
        return self.m.call("sqrt", x)

    def at(self, pointer: ir.Value, *terms: tuple[ir.Value, ir.Value] | ir.Value) -> ir.Value:
        """pointer + the sum of the terms; a pair is a product."""
        b = self.b
        values = [b.mul(*term) if isinstance(term, tuple) else term for term in terms]
        return self.e.at(pointer, reduce(b.add, values))

    # --------------------------------------------------------------------------------------- loops
    @contextmanager
    def down(self, start: ir.Value, stop: ir.Value) -> Iterator[ir.Value]:
        """`for i in reversed(range(start, stop))`."""
        last = self.b.sub(stop, self.one)
        with self.e.for_range(start, stop) as step:
            yield self.b.sub(last, self.b.sub(step, start))

    def repeat(self, body: Callable[[], ir.Value]) -> None:
        """Do body until the i1 that it gives is false."""
        b = self.b
        head, after = b.append_basic_block("repeat"), b.append_basic_block("repeat.after")
        b.branch(head)
        b.position_at_end(head)
        b.cbranch(body(), head, after)
        b.position_at_end(after)

    def tiles(
        self, start: ir.Value, stop: ir.Value, width: int, body: Callable[[ir.Value, int], None]
    ) -> None:
        """body(i, width) for tiles of `width` from start on, body(i, 1) for what is left."""
        b = self.b
        rest = b.srem(b.sub(stop, start), self.e.index(width))
        rest = b.select(b.icmp_signed(">", rest, self.zero), rest, self.zero)
        whole = b.sub(stop, rest)
        with self.e.for_range(start, whole, self.e.index(width)) as i:
            body(i, width)
        with self.e.for_range(whole, stop) as i:
            body(i, 1)

    # ----------------------------------------------------------------------------------- functions
    @contextmanager
    def function(
        self, name: str, pointers: Sequence[ir.Value], scalars: Sequence[ir.Value] = ()
    ) -> Iterator[tuple[Lanes, list[ir.Value], list[ir.Value]]]:
        """`Emitter.loop_function`, with a position in it."""
        with self.e.loop_function(name, pointers, scalars) as (inner, held, values):
            yield Lanes(inner, self.dtype), held, values

    def exchange_rows(
        self, arrays: Sequence[tuple[ir.Value, ir.Value, ir.Value]], row: ir.Value,
        others: ir.Value, stop: ir.Value, also: ir.Value,
    ) -> None:  # fmt: skip
        """In each lane, rows `row` and `others` (a vector, at least row, less than stop) of arrays,
        (array, ld, columns) each, and of the vector of integers `also`, change places."""
        e, b = self.e, self.b
        moved = b.icmp_signed("!=", others, self.splat(row))
        with b.if_then(self.any(moved)), e.for_range(b.add(row, self.one), stop) as i:
            mask = b.icmp_signed("==", others, self.splat(i))
            with b.if_then(self.any(mask)):

                def exchange(first: ir.Value, second: ir.Value, mask: ir.Value = mask) -> None:
                    # frozen, or they become masked stores, slow on AVX2
                    one, two = e.freeze(b.load(first)), e.freeze(b.load(second))
                    b.store(b.select(mask, two, one), first)
                    b.store(b.select(mask, one, two), second)

                exchange(e.at(also, row), e.at(also, i))
                for array, ld, columns in arrays:
                    top, other = self.at(array, (row, ld)), self.at(array, (i, ld))
                    with e.for_range(self.zero, columns) as j:
                        exchange(e.at(top, j), e.at(other, j))

    def fill(self, array: ir.Value, start: ir.Value, stop: ir.Value, value: float) -> None:
        """The vectors [start, stop) of an array become a number."""
        with self.e.for_range(start, stop) as k:
            self.store(self.const(value), array, k)


# ------------------------------------------------------------------------------------------ copies


@dataclass(frozen=True)
class Places:
    """Where the elements of a run of memory lie in an array of vectors: element t of run number k
    at k * run + (t // columns) * row + (t % columns) * column. All are i64."""

    columns: ir.Value
    row: ir.Value
    column: ir.Value
    run: ir.Value


class Copies:
    """Copies between the matrices of a block and arrays of vectors, as functions of a kernel.

    first: the first matrix of the block, last: the last one of the batch."""

    def __init__(self, e: Emitter, dtype: str, last: ir.Value) -> None:
        self.e, self.dtype, self.last = e, dtype, last
        self.lanes = lanes_of(dtype)
        self.starts = e.alloca(ir.ArrayType(I64, self.lanes))
        self.fine = e.alloca(ir.VectorType(memory_type(dtype), self.lanes))
        zero = splat_constant(ir.VectorType(memory_type(dtype), self.lanes), 0.0)
        e.builder.store(zero, self.fine)

    def offsets(self, first: ir.Value, size: ir.Value) -> ir.Value:
        """The first elements of the block's matrices of `size` elements, a table of i64."""
        b = self.e.builder
        for lane, at in enumerate(self.offsets_of(first)):
            slot = b.gep(self.starts, [self.e.index(0), self.e.index(lane)])
            b.store(b.mul(at, size), slot)
        return b.bitcast(self.starts, I64.as_pointer())

    def offsets_of(self, first: ir.Value) -> list[ir.Value]:
        """The numbers of the matrices in the lanes."""
        b = self.e.builder
        numbers = [b.add(first, self.e.index(lane)) for lane in range(self.lanes)]
        return [b.select(b.icmp_signed("<", n, self.last), n, self.last) for n in numbers]

    def whole(
        self, array: ir.Value, memory: ir.Value, first: ir.Value, size: ir.Value, columns: ir.Value,
        row: ir.Value, column: ir.Value, *, store: bool = False, bad: ir.Value | None = None,
    ) -> None:  # fmt: skip
        """Matrices of `size` elements in rows of `columns`; element (i, j) in vector number
        i * row + j * column. store: the other way; bad: a pointer to a vector that is NaN in lanes
        whose results are to be NaN, 0 in others."""
        places = Places(columns, row, column, self.e.index(0))
        table = self.offsets(first, size)
        self.runs(array, memory, table, self.e.index(1), size, places, store=store, bad=bad)

    def runs(
        self, array: ir.Value, memory: ir.Value, table: ir.Value, count: ir.Value, size: ir.Value,
        places: Places, *, store: bool = False, bad: ir.Value | None = None,
    ) -> None:  # fmt: skip
        """`count` runs of `size` elements, which begin where the table (count, lanes) says."""
        given = array, memory, table, self.fine if bad is None else bad, count, size
        numbers = places.columns, places.row, places.column, places.run
        values = [*given, *numbers]
        self.e.builder.call(self._function(store), values)

    def _function(self, store: bool) -> ir.Function:
        name = f"{self.e.symbol}.{'apart' if store else 'together'}"
        held: ir.Function | None = self.e.module.globals.get(name)
        if held is not None:
            return held
        vector = ir.VectorType(memory_type(self.dtype), self.lanes).as_pointer()
        kinds = [vector, memory_type(self.dtype).as_pointer(), I64.as_pointer(), vector, *[I64] * 6]
        function, f = self.e.define_function(name, ir.FunctionType(ir.VoidType(), kinds))
        for parameter in function.args[:4]:
            parameter.add_attribute("noalias")
        _emit_runs(Lanes(f, self.dtype), list(function.args), store)
        f.builder.ret_void()
        return function


def _emit_runs(w: Lanes, args: list[ir.Value], store: bool) -> None:
    e, b = w.e, w.b
    array, memory, table, bad, count, size, columns, row, column, step = args
    wrong = b.load(bad)
    is_wrong = w.m.is_nan(wrong)
    least = e.index(w.count)

    with e.for_range(w.zero, count) as run:
        begin = b.mul(run, least)
        starts = [b.load(e.at(table, b.add(begin, e.index(lane)))) for lane in range(w.count)]
        base = w.at(array, (run, step))

        def place(t: ir.Value) -> tuple[ir.Value, ir.Value]:
            """Where element t goes, and its column."""
            i = b.udiv(t, columns)
            j = b.sub(t, b.mul(i, columns))
            return b.add(b.mul(i, row), b.mul(j, column)), j

        with b.if_else(b.icmp_signed(">=", size, least)) as (blocks, elements):
            with blocks, e.for_range(w.zero, size, least) as t:
                last = b.sub(size, least)  # the last block overlaps the one before it
                t = b.select(b.icmp_signed("<", t, last), t, last)
                at, j = place(t)
                back = b.sub(row, b.mul(columns, column))
                targets = []
                for _ in range(w.count):
                    targets.append(e.at(base, at))
                    j, at = b.add(j, w.one), b.add(at, column)
                    over = b.icmp_signed("==", j, columns)
                    at = b.add(at, b.select(over, back, w.zero))
                    j = b.select(over, w.zero, j)
                lines = [_wide(w, e.at(memory, b.add(s, t))) for s in starts]
                if store:
                    found = [b.select(is_wrong, wrong, b.load(p)) for p in targets]
                    for pointer, value in zip(lines, transposed(w, found), strict=True):
                        b.store(value, pointer, align=w.number_bytes)
                else:
                    made = [b.load(p, align=w.number_bytes) for p in lines]
                    for pointer, value in zip(targets, transposed(w, made), strict=True):
                        b.store(value, pointer)
            with elements, e.for_range(w.zero, size) as t:
                target = e.at(base, place(t)[0])
                value = ir.Constant(w.vector, ir.Undefined)
                if store:
                    value = b.select(is_wrong, wrong, b.load(target))
                for lane, start in enumerate(starts):
                    pointer, slot = e.at(memory, b.add(start, t)), ir.Constant(I32, lane)
                    if store:
                        b.store(b.extract_element(value, slot), pointer)
                    else:
                        value = b.insert_element(value, b.load(pointer), slot)
                if not store:
                    b.store(value, target)


def _wide(w: Lanes, pointer: ir.Value) -> ir.Value:
    return w.b.bitcast(pointer, w.vector.as_pointer())


def transposed(w: Lanes, vectors: Sequence[ir.Value]) -> list[ir.Value]:
    """Vector i of the result has in lane j what vector j has in lane i."""
    made, lanes = list(vectors), len(vectors)
    half = lanes // 2
    while half:
        for i in range(lanes):
            if i & half:
                continue
            a, b = made[i], made[i + half]
            low = [k if not k & half else lanes + k - half for k in range(lanes)]
            high = [k + half if not k & half else lanes + k for k in range(lanes)]
            for at, order in ((i, low), (i + half, high)):
                mask = ir.Constant(ir.VectorType(I32, lanes), order)
                made[at] = w.b.shuffle_vector(a, b, mask)
        half //= 2
    return made


def store_integers(
    w: Lanes, array: ir.Value, memory: ir.Value, starts: Sequence[ir.Value], count: ir.Value
) -> None:
    """The integers of `count` vectors of an array, as int64: those of a lane begin at its start."""
    b = w.b
    with w.e.for_range(w.zero, count) as i:
        value = b.load(w.e.at(array, i))
        for lane, start in enumerate(starts):
            one = b.extract_element(value, ir.Constant(I32, lane))
            one = b.sext(one, I64) if one.type != I64 else one
            b.store(one, w.e.at(memory, b.add(start, i)))
