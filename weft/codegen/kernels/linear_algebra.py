"""Decompositions and linear solves by LAPACK and BLAS, called by address from the step's own code,
but for batches of small real matrices (`codegen/interleaved`).

The units are the matrices of a batch. LAPACK works in place on column-major matrices: a kernel
copies each matrix, transposed, into the scratch memory of its thread, calls the routine, and copies
what it made into the results (`lapack.py`). Nothing is transposed where the transpose will do: a
lower triangle in row-major order is an upper one in column-major order (Cholesky factors,
triangular solves, operands of `eigh`), and a matrix with no more rows than columns has the singular
values of its transpose, whose V is its U. (Of one with more rows the transpose is decomposed more
slowly than it is copied.) How much work space a routine wants is asked of it when the call is
planned, for each shape once.

A matrix with elements that are not finite, where the routine could loop or stop, is not given to
it; that one's results are NaN, as they are where the routine finds no decomposition.

A batch is cut over weft's threads, each of which does one matrix after the other alone: OpenBLAS's
own threads are turned off meanwhile, by its setting for the process, as the two sets of threads
would wait for each other (20 matrices of 128 x 128 on two busy cores: 0.38 s for 0.013). Few
matrices of `ONE_BY_ONE` nanoseconds and more each go one after the other on OpenBLAS's threads."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np
from llvmlite import ir

from weft.codegen.call import (
    Address,
    Arg,
    KernelCall,
    Routine,
    WorkerScratch,
    cut_call,
    worker_stride,
)
from weft.codegen.interleaved.calls import interleaved_call
from weft.codegen.kernels.data_movement import tensor
from weft.codegen.kernels.lapack import BLOCK, Matrices, Reflections, want_one_thread
from weft.codegen.llvm.emitter import I64, PART, Emitter, memory_type
from weft.codegen.llvm.jit import Kernel
from weft.codegen.llvm.link import (
    BLAS_THREADS,
    LETTER,
    routine_address,
)
from weft.codegen.scalar.element_access import constant
from weft.ir.cost.rates import decomposition
from weft.ir.cost.thresholds import FEW_MATRICES, ONE_BY_ONE
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import as_dtype
from weft.ir.errors import UnsupportedError
from weft.ir.graph import Operation, Value
from weft.ir.sizes import hint, largest, now, of_sizes, smallest

#: Part of the keys of these kernels.
VERSION = 8


# ---------------------------------------------------------------------------------------- planning


class _Work(str):
    """An operand of a question for work space: an array of this dtype, and -1 after it."""

    __slots__ = ()


def _asked(routine: str, *operands: str | int | None) -> tuple[int, ...]:
    """What LAPACK's `routine` says of each `_Work` operand: how many elements it wants. A str is a
    flag, an int a size; None stands for what it does not read."""
    held: list[Any] = []
    found = []
    for operand in operands:
        if isinstance(operand, _Work):
            found.append(np.zeros(8, as_dtype(str(operand)).numpy))
            held += [found[-1].ctypes, ctypes.c_int(-1)]
        elif isinstance(operand, str):
            held.append(ctypes.c_char(operand.encode()))
        else:
            held.append(ctypes.c_int(operand or 0))
    held.append(ctypes.c_int(0))
    flags = [ctypes.c_size_t(1) for x in held if isinstance(x, ctypes.c_char)]
    given = [x.data_as(ctypes.c_void_p) if hasattr(x, "data_as") else ctypes.byref(x) for x in held]
    function = ctypes.CFUNCTYPE(None)(routine_address(routine))
    function.argtypes = None  # type: ignore[assignment]
    function(*given, *flags)
    return tuple([max(1, math.ceil(x[0].real)) for x in found])


def _check_size(op: str, k: int) -> None:
    """UnsupportedError where the work space overflows LAPACK's sizes, which LAPACK does not say."""
    if 4 * k * k + 8 * k >= 2**31:
        raise UnsupportedError(
            f"op '{op}' of a matrix with {k} rows and columns is not built: LAPACK's sizes have 32 "
            "bits, and it wants work space of more elements than that"
        )


