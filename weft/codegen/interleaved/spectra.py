"""Eigenvalues of symmetric matrices and singular values, of interleaved matrices.

A tridiagonal matrix is diagonalised by implicit QL steps with Wilkinson's shift (B. Parlett, The
Symmetric Eigenvalue Problem, 1998, 8.13; LAPACK's steqr). All lanes look for the same eigenvalue
until each has it; those that have it, or whose part of the matrix ends sooner, make no turn. The
turns of a step are kept, and then applied to rows of the eigenvectors one after another.

The singular values of a bidiagonal matrix B are the eigenvalues that are not negative of a
tridiagonal matrix with zeros on the diagonal and B's numbers beside it (G. Golub and W. Kahan,
Calculating the singular values and pseudo-inverse of a matrix, 1965)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from llvmlite import ir

from weft.codegen.interleaved.lanes import Lanes
from weft.codegen.interleaved.orthogonal import (
    emit_basis,
    emit_bidiagonal,
    emit_tridiagonal,
    power_scale,
    scale_of_all,
)
from weft.ir.dataclass import dataclass

#: QL steps for one eigenvalue, at most: LAPACK gives up after 30 for each on average.
MOST_STEPS = 60
#: Rows of eigenvectors that turns are applied to at once.
ROWS = 4
_EPS = {"f32": 2.0**-24, "f64": 2.0**-53}
#: Beside a matrix whose largest element is near 1: what may be dropped at once, and the squares
#: below which a pair of numbers counts as zeros.
_FLOOR = {"f32": 2.0**-48, "f64": 2.0**-106}
_TINY = {"f32": 2.0**-100, "f64": 2.0**-800}


@dataclass(frozen=True)
class _Tridiagonal:
    """diagonal, beside: n vectors each (the last of beside is space); cosines, sines: of the turns
    of a step."""

    n: ir.Value
    diagonal: ir.Value
    beside: ir.Value
    cosines: ir.Value
    sines: ir.Value


def emit_ql(
    f: Lanes, t: _Tridiagonal, bad: ir.Value, vectors: tuple[ir.Value, ir.Value] | None
) -> None:
    """Diagonalise; bad becomes NaN in lanes where an eigenvalue was not found. vectors: columns
    that are turned alike, and their distance."""
    e, b = f.e, f.b
    last = b.sub(t.n, f.one)
    with e.for_range(f.zero, last) as first:
        steps = f.cell(f.zero)

        def step(first: ir.Value = first, steps: ir.Value = steps) -> ir.Value:
            end, at_end = _block_end(f, t, first)
            active = b.icmp_signed("!=", end, f.splat(first))
            some = f.any(active)
            count = b.load(steps)
            go = b.and_(some, b.icmp_signed("<", count, e.index(MOST_STEPS)))
            with b.if_else(go) as (more, done):
                with more:
                    none = f.splat(first)
                    stop = f.most(b.select(active, end, none))
                    _turn(f, t, first, stop, end, active, at_end)
                    if vectors is not None:
                        _turn_vectors(f, t, first, stop, *vectors)
                    b.store(b.add(count, f.one), steps)
                with done, b.if_then(some):
                    wrong = f.m.select(active, math.nan, 0.0)
                    f.store(f.m.add(f.load(bad), wrong), bad)
            return go

        f.repeat(step)


def _block_end(f: Lanes, t: _Tridiagonal, first: ir.Value) -> tuple[ir.Value, ir.Value]:
    """In each lane, the first i >= `first` with nothing beside it, as integers, and diagonal[i]."""
    m, b, last = f.m, f.b, f.b.sub(t.n, f.one)
    end, at_end = f.cell(f.splat(last)), f.cell(f.load(t.diagonal, last))
    after = f.cell(f.load(t.diagonal, last))
    with f.down(first, last) as i:
        own, other = f.load(t.diagonal, i), f.load(t.beside, i)
        size = m.add(m.abs(own), m.abs(b.load(after)))
        small = m.compare("<=", m.abs(other), m.fma(size, _EPS[f.dtype], _FLOOR[f.dtype]))
        f.store(m.select(small, 0.0, other), t.beside, i)
        b.store(b.select(small, f.splat(i), b.load(end)), end)
        b.store(m.select(small, own, b.load(at_end)), at_end)
        b.store(own, after)
    return b.load(end), b.load(at_end)


def _shift(f: Lanes, t: _Tridiagonal, first: ir.Value, at_end: ir.Value) -> ir.Value:
    """at_end less Wilkinson's shift, the eigenvalue of the first 2 x 2 part nearer to its first
    number."""
    m = f.m
    own, other = f.load(t.diagonal, first), f.load(t.beside, first)
    above = f.load(t.diagonal, f.b.add(first, f.one))
    half = m.div(m.sub(above, own), m.mul(other, 2.0))
    root = f.sqrt(m.fma(half, half, 1.0))
    return m.add(m.sub(at_end, own), m.div(other, m.add(half, m.copysign(root, half))))


def _turn(
    f: Lanes, t: _Tridiagonal, first: ir.Value, stop: ir.Value, end: ir.Value, active: ir.Value,
    at_end: ir.Value,
) -> None:  # fmt: skip
    """A QL step from `stop`, or the own end of a lane, up to first; its turns are kept."""
    m, b = f.m, f.b
    g = f.cell(_shift(f, t, first, at_end))
    s, c, p = f.cell(f.const(1.0)), f.cell(f.const(1.0)), f.cell(f.const(0.0))
    with f.down(first, stop) as i:
        after, number = b.add(i, f.one), f.splat(i)
        on = b.and_(active, b.icmp_signed("<", number, end))
        inside = b.and_(active, b.icmp_signed("<", f.splat(after), end))
        other = f.load(t.beside, i)
        x, y, old = m.mul(b.load(s), other), m.mul(b.load(c), other), b.load(g)
        square = m.fma(x, x, m.mul(old, old))
        tiny = m.compare("<", square, _TINY[f.dtype])
        root = f.sqrt(square)
        inverse = m.div(1.0, m.select(tiny, 1.0, root))
        cos = m.select(tiny, 1.0, m.mul(old, inverse))
        sin = m.select(tiny, 0.0, m.mul(x, inverse))
        f.store(m.select(inside, m.select(tiny, old, root), f.load(t.beside, after)),
                t.beside, after)  # fmt: skip
        above = f.load(t.diagonal, after)
        moved = m.sub(above, b.load(p))
        rest = m.fma(m.sub(f.load(t.diagonal, i), moved), sin, m.mul(m.mul(cos, y), 2.0))
        part = m.mul(sin, rest)
        f.store(m.select(on, m.add(moved, part), above), t.diagonal, after)
        for cell, value in (
            (g, m.fma(cos, rest, m.neg(y))), (s, sin), (c, cos), (p, part),
        ):  # fmt: skip
            b.store(m.select(on, value, b.load(cell)), cell)
        f.store(m.select(on, cos, 1.0), t.cosines, i)
        f.store(m.select(on, sin, 0.0), t.sines, i)
    own, other = f.load(t.diagonal, first), f.load(t.beside, first)
    f.store(m.select(active, m.sub(own, b.load(p)), own), t.diagonal, first)
    f.store(m.select(active, b.load(g), other), t.beside, first)


def _turn_vectors(
    f: Lanes, t: _Tridiagonal, first: ir.Value, stop: ir.Value, z: ir.Value, ld: ir.Value
) -> None:
    """Apply the turns of a step to columns first .. stop."""
    m, b, e = f.m, f.b, f.e

    def strip(r: ir.Value, height: int) -> None:
        held = [f.cell(f.load(f.at(z, (stop, ld), r, e.index(k)))) for k in range(height)]
        with f.down(first, stop) as i:
            cos, sin = f.load(t.cosines, i), f.load(t.sines, i)
            own, after = f.at(z, (i, ld), r), f.at(z, (b.add(i, f.one), ld), r)
            for k, cell in enumerate(held):
                x, y = f.load(own, e.index(k)), b.load(cell)
                f.store(m.fma(sin, x, m.mul(cos, y)), after, e.index(k))
                b.store(m.sub(m.mul(cos, x), m.mul(sin, y)), cell)
        for k, cell in enumerate(held):
            f.store(b.load(cell), f.at(z, (first, ld), r, e.index(k)))

    f.tiles(f.zero, t.n, ROWS, strip)


def _smallest(
    f: Lanes, values: ir.Value, i: ir.Value, n: ir.Value, *, largest: bool = False
) -> ir.Value:
    """In each lane, which of the values from i on is the smallest one, as integers."""
    b, m = f.b, f.m
    best, found = f.cell(f.load(values, i)), f.cell(f.splat(i))
    with f.e.for_range(b.add(i, f.one), n) as j:
        x = f.load(values, j)
        better = m.compare(">" if largest else "<", x, b.load(best))
        b.store(b.select(better, x, b.load(best)), best)
        b.store(b.select(better, f.splat(j), b.load(found)), found)
    return b.load(found)


def emit_eigh(
    w: Lanes, a: ir.Value, arrays: Sequence[ir.Value], bad: ir.Value, n: ir.Value, ld: ir.Value,
    vectors: ir.Value | None,
) -> None:  # fmt: skip
    """Eigenvalues, in ascending order, of the symmetric a, of which the lower triangle is read and
    which is lost; vectors: an array for the eigenvectors, by columns. arrays: values, numbers
    beside the diagonal, taus, space. bad: NaN in lanes with elements that are not finite, or
    without a result."""
    pointers = [a, *arrays, bad] + ([] if vectors is None else [vectors])
    with w.function("eigen", pointers, [n, ld]) as (f, held, (n, ld)):
        a, values, beside, taus, space, bad = held[:6]
        z = held[6] if vectors is not None else None
        e, b, m = f.e, f.b, f.m
        wrong, size = scale_of_all(f, a, n, n, ld, True)
        f.store(wrong, bad)
        down, up = power_scale(f, size)
        fine = b.not_(m.is_nan(wrong))
        with e.for_range(f.zero, n) as i:
            row = f.at(a, (i, ld))
            with e.for_range(f.zero, b.add(i, f.one)) as j:
                x = m.select(fine, m.mul(f.load(row, j), down), 0.0)
                f.store(x, row, j)
                f.store(x, f.at(a, (j, ld), i))
        emit_tridiagonal(f, a, taus, values, beside, space, n, ld)
        if z is not None:
            emit_basis(f, z, a, taus, [n, n, b.sub(n, f.one), f.one, ld])
        t = _Tridiagonal(n, values, beside, taus, space)
        emit_ql(f, t, bad, None if z is None else (z, ld))
        with e.for_range(f.zero, n) as i:
            others = _smallest(f, values, i, n)
            if z is None:
                _exchange(f, values, i, others, n)
            else:
                also = b.bitcast(values, f.whole.as_pointer())
                f.exchange_rows(z, ld, i, others, n, n, also)
        with e.for_range(f.zero, n) as i:
            f.store(m.mul(f.load(values, i), up), values, i)


def _exchange(f: Lanes, values: ir.Value, i: ir.Value, others: ir.Value, n: ir.Value) -> None:
    """In each lane, values i and `others` change places."""
    b = f.b
    top = f.load(values, i)
    found = f.cell(top)
    with f.e.for_range(b.add(i, f.one), n) as j:
        mask = b.icmp_signed("==", others, f.splat(j))
        x = f.load(values, j)
        b.store(b.select(mask, x, b.load(found)), found)
        f.store(b.select(mask, top, x), values, j)
    f.store(b.load(found), values, i)


def emit_singular_values(
    w: Lanes, a: ir.Value, arrays: Sequence[ir.Value], bad: ir.Value, sizes: Sequence[ir.Value]
) -> None:
    """Singular values, in descending order, of a, which lies by columns, has no fewer rows than
    columns and is lost. arrays: values, beside, cosines, sines, of 2 n vectors each. sizes: m, n,
    distance."""
    with w.function("singular", [a, *arrays, bad], sizes) as (f, held, (rows, n, ld)):
        a, values, beside, cosines, sines, bad = held
        e, b, m = f.e, f.b, f.m
        wrong, size = scale_of_all(f, a, n, rows, ld, False)
        f.store(wrong, bad)
        down, up = power_scale(f, size)
        fine = b.not_(m.is_nan(wrong))
        with e.for_range(f.zero, n) as i:
            column = f.at(a, (i, ld))
            with e.for_range(f.zero, rows) as j:
                f.store(m.select(fine, m.mul(f.load(column, j), down), 0.0), column, j)
        emit_bidiagonal(f, a, beside, [rows, n, ld])
        whole = b.mul(n, e.index(2))
        f.fill(values, f.zero, whole, 0.0)
        emit_ql(f, _Tridiagonal(whole, values, beside, cosines, sines), bad, None)
        with e.for_range(f.zero, n) as i:
            others = _smallest(f, values, i, whole, largest=True)
            _exchange(f, values, i, others, whole)
            f.store(m.mul(m.at_least(f.load(values, i), 0.0), up), values, i)
