"""Cholesky and LU factors of interleaved matrices, and triangular solves with them.

Arrays are padded to whole tiles, with ones on the diagonal for `cholesky` and the solves and zeros
for `lu`: factors of the padded matrix are those of the matrix itself, padded. Each block is padded
anew, as NaN of one stays in the padding of its lane. A tile's sum over all that was computed before
it is held in registers (the left-looking forms: G. Golub and C. Van Loan, Matrix Computations, 4th
edition, 2013, 4.2.7 and 3.2.9). Pivots differ by lane: rows change places under masks."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from llvmlite import ir

from weft.codegen.interleaved.lanes import Lanes, tile_size
from weft.codegen.llvm.emitter import I64

Address = Callable[[int, ir.Value], ir.Value]
Tile = list[list[ir.Value]]


def pad(w: Lanes, a: ir.Value, rows: ir.Value, columns: ir.Value, size: ir.Value, ld: ir.Value,
        diagonal: float) -> None:  # fmt: skip
    """Fill an array of `size` rows and columns where it is beyond those of the matrix."""
    e, b = w.e, w.b
    with e.for_range(w.zero, size) as i:
        start = b.select(b.icmp_signed("<", i, rows), columns, w.zero)
        w.fill(w.at(a, (i, ld)), start, size, 0.0)
        with b.if_then(b.icmp_signed("<=", start, i)):
            w.store(w.const(diagonal), w.at(a, (i, ld), i))


def _load_tile(w: Lanes, at: Callable[[int, int], ir.Value], rows: int, columns: int) -> Tile:
    cells = [w.cells(columns) for _ in range(rows)]
    for r, row in enumerate(cells):
        for c, cell in enumerate(row):
            w.b.store(w.load(at(r, c)), cell)
    return cells


def _subtract(
    w: Lanes, cells: Tile, start: ir.Value, stop: ir.Value, x: Address, y: Address
) -> None:
    """cells[r][c] -= sum of x(r, k) y(c, k) for k in [start, stop)."""
    b = w.b
    with w.e.for_range(start, stop) as k:
        left = [w.m.neg(w.load(x(r, k))) for r in range(len(cells))]
        right = [w.load(y(c, k)) for c in range(len(cells[0]))]
        for r, row in enumerate(cells):
            for c, cell in enumerate(row):
                b.store(w.m.fma(left[r], right[c], b.load(cell)), cell)


def _values(w: Lanes, cells: Tile) -> Tile:
    return [[w.b.load(cell) for cell in row] for row in cells]


# ---------------------------------------------------------------------------------------- cholesky


def emit_cholesky(
    w: Lanes, a: ir.Value, inverses: ir.Value, bad: ir.Value, n: ir.Value, size: ir.Value,
    ld: ir.Value,
) -> None:  # fmt: skip
    """Factor a in place, zeros above the diagonal. bad becomes NaN in the lanes in which a pivot is
    not positive or an element is not finite, else 0. inverses: space for `size` vectors."""
    pointers, scalars = [a, inverses, bad], [n, size, ld]
    with w.function("factor", pointers, scalars) as (f, held, values):
        a, inverses, bad = held
        n, size, ld = values
        e, tile = f.e, tile_size()
        f.store(f.const(0.0), bad)

        def sums(i: ir.Value, j: ir.Value, lower: bool) -> Tile:
            def at(r: int, c: int) -> ir.Value:
                return f.at(a, (f.b.add(i, e.index(r)), ld), j, e.index(c))

            cells = _load_tile(f, at, tile, tile)
            wrong = f.const(0.0)
            for r, row in enumerate(cells):
                for cell in row[: r + 1] if lower else row:
                    wrong = f.m.add(wrong, f.not_finite(f.b.load(cell)))
            f.store(f.m.add(f.load(bad), wrong), bad)
            rows, columns = (
                [f.at(a, (f.b.add(k, e.index(r)), ld)) for r in range(tile)] for k in (i, j)
            )
            _subtract(
                f, cells, f.zero, j, lambda r, k: e.at(rows[r], k), lambda c, k: e.at(columns[c], k)
            )
            return _values(f, cells)

        with e.for_range(f.zero, size, e.index(tile)) as j:
            _factor_tile(f, sums(j, j, True), a, inverses, bad, j, ld)
            with e.for_range(f.b.add(j, e.index(tile)), size, e.index(tile)) as i:
                _below_tile(f, sums(i, j, False), a, inverses, i, j, ld)
        with e.for_range(f.zero, n) as i:
            f.fill(f.at(a, (i, ld)), f.b.add(i, f.one), n, 0.0)


def _factor_tile(
    f: Lanes, x: Tile, a: ir.Value, inverses: ir.Value, bad: ir.Value, j: ir.Value, ld: ir.Value
) -> None:
    e, m, tile = f.e, f.m, len(x)
    for c in range(tile):
        pivot = x[c][c]
        wrong = m.select(m.compare(">", pivot, 0.0), 0.0, math.nan)
        f.store(m.add(f.load(bad), wrong), bad)
        root = f.sqrt(pivot)
        inverse = m.div(1.0, root)
        f.store(inverse, inverses, f.b.add(j, e.index(c)))
        x[c][c] = root
        for r in range(c + 1, tile):
            x[r][c] = m.mul(x[r][c], inverse)
        for r in range(c + 1, tile):
            for k in range(c + 1, r + 1):
                x[r][k] = m.fma(m.neg(x[r][c]), x[k][c], x[r][k])
    for r in range(tile):
        for c in range(r + 1):
            f.store(x[r][c], f.at(a, (f.b.add(j, e.index(r)), ld), j, e.index(c)))


def _below_tile(
    f: Lanes, x: Tile, a: ir.Value, inverses: ir.Value, i: ir.Value, j: ir.Value, ld: ir.Value
) -> None:
    e, m, tile = f.e, f.m, len(x)
    for c in range(tile):
        inverse = f.load(inverses, f.b.add(j, e.index(c)))
        for r in range(tile):
            x[r][c] = m.mul(x[r][c], inverse)
            f.store(x[r][c], f.at(a, (f.b.add(i, e.index(r)), ld), j, e.index(c)))
        for k in range(c + 1, tile):
            other = m.neg(f.load(f.at(a, (f.b.add(j, e.index(k)), ld), j, e.index(c))))
            for r in range(tile):
                x[r][k] = m.fma(x[r][c], other, x[r][k])


# ---------------------------------------------------------------------------------------------- lu


def emit_lu(
    w: Lanes, a: ir.Value, pivots: ir.Value, order: ir.Value, sizes: list[ir.Value]
) -> None:
    """Factor a in place. pivots, order: arrays of vectors of integers, for the row that row i was
    swapped with in step i, and the order of the rows. sizes: m, n, k, rows and columns in whole
    tiles, ld."""
    with w.function("factor", [a, pivots, order], sizes) as (f, held, values):
        a, pivots, order = held
        m, n, k, rows, columns, ld = values
        e, b, tile = f.e, f.b, tile_size()
        with e.for_range(f.zero, m) as i:
            b.store(f.splat(i), e.at(order, i))
        with e.for_range(f.zero, columns, e.index(tile)) as j:
            with e.for_range(f.zero, rows, e.index(tile)) as i:
                _update(f, a, i, j, ld)
            for c in range(tile):
                at = b.add(j, e.index(c))
                with b.if_then(b.icmp_signed("<", at, k)):
                    _eliminate(f, a, pivots, order, at, tile - c - 1, m, n, ld)


def _update(f: Lanes, a: ir.Value, i: ir.Value, j: ir.Value, ld: ir.Value) -> None:
    """Bring the tile at (i, j) up to date with what is left of column j, above the diagonal with
    what is above row i; there it is a tile of U then."""
    e, b, tile = f.e, f.b, tile_size()
    above = b.icmp_signed("<", i, j)
    stop = b.select(above, i, j)
    rows = [f.at(a, (b.add(i, e.index(r)), ld)) for r in range(tile)]

    def at(r: int, c: int) -> ir.Value:
        return f.at(rows[r], j, e.index(c))

    cells = _load_tile(f, at, tile, tile)

    def column(c: int, k: ir.Value) -> ir.Value:
        return f.at(a, (k, ld), j, e.index(c))

    _subtract(f, cells, f.zero, stop, lambda r, k: e.at(rows[r], k), column)
    with b.if_then(above):
        x = _values(f, cells)
        for r in range(tile):
            for below in range(r + 1, tile):
                factor = f.m.neg(f.load(f.at(rows[below], i, e.index(r))))
                for c in range(tile):
                    x[below][c] = f.m.fma(factor, x[r][c], x[below][c])
        for row, values in zip(cells, x, strict=True):
            for cell, value in zip(row, values, strict=True):
                b.store(value, cell)
    for r, row in enumerate(_values(f, cells)):
        for c, value in enumerate(row):
            f.store(value, at(r, c))


def _eliminate(
    f: Lanes, a: ir.Value, pivots: ir.Value, order: ir.Value, j: ir.Value, right: int,
    m: ir.Value, n: ir.Value, ld: ir.Value,
) -> None:  # fmt: skip
    """Step j: the pivot's row comes up, the column below it is divided by it, and the `right`
    columns beside it are brought up to date. As LAPACK's getf2, but that NaN is larger than all."""
    e, b, fm = f.e, f.b, f.m
    below = b.add(j, f.one)

    def size(i: ir.Value) -> ir.Value:
        x = fm.abs(f.load(f.at(a, (i, ld), j)))
        return fm.select(fm.is_nan(x), math.inf, x)

    best, found = f.cell(size(j)), f.cell(f.splat(j))
    with e.for_range(below, m) as i:
        x = size(i)
        more = fm.compare(">", x, b.load(best))
        b.store(b.select(more, x, b.load(best)), best)
        b.store(b.select(more, f.splat(i), b.load(found)), found)
    others = b.load(found)
    b.store(others, e.at(pivots, j))
    f.exchange_rows([(a, ld, n)], j, others, m, order)
    top = f.at(a, (j, ld), j)
    pivot = f.load(top)
    # 1 / x overflows; a column of zeros stays as it is
    tiny = fm.compare("<", fm.abs(pivot), _SAFE[f.dtype])
    zero = fm.compare("==", pivot, 0.0)
    divisor = fm.select(zero, 1.0, pivot)
    inverse = fm.select(tiny, 1.0, fm.div(1.0, divisor))
    rest = fm.select(tiny, divisor, 1.0)
    is_rare = f.any(tiny)
    beside = [f.load(top, e.index(c + 1)) for c in range(right)]
    with e.for_range(below, m) as i:
        at = f.at(a, (i, ld), j)
        value = f.cell(fm.mul(f.load(at), inverse))
        with b.if_then(is_rare):
            b.store(fm.div(b.load(value), rest), value)
        factor = b.load(value)
        f.store(factor, at)
        for c, x in enumerate(beside):
            place = e.at(at, e.index(c + 1))
            f.store(fm.fma(fm.neg(factor), x, f.load(place)), place)


