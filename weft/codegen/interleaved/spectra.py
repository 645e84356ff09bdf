"""Eigenvalues of symmetric matrices and singular values, of interleaved matrices.

A tridiagonal matrix is diagonalised by implicit QL steps with Wilkinson's shift (B. Parlett, The
Symmetric Eigenvalue Problem, 1998, 8.13; LAPACK's steqr). All lanes look for the same eigenvalue
until each has it; those that have it, or whose part of the matrix ends sooner, make no turn. The
turns of a step are kept, and then applied to rows of the eigenvectors one after another.

Singular values of a bidiagonal matrix are found by the differential quotient-difference algorithm
with shifts (K. Fernando and B. Parlett, Accurate singular values and differential qd algorithms,
1994), which takes a division for each number of a sweep and no root."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

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

#: QL steps, or sweeps of dqds, for one eigenvalue, at most. Graded matrices and those with clusters
#: of eigenvalues take up to some 100 for the first one; LAPACK gives up after 30, or 100, for each
#: on average.
MOST_STEPS = 500
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

        def look() -> tuple[ir.Value, Callable[[], None]]:
            end, at_end = _block_end(f, t, first)
            active = b.icmp_signed("!=", end, f.splat(first))

            def step() -> None:
                stop = f.most(b.select(active, end, f.splat(first)))
                _turn(f, t, first, stop, end, active, at_end)
                if vectors is not None:
                    _turn_vectors(f, t, first, stop, *vectors)

            return active, step

        _until_found(f, bad, look)


def _until_found(
    f: Lanes, bad: ir.Value, look: Callable[[], tuple[ir.Value, Callable[[], None]]]
) -> None:
    """Go on until all lanes have their eigenvalue; bad becomes NaN in those without one after
    MOST_STEPS. look: gives the lanes that are to go on, and what emits a step of theirs."""
    b, steps = f.b, f.cell(f.zero)

    def body() -> ir.Value:
        active, step = look()
        some, count = f.any(active), b.load(steps)
        go = b.and_(some, b.icmp_signed("<", count, f.e.index(MOST_STEPS)))
        with b.if_else(go) as (more, done):
            with more:
                step()
                b.store(b.add(count, f.one), steps)
            with done, b.if_then(some):
                wrong = f.m.select(active, math.nan, 0.0)
                f.store(f.m.add(f.load(bad), wrong), bad)
        return go

    f.repeat(body)


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


def extreme(f: Lanes, values: ir.Value, i: ir.Value, n: ir.Value, by: str) -> ir.Value:
    """In each lane, which of the values from i on is the smallest (by "<") or largest one (">"), as
    integers."""
    b, m = f.b, f.m
    best, found = f.cell(f.load(values, i)), f.cell(f.splat(i))
    with f.e.for_range(b.add(i, f.one), n) as j:
        x = f.load(values, j)
        better = m.compare(by, x, b.load(best))
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
            others = extreme(f, values, i, n, "<")
            if z is None:
                _exchange(f, values, i, others, n)
            else:
                also = b.bitcast(values, f.whole.as_pointer())
                f.exchange_rows([(z, ld, n)], i, others, n, also)
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


def scale_columns(
    f: Lanes, a: ir.Value, bad: ir.Value, rows: ir.Value, columns: ir.Value, ld: ir.Value
) -> ir.Value:
    """Bring the largest element of a, which lies by columns, near 1, and make what is not finite
    zeros; the power of two that undoes it. bad becomes NaN in lanes with such elements, else 0."""
    m = f.m
    wrong, size = scale_of_all(f, a, columns, rows, ld, False)
    f.store(wrong, bad)
    down, up = power_scale(f, size)
    fine = f.b.not_(m.is_nan(wrong))
    with f.e.for_range(f.zero, columns) as i:
        column = f.at(a, (i, ld))
        with f.e.for_range(f.zero, rows) as j:
            f.store(m.select(fine, m.mul(f.load(column, j), down), 0.0), column, j)
    return up


def emit_singular_values(
    w: Lanes, a: ir.Value, arrays: Sequence[ir.Value], bad: ir.Value, sizes: Sequence[ir.Value]
) -> None:
    """Singular values, in descending order, of a, which lies by columns, has no fewer rows than
    columns and is lost. arrays: values and space, n vectors each, and 2 n vectors of space twice.
    sizes: m, n, distance."""
    with w.function("singular", [a, *arrays, bad], sizes) as (f, held, (rows, n, ld)):
        a, values, shifts, numbers, others, bad = held
        e, b, m = f.e, f.b, f.m
        up = scale_columns(f, a, bad, rows, n, ld)
        emit_bidiagonal(f, a, others, [rows, n, ld])
        _square_downwards(f, numbers, others, n)
        f.fill(shifts, f.zero, n, 0.0)
        emit_dqds(f, _Quotients(n, numbers, others, shifts), bad)
        with e.for_range(f.zero, n) as i:
            square = m.add(f.load(shifts, i), f.load(numbers, b.mul(i, e.index(2))))
            f.store(f.sqrt(square), values, i)
        with e.for_range(f.zero, n) as i:
            _exchange(f, values, i, extreme(f, values, i, n, ">"), n)
            f.store(m.mul(f.load(values, i), up), values, i)


# -------------------------------------------------------------------------------------------- dqds


@dataclass(frozen=True)
class _Quotients:
    """The squares of the numbers of a bidiagonal matrix, q[0], e[0], q[1], ..., 2 n - 1 of them;
    space for as many; and what was subtracted from each eigenvalue q[i] stands for."""

    n: ir.Value
    numbers: ir.Value
    space: ir.Value
    shifts: ir.Value


def _square_downwards(f: Lanes, target: ir.Value, source: ir.Value, n: ir.Value) -> None:
    """The squares of the numbers of a bidiagonal matrix; the other way round in lanes whose last
    one is the largest, as small ones are found at the end."""
    e, b, m = f.e, f.b, f.m
    last = b.sub(b.mul(n, e.index(2)), e.index(2))
    ends = [m.abs(f.load(source, k)) for k in (f.zero, last)]
    back = m.compare("<", m.mul(ends[0], 1.25), ends[1])
    with e.for_range(f.zero, b.add(last, f.one)) as k:
        x = m.select(back, f.load(source, b.sub(last, k)), f.load(source, k))
        f.store(m.mul(x, x), target, k)


def emit_dqds(f: Lanes, t: _Quotients, bad: ir.Value) -> None:
    """Make q[i] + shifts[i] the eigenvalues of B^T B, which are found from the last one on; bad
    becomes NaN in lanes where one was not found.

    Each sweep takes a shift from the eigenvalues of the last block that nothing is left beside. A
    shift that is not too large leaves all numbers positive; if it is, the sweep is done again with
    a smaller one: with what was found to be too much subtracted, if only the last one is negative
    (B. Parlett and O. Marques, An implementation of the dqds algorithm, 2000)."""
    b = f.b
    with f.down(f.one, t.n) as end:
        shift, failures = f.cell(_first_shift(f, t, end)), f.cell(f.const(0.0))

        def look() -> tuple[ir.Value, Callable[[], None]]:
            start = _block_start(f, t, end)
            active = b.icmp_signed("!=", start, f.splat(end))

            def sweep() -> None:
                first = b.sub(f.zero, f.most(b.neg(start)))
                _sweep(f, t, first, end, start, active, shift, failures)

            return active, sweep

        _until_found(f, bad, look)


def _block_start(f: Lanes, t: _Quotients, end: ir.Value) -> ir.Value:
    """In each lane, the last i <= end with nothing beside it on the other side, as integers. What
    may be dropped becomes 0: e moves no singular value by more than its root, and no eigenvalue by
    more than the root of e q."""
    b, m, eps = f.b, f.m, _EPS[f.dtype]
    start = f.cell(f.splat(f.zero))
    with f.e.for_range(f.zero, end) as i:
        at, after = b.mul(i, f.e.index(2)), b.add(i, f.one)
        q, e, following = (f.load(t.numbers, b.add(at, f.e.index(k))) for k in range(3))
        shift = f.load(t.shifts, i)
        small = m.compare("<=", e, m.fma(m.add(q, shift), eps * eps, eps * eps / 4))
        least = m.mul(shift, eps)
        beside = m.compare("<=", m.mul(e, following), m.mul(least, least))
        small = b.or_(small, b.and_(beside, m.compare("<=", e, least)))
        f.store(m.select(small, 0.0, e), t.numbers, b.add(at, f.one))
        b.store(b.select(small, f.splat(after), b.load(start)), start)
    return b.load(start)


def _guess(f: Lanes, t: _Quotients, end: ir.Value, last: ir.Value, others: ir.Value) -> ir.Value:
    """A shift near the smallest eigenvalue of a block, which is not much larger than `last`, the
    last d; others: the smallest d but for the last two. Cases 2 and 3 of LAPACK's lasq4."""
    b, m = f.b, f.m
    at = b.mul(end, f.e.index(2))
    place = b.select(b.icmp_signed(">", end, f.one), b.sub(at, f.e.index(3)), f.zero)
    beyond = f.load(t.numbers, place)
    beyond = b.select(b.icmp_signed(">", end, f.one), beyond, f.const(0.0))
    q, e = (f.load(t.numbers, b.sub(at, f.e.index(k))) for k in (2, 1))
    square, above = m.mul(last, e), m.mul(q, beyond)
    one, two, sums = f.sqrt(square), f.sqrt(above), m.add(q, e)
    far = m.sub(m.mul(others, 0.75), sums)
    part = m.select(m.compare(">", far, two), m.div(above, far), m.add(one, two))
    gap = m.sub(m.sub(sums, last), part)
    good = m.sub(last, m.div(square, gap))
    half = m.mul(last, 0.5)
    good = m.select(m.compare(">", good, half), good, half)
    rest, bound = m.at_least(m.sub(last, one), 0.0), m.sub(sums, m.add(one, two))
    inside = b.and_(m.compare(">", bound, 0.0), m.compare("<", bound, rest))
    rest, third = m.select(inside, bound, rest), m.mul(last, 1 / 3)
    rest = m.select(m.compare(">", rest, third), rest, third)
    return m.select(m.compare(">", gap, one), good, rest)


