"""fft, rfft, irfft: lines are loaded into a worker's scratch, transformed there by the stages of
`butterflies.py`, and stored. The units are the lines, or blocks of lines side by side.

Lines side by side (along an axis that is not the last one, or many short ones) are a stride of the
first stage, so every vector is full; a long line along the last axis is done by itself.

Real numbers of an even length n are n / 2 complex ones, two neighbours each, whose transform Z is
untangled: with w = exp(-2 pi i / n), 2 X[k] = Z[k] + conj(Z[n/2-k]) - i w**k (Z[k] -
conj(Z[n/2-k])); `irfft` does that backwards. Of an odd length n = r m, r one of 7, 5 and 3, without
a prime factor beyond 71, they are (r + 1) / 2 complex transforms of m points: those of w**(p c)
A[c] for c <= r / 2, A the transforms of the r numbers x[p + m i], have X[c + r j] as element j, and
the others are conjugates, as X[n-k] = conj(X[k]). `irfft` does that backwards, too. Of any other
odd length they are n complex ones. An inverse transform is one with real and imaginary parts
exchanged, before and after.

A length m with a prime factor beyond 71 is a convolution of a length M >= 2 m - 1 without: with
c[j] = exp(-pi i j**2 / m), X[k] = c[k] sum_j (x[j] c[j]) conj(c[k-j]) (Bluestein, A linear
filtering approach to the computation of discrete Fourier transform, 1970).

All is computed in float64. In float32 each stage rounds, and results would have four to nine times
the error of those that are rounded once, as they are here (docs/decisions/0069)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
from llvmlite import ir

from weft.codegen.call import (
    Address,
    KernelCall,
    Pool,
    Scratch,
    WorkerScratch,
    cut_call,
    worker_stride,
)
from weft.codegen.kernels.butterflies import (
    STRAIGHT,
    Pair,
    Points,
    Stage,
    emit_stages,
    factors,
    roots,
    scale_argument,
    stages_of,
)
from weft.codegen.kernels.data_movement import tensor
from weft.codegen.kernels.scan import axis_sizes
from weft.codegen.llvm.emitter import Emitter, memory_type
from weft.codegen.llvm.jit import Kernel
from weft.codegen.vector.float_builder import lanes_of
from weft.ir.cost.rates import transformed
from weft.ir.dataclass import dataclass
from weft.ir.graph import Operation
from weft.ir.ops.fourier import scale_of
from weft.ir.sizes import fixed
from weft.ir.spec import ConstArray, int_attr

#: What transforms are computed in, and its bytes.
PART, PART_BYTES = "f64", 8
#: Lines along the last axis that are done side by side, if there are many: of up to so many
#: points, and of an odd number of up to so many, whose stages alone do not fill vectors.
SHORT_LINE, ODD_LINE = 16, 2500
#: Bytes of the scratch of lines side by side, and the fewest and most of them.
SIDE_BYTES, LEAST_SIDE, MOST_SIDE = 1 << 18, 8, 64

Array = np.ndarray


@dataclass(frozen=True)
class _Form:
    """What the code of a kernel depends on. given: the dtype of a part in operand and result; all
    is computed in `PART`. exchanged: real and imaginary parts are. chirp: by a convolution. split:
    r, where real numbers of an odd length n are (r + 1) / 2 transforms of n / r points; else 0."""

    kind: str
    given: str
    odd: bool
    mirrored: bool
    exchanged: bool
    chirp: bool
    side: bool
    lanes: int
    split: int
    stages: tuple[Stage, ...]

    @property
    def key(self) -> str:
        flags = "".join(
            letter
            for letter, on in zip(
                "omxcs",
                (self.odd, self.mirrored, self.exchanged, self.chirp, self.side),
                strict=True,
            )
            if on
        )
        stages = ".".join(f"{s.radix}{'l' * s.last}{s.joined or ''}" for s in self.stages)
        return f"{self.kind}-3-{self.given}-{flags}{self.split}-{self.lanes}-{stages}"


@dataclass(frozen=True)
class _Tables:
    """The tables of a transform of m points by one of `points`: the rows of its stages, numbers,
    and where in these the roots begin that untangle, the chirp, and the spectrum of the chirp."""

    points: int
    stages: tuple[Stage, ...]
    rows: ConstArray
    count: int
    numbers: ConstArray
    roots_at: int
    chirp_at: int
    spectrum_at: int


def _good_size(least: int) -> int:
    """The smallest length from `least` on that is a power of two, or 3, 5, 9 or 15 times one."""
    sizes = [
        factor << max(3, (-(-least // factor) - 1).bit_length()) for factor in (1, 3, 5, 9, 15)
    ]
    return min(sizes)


@lru_cache(maxsize=64)
def _tables(n: int, m: int, given: str, lanes: int, split: int) -> _Tables:
    """Tables of m points, which are half of n real numbers or all of n numbers."""
    kept, points = split // 2 + 1, m
    found = factors(m // split if split else m)
    if found is None:
        points = _good_size(2 * m - 1)
        found = factors(points)
        assert found is not None
    rows, numbers = stages_of(found, lanes, kept if split else 1)
    stages = tuple(dict.fromkeys(row.stage for row in rows))
    words = [word for row in rows for word in row.words(stages.index(row.stage))]
    parts: list[Array] = [numbers]

    def put(values: Array) -> int:
        at = sum(p.size for p in parts)
        parts.extend((values.real, values.imag))
        return at

    roots_at = 0
    if m != n:
        roots_at = put(roots(np.arange(m + 1, dtype=np.int64), n))
    elif split:
        c, p = np.arange(1, kept, dtype=np.int64), np.arange(n // split, dtype=np.int64)
        roots_at = put(roots((c[:, None] * p).ravel(), n))
    chirp_at = spectrum_at = 0
    if points != m:
        j = np.arange(m, dtype=np.int64)
        chirp = roots(j * j, 2 * m)
        chirp_at = put(chirp)
        # digits to spare, where NumPy has them: what is rounded here is in every result
        wrapped = np.zeros(points, np.complex128 if given == "f32" else np.clongdouble)
        wrapped[:m] = chirp.conj()
        wrapped[points - m + 1 :] = chirp[:0:-1].conj()
        spectrum_at = put(np.fft.fft(wrapped) / points)
    return _Tables(
        points,
        stages,
        ConstArray(np.array(words or [0], np.int64)),
        len(rows),
        ConstArray(np.concatenate([*parts, np.zeros(1)]).astype(np.float64)),
        roots_at,
        chirp_at,
        spectrum_at,
    )


def fourier_calls(op: Operation) -> list[KernelCall]:
    """fft, rfft or irfft; args: see `_Frame`."""
    outer, size, inner = axis_sizes(op)
    size = fixed(size)
    n = fixed(int_attr(op.attrs, "n")) if op.name == "irfft" else size
    made = n // 2 + 1 if op.name == "rfft" else n
    given = "f32" if tensor(op.operands[0]).dtype.short in ("c64", "f32") else "f64"
    m = n // 2 if op.name != "fft" and n % 2 == 0 else n
    lanes = lanes_of(PART)
    odd = m % 2 == 1 and m <= ODD_LINE and factors(m) is not None
    short = (m <= SHORT_LINE or odd) and outer >= lanes // 2
    side = inner != 1 or short
    split = 0
    if n % 2 and op.name != "fft" and factors(n) is not None:
        split = next((r for r in STRAIGHT if n % r == 0), 0)
    tables = _tables(n, m, given, 1 if side else lanes, split)
    block = 1
    if inner != 1:
        fit = SIDE_BYTES // (4 * PART_BYTES * tables.points)
        block = min(max(fit // lanes * lanes, LEAST_SIDE), MOST_SIDE)
        steps = (inner, 1, size * inner, inner, 1, made * inner)
    else:  # the lines are columns of one matrix, whose elements lie the other way round
        block = lanes if short else 1
        outer, inner = 1, outer
        steps = (1, size, 0, 1, made, 0)
    form = _Form(
        op.name, given, n % 2 == 1, bool(op.attrs.get("mirrored")),
        op.name == "irfft" or bool(op.attrs.get("inverse")), tables.points != m, side, lanes, split,
        tables.stages,
    )  # fmt: skip
    kernel = Kernel(form.key, f"{op.name}_{given}", lambda e: _Frame(e, form).emit())
    blocks = -(-inner // block)
    scratch = 4 * PART_BYTES * tables.points * block
    bits = struct.unpack("<q", struct.pack("<d", scale_of(op.attrs["scale"], n)))[0]
    alone = outer * blocks == 1  # a long line: one worker's scratch is enough
    args = (
        Address(op.result), Address(op.operands[0]),
        Scratch(scratch) if alone else WorkerScratch(scratch),
        0 if alone else worker_stride(scratch), Pool(tables.rows), Pool(tables.numbers), bits,
        n, m, tables.points, tables.count, inner, block, blocks, *steps,
        tables.roots_at, tables.chirp_at, tables.spectrum_at,
    )  # fmt: skip
    ns = transformed(tables.points) * block * (3.0 if form.chirp else 1.0)
    ns *= (split // 2 + 1) / split if split else 1.0
    return [cut_call(kernel, args, outer * blocks, ns)]


_ARGS = (
    "n", "m", "points", "count", "inner", "block", "blocks",
    "x_step", "x_line", "x_outer", "y_step", "y_line", "y_outer",
    "roots_at", "chirp_at", "spectrum_at",
)  # fmt: skip


class _Frame:
    """A kernel under construction.

    args: result, operand, scratch, bytes of it per worker, rows of the stages, numbers, bits of the
    scale, then `_ARGS`: of x and y the elements from one point to the next, from one line to the
    next, from one row of lines to the next; `inner` lines of a row in `blocks` of `block`.
    """

    def __init__(self, e: Emitter, form: _Form) -> None:
        self.e, self.form = e, form
        b = e.builder
        self.number = memory_type(PART)
        self.y, self.x = (e.pointer_argument(k, form.given) for k in (0, 1))
        base = b.add(e.argument(2), b.mul(e.worker, e.argument(3)))
        self.scratch = b.inttoptr(base, self.number.as_pointer())
        self.rows = e.pointer_argument(4, "i64")
        self.numbers = e.pointer_argument(5, PART)
        self.scale = scale_argument(e, 6, PART)
        self.args = {name: e.argument(7 + k) for k, name in enumerate(_ARGS)}
        self.cells = [e.alloca(self.number.as_pointer()) for _ in range(4)]
        self.transform = emit_stages(e, form.stages, PART)

    def emit(self) -> None:
        e, b, a = self.e, self.e.builder, self.args
        with e.for_range(e.lo, e.hi) as unit:
            row = b.udiv(unit, a["blocks"])
            first = b.mul(b.sub(unit, b.mul(row, a["blocks"])), a["block"])
            rest = b.sub(a["inner"], first)
            width = b.select(b.icmp_signed("<", rest, a["block"]), rest, a["block"])
            width = width if self.form.side else e.index(1)
            for k, cell in enumerate(self.cells):
                part = b.mul(b.mul(a["points"], a["block"]), e.index(k))
                b.store(e.at(self.scratch, part), cell)

            def begin(which: str, real: bool) -> ir.Value:
                at = b.add(b.mul(row, a[f"{which}_outer"]), b.mul(first, a[f"{which}_line"]))
                return at if real else b.mul(at, e.index(2))

            real_x, real_y = self.form.kind == "rfft", self.form.kind == "irfft"
            self._load(e.at(self.x, begin("x", real_x)), width)
            if self.form.chirp:
                self._convolve(width)
            else:
                self._stages(width)
            self._store(e.at(self.y, begin("y", real_y)), width)

    def _stages(self, width: ir.Value) -> None:
        """Transform what the cells point to."""
        self.transform(self.e, self.rows, self.args["count"], self.numbers, self.cells, width)

    def points(self) -> list[ir.Value]:
        """(real parts, imaginary parts), exchanged for an inverse transform."""
        held = [self.e.builder.load(cell) for cell in self.cells[:2]]
        return held[::-1] if self.form.exchanged else held

    def table(self, name: str, size: ir.Value) -> list[ir.Value]:
        """(real parts, imaginary parts) of a table of so many numbers."""
        at = self.args[f"{name}_at"]
        return [self.e.at(self.numbers, k) for k in (at, self.e.builder.add(at, size))]

    @contextmanager
    def lines(
        self, name: str, pointers: list[ir.Value], which: str, width: ir.Value, *more: ir.Value
    ) -> Iterator[tuple[_Lines, list[ir.Value], list[ir.Value]]]:
        """A loop function over the lines of a block: (the lines, its pointers, further values).
        which: whose steps they have, "x" or "y"."""
        steps = [self.args[f"{which}_step"], self.args[f"{which}_line"]]
        scalars = [self.args["n"], self.args["m"], width, *steps, *more]
        with self.e.loop_function(name, pointers, scalars) as (f, held, values):
            yield _Lines(f, self.form.side, *values[:5]), held, values[5:]

    def roots(self) -> list[ir.Value]:
        """The roots that untangle (n even) or that the parts of a split transform are times."""
        b, e, m, split = self.e.builder, self.e, self.args["m"], self.form.split
        if split:
            return self.table("roots", b.mul(b.udiv(m, e.index(split)), e.index(split // 2)))
        return [] if self.form.odd else self.table("roots", b.add(m, e.index(1)))

    def _load(self, x: ir.Value, width: ir.Value) -> None:
        form, pointers = self.form, [x, *self.points()]
        if form.kind == ("rfft" if form.split else "irfft"):
            pointers += self.roots()
        with self.lines("load", pointers, "x", width) as (lines, held, _):
            load = _SPLIT_LOADS[form.kind] if form.split else _LOADS[form.kind, form.odd]
            load(lines, form, held)

    def _store(self, y: ir.Value, width: ir.Value) -> None:
        form, pointers = self.form, [y, *self.points()]
        if form.kind == ("irfft" if form.split else "rfft"):
            pointers += self.roots()
        with self.lines("store", pointers, "y", width, self.scale) as (lines, held, (scale,)):
            store = _SPLIT_STORES[form.kind] if form.split else _STORES[form.kind, form.odd]
            store(lines, form, held, scale)

    def _convolve(self, width: ir.Value) -> None:
        """The transform of m points by two of `points`."""
        a, b = self.args, self.e.builder
        points = a["points"]
        chirp, spectrum = self.table("chirp", a["m"]), self.table("spectrum", points)
        plain = [b.load(cell) for cell in self.cells[:2]]
        with self.lines("chirp", [*plain, *chirp], "x", width, points) as (lines, held, (size,)):
            f = lines.f
            with lines.each(f.index(0), lines.m) as j:
                _multiply(lines, j, held, exchange=False)
            with lines.each(lines.m, size) as j:
                for pointer in held[:2]:
                    zero = ir.Constant(self.number, 0.0)
                    f.builder.store(zero, f.at(pointer, lines.at(j)))
        self._stages(width)
        plain = [b.load(cell) for cell in self.cells[:2]]
        with self.lines("spectrum", [*plain, *spectrum], "x", width, points) as (
            lines, held, (size,),
        ), lines.each(lines.f.index(0), size) as j:  # fmt: skip
            _multiply(lines, j, held, exchange=True)
        self._stages(width)
        plain = [b.load(cell) for cell in self.cells[:2]]
        with (
            self.lines("unchirp", [*plain[::-1], *chirp], "x", width) as (lines, held, _),
            lines.each(lines.f.index(0), lines.m) as j,
        ):
            _multiply(lines, j, held, exchange=True)


class _Lines:
    """The lines of a block: `width` of them, in scratch point after point, each point of all."""

    def __init__(
        self, f: Emitter, side: bool, n: ir.Value, m: ir.Value, width: ir.Value, step: ir.Value,
        line: ir.Value,
    ) -> None:  # fmt: skip
        self.f, self.side, self.n, self.m, self.width = f, side, n, m, width
        self.step, self.line, self.column = step, line, f.index(0)

    @contextmanager
    def each(self, start: ir.Value, stop: ir.Value) -> Iterator[ir.Value]:
        """For the points [start, stop) of all lines."""
        with self.f.for_range(start, stop) as j:
            if not self.side:
                yield j
                return
            with self.f.for_range(self.f.index(0), self.width) as self.column:
                yield j

    @contextmanager
    def once(self) -> Iterator[None]:
        """For all lines."""
        with self.each(self.f.index(0), self.f.index(1)):
            yield

    def at(self, j: ir.Value) -> ir.Value:
        """Where point j is in scratch."""
        b = self.f.builder
        return b.add(b.mul(j, self.width), self.column) if self.side else j

    def place(self, k: ir.Value) -> ir.Value:
        """Which element number k of the line is in the operand or result."""
        if not self.side:
            return k
        b = self.f.builder
        return b.add(b.mul(k, self.step), b.mul(self.column, self.line))

    # ------------------------------------------------------------------------------------- elements
    def get(self, pointers: list[ir.Value], j: ir.Value) -> Pair:
        """Point j in scratch."""
        re, im = (self.f.builder.load(self.f.at(p, self.at(j))) for p in pointers[:2])
        return re, im

    def put(self, pointers: list[ir.Value], j: ir.Value, re: ir.Value, im: ir.Value) -> None:
        for pointer, value in zip(pointers, (re, im), strict=True):
            self.f.builder.store(value, self.f.at(pointer, self.at(j)))

    def root(self, pointers: list[ir.Value], k: ir.Value) -> Pair:
        """Number k of a table."""
        re, im = (self.f.builder.load(self.f.at(p, k)) for p in pointers)
        return re, im

    def _pair(self, array: ir.Value, k: ir.Value) -> list[ir.Value]:
        b = self.f.builder
        at = b.mul(self.place(k), self.f.index(2))
        return [self.f.at(array, at), self.f.at(array, b.add(at, self.f.index(1)))]

    def read(self, array: ir.Value, k: ir.Value) -> Pair:
        """Complex element k of the operand."""
        re, im = map(self._widened, self._pair(array, k))
        return re, im

    def write(self, array: ir.Value, k: ir.Value, re: ir.Value, im: ir.Value) -> None:
        for pointer, value in zip(self._pair(array, k), (re, im), strict=True):
            self._store(value, pointer)

    def read_real(self, array: ir.Value, k: ir.Value) -> ir.Value:
        """Real element k of the operand."""
        return self._widened(self.f.at(array, self.place(k)))

    def write_real(self, array: ir.Value, k: ir.Value, value: ir.Value) -> None:
        """Real element k of the result becomes this."""
        self._store(value, self.f.at(array, self.place(k)))

    def _widened(self, pointer: ir.Value) -> ir.Value:
        b, value, wide = self.f.builder, self.f.builder.load(pointer), memory_type(PART)
        return value if value.type == wide else b.fpext(value, wide)

    def _store(self, value: ir.Value, pointer: ir.Value) -> None:
        b, kind = self.f.builder, pointer.type.pointee
        b.store(value if value.type == kind else b.fptrunc(value, kind), pointer)


def _multiply(lines: _Lines, j: ir.Value, held: list[ir.Value], exchange: bool) -> None:
    """Multiply point j by number j of the table; exchange: then exchange its parts."""
    b = lines.f.builder
    (re, im), (c, s) = lines.get(held, j), lines.root(held[2:], j)
    made = b.fsub(b.fmul(re, c), b.fmul(im, s)), b.fadd(b.fmul(re, s), b.fmul(im, c))
    lines.put(held[:2], j, *(made[::-1] if exchange else made))


def _untangled(lines: _Lines, x: Pair, mirror: Pair, root: Pair) -> Pair:
    """x + conj(mirror) - i root (x - conj(mirror))"""
    b, (ar, ai), (br, bi), (c, s) = lines.f.builder, x, mirror, root
    dr, di = b.fsub(ar, br), b.fadd(ai, bi)
    re = b.fadd(b.fadd(ar, br), b.fadd(b.fmul(c, di), b.fmul(s, dr)))
    return re, b.fsub(b.fsub(ai, bi), b.fsub(b.fmul(c, dr), b.fmul(s, di)))


# ------------------------------------------------------------------------------------------- loads
def _load_fft(lines: _Lines, form: _Form, held: list[ir.Value]) -> None:
    with lines.each(lines.f.index(0), lines.m) as j:
        lines.put(held[1:], j, *lines.read(held[0], j))


def _load_pairs(lines: _Lines, form: _Form, held: list[ir.Value]) -> None:
    """Two neighbours are a complex number."""
    f, b = lines.f, lines.f.builder
    with lines.each(f.index(0), lines.m) as j:
        first = b.mul(j, f.index(2))
        second = b.add(first, f.index(1))
        lines.put(held[1:], j, *(lines.read_real(held[0], k) for k in (first, second)))


def _load_real(lines: _Lines, form: _Form, held: list[ir.Value]) -> None:
    zero = ir.Constant(memory_type(PART), 0.0)
    with lines.each(lines.f.index(0), lines.m) as j:
        lines.put(held[1:], j, lines.read_real(held[0], j), zero)


def _load_half(lines: _Lines, form: _Form, held: list[ir.Value]) -> None:
    """The spectrum of n / 2 complex numbers, two neighbours each, from half that of n real ones."""
    f, b, h = lines.f, lines.f.builder, lines.m
    x, scratch, table = held[0], held[1:3], held[3:]
    weight = ir.Constant(memory_type(PART), 1.0 if form.mirrored else 0.5)
    with lines.once():
        (first, _), (last, _) = lines.read(x, f.index(0)), lines.read(x, h)
        lines.put(scratch, f.index(0), b.fadd(first, last), b.fsub(first, last))
    with lines.each(f.index(1), h) as k:
        c, s = lines.root(table, k)
        root = b.fneg(c), s  # -conj(w**k)
        re, im = _untangled(lines, lines.read(x, k), lines.read(x, b.sub(h, k)), root)
        lines.put(scratch, k, b.fmul(re, weight), b.fmul(im, weight))


def _load_hermitian(lines: _Lines, form: _Form, held: list[ir.Value]) -> None:
    """All of the spectrum of n real numbers, n odd."""
    f, b, part = lines.f, lines.f.builder, memory_type(PART)
    weight = ir.Constant(part, 1.0 if form.mirrored else 0.5)
    with lines.once():
        re, _ = lines.read(held[0], f.index(0))
        lines.put(held[1:], f.index(0), re, ir.Constant(part, 0.0))
    with lines.each(f.index(1), b.lshr(b.add(lines.n, f.index(1)), f.index(1))) as k:
        re, im = (b.fmul(v, weight) for v in lines.read(held[0], k))
        lines.put(held[1:], k, re, im)
        lines.put(held[1:], b.sub(lines.n, k), re, b.fneg(im))


# ------------------------------------------------------------------------------------------ stores
def _store_fft(lines: _Lines, form: _Form, held: list[ir.Value], scale: ir.Value) -> None:
    b = lines.f.builder
    with lines.each(lines.f.index(0), lines.m) as k:
        lines.write(held[0], k, *(b.fmul(v, scale) for v in lines.get(held[1:], k)))


def _store_half(lines: _Lines, form: _Form, held: list[ir.Value], scale: ir.Value) -> None:
    """Elements 0 to n / 2 of the spectrum of n real numbers, from that of n / 2 complex ones."""
    f, b, h = lines.f, lines.f.builder, lines.m
    y, scratch, table = held[0], held[1:3], held[3:]
    zero = ir.Constant(memory_type(PART), 0.0)
    between = scale if form.mirrored else b.fmul(scale, ir.Constant(scale.type, 0.5))
    with lines.once():
        re, im = lines.get(scratch, f.index(0))
        lines.write(y, f.index(0), b.fmul(b.fadd(re, im), scale), zero)
        lines.write(y, h, b.fmul(b.fsub(re, im), scale), zero)
    with lines.each(f.index(1), h) as k:
        pair = lines.get(scratch, k), lines.get(scratch, b.sub(h, k))
        re, im = _untangled(lines, *pair, lines.root(table, k))
        lines.write(y, k, b.fmul(re, between), b.fmul(im, between))


def _store_first(lines: _Lines, form: _Form, held: list[ir.Value], scale: ir.Value) -> None:
    """Elements 0 to n // 2 of a spectrum, n odd."""
    f, b = lines.f, lines.f.builder
    between = b.fmul(scale, ir.Constant(scale.type, 2.0 if form.mirrored else 1.0))
    with lines.once():
        re, _ = lines.get(held[1:], f.index(0))
        lines.write(held[0], f.index(0), b.fmul(re, scale), ir.Constant(scale.type, 0.0))
    with lines.each(f.index(1), b.lshr(b.add(lines.n, f.index(1)), f.index(1))) as k:
        lines.write(held[0], k, *(b.fmul(v, between) for v in lines.get(held[1:], k)))