#: Below these 1 / x may overflow.
_SAFE = {"f32": 2.0**-126, "f64": 2.0**-1022}


# ------------------------------------------------------------------------------------------ solves


def emit_substitution(
    w: Lanes, a: ir.Value, x: ir.Value, sizes: list[ir.Value], lower: bool, transposed: bool,
    unit: bool,
) -> None:  # fmt: skip
    """Solve with the triangular a (transposed: with its transpose, lower says what a itself is) in
    place. sizes: rows in whole tiles, right sides, ld of a, ld of x."""
    with w.function("solve", [x, a], sizes) as (f, (x, a), values):
        rows, columns, a_ld, x_ld = values
        e, tile = f.e, tile_size()
        forward = lower != transposed

        def entry(i: ir.Value, k: ir.Value) -> ir.Value:
            return f.at(a, (k, a_ld), i) if transposed else f.at(a, (i, a_ld), k)

        def block(number: ir.Value, j: ir.Value, width: int) -> None:
            i = f.b.mul(number, e.index(tile))
            after = f.b.add(i, e.index(tile))

            def at(r: int, c: int) -> ir.Value:
                return f.at(x, (f.b.add(i, e.index(r)), x_ld), j, e.index(c))

            cells = _load_tile(f, at, tile, width)
            _subtract(
                f, cells, *((f.zero, i) if forward else (after, rows)),
                lambda r, k: entry(f.b.add(i, e.index(r)), k),
                lambda c, k: f.at(x, (k, x_ld), j, e.index(c)),
            )  # fmt: skip
            made = _values(f, cells)
            _solve_tile(f, made, partial(_inner, f, entry, i), forward, unit)
            for r, row in enumerate(made):
                for c, value in enumerate(row):
                    f.store(value, at(r, c))

        def strip(j: ir.Value, width: int) -> None:
            count = f.b.sdiv(rows, e.index(tile))
            loop = e.for_range if forward else f.down
            with loop(f.zero, count) as number:
                block(number, j, width)

        f.tiles(f.zero, columns, tile, strip)


