"""Products of sparse matrices, entry by entry: out[i] += value * dense[j], in the entries' order.

The same operations in the same order as a gather, a multiplication and a scatter, so with the same
bits, but nothing is stored between them. Threads share the columns of the result: all entries of
one element stay with one thread. With a vector a sum stays in a register as long as entries of its
row follow each other, as they do in row-major order."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from llvmlite import ir

from weft.codegen.call import Address, Arg, KernelCall, Scratch, Status, cut_call
from weft.codegen.dynamic.kernels import room_words, scalar_kernel
from weft.codegen.kernels.data_movement import checked_index, report_index, tensor
from weft.codegen.llvm.emitter import I64, Emitter
from weft.codegen.llvm.jit import Kernel
from weft.codegen.scalar.element_access import constant, load_element, store_element
from weft.codegen.scalar.elementwise import emit_scalar
from weft.ir.cost.rates import NS_PER_GATHERED, NS_PER_INDEX, streamed
from weft.ir.cost.thresholds import SPARSE_ROW_BYTES
from weft.ir.graph import Operation
from weft.ir.spec import int_attr, static_attr


def lower_sparse_matmul(op: Operation) -> list[KernelCall]:
    """args: result, dense, entries, values, status, entries' number, rows, inner, columns."""
    dense, entries, values = op.operands
    dtype, index = tensor(dense).dtype.short, tensor(entries).dtype.short
    rows, inner = tensor(op.result).static_shape[0], tensor(dense).static_shape[0]
    columns, n = math.prod(tensor(dense).static_shape[1:]), tensor(entries).static_shape[0]
    row, vector = int_attr(op.attrs, "row"), len(tensor(dense).static_shape) == 1
    form = "vector" if vector else "matrix"
    kernel = Kernel(
        f"sparse-matmul-3-{form}-{row}-{dtype}-{index}",
        f"sparse_matmul_{dtype}",
        lambda e: (_emit_vector if vector else _emit_matrix)(e, dtype, index, row),
    )
    args = (
        Address(op.result), Address(dense), Address(entries), Address(values), Status(), n, rows,
        inner, columns,
    )  # fmt: skip
    itemsize = tensor(dense).dtype.itemsize
    total = n * (NS_PER_INDEX + NS_PER_GATHERED) + streamed(2 * itemsize * n) * columns
    units = 1 if vector else columns
    runs = -(-SPARSE_ROW_BYTES // itemsize)
    return [cut_call(kernel, args, units, total / max(columns, 1), runs)]


def lower_padded_pairs(op: Operation) -> list[KernelCall]:
    """args: those of `codegen.dynamic.pairs`' kernels of one unit."""
    a, b = op.operands[:2]
    left, right = (tensor(t).static_shape[0] for t in (a, b))
    sizes, room = static_attr(op.attrs, "shape"), int_attr(op.attrs, "room")
    args: list[Arg] = [Address(a), left, Address(b), right, *sizes, room]
    args += [Scratch(8 * room_words(left, right, sizes)), Scratch(16), *map(Address, op.results)]
    return [KernelCall(scalar_kernel("room_pairs"), tuple(args))] if room else []


class _Entries:
    """The entries of a kernel: their place and value by number."""

    def __init__(
        self, f: Emitter, pointers: list[ir.Value], sizes: list[ir.Value], kinds: tuple[str, str],
        row: int,
    ) -> None:  # fmt: skip
        self.f, (self.dtype, self.index), self.row = f, kinds, row
        self.entries, self.values, self.status = pointers
        self.rows, self.inner = sizes

    def places(self, k: ir.Value) -> list[tuple[ir.Value, ir.Value, ir.Value]]:
        """Of its row and its column: the position in the entries, the index, and whether that is
        in bounds."""
        f, b, found = self.f, self.f.builder, []
        for side, size in enumerate((self.rows, self.inner)):
            at = b.add(b.mul(k, f.index(2)), f.index(side ^ self.row))
            found.append((at, *checked_index(f, f.at(self.entries, at), self.index, size)))
        return found

    def report(self, found: list[tuple[ir.Value, ir.Value, ir.Value]]) -> None:
        """Tell of what is out of bounds."""
        for at, _, good in found:
            with self.f.builder.if_then(self.f.builder.not_(good)):
                report_index(self.f, self.status, at, self.entries, self.index)

    def value(self, k: ir.Value) -> ir.Value:
        return load_element(self.f, self.f.at(self.values, k), self.dtype)

    def all_good(self, n: ir.Value) -> ir.Value:
        """Whether all are in bounds; without branches, so that the loop vectorises."""
        b, bad = self.f.builder, self.f.alloca(I64)
        b.store(self.f.index(0), bad)
        with self.f.for_range(self.f.index(0), n) as k:
            (_, _, one), (_, _, other) = self.places(k)
            b.store(b.or_(b.load(bad), b.zext(b.not_(b.and_(one, other)), I64)), bad)
        return b.icmp_signed("==", b.load(bad), self.f.index(0))

    def plus(self, held: ir.Value, value: ir.Value, dense_at: ir.Value) -> ir.Value:
        """held + value * dense, each rounded by itself."""
        f = self.f
        product = emit_scalar(
            f, "multiply", self.dtype, [load_element(f, dense_at, self.dtype), value], {}
        )
        return emit_scalar(f, "add", self.dtype, [held, f.freeze(product)], {})


@contextmanager
def _loop(
    e: Emitter, dtype: str, index: str, row: int
) -> Iterator[tuple[_Entries, ir.Value, ir.Value, list[ir.Value]]]:
    """A function of the kernel's arguments: the entries, the addresses of the result and of the
    dense operand, and the entries' number, rows, columns, and first and last unit."""
    kinds = (dtype, dtype, index, dtype, "i64")
    pointers = [e.pointer_argument(k, d) for k, d in enumerate(kinds)]
    numbers = [*(e.argument(5 + k) for k in range(4)), e.lo, e.hi]
    with e.loop_function("loop", pointers, numbers) as (
        f,
        (out, dense, *pointers),
        (n, rows, inner, *units),
    ):
        given = _Entries(f, pointers, [rows, inner], (dtype, index), row)
        yield given, out, dense, [n, rows, *units]


def _emit_matrix(e: Emitter, dtype: str, index: str, row: int) -> None:
    """Units: columns of the result."""
    with _loop(e, dtype, index, row) as (given, out, dense, (n, rows, columns, lo, hi)):
        f, b = given.f, given.f.builder
        with f.for_range(f.index(0), rows) as r:
            line = f.at(out, b.mul(r, columns))
            with f.for_range(lo, hi) as i:
                store_element(f, constant(dtype, 0.0), f.at(line, i), dtype)
        with f.for_range(f.index(0), n) as k:
            found = given.places(k)
            (_, r, good_row), (_, c, good_column) = found
            value = given.value(k)
            target, source = f.at(out, b.mul(r, columns)), f.at(dense, b.mul(c, columns))
            with b.if_else(b.and_(good_row, good_column), likely=True) as (then, otherwise):
                with otherwise:
                    given.report(found)
                with then, f.for_range(lo, hi) as i:
                    at = f.at(target, i)
                    held = f.freeze(load_element(f, at, dtype))
                    store_element(f, given.plus(held, value, f.at(source, i)), at, dtype)


def _emit_vector(e: Emitter, dtype: str, index: str, row: int) -> None:
    """The dense operand is a vector: one sum at a time."""
    with _loop(e, dtype, index, row) as (given, out, dense, (n, rows, *_)):
        f, b, nothing = given.f, given.f.builder, constant(dtype, 0.0)
        with f.for_range(f.index(0), rows) as r:
            store_element(f, nothing, f.at(out, r), dtype)
        total, line = f.alloca(nothing.type), f.alloca(I64)
        with b.if_else(given.all_good(n), likely=True) as (then, otherwise):
            with otherwise, f.for_range(f.index(0), n) as k:
                given.report(given.places(k))
            with then, b.if_then(b.icmp_signed(">", n, f.index(0))):
                b.store(nothing, total)
                b.store(given.places(f.index(0))[0][1], line)
                with f.for_range(f.index(0), n) as k:
                    (_, r, _), (_, c, _) = given.places(k)
                    with b.if_then(b.icmp_signed("!=", r, b.load(line)), likely=False):
                        store_element(f, b.load(total), f.at(out, b.load(line)), dtype)
                        b.store(f.freeze(load_element(f, f.at(out, r), dtype)), total)
                        b.store(r, line)
                    held = given.plus(b.load(total), given.value(k), f.at(dense, c))
                    b.store(held, total)
                store_element(f, b.load(total), f.at(out, b.load(line)), dtype)