#: LAPACK's names for the same of real and of complex matrices.
_TRIDIAGONAL = {"s": "sytrd", "d": "sytrd", "c": "hetrd", "z": "hetrd"}


def _one(n: int) -> int:
    return max(1, n)


@of_sizes
def _eigh_work(letter: str, dtype: str, vectors: bool, n: int) -> tuple[int, ...]:
    """Elements of work, rwork (complex only) and iwork."""
    _check_size("eigh", n)
    given: tuple[Any, ...] = "U", n, None, _one(n), None, None, None, _Work(dtype)
    (work,) = _asked(letter + _TRIDIAGONAL[letter], *given)
    if not vectors:
        return work, 0, 0
    between = () if letter in "sd" else (_Work(PART[dtype]),)
    given = "I", n, None, None, None, _one(n), _Work(dtype), *between, _Work("i32")
    found = _asked(letter + "stedc", *given)
    return max(work, found[0]), found[1] if between else 0, found[-1]


@of_sizes
def _svd_work(letter: str, dtype: str, job: str, m: int, n: int) -> tuple[int, ...]:
    """Elements of work, and of rwork (complex only), for which LAPACK's page has a formula."""
    k, most = min(m, n), max(m, n)
    _check_size("svd", k)
    left, right = (m, n) if job == "A" else (m, _one(k))
    between: tuple[None, ...] = () if letter in "sd" else (None,)
    (work,) = _asked(
        letter + "gesdd", job, m, n, None, _one(m), None, None, _one(left), None, _one(right),
        _Work(dtype), *between, None,
    )  # fmt: skip
    if letter in "sd":
        return work, 0
    return work, 7 * k if job == "N" else max(5 * k * k + 5 * k, 2 * most * k + 2 * k * k + k)


@of_sizes
def _eig_work(letter: str, dtype: str, job: str, n: int) -> tuple[int, ...]:
    values: tuple[None, ...] = (None, None) if letter in "sd" else (None,)
    between: tuple[None, ...] = () if letter in "sd" else (None,)
    given = "N", job, n, None, _one(n), *values, None, 1, None, _one(n)
    return _asked(letter + "geev", *given, _Work(dtype), *between)


class _Layout:
    """Parts of a thread's scratch memory: `part` gives the offset of a new one, in bytes."""

    def __init__(self) -> None:
        self.nbytes = 0

    def part(self, count: int, dtype: str) -> int:
        start = self.nbytes
        self.nbytes = start + worker_stride(count * as_dtype(dtype).itemsize)
        return start

    def args(self, *more: int) -> tuple[Arg, ...]:
        """The scratch memory, its stride, and more numbers about it."""
        return WorkerScratch(self.nbytes), worker_stride(self.nbytes), *more


def _shape(value: Value) -> tuple[int, int, int]:
    """(matrices, rows, columns)"""
    *batch, rows, columns = tensor(value).static_shape
    return math.prod(batch), rows, columns


def _call(
    op: Operation, flags: str, emit: Callable[[Emitter, str], None], args: Sequence[Arg]
) -> list[KernelCall]:
    """The call on a batch of matrices; flags: what else than its dtype decides a kernel's code."""
    x = op.operands[0]
    dtype = tensor(x).dtype.short
    name = f"{op.name}_{dtype}"
    key = f"{op.name}-{VERSION}-{flags}-{dtype}"
    count, rows, columns = _shape(x)
    right = tensor(op.result).static_shape[-1] if op.name.endswith("solve") else 0
    each = decomposition(op.name, rows, columns, right, bool(op.attrs.get("vectors", True)))
    each *= 4 if dtype in PART else 1
    if now(each) >= ONE_BY_ONE and hint(count) < FEW_MATRICES:
        kernel = Kernel(f"{key}-shared", name, lambda e: emit(e, dtype))
        return [KernelCall(kernel, tuple(args), count)]

    def alone(e: Emitter) -> None:
        words = e.pointer_argument(len(args), "i64")
        want_one_thread(e, words, True)
        emit(e, dtype)
        want_one_thread(e, words, False)

    return [cut_call(Kernel(key, name, alone), (*args, Routine(BLAS_THREADS)), count, each)]