def _first_shift(f: Lanes, t: _Quotients, end: ir.Value) -> ir.Value:
    last = f.load(t.numbers, f.b.mul(end, f.e.index(2)))
    return _guess(f, t, end, last, f.const(math.inf))


def _lower_bound(
    f: Lanes, t: _Quotients, first: ir.Value, end: ir.Value, start: ir.Value
) -> ir.Value:
    """A lower bound of the eigenvalues of a block, by Gershgorin's circles of B B^T."""
    b, m = f.b, f.m
    least, before = f.cell(f.const(math.inf)), f.cell(f.const(0.0))
    with f.e.for_range(first, b.add(end, f.one)) as i:
        at, inside = b.mul(i, f.e.index(2)), b.icmp_signed("<", i, end)
        following = b.select(inside, b.add(at, f.e.index(2)), at)
        e = f.load(t.numbers, b.select(inside, b.add(at, f.one), at))
        e = b.select(inside, e, f.const(0.0))
        on = b.icmp_signed("<=", start, f.splat(i))
        after = f.sqrt(m.mul(e, f.load(t.numbers, following)))
        low = m.sub(m.add(f.load(t.numbers, at), e), m.add(b.load(before), after))
        less = b.and_(on, m.compare("<", low, b.load(least)))
        b.store(m.select(less, low, b.load(least)), least)
        b.store(m.select(on, after, 0.0), before)
    return m.mul(m.at_least(b.load(least), 0.0), 1 - 16 * _EPS[f.dtype])


