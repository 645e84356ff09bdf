"""Kernel calls on batches of small matrices: which ops and sizes, and the frames of the kernels.

The units of a call are blocks of as many matrices as a vector has lanes. A block is interleaved
into scratch memory of the thread, worked on there (`factors.py`, `orthogonal.py`, `spectra.py`),
and copied into the results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from llvmlite import ir

from weft.codegen.call import Address, Arg, KernelCall, WorkerScratch, cut_call, worker_stride
from weft.codegen.interleaved.factors import (
    emit_cholesky,
    emit_lu,
    emit_order,
    emit_substitution,
    integers,
    pad,
    table_of,
)
from weft.codegen.interleaved.jacobi import emit_singular_vectors
from weft.codegen.interleaved.lanes import Copies, Lanes, Places, store_integers, tile_size
from weft.codegen.interleaved.orthogonal import emit_qr
from weft.codegen.interleaved.spectra import emit_eigh, emit_singular_values
from weft.codegen.llvm.emitter import Emitter
from weft.codegen.llvm.jit import Kernel
from weft.codegen.vector.float_builder import lanes_of
from weft.ir.cost.rates import interleaved
from weft.ir.cost.thresholds import (
    INTERLEAVED_ROWS,
    INTERLEAVED_SHARES,
    INTERLEAVED_SMALL,
    INTERLEAVED_TURNED,
)
from weft.ir.graph import Operation, Value
from weft.ir.sizes import largest, smallest
from weft.ir.types import TensorType

#: Part of the keys of these kernels.
VERSION = 1


def _type(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type


class _Scratch:
    """Arrays of vectors in a thread's scratch memory: `part` gives the offset of a new one."""

    def __init__(self, dtype: str) -> None:
        self.nbytes = 0
        self._vector = lanes_of(dtype) * (4 if dtype == "f32" else 8)

    def part(self, vectors: int) -> int:
        start = self.nbytes
        self.nbytes = start + worker_stride(vectors * self._vector)
        return start

    def table(self, count: int, lanes: int) -> int:
        start = self.nbytes
        self.nbytes = start + worker_stride(count * lanes * 8)
        return start


class _Frame:
    """A kernel under construction. args: addresses of results and operands, the last matrix, sizes,
    offsets of arrays in the scratch memory, its address and stride."""

    def __init__(self, e: Emitter, dtype: str, pointers: str, sizes: int, parts: int) -> None:
        """pointers: a letter each, "i" for int64, else of the dtype."""
        self.e, self.w = e, Lanes(e, dtype)
        self.memory = [
            e.pointer_argument(k, "i64" if kind == "i" else dtype)
            for k, kind in enumerate(pointers)
        ]
        at = len(pointers)
        self.last = e.argument(at)
        self.sizes = [e.argument(at + 1 + k) for k in range(sizes)]
        at += 1 + sizes
        base = e.builder.add(
            e.argument(at + parts), e.builder.mul(e.worker, e.argument(at + parts + 1))
        )
        vector = self.w.vector.as_pointer()
        self.arrays = [
            e.builder.inttoptr(e.builder.add(base, e.argument(at + k)), vector)
            for k in range(parts)
        ]
        self.copies = Copies(e, dtype, self.last)

    @contextmanager
    def blocks(self) -> Iterator[ir.Value]:
        """For each block: its first matrix."""
        with self.e.for_range(self.e.lo, self.e.hi) as unit:
            yield self.e.builder.mul(unit, self.e.index(self.w.count))