def _large(
    lower: Callable[[Operation], list[KernelCall]],
) -> Callable[[Operation], list[KernelCall]]:
    """A lowering that leaves batches of small matrices to `codegen/interleaved`."""

    @wraps(lower)
    def lowered(op: Operation) -> list[KernelCall]:
        return interleaved_call(op) or lower(op)

    return lowered


def _letter(op: Operation) -> tuple[str, str]:
    dtype = tensor(op.operands[0]).dtype.short
    return LETTER[dtype], dtype


@_large
def lower_cholesky(op: Operation) -> list[KernelCall]:
    """args: result, operand, n, potrf."""
    letter, _ = _letter(op)
    _, n, _ = _shape(op.result)
    args = (Address(op.result), Address(op.operands[0]), n, Routine(letter + "potrf"))
    return _call(op, "", _emit_cholesky, args)


@_large
def lower_lu(op: Operation) -> list[KernelCall]:
    """args: packed, pivots, permutation, operand, m, n, k, scratch, its stride, int32 pivots in it,
    getrf."""
    letter, dtype = _letter(op)
    _, m, n = _shape(op.operands[0])
    k, layout = smallest(m, n), _Layout()
    layout.part(m * n, dtype)
    swaps = layout.part(k, "i32")
    results: list[Arg] = [Address(v) for v in op.results]
    scratch = layout.args(swaps)
    args = (*results, Address(op.operands[0]), m, n, k, *scratch, Routine(letter + "getrf"))
    return _call(op, "", _emit_lu, args)


@_large
def lower_solve(op: Operation) -> list[KernelCall]:
    """lu_solve and triangular_solve. args: result, matrices, right sides, n, columns of those,
    trsm (trsv for one column, where it can: conjugates without a transpose it has not); for
    lu_solve pivots."""
    letter, dtype = _letter(op)
    *given, b = op.operands
    _, n, columns = _shape(op.result)
    matrices = given[-2] if op.name == "lu_solve" else given[0]
    args: list[Arg] = [Address(op.result), Address(matrices), Address(b), n, columns]
    adjoint = bool(op.attrs["adjoint"])
    vector = columns == 1 and not (adjoint and dtype in PART)
    args.append(Routine(letter + ("trsv" if vector else "trsm")))
    if op.name == "lu_solve":
        args.append(Address(given[-1]))
        parts = [(True, True), (False, False)]
        parts = parts[::-1] if adjoint else parts
    else:
        parts = [(bool(op.attrs["lower"]), bool(op.attrs["unit_diagonal"]))]
    flags = f"{'h' if adjoint else 'n'}{'v' if vector else 'm'}{parts}"
    pivoted = op.name == "lu_solve"
    form = _Solve(parts, adjoint, pivoted, vector)
    return _call(op, flags, lambda e, t: _emit_solve(e, t, form), args)


@_large
def lower_qr(op: Operation) -> list[KernelCall]:
    """args: Q, R, operand, m, n, columns of Q, k, scratch, its stride, in it tau and `Reflections`'
    V, T, S and W, geqr2, gemm, trmm."""
    letter, dtype = _letter(op)
    _, m, n = _shape(op.operands[0])
    columns, layout = tensor(op.results[0]).static_shape[-1], _Layout()
    k = smallest(m, n)
    width = largest(n, columns)
    layout.part(m * width, dtype)
    counts = k, m * BLOCK, k * BLOCK, BLOCK * BLOCK, width * BLOCK
    scratch = layout.args(*(layout.part(count, dtype) for count in counts))
    results: list[Arg] = [Address(v) for v in op.results]
    routines = [Routine(letter + name) for name in ("geqr2", "gemm", "trmm")]
    args = (*results, Address(op.operands[0]), m, n, columns, k, *scratch, *routines)
    return _call(op, "", _emit_qr, args)