def _sweep(
    f: Lanes, t: _Quotients, first: ir.Value, end: ir.Value, start: ir.Value, active: ir.Value,
    shift_cell: ir.Value, failures: ir.Value,
) -> None:  # fmt: skip
    b, m, two = f.b, f.m, f.e.index(2)
    shift = b.load(shift_cell)
    d, (least, others) = f.cell(f.const(0.0)), f.cells(2)
    for cell in (least, others):
        b.store(f.const(math.inf), cell)
    with f.e.for_range(first, end) as i:
        at = b.mul(i, two)
        q, e, following = (f.load(t.numbers, b.add(at, f.e.index(k))) for k in range(3))
        begin = b.icmp_signed("==", start, f.splat(i))
        own = m.select(begin, m.sub(q, shift), b.load(d))
        on = b.icmp_signed("<=", start, f.splat(i))
        low = m.select(m.compare("<", b.load(least), own), b.load(least), own)
        b.store(b.load(least), others)
        b.store(m.select(on, low, b.load(least)), least)
        made = m.add(own, e)
        ratio = m.mul(following, m.div(1.0, made))
        f.store(m.select(on, made, q), t.space, at)
        f.store(m.select(on, m.mul(e, ratio), e), t.space, b.add(at, f.one))
        b.store(m.fma(own, ratio, m.neg(shift)), d)
    last, low = b.load(d), b.load(least)
    early = b.and_(active, b.fcmp_unordered("ult", low, f.const(0.0)))
    late = b.and_(b.and_(active, b.not_(early)), b.fcmp_unordered("ult", last, f.const(0.0)))
    fine = b.and_(active, b.not_(b.or_(early, late)))
    _accept(f, t, first, end, start, fine, last, shift)
    count = b.load(failures)
    failed = b.and_(active, b.not_(fine))
    inner = b.and_(fine, m.compare("<", low, last))
    bound = f.cell(f.const(0.0))
    with b.if_then(f.any(b.or_(failed, inner))):
        b.store(_lower_bound(f, t, first, end, start), bound)
    held, quarter = b.load(bound), m.mul(low, 0.25)
    less = m.select(early, m.mul(shift, 0.25), m.add(shift, last))
    less = m.select(b.and_(m.compare("<", count, 0.5), m.compare(">", less, held)), less, held)
    less = m.select(m.compare("<", less, shift), less, shift)
    less = m.select(m.compare(">", count, 2.5), 0.0, less)
    after = m.select(m.compare(">", held, quarter), held, quarter)
    after = m.select(inner, after, _guess(f, t, end, last, b.load(others)))
    b.store(m.at_least(m.select(fine, after, less), 0.0), shift_cell)
    b.store(m.select(fine, 0.0, m.add(count, 1.0)), failures)


def _accept(
    f: Lanes, t: _Quotients, first: ir.Value, end: ir.Value, start: ir.Value, fine: ir.Value,
    last: ir.Value, shift: ir.Value,
) -> None:  # fmt: skip
    """Lanes where a sweep did not fail take what it made."""
    b, m, two = f.b, f.m, f.e.index(2)
    stop = b.mul(end, two)
    f.store(last, t.space, stop)
    with f.e.for_range(b.mul(first, two), b.add(stop, f.one)) as k:
        f.store(m.select(fine, f.load(t.space, k), f.load(t.numbers, k)), t.numbers, k)
    with f.e.for_range(first, b.add(end, f.one)) as i:
        on = b.and_(fine, b.icmp_signed("<=", start, f.splat(i)))
        f.store(m.add(f.load(t.shifts, i), m.select(on, shift, 0.0)), t.shifts, i)
