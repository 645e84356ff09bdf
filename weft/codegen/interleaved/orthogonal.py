"""Householder reflections of interleaved matrices: QR factors, and the orthogonal reductions to
tridiagonal and bidiagonal form.

A reflection I - tau v v^T with v[0] = 1 makes a vector x a multiple beta of its first element's
axis, beta of the other sign than x[0], as LAPACK's larfg; x that is one already stays (tau = 0).
Within a reflection the vector is scaled by a power of two, so that no square overflows. What v
holds beyond its first element lies where x was."""

from __future__ import annotations

import math
from collections.abc import Sequence

from llvmlite import ir

from weft.codegen.interleaved.lanes import Lanes

#: Columns that a reflection is applied to at once.
COLUMNS = 4


def power_scale(w: Lanes, size: ir.Value) -> tuple[ir.Value, ir.Value]:
    """(2**-e, 2**e), both normal numbers: by the first, numbers of this size are brought near 1."""
    b, bits, last = w.b, w.m.mantissa_bits, 2 * w.m.bias  # of a number's exponent
    field = b.lshr(w.m.bits(w.m.abs(size)), w.m.int_const(bits))
    for bound, op in ((1, "<"), (last - 1, ">")):
        limit = w.m.int_const(bound)
        field = b.select(b.icmp_signed(op, field, limit), limit, field)
    inverse = b.sub(w.m.int_const(last), field)
    down, up = (w.m.from_bits(b.shl(f, w.m.int_const(bits))) for f in (inverse, field))
    return down, up


def _larger(w: Lanes, cell: ir.Value, x: ir.Value) -> None:
    size, best = w.m.abs(x), w.b.load(cell)
    w.b.store(w.m.select(w.m.compare(">", size, best), size, best), cell)


def reflect(w: Lanes, x: ir.Value, step: ir.Value, count: ir.Value) -> tuple[ir.Value, ir.Value]:
    """(tau, beta) of the reflection of the `count` >= 1 vectors from x on, `step` apart; v takes
    their place but for the first."""
    e, b, m = w.e, w.b, w.m
    below = w.cell(w.const(0.0))
    with e.for_range(w.one, count) as r:
        _larger(w, below, w.load(w.at(x, (r, step))))
    nothing = m.compare("==", b.load(below), 0.0)
    first = w.load(x)
    size = w.cell(b.load(below))
    _larger(w, size, first)
    down, up = power_scale(w, b.load(size))
    squares = w.cell(w.const(0.0))
    with e.for_range(w.one, count) as r:
        y = m.mul(w.load(w.at(x, (r, step))), down)
        b.store(m.fma(y, y, b.load(squares)), squares)
    alpha = m.mul(first, down)
    norm = w.sqrt(m.fma(alpha, alpha, b.load(squares)))
    beta = m.neg(m.copysign(norm, alpha))
    tau = m.select(nothing, 0.0, m.div(m.sub(beta, alpha), beta))
    inverse = m.select(nothing, 0.0, m.div(1.0, m.sub(alpha, beta)))
    with e.for_range(w.one, count) as r:
        at = w.at(x, (r, step))
        w.store(m.mul(m.mul(w.load(at), down), inverse), at)
    return tau, m.select(nothing, first, m.mul(beta, up))


def apply_reflection(
    w: Lanes, v: ir.Value, v_step: ir.Value, tau: ir.Value, x: ir.Value, lines: Sequence[ir.Value],
) -> None:  # fmt: skip
    """Reflect lines of vectors. lines: how many, from one to the next, and within one their length
    and from one element to the next."""
    e, b, m = w.e, w.b, w.m
    count, distance, length, step = lines

    def strip(j: ir.Value, width: int) -> None:
        at = [w.at(x, (b.add(j, e.index(c)), distance)) for c in range(width)]
        sums = [w.cell(w.load(p)) for p in at]
        with e.for_range(w.one, length) as r:
            factor = w.load(w.at(v, (r, v_step)))
            for p, total in zip(at, sums, strict=True):
                value = w.load(w.at(p, (r, step)))
                b.store(m.fma(factor, value, b.load(total)), total)
        parts = [m.neg(m.mul(b.load(total), tau)) for total in sums]
        for p, part in zip(at, parts, strict=True):
            w.store(m.add(w.load(p), part), p)
        with e.for_range(w.one, length) as r:
            factor = w.load(w.at(v, (r, v_step)))
            for p, part in zip(at, parts, strict=True):
                place = w.at(p, (r, step))
                w.store(m.fma(factor, part, w.load(place)), place)

    w.tiles(w.zero, count, COLUMNS, strip)