@_large
def lower_eigh(op: Operation) -> list[KernelCall]:
    """args: values, vectors (or 0), operand, n, scratch, its stride, in it the off-diagonal, tau,
    work, rwork and iwork, elements of these three, sytrd; with vectors where they are in scratch
    memory, `Reflections`' V, T, S and W, stedc, gemm, trmm; else sterf."""
    letter, dtype = _letter(op)
    _, n, _ = _shape(op.operands[0])
    vectors, layout = bool(op.attrs["vectors"]), _Layout()
    counts, real = _eigh_work(letter, dtype, vectors, n), PART.get(dtype, dtype)
    layout.part(n * n, dtype)
    parts = (n, real), (n, dtype), *zip(counts, (dtype, real, "i32"), strict=True)
    spaces = [layout.part(count, kind) for count, kind in parts]
    more = n * n, n * BLOCK, n * BLOCK, BLOCK * BLOCK, n * BLOCK
    later = [layout.part(count, dtype) for count in more] if vectors else []
    results: list[Arg] = [Address(op.results[0])]
    results.append(Address(op.results[1]) if vectors else 0)
    names = [letter + name for name in ("stedc", "gemm", "trmm")]
    names = names if vectors else [LETTER[real] + "sterf"]
    first = Routine(letter + _TRIDIAGONAL[letter])
    scratch = layout.args(*spaces, *counts)
    args = (*results, Address(op.operands[0]), n, *scratch, first, *later, *map(Routine, names))
    return _call(op, "v" if vectors else "", lambda e, t: _emit_eigh(e, t, vectors), args)


@_large
def lower_svd(op: Operation) -> list[KernelCall]:
    """args: values, U, V^H (or 0), operand, m, n, k, columns of U, rows of V^H, scratch, its
    stride, U, V^H, work, rwork and iwork in it, lwork, gesdd."""
    letter, dtype = _letter(op)
    _, m, n = _shape(op.operands[0])
    vectors, full, layout = bool(op.attrs["vectors"]), bool(op.attrs["full"]), _Layout()
    job, k, tall = ("A" if full else "S") if vectors else "N", smallest(m, n), m > n
    left, right = (m, n) if full else (k, k)
    work, rwork = _svd_work(letter, dtype, job, largest(m, n), k)
    layout.part(m * n, dtype)
    kept = [m * left, right * n] if vectors and tall else [0, 0]
    spaces = [layout.part(count, dtype) for count in kept]
    spaces += [layout.part(work, dtype), layout.part(rwork, PART.get(dtype, dtype))]
    spaces.append(layout.part(8 * k, "i32"))
    u, s, v = op.results if vectors else (None, op.results[0], None)
    results: list[Arg] = [Address(s), Address(u) if u else 0, Address(v) if v else 0]
    scratch = layout.args(*spaces, work)
    sizes = (m, n, k, left, right)
    args = (*results, Address(op.operands[0]), *sizes, *scratch, Routine(letter + "gesdd"))
    flags = f"{job}{'t' * tall}"
    return _call(op, flags, lambda e, t: _emit_svd(e, t, job, tall), args)


def lower_eig(op: Operation) -> list[KernelCall]:
    """args: values, vectors (or 0), operand, n, scratch, its stride, values, vectors, work and
    rwork in it, lwork, geev."""
    letter, dtype = _letter(op)
    _, n, _ = _shape(op.operands[0])
    vectors, layout = bool(op.attrs["vectors"]), _Layout()
    (work,) = _eig_work(letter, dtype, "V" if vectors else "N", n)
    layout.part(n * n, dtype)
    spaces = [layout.part(2 * n, dtype), layout.part(n * n if vectors else 1, dtype)]
    spaces += [layout.part(work, dtype), layout.part(2 * n, dtype)]
    results: list[Arg] = [Address(op.results[0])]
    results.append(Address(op.results[1]) if vectors else 0)
    scratch = layout.args(*spaces, work)
    args = (*results, Address(op.operands[0]), n, *scratch, Routine(letter + "geev"))
    return _call(op, "v" if vectors else "", lambda e, t: _emit_eig(e, t, vectors), args)