def _store_pairs(lines: _Lines, form: _Form, held: list[ir.Value], scale: ir.Value) -> None:
    f, b = lines.f, lines.f.builder
    with lines.each(f.index(0), lines.m) as j:
        first = b.mul(j, f.index(2))
        places = first, b.add(first, f.index(1))
        for value, place in zip(lines.get(held[1:], j), places, strict=True):
            lines.write_real(held[0], place, b.fmul(value, scale))


def _store_real(lines: _Lines, form: _Form, held: list[ir.Value], scale: ir.Value) -> None:
    b = lines.f.builder
    with lines.each(lines.f.index(0), lines.m) as j:
        value, _ = lines.get(held[1:], j)
        lines.write_real(held[0], j, b.fmul(value, scale))


#: By the op, and whether n is odd.
_LOADS = {
    ("fft", False): _load_fft,
    ("fft", True): _load_fft,
    ("rfft", False): _load_pairs,
    ("rfft", True): _load_real,
    ("irfft", False): _load_half,
    ("irfft", True): _load_hermitian,
}
_STORES = {
    ("fft", False): _store_fft,
    ("fft", True): _store_fft,
    ("rfft", False): _store_half,
    ("rfft", True): _store_first,
    ("irfft", False): _store_pairs,
    ("irfft", True): _store_real,
}