def _inner(f: Lanes, entry: Callable[..., ir.Value], i: ir.Value, r: int, k: int) -> ir.Value:
    return f.load(entry(f.b.add(i, f.e.index(r)), f.b.add(i, f.e.index(k))))


def _solve_tile(
    f: Lanes, x: Tile, entry: Callable[[int, int], ir.Value], forward: bool, unit: bool
) -> None:
    tile = len(x)
    for r in range(tile) if forward else reversed(range(tile)):
        if not unit:
            pivot = entry(r, r)
            x[r] = [f.m.div(value, pivot) for value in x[r]]
        for k in range(r + 1, tile) if forward else range(r):
            factor = f.m.neg(entry(k, r))
            x[k] = [f.m.fma(factor, top, value) for top, value in zip(x[r], x[k], strict=True)]


def emit_order(
    w: Lanes, table: ir.Value, pivots: ir.Value, firsts: list[ir.Value], n: ir.Value,
    columns: ir.Value,
) -> None:  # fmt: skip
    """A table (n, lanes) of i64 of where in the right sides the rows begin that come to rows 0, 1,
    ... by the swaps of `pivots` (int64, n for each matrix). firsts: the matrices of the lanes."""
    e, b = w.e, w.b
    stride = e.index(w.count)
    for lane, matrix in enumerate(firsts):
        own = e.at(table, e.index(lane))
        start = b.mul(matrix, b.mul(n, columns))
        with e.for_range(w.zero, n) as i:
            b.store(b.add(start, b.mul(i, columns)), e.at(own, b.mul(i, stride)))
        swaps = e.at(pivots, b.mul(matrix, n))
        with e.for_range(w.zero, n) as i:
            other = b.load(e.at(swaps, i))
            other = b.select(b.icmp_unsigned("<", other, n), other, i)  # who knows who made them
            first, second = e.at(own, b.mul(i, stride)), e.at(own, b.mul(other, stride))
            one, two = b.load(first), b.load(second)
            b.store(two, first)
            b.store(one, second)


def integers(pointer: ir.Value, w: Lanes) -> ir.Value:
    """A pointer to vectors of integers instead."""
    return w.b.bitcast(pointer, w.whole.as_pointer())


def table_of(pointer: ir.Value, w: Lanes) -> ir.Value:
    """A pointer to i64 instead."""
    return w.b.bitcast(pointer, I64.as_pointer())