# ------------------------------------------------------------------------------------------- code


def _emit_cholesky(e: Emitter, dtype: str) -> None:
    m, b = Matrices(e, dtype), e.builder
    outs, xs = e.pointer_argument(0, dtype), e.pointer_argument(1, dtype)
    n, potrf = e.argument(2), e.argument(3)
    size = b.mul(n, n)
    with m.units() as unit:
        start, bad = b.mul(unit, size), m.flag()
        out, x = e.at(outs, start), e.at(xs, start)
        m.check(bad, x, n, n, lower=True)
        m.copied(out, x, n, n, lower=True)
        with m.unless(bad):
            m.fails(bad, m.call(potrf, "U", n, out, m.at_least_one(n)))
        with m.where(bad):
            m.fill(out, size, math.nan, dtype)


def _emit_lu(e: Emitter, dtype: str) -> None:
    w, b = Matrices(e, dtype), e.builder
    kinds = (dtype, "i64", "i64", dtype)
    packed, pivots, permutation, xs = (e.pointer_argument(j, t) for j, t in enumerate(kinds))
    m, n, k = (e.argument(j) for j in (4, 5, 6))
    base, getrf = w.scratch(7), e.argument(10)
    held, swaps = w.pointer(base, dtype), w.pointer(base, "i32", e.argument(9))
    size = b.mul(m, n)
    with w.units() as unit:
        start = b.mul(unit, size)
        w.transposed(held, e.at(xs, start), m, n)
        w.call(getrf, m, n, held, w.at_least_one(m), swaps)
        w.transposed(e.at(packed, start), held, n, m)
        order, swapped = e.at(permutation, b.mul(unit, m)), e.at(pivots, b.mul(unit, k))
        with e.for_range(w.zero, m) as i:
            b.store(i, e.at(order, i))
        with e.for_range(w.zero, k) as i:
            other = b.sub(b.sext(b.load(e.at(swaps, i)), I64), w.one)
            b.store(other, e.at(swapped, i))
            first, second = e.at(order, i), e.at(order, other)
            one, two = b.load(first), b.load(second)
            b.store(two, first)
            b.store(one, second)


@dataclass(frozen=True)
class _Solve:
    """parts: (lower, unit diagonal) of the triangles that are solved with, in order. vector: of one
    column, by trsv."""

    parts: list[tuple[bool, bool]]
    adjoint: bool
    pivoted: bool
    vector: bool