# ------------------------------------------------------------- n real numbers in r parts, n odd
def _parts(lines: _Lines, form: _Form) -> tuple[ir.Value, ir.Value, int]:
    """The points of a part, half of them (rounded up), and how many parts are transformed."""
    b, f = lines.f.builder, lines.f
    far = b.udiv(lines.n, f.index(form.split))
    return far, b.lshr(b.add(far, f.index(1)), f.index(1)), form.split // 2 + 1


def _sum(f: Emitter, j: ir.Value, times: int, more: int) -> ir.Value:
    return f.builder.add(f.builder.mul(j, f.index(times)), f.index(more))


def _split_root(lines: _Lines, table: list[ir.Value], c: int, far: ir.Value, p: ir.Value) -> Pair:
    """exp(-2 pi i p c / n)"""
    b = lines.f.builder
    return lines.root(table, b.add(b.mul(lines.f.index(c - 1), far), p))


def _load_split(lines: _Lines, form: _Form, held: list[ir.Value]) -> None:
    """The first stage, of which the parts beyond half of r would be conjugates."""
    f, b, r = lines.f, lines.f.builder, form.split
    (far, _, kept), v = _parts(lines, form), Points(f, PART, 1)
    x, scratch, table = held[0], held[1:3], held[3:]
    with lines.each(f.index(0), far) as p:
        places = [b.add(p, b.mul(f.index(i), far)) for i in range(r)]
        for c, part in enumerate(v.half_spectrum([lines.read_real(x, k) for k in places])):
            made = v.times(part, _split_root(lines, table, c, far, p)) if c else part
            lines.put(scratch, _sum(f, p, kept, c), *made)