def _padded(n: int, tile: int) -> int:
    return -(-n // tile) * tile


def _distance(size: int) -> int:
    """The distance of rows of so many vectors: odd, as rows that begin at the same place of pages
    drive each other out of the cache."""
    return size // 2 * 2 + 1


def interleaved_call(op: Operation) -> list[KernelCall] | None:
    """The call of an op on a batch of small real matrices; None: LAPACK does it."""
    x = _type(op.operands[0])
    make = _CALLS.get(op.name)
    if make is None or x.dtype.short not in ("f32", "f64"):
        return None
    *batch, m, n = x.static_shape
    turned = op.name == "svd" and bool(op.attrs["vectors"])
    size = largest(m, n)
    if smallest(m, n) < 1 or size > (INTERLEAVED_TURNED if turned else INTERLEAVED_ROWS):
        return None
    share = INTERLEAVED_SHARES[turned or size > INTERLEAVED_SMALL]
    if math.prod(batch) < share * lanes_of(x.dtype.short):
        return None
    return make(op, m, n, x.dtype.short)


def _call(
    op: Operation, flags: str, emit: Callable[[Emitter], None], pointers: Sequence[Arg],
    sizes: Sequence[int], scratch: _Scratch, parts: Sequence[int], right: int = 0,
) -> list[KernelCall]:  # fmt: skip
    x = _type(op.operands[0])
    dtype = x.dtype.short
    *batch, m, n = x.static_shape
    count, lanes = math.prod(batch), lanes_of(dtype)
    key = f"interleaved-{op.name}-{VERSION}-{flags}-{dtype}-{lanes}-{tile_size()}"
    memory = WorkerScratch(scratch.nbytes), worker_stride(scratch.nbytes)
    args = (*pointers, count - 1, *sizes, *parts, *memory)
    ns = interleaved(op.name, m, n, right, bool(op.attrs.get("vectors", True)), dtype)
    kernel = Kernel(key, f"{op.name}_{dtype}", lambda e: emit(e))  # a partial is kept nowhere
    return [cut_call(kernel, args, -(-count // lanes), ns)]


# ----------------------------------------------------------------------------------------- factors


def _cholesky(op: Operation, m: int, n: int, dtype: str) -> list[KernelCall]:
    size = _padded(n, tile_size())
    ld, scratch = _distance(size), _Scratch(dtype)
    parts = scratch.part(size * ld), scratch.part(size), scratch.part(1)
    pointers = Address(op.result), Address(op.operands[0])
    emit = partial(_emit_cholesky, dtype=dtype)
    return _call(op, "", emit, pointers, (n, size, ld), scratch, parts)


def _emit_cholesky(e: Emitter, dtype: str) -> None:
    frame = _Frame(e, dtype, "xx", 3, 3)
    w, copies, (out, x), (n, size, ld) = frame.w, frame.copies, frame.memory, frame.sizes
    a, inverses, bad = frame.arrays
    whole = e.builder.mul(n, n)
    with frame.blocks() as first:
        pad(w, a, n, n, size, ld, 1.0)
        copies.whole(a, x, first, whole, n, ld, w.one)
        emit_cholesky(w, a, inverses, bad, n, size, ld)
        copies.whole(a, out, first, whole, n, ld, w.one, store=True, bad=bad)


def _lu(op: Operation, m: int, n: int, dtype: str) -> list[KernelCall]:
    tile, k = tile_size(), smallest(m, n)
    rows, columns, scratch = _padded(m, tile), _padded(n, tile), _Scratch(dtype)
    ld = _distance(columns)
    parts = scratch.part(rows * ld), scratch.part(k), scratch.part(m)
    pointers = [Address(v) for v in (*op.results, op.operands[0])]
    emit = partial(_emit_lu, dtype=dtype)
    return _call(op, "", emit, pointers, (m, n, k, rows, columns, ld), scratch, parts)


def _emit_lu(e: Emitter, dtype: str) -> None:
    frame = _Frame(e, dtype, "xiix", 6, 3)
    w, b, copies, a = frame.w, e.builder, frame.copies, frame.arrays[0]
    packed, pivots, permutation, x = frame.memory
    m, n, k, rows, columns, ld = frame.sizes
    swaps, order = (integers(p, w) for p in frame.arrays[1:])
    with frame.blocks() as first:
        with e.for_range(w.zero, rows) as i:
            start = b.select(b.icmp_signed("<", i, m), n, w.zero)
            w.fill(w.at(a, (i, ld)), start, columns, 0.0)
        copies.whole(a, x, first, b.mul(m, n), n, ld, w.one)
        emit_lu(w, a, swaps, order, frame.sizes)
        copies.whole(a, packed, first, b.mul(m, n), n, ld, w.one, store=True)
        firsts = copies.offsets_of(first)
        for array, memory, size in ((swaps, pivots, k), (order, permutation, m)):
            store_integers(w, array, memory, [b.mul(f, size) for f in firsts], size)


def _solve(op: Operation, m: int, n: int, dtype: str) -> list[KernelCall]:
    """lu_solve and triangular_solve."""
    *given, right = op.operands
    columns = _type(right).static_shape[-1]
    pivoted, adjoint = op.name == "lu_solve", bool(op.attrs["adjoint"])
    size, scratch = _padded(n, tile_size()), _Scratch(dtype)
    a_ld, x_ld = _distance(size), _distance(columns)
    parts = [scratch.part(size * a_ld), scratch.part(size * x_ld)]
    parts.append(scratch.table(n if pivoted else 0, lanes_of(dtype)))
    matrices = given[-2] if pivoted else given[0]
    pointers = [Address(op.result), Address(matrices), Address(right)]
    if pivoted:
        pointers.append(Address(given[-1]))
        triangles = [(True, True), (False, False)]
        triangles = triangles[::-1] if adjoint else triangles
    else:
        triangles = [(bool(op.attrs["lower"]), bool(op.attrs["unit_diagonal"]))]
    parts_of = "".join(f"{'l' if lower else 'u'}{'1' * unit}" for lower, unit in triangles)
    flags = f"{'t' if adjoint else 'n'}{parts_of}"
    emit = partial(_emit_solve, dtype=dtype, triangles=triangles, adjoint=adjoint, pivoted=pivoted)
    sizes = n, columns, size, a_ld, x_ld
    return _call(op, flags, emit, pointers, sizes, scratch, parts, columns)


def _emit_solve(
    e: Emitter, dtype: str, triangles: list[tuple[bool, bool]], adjoint: bool, pivoted: bool
) -> None:
    frame = _Frame(e, dtype, "xxxi" if pivoted else "xxx", 5, 3)
    w, b, copies = frame.w, e.builder, frame.copies
    out, matrices, right = frame.memory[:3]
    n, columns, size, a_ld, x_ld = frame.sizes
    a, x = frame.arrays[:2]
    table = table_of(frame.arrays[2], w)
    cells = b.mul(n, columns)
    with frame.blocks() as first:
        pad(w, a, n, n, size, a_ld, 1.0)
        with e.for_range(n, size) as i:
            w.fill(w.at(x, (i, x_ld)), w.zero, columns, 0.0)

        def copy(memory: ir.Value, swapped: bool, store: bool) -> None:
            if swapped:
                places = Places(columns, x_ld, w.one, x_ld)
                copies.runs(x, memory, table, n, columns, places, store=store)
            else:
                copies.whole(x, memory, first, cells, columns, x_ld, w.one, store=store)

        copies.whole(a, matrices, first, b.mul(n, n), n, a_ld, w.one)
        if pivoted:
            emit_order(w, table, frame.memory[3], copies.offsets_of(first), n, columns)
        copy(right, pivoted and not adjoint, False)
        for lower, unit in triangles:
            emit_substitution(w, a, x, [size, columns, a_ld, x_ld], lower, adjoint, unit)
        copy(out, pivoted and adjoint, True)


# --------------------------------------------------------------------------------------- orthogonal


def _qr(op: Operation, m: int, n: int, dtype: str) -> list[KernelCall]:
    columns, k = _type(op.results[0]).static_shape[-1], smallest(m, n)
    ld, scratch = _distance(m), _Scratch(dtype)
    parts = scratch.part(n * ld), scratch.part(columns * ld), scratch.part(k)
    pointers = [Address(v) for v in (*op.results, op.operands[0])]
    emit = partial(_emit_qr, dtype=dtype)
    return _call(op, "", emit, pointers, (m, n, columns, k, ld), scratch, parts)


def _emit_qr(e: Emitter, dtype: str) -> None:
    frame = _Frame(e, dtype, "xxx", 5, 3)
    w, b, copies, (a, q, taus) = frame.w, e.builder, frame.copies, frame.arrays
    q_out, r_out, x = frame.memory
    m, n, columns, _, ld = frame.sizes
    with frame.blocks() as first:
        copies.whole(a, x, first, b.mul(m, n), n, w.one, ld)
        emit_qr(w, a, q, taus, frame.sizes)
        copies.whole(a, r_out, first, b.mul(columns, n), n, w.one, ld, store=True)
        copies.whole(q, q_out, first, b.mul(m, columns), columns, w.one, ld, store=True)


def _eigh(op: Operation, m: int, n: int, dtype: str) -> list[KernelCall]:
    vectors, ld, scratch = bool(op.attrs["vectors"]), _distance(n), _Scratch(dtype)
    parts = [scratch.part(n * ld), *(scratch.part(n) for _ in range(4)), scratch.part(1)]
    if vectors:
        parts.append(scratch.part(n * ld))
    pointers = [Address(v) for v in (*op.results, op.operands[0])]
    emit = partial(_emit_eigh, dtype=dtype, vectors=vectors)
    return _call(op, "v" if vectors else "", emit, pointers, (n, ld), scratch, parts)


def _emit_eigh(e: Emitter, dtype: str, vectors: bool) -> None:
    frame = _Frame(e, dtype, "xxx" if vectors else "xx", 2, 7 if vectors else 6)
    w, copies, (n, ld) = frame.w, frame.copies, frame.sizes
    values, *outs, x = frame.memory
    a, *arrays, bad = frame.arrays[:6]
    z = frame.arrays[6] if vectors else None
    whole = e.builder.mul(n, n)
    with frame.blocks() as first:
        copies.whole(a, x, first, whole, n, ld, w.one)
        emit_eigh(w, a, arrays, bad, n, ld, z)
        copies.whole(arrays[0], values, first, n, n, w.zero, w.one, store=True, bad=bad)
        if z is not None:
            copies.whole(z, outs[0], first, whole, n, w.one, ld, store=True, bad=bad)


def _svd(op: Operation, m: int, n: int, dtype: str) -> list[KernelCall]:
    rows, columns, scratch = largest(m, n), smallest(m, n), _Scratch(dtype)
    ld, wide = _distance(rows), m < n
    parts = [scratch.part(columns * ld), scratch.part(columns), scratch.part(columns)]
    if not op.attrs["vectors"]:
        parts += [scratch.part(2 * columns), scratch.part(2 * columns), scratch.part(1)]
        emit = partial(_emit_svd, dtype=dtype, wide=wide)
        pointers = [Address(op.result), Address(op.operands[0])]
        sizes = [m, n, rows, columns, ld]
        return _call(op, "w" if wide else "", emit, pointers, sizes, scratch, parts)
    left = rows if op.attrs["full"] else columns
    v_ld = _distance(columns)
    parts += [scratch.part(columns), scratch.part(1)]
    parts += [scratch.part(columns * v_ld), scratch.part(left * ld)]
    emit = partial(_emit_svd_vectors, dtype=dtype, wide=wide)
    pointers = [Address(v) for v in (*op.results, op.operands[0])]
    sizes = [m, n, rows, columns, left, ld, v_ld]
    return _call(op, "vw" if wide else "v", emit, pointers, sizes, scratch, parts)


def _emit_svd_vectors(e: Emitter, dtype: str, wide: bool) -> None:
    """Of a wide matrix, the vectors of its transpose, the other way round."""
    frame = _Frame(e, dtype, "xxxx", 7, 7)
    w, b, copies, (u, values, v, x) = frame.w, e.builder, frame.copies, frame.memory
    m, n, rows, columns, left, ld, v_ld = frame.sizes
    a, *arrays, bad, small, large = frame.arrays
    steps = (ld, w.one) if wide else (w.one, ld)
    with frame.blocks() as first:
        copies.whole(a, x, first, b.mul(m, n), n, *steps)
        sizes = [rows, columns, left, ld, v_ld]
        emit_singular_vectors(w, a, small, large, arrays, bad, sizes)
        out = [first, columns, columns, w.zero, w.one]
        copies.whole(arrays[0], values, *out, store=True, bad=bad)
        of_small, of_large = b.mul(columns, columns), b.mul(rows, left)
        if wide:
            copies.whole(small, u, first, of_small, m, w.one, v_ld, store=True, bad=bad)
            copies.whole(large, v, first, of_large, n, ld, w.one, store=True, bad=bad)
        else:
            copies.whole(large, u, first, of_large, left, w.one, ld, store=True, bad=bad)
            copies.whole(small, v, first, of_small, n, v_ld, w.one, store=True, bad=bad)


def _emit_svd(e: Emitter, dtype: str, wide: bool) -> None:
    frame = _Frame(e, dtype, "xx", 5, 6)
    w, b, copies, (out, x) = frame.w, e.builder, frame.copies, frame.memory
    m, n, rows, columns, ld = frame.sizes
    a, *arrays, bad = frame.arrays
    steps = (ld, w.one) if wide else (w.one, ld)
    with frame.blocks() as first:
        copies.whole(a, x, first, b.mul(m, n), n, *steps)
        emit_singular_values(w, a, arrays, bad, [rows, columns, ld])
        copies.whole(arrays[0], out, first, columns, columns, w.zero, w.one, store=True, bad=bad)


_CALLS: dict[str, Callable[[Operation, int, int, str], list[KernelCall]]] = {
    "cholesky": _cholesky,
    "lu": _lu,
    "lu_solve": _solve,
    "triangular_solve": _solve,
    "qr": _qr,
    "eigh": _eigh,
    "svd": _svd,
}
