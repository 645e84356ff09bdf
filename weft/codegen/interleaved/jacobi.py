"""Singular vectors of interleaved matrices by the one-sided Jacobi method.

Turns of two columns at a time, from the right, make all columns of A V orthogonal (M. Hestenes,
Inversion of matrices by biorthogonalization and related results, 1958; G. Golub and C. Van Loan,
Matrix Computations, 4th edition, 2013, 8.6.3). Their lengths are the singular values; a QR
factorisation of A V, its columns in descending order, has the left singular vectors for Q, also
where a length is zero. Sweeps over all pairs end when no lane has turned one; a lane whose columns
are orthogonal is left as it is."""

from __future__ import annotations

import math
from collections.abc import Sequence

from llvmlite import ir

from weft.codegen.interleaved.lanes import Lanes
from weft.codegen.interleaved.orthogonal import emit_basis, emit_reflections
from weft.codegen.interleaved.spectra import extreme, scale_columns

#: Sweeps at most: 6 to 12 are usual for up to 64 columns.
MOST_SWEEPS = 60
#: Columns whose products add up further than this, relative to their lengths, are turned, in units
#: of the roundings of one product and by the root of their length.
_EPS = {"f32": 2.0**-23, "f64": 2.0**-52}
#: Sums of so many rows at once.
ROWS = 4


def emit_singular_vectors(
    w: Lanes, a: ir.Value, v: ir.Value, q: ir.Value, arrays: Sequence[ir.Value], bad: ir.Value,
    sizes: Sequence[ir.Value],
) -> None:  # fmt: skip
    """The singular values of a, in descending order, V, and in q the left vectors, all by columns;
    a has no fewer rows than columns and is lost. arrays: values, squares of lengths, taus, n
    vectors each. bad: NaN in lanes with elements that are not finite, or without a result, else 0.
    sizes: m, n, columns of q, distance of the columns of a and q, of v."""
    with w.function("singular", [a, v, q, *arrays, bad], sizes) as (f, held, values):
        a, v, q, lengths, squares, taus, bad = held
        rows, n, left, ld, v_ld = values
        e, b, m = f.e, f.b, f.m
        up = scale_columns(f, a, bad, rows, n, ld)
        with e.for_range(f.zero, n) as i:
            own = f.at(v, (i, v_ld))
            f.fill(own, f.zero, n, 0.0)
            f.store(f.const(1.0), own, i)
        _orthogonalize(f, a, v, squares, bad, [rows, n, ld, v_ld])
        _normalize(f, a, v, [rows, n, ld, v_ld])
        _square_lengths(f, a, squares, [rows, n, ld])
        with e.for_range(f.zero, n) as i:
            f.store(f.sqrt(f.load(squares, i)), lengths, i)
        also = b.bitcast(lengths, f.whole.as_pointer())
        with e.for_range(f.zero, n) as i:
            others = extreme(f, lengths, i, n, ">")
            f.exchange_rows([(a, ld, rows), (v, v_ld, n)], i, others, n, also)
        emit_reflections(f, a, taus, [rows, n, n, ld])
        emit_basis(f, q, a, taus, [rows, left, n, f.zero, ld])
        with e.for_range(f.zero, n) as i:
            f.store(m.mul(f.load(lengths, i), up), lengths, i)
            sign = m.copysign(1.0, f.load(f.at(a, (i, ld), i)))
            own = f.at(q, (i, ld))
            with e.for_range(f.zero, rows) as j:
                f.store(m.mul(f.load(own, j), sign), own, j)


def _normalize(f: Lanes, a: ir.Value, v: ir.Value, sizes: Sequence[ir.Value]) -> None:
    """Take out of V and A V what the roundings of turns have done to the lengths of V's columns."""
    rows, n, ld, v_ld = sizes
    with f.e.for_range(f.zero, n) as i:
        own, other = f.at(v, (i, v_ld)), f.at(a, (i, ld))
        factor = f.m.div(1.0, f.sqrt(_product(f, own, own, n)))
        for column, count in ((own, n), (other, rows)):
            with f.e.for_range(f.zero, count) as k:
                f.store(f.m.mul(f.load(column, k), factor), column, k)


def _square_lengths(
    f: Lanes, a: ir.Value, squares: ir.Value, sizes: Sequence[ir.Value]
) -> ir.Value:
    """Fill squares; the sum of them."""
    rows, n, ld = sizes
    total = f.cell(f.const(0.0))
    with f.e.for_range(f.zero, n) as i:
        own = f.at(a, (i, ld))
        square = _product(f, own, own, rows)
        f.store(square, squares, i)
        f.b.store(f.m.add(f.b.load(total), square), total)
    return f.b.load(total)