def _store_split(lines: _Lines, form: _Form, held: list[ir.Value], scale: ir.Value) -> None:
    """Elements 0 to n // 2 of a spectrum: each part's first half, and of its second the conjugates
    from the end on."""
    f, b, r = lines.f, lines.f.builder, form.split
    far, middle, kept = _parts(lines, form)
    between = b.fmul(scale, ir.Constant(scale.type, 2.0 if form.mirrored else 1.0))

    def write(place: ir.Value, from_: ir.Value, turned: bool) -> None:
        re, im = (b.fmul(v, between) for v in lines.get(held[1:], from_))
        lines.write(held[0], place, re, b.fneg(im) if turned else im)

    with lines.each(f.index(0), middle) as j:
        for c in range(kept):
            write(_sum(f, j, r, c), _sum(f, j, kept, c), False)
    with lines.each(middle, far) as j:
        for c in range(1, kept):
            write(b.sub(lines.n, _sum(f, j, r, c)), _sum(f, j, kept, c), True)
    with lines.once():
        re, _ = lines.get(held[1:], f.index(0))
        lines.write(held[0], f.index(0), b.fmul(re, scale), ir.Constant(scale.type, 0.0))


def _load_split_half(lines: _Lines, form: _Form, held: list[ir.Value]) -> None:
    """The parts that `_store_split` writes."""
    f, b, r, kind = lines.f, lines.f.builder, form.split, memory_type(PART)
    far, middle, kept = _parts(lines, form)
    weight = ir.Constant(kind, 1.0 if form.mirrored else 0.5)

    def read(place: ir.Value, to: ir.Value, turned: bool) -> None:
        re, im = (b.fmul(v, weight) for v in lines.read(held[0], place))
        lines.put(held[1:], to, re, b.fneg(im) if turned else im)

    with lines.each(f.index(0), middle) as j:
        for c in range(kept):
            read(_sum(f, j, r, c), _sum(f, j, kept, c), False)
    with lines.each(middle, far) as j:
        for c in range(kept):
            read(b.sub(lines.n, _sum(f, j, r, c)), _sum(f, j, kept, c), True)
    with lines.once():
        re, _ = lines.read(held[0], f.index(0))
        lines.put(held[1:], f.index(0), re, ir.Constant(kind, 0.0))


def _store_split_real(lines: _Lines, form: _Form, held: list[ir.Value], scale: ir.Value) -> None:
    """The last stage: real numbers of r parts of a spectrum, half of which are conjugates."""
    f, b = lines.f, lines.f.builder
    (far, _, kept), v = _parts(lines, form), Points(f, PART, 1)
    y, scratch, table = held[0], held[1:3], held[3:]
    with lines.each(f.index(0), far) as p:
        parts = [lines.get(scratch, _sum(f, p, kept, c)) for c in range(kept)]
        for c in range(1, kept):
            re, im = _split_root(lines, table, c, far, p)
            parts[c] = v.times(parts[c], (re, b.fneg(im)))
        for i, value in enumerate(v.real_numbers(parts)):
            lines.write_real(y, b.add(p, b.mul(f.index(i), far)), b.fmul(value, scale))


_SPLIT_LOADS = {"rfft": _load_split, "irfft": _load_split_half}
_SPLIT_STORES = {"rfft": _store_split, "irfft": _store_split_real}