def _lesser(w: Lanes, x: ir.Value, y: ir.Value) -> ir.Value:
    return w.b.select(w.b.icmp_signed("<", x, y), x, y)


def emit_qr(w: Lanes, a: ir.Value, q: ir.Value, taus: ir.Value, sizes: Sequence[ir.Value]) -> None:
    """a becomes R, with zeros below the diagonal, q becomes Q; both by columns. sizes: m, n, the
    columns of Q, k, the distance of columns."""
    with w.function("factor", [a, q, taus], sizes) as (f, (a, q, taus), values):
        m, n, columns, k, ld = values
        e, b = f.e, f.b
        emit_reflections(f, a, taus, [m, n, k, ld])
        emit_basis(f, q, a, taus, [m, columns, k, f.zero, ld])
        with e.for_range(f.zero, n) as j:
            after = _lesser(f, b.add(j, f.one), columns)
            f.fill(f.at(a, (j, ld)), after, columns, 0.0)


def emit_reflections(f: Lanes, a: ir.Value, taus: ir.Value, sizes: Sequence[ir.Value]) -> None:
    """Make the columns of a an upper triangle by `k` reflections, whose vectors lie below it.
    sizes: m, n, k, the distance of columns."""
    m, n, k, ld = sizes
    b = f.b
    with f.e.for_range(f.zero, k) as i:
        own, left, after = f.at(a, (i, ld), i), b.sub(m, i), b.add(i, f.one)
        tau, beta = reflect(f, own, f.one, left)
        f.store(beta, own)
        f.store(tau, taus, i)
        right = f.at(a, (after, ld), i)
        apply_reflection(f, own, f.one, tau, right, [b.sub(n, after), ld, left, f.one])


def emit_basis(
    f: Lanes, q: ir.Value, a: ir.Value, taus: ir.Value, sizes: Sequence[ir.Value]
) -> None:
    """q becomes the first columns of the product of `k` reflections, number i of the rows from
    i + shift on, whose vectors lie in the columns of a. sizes: m, columns, k, shift, distance."""
    m, columns, k, shift, ld = sizes
    e, b = f.e, f.b
    with e.for_range(f.zero, columns) as j:
        own = f.at(q, (j, ld))
        f.fill(own, f.zero, m, 0.0)
        with b.if_then(b.icmp_signed("<", j, m)):
            f.store(f.const(1.0), own, j)
    with f.down(f.zero, k) as i:
        first = b.add(i, shift)
        v, own = f.at(a, (i, ld), first), f.at(q, (first, ld), first)
        lines = [b.sub(columns, first), ld, b.sub(m, first), f.one]
        apply_reflection(f, v, f.one, f.load(taus, i), own, lines)


def emit_tridiagonal(
    f: Lanes, a: ir.Value, taus: ir.Value, diagonal: ir.Value, beside: ir.Value, space: ir.Value,
    n: ir.Value, ld: ir.Value,
) -> None:  # fmt: skip
    """Reduce the symmetric a to a diagonal and the numbers beside it; the reflections are left in
    its rows (columns by symmetry), number i from element i + 1 on. As LAPACK's sytd2."""
    e, b, m = f.e, f.b, f.m
    last = b.sub(n, f.one)
    with e.for_range(f.zero, last) as i:
        after = b.add(i, f.one)
        v, left = f.at(a, (i, ld), after), b.sub(last, i)
        f.store(f.load(f.at(a, (i, ld), i)), diagonal, i)
        tau, beta = reflect(f, v, f.one, left)
        f.store(beta, beside, i)
        f.store(tau, taus, i)
        f.store(f.const(1.0), v)
        rest = f.at(a, (after, ld), after)
        inner = f.cell(f.const(0.0))
        _products(f, rest, v, tau, space, inner, left, ld)
        half = m.mul(m.mul(tau, -0.5), b.load(inner))
        with e.for_range(f.zero, left) as r:
            f.store(m.fma(half, f.load(v, r), f.load(space, r)), space, r)
        _subtract_pairs(f, rest, v, space, left, ld)
    f.store(f.load(f.at(a, (last, ld), last)), diagonal, last)