def _product(f: Lanes, x: ir.Value, y: ir.Value, count: ir.Value) -> ir.Value:
    """The sum of the products of two columns."""
    sums = f.cells(ROWS)
    for cell in sums:
        f.b.store(f.const(0.0), cell)

    def add(i: ir.Value, height: int) -> None:
        for k in range(height):
            at = f.b.add(i, f.e.index(k))
            old = f.b.load(sums[k])
            f.b.store(f.m.fma(f.load(x, at), f.load(y, at), old), sums[k])

    f.tiles(f.zero, count, ROWS, add)
    one, two, three, four = (f.b.load(cell) for cell in sums)
    return f.m.add(f.m.add(one, two), f.m.add(three, four))


def _orthogonalize(
    f: Lanes, a: ir.Value, v: ir.Value, squares: ir.Value, bad: ir.Value, sizes: Sequence[ir.Value]
) -> None:
    rows, n, ld, v_ld = sizes
    e, b, m = f.e, f.b, f.m
    turned, sweeps = f.cell(f.const(0.0)), f.cell(f.zero)
    length = b.sitofp(f.splat(rows), f.vector)
    factor = f.const(_EPS[f.dtype] ** 2)
    limit = m.mul(factor, length)

    def sweep() -> ir.Value:
        b.store(f.const(0.0), turned)
        total = _square_lengths(f, a, squares, [rows, n, ld])
        floor = m.mul(total, _EPS[f.dtype] ** 2 / 16)
        with e.for_range(f.zero, n) as i, e.for_range(b.add(i, f.one), n) as j:
            x, y = f.at(a, (i, ld)), f.at(a, (j, ld))
            together = _product(f, x, y, rows)
            one, two = f.load(squares, i), f.load(squares, j)
            square, larger = m.mul(together, together), m.select(m.compare(">", one, two), one, two)
            on = b.and_(
                m.compare(">", square, m.mul(m.mul(one, two), limit)),
                m.compare(">", square, m.mul(larger, floor)),
            )
            with b.if_then(f.any(on)):
                b.store(m.select(on, 1.0, b.load(turned)), turned)
                tangent, cos, sin = _angle(f, one, two, together)
                for at, value in ((i, m.sub(one, tangent)), (j, m.add(two, tangent))):
                    old = f.load(squares, at)
                    f.store(m.select(on, m.at_least(value, 0.0), old), squares, at)
                _turn_columns(f, x, y, rows, on, cos, sin)
                pair = f.at(v, (i, v_ld)), f.at(v, (j, v_ld))
                _turn_columns(f, *pair, n, on, cos, sin)
        count = b.load(sweeps)
        b.store(b.add(count, f.one), sweeps)
        left = m.compare(">", b.load(turned), 0.0)
        return b.and_(f.any(left), b.icmp_signed("<", count, e.index(MOST_SWEEPS)))

    f.repeat(sweep)
    wrong = m.select(m.compare(">", b.load(turned), 0.0), math.nan, 0.0)
    f.store(m.add(f.load(bad), wrong), bad)


def _angle(
    f: Lanes, one: ir.Value, two: ir.Value, together: ir.Value
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Of the turn that makes columns with these squares and this product orthogonal: what goes from
    one square to the other, cosine, sine."""
    m = f.m
    ratio = m.div(m.sub(two, one), m.mul(together, 2.0))
    root = f.sqrt(m.fma(ratio, ratio, 1.0))
    tangent = m.div(1.0, m.add(ratio, m.copysign(root, ratio)))
    cos = m.div(1.0, f.sqrt(m.fma(tangent, tangent, 1.0)))
    return m.mul(tangent, together), cos, m.mul(cos, tangent)


def _turn_columns(
    f: Lanes, x: ir.Value, y: ir.Value, count: ir.Value, on: ir.Value, cos: ir.Value, sin: ir.Value
) -> None:
    """x, y = cos x - sin y, sin x + cos y in some lanes."""
    m = f.m
    with f.e.for_range(f.zero, count) as i:
        one, two = f.load(x, i), f.load(y, i)
        f.store(m.select(on, m.sub(m.mul(cos, one), m.mul(sin, two)), one), x, i)
        f.store(m.select(on, m.fma(sin, one, m.mul(cos, two)), two), y, i)