def _emit_solve(e: Emitter, dtype: str, form: _Solve) -> None:
    """Row-major op(A) X = B is column-major X' op(A)' = B': from the right, with the other
    triangle; of one column, a vector, A is the transpose of what is in column-major order."""
    w, b = Matrices(e, dtype), e.builder
    outs, matrices, rights = (e.pointer_argument(k, dtype) for k in range(3))
    n, columns, routine = (e.argument(k) for k in (3, 4, 5))
    swaps = e.pointer_argument(6, "i64") if form.pivoted else None
    alpha = w.cell(constant(dtype, 1))
    size = b.mul(n, columns)

    def swap(out: ir.Value, unit: ir.Value, back: bool) -> None:
        with e.for_range(w.zero, n) as step:
            i = b.sub(b.sub(n, w.one), step) if back else step
            other = b.load(e.at(swaps, b.add(b.mul(unit, n), i)))
            other = b.select(b.icmp_unsigned("<", other, n), other, i)  # who knows who made them
            with b.if_then(b.icmp_signed("!=", other, i)):
                first, second = (e.at(out, b.mul(k, columns)) for k in (i, other))
                w.exchanged(first, second, columns)

    with w.units() as unit:
        start = b.mul(unit, size)
        out, x = e.at(outs, start), e.at(rights, start)
        w.copied(out, x, n, columns)
        if form.pivoted and not form.adjoint:
            swap(out, unit, False)
        matrix, stride = e.at(matrices, b.mul(unit, b.mul(n, n))), w.at_least_one(n)
        for lower, unit_diagonal in form.parts:
            triangle, diagonal = "U" if lower else "L", "U" if unit_diagonal else "N"
            if form.vector:
                given = triangle, "N" if form.adjoint else "T", diagonal
                w.call(routine, *given, n, matrix, stride, out, w.one, info=False)
            else:
                turned = "C" if form.adjoint else "N"
                sizes, last = (columns, n, alpha), w.at_least_one(columns)
                given = triangle, turned, diagonal
                w.call(routine, "R", *given, *sizes, matrix, stride, out, last, info=False)
        if form.pivoted and form.adjoint:
            swap(out, unit, True)


def _emit_qr(e: Emitter, dtype: str) -> None:
    w, b = Matrices(e, dtype), e.builder
    qs, rs, xs = (e.pointer_argument(k, dtype) for k in range(3))
    m, n, columns, k = (e.argument(j) for j in (3, 4, 5, 6))
    base = w.scratch(7)
    held = w.pointer(base, dtype)
    tau, *spaces = (w.pointer(base, dtype, e.argument(j)) for j in range(9, 14))
    geqr2, gemm, trmm = (e.argument(j) for j in (14, 15, 16))
    h = Reflections(w, k, w.at_least_one(m), spaces, (gemm, trmm))
    with w.units() as unit:
        w.transposed(held, e.at(xs, b.mul(unit, b.mul(m, n))), m, n)
        with e.for_range(w.zero, k, h.size) as i:
            corner, own, height, width = (
                e.at(held, h.diagonal(i)),
                e.at(tau, i),
                b.sub(m, i),
                h.width(i),
            )
            w.call(geqr2, height, width, corner, h.stride, own, h.work)
            h.take(corner, height, width)
            h.combine(i, own, height, width)
            after = b.add(i, width)
            with b.if_then(b.icmp_signed("<", after, n)):
                right = e.at(corner, b.mul(width, h.stride))
                h.apply(i, right, height, b.sub(n, after), adjoint=True)
        r = e.at(rs, b.mul(unit, b.mul(columns, n)))
        w.transposed(r, held, n, columns, m)
        with e.for_range(w.zero, columns) as i:
            below = b.select(b.icmp_signed("<", i, n), i, n)
            w.fill(e.at(r, b.mul(i, n)), below, 0, dtype)
        w.unit_columns(held, k, columns, m)
        with h.backwards() as i:
            corner, height, width = e.at(held, h.diagonal(i)), b.sub(m, i), h.width(i)
            h.take(corner, height, width)
            w.unit_columns(held, i, b.add(i, width), m)
            h.apply(i, corner, height, b.sub(columns, i), adjoint=False)
        w.transposed(e.at(qs, b.mul(unit, b.mul(m, columns))), held, columns, m)