def _products(
    f: Lanes, rest: ir.Value, v: ir.Value, tau: ir.Value, space: ir.Value, inner: ir.Value,
    count: ir.Value, ld: ir.Value,
) -> None:  # fmt: skip
    """space = tau rest v, and inner = its product with v."""
    e, b, m = f.e, f.b, f.m

    def strip(i: ir.Value, width: int) -> None:
        rows = [f.at(rest, (b.add(i, e.index(r)), ld)) for r in range(width)]
        sums = [f.cell(f.const(0.0)) for _ in rows]
        with e.for_range(f.zero, count) as c:
            x = f.load(v, c)
            for row, total in zip(rows, sums, strict=True):
                b.store(m.fma(f.load(row, c), x, b.load(total)), total)
        for r, total in enumerate(sums):
            at = b.add(i, e.index(r))
            made = m.mul(b.load(total), tau)
            f.store(made, space, at)
            b.store(m.fma(made, f.load(v, at), b.load(inner)), inner)

    f.tiles(f.zero, count, COLUMNS, strip)


def _subtract_pairs(
    f: Lanes, rest: ir.Value, v: ir.Value, other: ir.Value, count: ir.Value, ld: ir.Value
) -> None:
    """rest -= v other^T + other v^T."""
    e, b, m = f.e, f.b, f.m

    def strip(i: ir.Value, width: int) -> None:
        at = [b.add(i, e.index(r)) for r in range(width)]
        rows = [f.at(rest, (r, ld)) for r in at]
        own = [(m.neg(f.load(v, r)), m.neg(f.load(other, r))) for r in at]
        with e.for_range(f.zero, count) as c:
            x, y = f.load(v, c), f.load(other, c)
            for row, (left, right) in zip(rows, own, strict=True):
                value = m.fma(left, y, f.load(row, c))
                f.store(m.fma(right, x, value), row, c)

    f.tiles(f.zero, count, COLUMNS, strip)


def emit_bidiagonal(f: Lanes, a: ir.Value, beside: ir.Value, sizes: Sequence[ir.Value]) -> None:
    """Reduce a, by columns and with no fewer rows than columns, to an upper bidiagonal matrix;
    beside: its numbers, one of the diagonal, one above it, and so on, 2 n - 1 of them. sizes: m,
    n, distance."""
    m, n, ld = sizes
    e, b = f.e, f.b
    last = b.sub(n, f.one)
    two = e.index(2)
    with e.for_range(f.zero, n) as i:
        own, rows, after = f.at(a, (i, ld), i), b.sub(m, i), b.add(i, f.one)
        tau, beta = reflect(f, own, f.one, rows)
        f.store(beta, beside, b.mul(i, two))
        columns = b.sub(last, i)
        with b.if_then(b.icmp_signed(">", columns, f.zero)):
            right = f.at(a, (after, ld), i)
            apply_reflection(f, own, f.one, tau, right, [columns, ld, rows, f.one])
            tau, beta = reflect(f, right, ld, columns)
            f.store(beta, beside, b.add(b.mul(i, two), f.one))
            below = f.at(right, f.one)
            apply_reflection(f, right, ld, tau, below, [b.sub(rows, f.one), f.one, columns, ld])


def scale_of_all(
    f: Lanes, a: ir.Value, rows: ir.Value, columns: ir.Value, ld: ir.Value, lower: bool
) -> tuple[ir.Value, ir.Value]:
    """(bad, size): 0, or NaN in lanes with an element that is not finite, and the largest absolute
    value; lower: of the lower triangle."""
    e, b, m = f.e, f.b, f.m
    bad, size = f.cell(f.const(0.0)), f.cell(f.const(0.0))
    with e.for_range(f.zero, rows) as i:
        row = f.at(a, (i, ld))
        with e.for_range(f.zero, b.add(i, f.one) if lower else columns) as j:
            x = f.load(row, j)
            b.store(m.add(b.load(bad), f.not_finite(x)), bad)
            _larger(f, size, x)
    wrong = b.load(bad)
    return wrong, m.select(m.is_nan(wrong), math.inf, b.load(size))
