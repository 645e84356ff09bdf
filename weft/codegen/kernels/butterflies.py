"""Stages of a fast Fourier transform: Stockham's autosort algorithm, a stage for each factor of the
length, on split real and imaginary parts.

A stage of radix r takes m r transforms' points, x, to y, for q in [0, s) and p in [0, m)::

    a[i] = x[q + s (p + m i)],  y[q + s (r p + k)] = w**(p k) A[k],  w = exp(-2 pi i / (r m))

A the transform of the r numbers a; then m becomes the length and s r the stride of the next one
(Van Loan, Computational Frameworks for the Fast Fourier Transform, 1992, 1.7). Lines side by side
are a stride to begin with. Vectors go over q; while s is smaller than a vector and divides it, over
q and p together, as x is contiguous in both, and what the r results have of a vector's lanes is
interleaved. Transforms of r points: 2, 4 and 8 by halves, odd primes by sums over pairs of
conjugate roots; a product of complex numbers is two fused multiply-adds where the target has
them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from llvmlite import ir

from weft.codegen.llvm.emitter import F64, I64, Emitter, memory_type
from weft.codegen.vector.float_builder import lanes_of
from weft.ir.dataclass import dataclass

#: Primes whose transforms are straight-line code, and the largest one that a stage has as radix.
STRAIGHT, LARGEST_PRIME = (7, 5, 3), 71

Pair = tuple[ir.Value, ir.Value]


def factors(n: int) -> list[int] | None:
    """Radices whose product is n, in the order of the stages; None if a prime of n is none."""
    twos = (n & -n).bit_length() - 1
    eights = min(1 if twos % 2 else 2, twos // 3) if twos != 4 else 0
    found = [8] * eights + [4] * ((twos - 3 * eights) // 2) + [2] * (twos == 1)
    primes = prime_factors(n >> twos)
    return None if primes and primes[-1] > LARGEST_PRIME else found + primes[::-1]


def prime_factors(n: int) -> list[int]:
    """The primes whose product is n, smallest first."""
    found: list[int] = []
    prime = 2
    while prime * prime <= n:
        while n % prime == 0:
            found.append(prime)
            n //= prime
        prime += 1
    return [*found, n] if n > 1 else found


def roots(k: np.ndarray[tuple[int], np.dtype[np.int64]], n: int) -> np.ndarray[
    tuple[int], np.dtype[np.complex128]
]:  # fmt: skip
    """exp(-2 pi i k / n) for whole numbers k, each part rounded from an angle of an eighth of a
    turn at most, so that those that are 0, 1 or equal are exactly."""
    k = k % n
    octant, rest = np.divmod(8 * k, n)
    odd = octant % 2 == 1
    # with more digits than float64 has, where NumPy has such numbers
    angle = np.where(odd, n - rest, rest) * (np.arctan(np.longdouble(1)) / n)
    cos, sin = np.cos(angle).astype(np.float64), np.sin(angle).astype(np.float64)
    cos, sin = np.where(odd, sin, cos), np.where(odd, cos, sin)  # within a quarter of a turn
    re = np.choose(octant // 2, [cos, -sin, -cos, sin])
    im = np.choose(octant // 2, [sin, cos, -sin, -cos])
    return np.asarray(re - 1j * im)


def is_straight(radix: int) -> bool:
    """Whether the transform of so many points is straight-line code."""
    return radix in (2, 4, 8, *STRAIGHT)


@dataclass(frozen=True)
class Stage:
    """A stage. joined: its vectors go over q and p together, for this s; 0: over q. last: m is 1,
    and all factors are 1."""

    radix: int
    joined: int
    last: bool


@dataclass(frozen=True)
class Row:
    """A stage of a transform, and where its factors begin: w**(p k) of k = 1, 2, ... one after
    another, for each p, or each (p, q) of a joined one; their imaginary parts, and the roots of
    unity that a prime that is not straight-line code is given."""

    stage: Stage
    m: int
    s: int
    at: int
    imaginary_at: int
    roots_at: int

    def words(self, number: int) -> list[int]:
        """As `emit_stages` reads it; number: of the stage."""
        return [number, self.m, self.s, self.at, self.imaginary_at, self.roots_at]


#: Words of a row.
WORDS = 6


def stages_of(found: Sequence[int], lanes: int, s: int = 1) -> tuple[list[Row], np.ndarray]:
    """The stages of these radices, and their factors (float64). lanes: of a vector that may go over
    q and p; 1: none does, as in lines side by side. s: the first stride."""
    rows: list[Row] = []
    tables = [np.zeros(0)]
    m = math.prod(found)

    def put(values: np.ndarray) -> int:
        at = sum(t.size for t in tables)
        tables.append(values.ravel())
        return at

    for r in found:
        m //= r
        joined = s if m > 1 and s < lanes and lanes % s == 0 and is_straight(r) else 0
        p, k = np.arange(m, dtype=np.int64), np.arange(1, r, dtype=np.int64)
        w = roots((k[:, None] * p).ravel() if m > 1 else p[:0], r * m).reshape(r - 1, -1)
        w = np.repeat(w, s, axis=1) if joined else w
        places = put(w.real), put(w.imag)
        unity = roots(np.arange(0 if is_straight(r) else r, dtype=np.int64), r)
        rows.append(Row(Stage(r, joined, m == 1), m, s, *places, put(unity.real)))
        put(unity.imag)
        s *= r
    return rows, np.concatenate(tables)


class Points:
    """Arithmetic on complex numbers whose parts are scalars or vectors of one kind."""

    def __init__(self, e: Emitter, part: str, lanes: int) -> None:
        self.e, self.b, self.lanes = e, e.builder, lanes
        self.scalar = memory_type(part)
        self.kind = ir.VectorType(self.scalar, lanes) if lanes > 1 else self.scalar
        self.align = 4 if part == "f32" else 8

    def number(self, value: float) -> ir.Constant:
        one = ir.Constant(self.scalar, value)
        return ir.Constant(self.kind, [one] * self.lanes) if self.lanes > 1 else one

    def repeated(self, value: ir.Value) -> ir.Value:
        """A scalar in all lanes."""
        if self.lanes == 1:
            return value
        zero = ir.Constant(ir.IntType(32), 0)
        first = self.b.insert_element(ir.Constant(self.kind, ir.Undefined), value, zero)
        mask = ir.Constant(ir.VectorType(ir.IntType(32), self.lanes), [0] * self.lanes)
        return self.b.shuffle_vector(first, first, mask)

    def load(self, pointer: ir.Value) -> ir.Value:
        """The numbers from `pointer`, to a scalar, on."""
        return self.b.load(self._wide(pointer), align=self.align)

    def store(self, value: ir.Value, pointer: ir.Value) -> None:
        kind = value.type.as_pointer()
        self.b.store(value, self.b.bitcast(pointer, kind), align=self.align)

    def _wide(self, pointer: ir.Value) -> ir.Value:
        return self.b.bitcast(pointer, self.kind.as_pointer())

    def fused(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """a b + c, rounded once where the target can."""
        name = f"llvm.fmuladd.{f'v{self.lanes}' * (self.lanes > 1)}f{8 * self.align}"
        function = self.e.module.globals.get(name)
        if function is None:  # llvmlite does not know vectors' names
            kind = ir.FunctionType(self.kind, [self.kind] * 3)
            function = ir.Function(self.e.module, kind, name)
        return self.b.call(function, [a, b, c])

    def add(self, x: Pair, y: Pair) -> Pair:
        return self.b.fadd(x[0], y[0]), self.b.fadd(x[1], y[1])

    def sub(self, x: Pair, y: Pair) -> Pair:
        return self.b.fsub(x[0], y[0]), self.b.fsub(x[1], y[1])

    def times(self, x: Pair, w: Pair) -> Pair:
        """x w."""
        b = self.b
        re = self.fused(x[0], w[0], b.fneg(b.fmul(x[1], w[1])))
        return re, self.fused(x[0], w[1], b.fmul(x[1], w[0]))

    def turned(self, x: Pair) -> Pair:
        """-i x."""
        return x[1], self.b.fneg(x[0])

    # --------------------------------------------------------------------- transforms of r points
    def transform(self, x: Sequence[Pair]) -> list[Pair]:
        """The transform of a few points."""
        match len(x):
            case 2:
                return [self.add(x[0], x[1]), self.sub(x[0], x[1])]
            case 4 | 8:
                return self._halves(x)
            case _:
                return self._odd(x)

    def _halves(self, x: Sequence[Pair]) -> list[Pair]:
        even, odd = self.transform(x[::2]), self.transform(x[1::2])
        turned = [self._root(v, k, len(x)) for k, v in enumerate(odd)]
        return [
            *(self.add(a, b) for a, b in zip(even, turned, strict=True)),
            *(self.sub(a, b) for a, b in zip(even, turned, strict=True)),
        ]

    def _root(self, x: Pair, k: int, n: int) -> Pair:
        """x exp(-2 pi i k / n) for n of 4 or 8 and k < n / 2."""
        if k == 0:
            return x
        if 4 * k == n:
            return self.turned(x)
        b, half = self.b, self.number(math.sqrt(0.5))
        total, apart = b.fadd(x[0], x[1]), b.fsub(x[1], x[0])
        if k == 1:
            return b.fmul(total, half), b.fmul(apart, half)
        return b.fmul(apart, half), b.fmul(total, self.number(-math.sqrt(0.5)))

    def _odd(self, x: Sequence[Pair]) -> list[Pair]:
        """X[k] and X[r-k] are c -+ i d: c made of the sums x[j] + x[r-j], d of the differences."""
        r, half = len(x), len(x) // 2
        sums = [self.add(x[j], x[r - j]) for j in range(1, half + 1)]
        apart = [self.sub(x[j], x[r - j]) for j in range(1, half + 1)]
        total = x[0]
        for a in sums:
            total = self.add(total, a)
        made: list[Pair] = [total] * r
        for k in range(1, half + 1):
            c, d = x[0], (self.number(0.0), self.number(0.0))
            for j in range(1, half + 1):
                cos, sin = self._turn(j * k, r)
                a, b = sums[j - 1], apart[j - 1]
                c = self.fused(a[0], cos, c[0]), self.fused(a[1], cos, c[1])
                if j == 1:
                    d = self.b.fmul(b[0], sin), self.b.fmul(b[1], sin)
                else:
                    d = self.fused(b[0], sin, d[0]), self.fused(b[1], sin, d[1])
            turned = self.turned(d)
            made[k], made[r - k] = self.add(c, turned), self.sub(c, turned)
        return made

    def _turn(self, k: int, r: int) -> Pair:
        """cos and sin of 2 pi k / r."""
        root = roots(np.array([k]), r)[0]
        return self.number(root.real), self.number(-root.imag)

    def half_spectrum(self, x: Sequence[ir.Value]) -> list[Pair]:
        """X[0] to X[r // 2] of r real numbers, r odd, as in `_odd`."""
        r, half, b = len(x), len(x) // 2, self.b
        sums = [b.fadd(x[j], x[r - j]) for j in range(1, half + 1)]
        apart = [b.fsub(x[j], x[r - j]) for j in range(1, half + 1)]
        total = x[0]
        for a in sums:
            total = b.fadd(total, a)
        made = [(total, self.number(0.0))]
        for k in range(1, half + 1):
            re, im = x[0], self.number(0.0)
            for j in range(1, half + 1):
                cos, sin = self._turn(j * k, r)
                re = self.fused(sums[j - 1], cos, re)
                im = self.fused(apart[j - 1], sin, im)
            made.append((re, b.fneg(im)))
        return made

    def real_numbers(self, spectrum: Sequence[Pair]) -> list[ir.Value]:
        """The inverse, undivided: r real numbers of X[0] to X[r // 2], r odd."""
        half, b = len(spectrum) - 1, self.b
        r, first = 2 * half + 1, spectrum[0][0]
        twice = [(b.fadd(re, re), b.fadd(im, im)) for re, im in spectrum[1:]]
        total = first
        for re, _ in twice:
            total = b.fadd(total, re)
        made = [total] * r
        for i in range(1, half + 1):
            even, odd = first, self.number(0.0)
            for k, (re, im) in enumerate(twice, 1):
                cos, sin = self._turn(i * k, r)
                even, odd = self.fused(re, cos, even), self.fused(im, sin, odd)
            made[i], made[r - i] = b.fsub(even, odd), b.fadd(even, odd)
        return made

    # ------------------------------------------------------------------------------ interleaving
    def interleaved(self, vectors: Sequence[ir.Value], block: int) -> list[ir.Value]:
        """Vectors of lanes: block 0 of each one, block 1 of each one, ...; a power of two of
        them."""
        lists = [[v] for v in vectors]
        while len(lists) > 1:
            pairs = zip(lists[::2], lists[1::2], strict=True)
            lists, block = [self._merged(a, b, block) for a, b in pairs], 2 * block
        return lists[0]

    def _merged(self, a: list[ir.Value], b: list[ir.Value], block: int) -> list[ir.Value]:
        if block >= self.lanes:
            count = block // self.lanes
            parts = (range(k, k + count) for k in range(0, len(a), count))
            return [v for part in parts for x in (a, b) for v in (x[k] for k in part)]
        order = [
            which * self.lanes + start + lane
            for start in range(0, self.lanes, block)
            for which in (0, 1)
            for lane in range(block)
        ]
        halves = order[: self.lanes], order[self.lanes :]
        return [self._shuffled(x, y, half) for x, y in zip(a, b, strict=True) for half in halves]

    def _shuffled(self, x: ir.Value, y: ir.Value, order: Sequence[int]) -> ir.Value:
        mask = ir.Constant(ir.VectorType(ir.IntType(32), len(order)), list(order))
        return self.b.shuffle_vector(x, y, mask)

    def block(self, x: ir.Value, start: int, count: int) -> ir.Value:
        """Lanes start .. start + count - 1, as a vector, or a scalar if that is one."""
        if count == 1:
            return self.b.extract_element(x, ir.Constant(ir.IntType(32), start))
        return self._shuffled(x, x, range(start, start + count))


@dataclass(frozen=True)
class _Arrays:
    """Parts of the points of a stage, and of its factors."""

    x: Pair
    y: Pair
    w: Pair
    unity: ir.Value


def emit_stage(e: Emitter, stage: Stage, part: str) -> ir.Function:
    """A function (x re, x im, y re, y im, factors re, factors im, roots of unity, m, s) that does a
    stage."""
    pointer = memory_type(part).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [pointer] * 7 + [I64, I64])
    name = f"{e.symbol}.radix{stage.radix}{'.last' * stage.last}{'.joined' * bool(stage.joined)}"
    function, f = e.define_function(f"{name}{stage.joined or ''}", kind)
    for parameter in function.args[:7]:
        parameter.add_attribute("noalias")
    xr, xi, yr, yi, wr, wi, unity, m, s = function.args
    arrays = _Arrays((xr, xi), (yr, yi), (wr, wi), unity)
    (_emit_joined if stage.joined else _emit_apart)(f, stage, part, arrays, m, s)
    f.builder.ret_void()
    return function