def _emit_eigh(e: Emitter, dtype: str, vectors: bool) -> None:
    """A = Q T Q^H, T = Z D Z^H, both real; Q is applied to Z. (LAPACK's syevd does the same, and
    applies Q more slowly.)"""
    w, b = Matrices(e, dtype), e.builder
    values, xs, n = e.pointer_argument(0, w.real), e.pointer_argument(2, dtype), e.argument(3)
    out = e.pointer_argument(1, dtype)
    base = w.scratch(4)
    held, kinds = w.pointer(base, dtype), (w.real, dtype, dtype, w.real, "i32")
    beside, tau, *spaces = (w.pointer(base, t, e.argument(6 + k)) for k, t in enumerate(kinds))
    counts, sytrd = [e.argument(11 + k) for k in range(3)], e.argument(14)
    rest = [v for k in (0, 1, 2) if k != 1 or dtype in PART for v in (spaces[k], counts[k])]
    size, stride = b.mul(n, n), w.at_least_one(n)
    if vectors:
        made, *parts = (w.pointer(base, dtype, e.argument(15 + k)) for k in range(5))
        stedc, gemm, trmm = (e.argument(20 + k) for k in range(3))
        h = Reflections(w, b.sub(n, w.one), stride, parts, (gemm, trmm), backward=True)
    with w.units() as unit:
        x, bad = e.at(xs, b.mul(unit, size)), w.flag()
        own = e.at(values, b.mul(unit, n))
        down, up = w.powers(w.check(bad, x, n, n, lower=True))
        w.scaled(held, x, n, n, down)  # its upper triangle, in column-major order
        with w.unless(bad):
            w.call(sytrd, "U", n, held, stride, own, beside, tau, spaces[0], counts[0])
            if not vectors:
                w.fails(bad, w.call(e.argument(15), n, own, beside))
            else:
                w.fails(bad, w.call(stedc, "I", n, own, beside, made, stride, *rest))
                with e.for_range(w.zero, h.count, h.size) as i:
                    width = h.width(i)
                    height, column = b.add(i, width), e.at(held, b.mul(b.add(i, w.one), stride))
                    h.take(column, height, width)
                    h.combine(i, e.at(tau, i), height, width)
                    h.apply(i, made, height, n, adjoint=False)
            with e.for_range(w.zero, n) as k:
                b.store(b.fmul(b.load(e.at(own, k)), up), e.at(own, k))
        if vectors:
            w.transposed(e.at(out, b.mul(unit, size)), made, n, n)
        with w.where(bad):
            w.fill(own, n, math.nan, w.real)
            if vectors:
                w.fill(e.at(out, b.mul(unit, size)), size, math.nan, dtype)


def _emit_svd(e: Emitter, dtype: str, job: str, tall: bool) -> None:
    """tall: of more rows than columns. Of any other, LAPACK is given the transpose, V S U', in
    which its U (column-major) is our V^H (row-major), and its V^H our U."""
    w, b = Matrices(e, dtype), e.builder
    given_as = (w.real, dtype, dtype, dtype)
    values, us, vs, xs = (e.pointer_argument(j, t) for j, t in enumerate(given_as))
    m, n, k, left, right = (e.argument(j) for j in range(4, 9))
    base, lwork, gesdd = w.scratch(9), e.argument(16), e.argument(17)
    held = w.pointer(base, dtype)
    kinds = (dtype, dtype, dtype, w.real, "i32")
    u, v, work, rwork, iwork = (w.pointer(base, t, e.argument(11 + j)) for j, t in enumerate(kinds))
    rest = [rwork, iwork] if dtype in PART else [iwork]
    with w.units() as unit:
        bad = w.flag()
        own, x = e.at(values, b.mul(unit, k)), e.at(xs, b.mul(unit, b.mul(m, n)))
        u_size, v_size = b.mul(m, left), b.mul(right, n)
        u_out, v_out = e.at(us, b.mul(unit, u_size)), e.at(vs, b.mul(unit, v_size))
        w.check(bad, x, m, n)
        if tall:
            w.transposed(held, x, m, n)
            sizes, first, second = (m, n, m, right), u, v
        else:
            w.copied(held, x, m, n)
            sizes, first, second = (n, m, n, left), v_out, u_out
        rows, columns, *strides = (w.at_least_one(size) for size in sizes)
        some = b.icmp_signed(">", k, w.zero)
        with w.unless(bad), b.if_then(some):
            given = job, rows, columns, held, rows, own, first, strides[0], second, strides[1]
            w.fails(bad, w.call(gesdd, *given, work, lwork, *rest))
        if job != "N":
            if tall:
                with b.if_then(some):
                    w.transposed(u_out, u, left, m)
                    w.transposed(v_out, v, n, right)
            with b.if_then(b.not_(some)):  # LAPACK has nothing to do; any basis is as good
                w.identity(u_out, left)
                w.identity(v_out, right)
        with w.where(bad):
            w.fill(own, k, math.nan, w.real)
            if job != "N":
                w.fill(u_out, u_size, math.nan, dtype)
                w.fill(v_out, v_size, math.nan, dtype)


def _emit_eig(e: Emitter, dtype: str, vectors: bool) -> None:
    w, b = Matrices(e, dtype), e.builder
    made = dtype if dtype in PART else {"f32": "c64", "f64": "c128"}[dtype]
    values, outs = e.pointer_argument(0, made), e.pointer_argument(1, made)
    xs, n = e.pointer_argument(2, dtype), e.argument(3)
    base, lwork, geev = w.scratch(4), e.argument(10), e.argument(11)
    held = w.pointer(base, dtype)
    found, v, work, rwork = (w.pointer(base, dtype, e.argument(6 + k)) for k in range(4))
    size, stride = b.mul(n, n), w.at_least_one(n)
    with w.units() as unit:
        start, bad = b.mul(unit, size), w.flag()
        own, out = e.at(values, b.mul(unit, n)), e.at(outs, start)
        w.check(bad, e.at(xs, start), n, n)
        w.transposed(held, e.at(xs, start), n, n)
        tail = [b.bitcast(rwork, memory_type(w.real).as_pointer())] if dtype in PART else []
        places = [own] if dtype in PART else [found, e.at(found, n)]
        with w.unless(bad):
            given = "N", "V" if vectors else "N", n, held, stride, *places, v, w.one, v, stride
            w.fails(bad, w.call(geev, *given, work, lwork, *tail))
        with w.where(bad):
            w.fill(own, n, math.nan, made)
            if vectors:
                w.fill(out, size, math.nan, made)
        with w.unless(bad):
            if dtype in PART and vectors:
                w.transposed(out, v, n, n)
            if dtype not in PART:
                _complex_results(w, n, own, out if vectors else None, found, v)


def _complex_results(
    w: Matrices, n: ir.Value, own: ir.Value, out: ir.Value | None, found: ir.Value, v: ir.Value
) -> None:
    """geev of a real matrix: real and imaginary parts of values apart; of a conjugate pair, the
    real and the imaginary part of the first one's vector as two columns."""
    e, b = w.e, w.b
    pair = ir.LiteralStructType([memory_type(w.real)] * 2)

    def store(real: ir.Value, imaginary: ir.Value, at: ir.Value) -> None:
        whole = b.insert_value(ir.Constant(pair, ir.Undefined), real, 0)
        b.store(b.insert_value(whole, imaginary, 1), at)

    nothing = ir.Constant(memory_type(w.real), 0.0)

    def column(j: ir.Value, turn: ir.Value) -> None:
        first = b.fcmp_ordered(">", turn, nothing)
        second = b.fcmp_ordered("<", turn, nothing)
        real_at = b.select(second, b.sub(j, w.one), j)
        turned_at = b.select(first, b.add(j, w.one), j)
        sign = b.select(first, ir.Constant(nothing.type, 1.0), ir.Constant(nothing.type, -1.0))
        sign = b.select(b.or_(first, second), sign, nothing)
        with e.for_range(w.zero, n) as i:
            real = b.load(e.at(v, b.add(b.mul(real_at, n), i)))
            turned = b.fmul(sign, b.load(e.at(v, b.add(b.mul(turned_at, n), i))))
            store(real, turned, e.at(out, b.add(b.mul(i, n), j)))

    with e.for_range(w.zero, n) as j:
        turn = b.load(e.at(found, b.add(n, j)))
        store(b.load(e.at(found, j)), turn, e.at(own, j))
        if out is not None:
            column(j, turn)