def _in_vectors(
    f: Emitter, count: ir.Value, lanes: int, body: Callable[[ir.Value, int], None]
) -> None:
    """body(start, lanes) for whole vectors of [0, count), then for one of half the lanes if that
    is 4 or more (the stride after a stage of radix 4), and body(start, 1) for what is left."""
    done = f.index(0)
    for width in (lanes, lanes // 2, 1) if lanes >= 8 else (lanes, 1):
        whole = f.builder.and_(count, f.index(-width))
        with f.for_range(done, whole, f.index(width)) as i:
            body(i, width)
        done = whole


def _emit_apart(
    f: Emitter, stage: Stage, part: str, arrays: _Arrays, m: ir.Value, s: ir.Value
) -> None:
    """Vectors over q."""
    b, r = f.builder, stage.radix
    far = b.mul(m, s)

    def of_p(p: ir.Value) -> None:
        start, goal = b.mul(p, s), b.mul(b.mul(p, f.index(r)), s)
        one = Points(f, part, 1)
        factors_ = []
        for k in range(0 if stage.last or not is_straight(r) else r - 1):
            at = b.add(b.mul(f.index(k), m), p)
            factors_.append(tuple(one.load(f.at(w, at)) for w in arrays.w))

        def of_q(q: ir.Value, lanes: int) -> None:
            v = Points(f, part, lanes)
            if not is_straight(r):
                places = b.add(start, q), far, b.add(goal, q), s
                _any_prime(f, v, r, arrays, places, None if stage.last else (p, m))
                return
            at = [b.add(b.add(start, q), b.mul(f.index(i), far)) for i in range(r)]
            made = v.transform([tuple(v.load(f.at(x, i)) for x in arrays.x) for i in at])
            for k, value in enumerate(made):
                if k and factors_:
                    value = v.times(value, tuple(map(v.repeated, factors_[k - 1])))
                to = b.add(b.add(goal, q), b.mul(f.index(k), s))
                for number, y in zip(value, arrays.y, strict=True):
                    v.store(number, f.at(y, to))

        _in_vectors(f, s, lanes_of(part), of_q)

    if stage.last:
        of_p(f.index(0))
    else:
        with f.for_range(f.index(0), m) as p:
            of_p(p)


def _any_prime(
    f: Emitter,
    v: Points,
    r: int,
    arrays: _Arrays,
    places: Sequence[ir.Value],
    factor: tuple[ir.Value, ir.Value] | None,
) -> None:
    """The transform of r points, a prime, as `Points._odd` does it, by loops. places: where the
    first point is, how far the next one, the same of the results; factor: (p, m), None: none."""
    b, half = f.builder, r // 2
    start, far, goal, step = places
    one, zero, end = f.index(1), f.index(0), f.index(r)
    # sums re, sums im, differences re, differences im; and the totals that are being made
    held = [f.alloca(ir.ArrayType(v.kind, half + 1)) for _ in range(4)]
    totals = [f.alloca(v.kind) for _ in range(4)]
    turn = f.alloca(I64)

    def point(i: ir.Value) -> Pair:
        at = b.add(start, b.mul(i, far))
        re, im = (v.load(f.at(x, at)) for x in arrays.x)
        return re, im

    def result(k: ir.Value, value: Pair) -> None:
        if factor is not None:
            at = b.add(b.mul(b.sub(k, one), factor[1]), factor[0])
            w = [v.repeated(b.load(f.at(x, at))) for x in arrays.w]
            value = v.times(value, (w[0], w[1]))
        at = b.add(goal, b.mul(k, step))
        for number, y in zip(value, arrays.y, strict=True):
            v.store(number, f.at(y, at))

    first = point(zero)
    for cell, number in zip(totals, first, strict=False):
        b.store(number, cell)
    with f.for_range(one, f.index(half + 1)) as j:
        x, mirror = point(j), point(b.sub(end, j))
        for cell, number in zip(held, (*v.add(x, mirror), *v.sub(x, mirror)), strict=True):
            b.store(number, b.gep(cell, [zero, j]))
        for cell, row in zip(totals[:2], held, strict=False):
            b.store(b.fadd(b.load(cell), b.load(b.gep(row, [zero, j]))), cell)
    for cell, y in zip(totals, arrays.y, strict=False):
        v.store(b.load(cell), f.at(y, goal))
    with f.for_range(one, f.index(half + 1)) as k:
        for cell, number in zip(totals, (*first, v.number(0.0), v.number(0.0)), strict=True):
            b.store(number, cell)
        b.store(zero, turn)
        with f.for_range(one, f.index(half + 1)) as j:
            at = b.add(b.load(turn), k)
            at = b.select(b.icmp_signed(">=", at, end), b.sub(at, end), at)
            b.store(at, turn)
            cos = v.repeated(b.load(f.at(arrays.unity, at)))
            sin = v.repeated(b.load(f.at(arrays.unity, b.add(at, end))))
            for cell, row, root in zip(totals, held, (cos, cos, sin, sin), strict=True):
                b.store(v.fused(b.load(b.gep(row, [zero, j])), root, b.load(cell)), cell)
        c, d = [(b.load(totals[i]), b.load(totals[i + 1])) for i in (0, 2)]
        turned = v.turned(d)  # the table's roots have the other sign of sin
        result(k, v.sub(c, turned))
        result(b.sub(end, k), v.add(c, turned))


def _emit_joined(
    f: Emitter, stage: Stage, part: str, arrays: _Arrays, m: ir.Value, s: ir.Value
) -> None:
    """Vectors over q and p together: t = q + s p."""
    b, r, width = f.builder, stage.radix, stage.joined
    far = b.mul(m, s)

    def of_t(t: ir.Value, lanes: int) -> None:
        v = Points(f, part, lanes)
        at = [b.add(t, b.mul(f.index(i), far)) for i in range(r)]
        made = v.transform([tuple(v.load(f.at(x, i)) for x in arrays.x) for i in at])
        for k in range(1, r):
            w = [f.at(w, b.add(t, b.mul(f.index(k - 1), far))) for w in arrays.w]
            made[k] = v.times(made[k], (v.load(w[0]), v.load(w[1])))
        q = b.urem(t, f.index(width)) if lanes == 1 else f.index(0)
        to = b.add(b.mul(b.sub(t, q), f.index(r)), q)
        for side, y in enumerate(arrays.y):
            _store_joined(f, v, [value[side] for value in made], f.at(y, to), width)

    _in_vectors(f, far, lanes_of(part), of_t)


def _store_joined(
    f: Emitter, v: Points, values: Sequence[ir.Value], to: ir.Value, width: int
) -> None:
    """The blocks of `width` lanes of the values side by side, one group after another."""
    r = len(values)
    if v.lanes == 1:
        for k, value in enumerate(values):
            v.store(value, f.at(to, f.index(k * width)))
    elif r & (r - 1) == 0:
        for k, vector in enumerate(v.interleaved(values, width)):
            v.store(vector, f.at(to, f.index(k * v.lanes)))
    else:
        for group in range(v.lanes // width):
            for k, value in enumerate(values):
                place = f.at(to, f.index((group * r + k) * width))
                v.store(v.block(value, group * width, width), place)


def emit_stages(
    e: Emitter, stages: Sequence[Stage], part: str
) -> Callable[[Emitter, ir.Value, ir.Value, ir.Value, Sequence[ir.Value], ir.Value], None]:
    """Functions for these stages, and what emits a transform by them: (emitter, address of rows of
    `Row.words`, how many, pointer to factors, cells
    of the pointers (x re, x im, y re, y im), width). It exchanges x and y after each stage: the
    cells of x hold the results. width: lines side by side."""
    made = [emit_stage(e, stage, part) for stage in stages]
    return partial(_emit_rows, made)


def _emit_rows(
    made: Sequence[ir.Function],
    f: Emitter,
    rows: ir.Value,
    count: ir.Value,
    table: ir.Value,
    cells: Sequence[ir.Value],
    width: ir.Value,
) -> None:
    b = f.builder
    with f.for_range(f.index(0), count) as i:
        row = [
            b.load(f.at(rows, b.add(b.mul(i, f.index(WORDS)), f.index(k)))) for k in range(WORDS)
        ]
        held = [b.load(cell) for cell in cells]
        w = [f.at(table, at) for at in row[3:]]
        after = b.append_basic_block("stage.after")
        blocks = [b.append_basic_block(f"stage.{k}") for k in range(len(made))]
        choice = b.switch(row[0], after)
        for k, (block, function) in enumerate(zip(blocks, made, strict=True)):
            choice.add_case(f.index(k), block)
            b.position_at_end(block)
            b.call(function, [*held, *w, row[1], b.mul(row[2], width)])
            b.branch(after)
        b.position_at_end(after)
        for cell, pointer in zip(cells, (*held[2:], *held[:2]), strict=True):
            b.store(pointer, cell)


def scale_argument(e: Emitter, position: int, part: str) -> ir.Value:
    """args[position], the bits of a float64, as a number of this dtype."""
    value = e.builder.bitcast(e.argument(position), F64)
    return value if part == "f64" else e.builder.fptrunc(value, memory_type(part))
