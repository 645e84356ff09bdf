"""Convolutions (`weft/ir/ops/conv.py`): tiles (`conv_tiles.py`) where there is enough to multiply;
else, as where each channel is its own group, each result is added up by one thread.

`conv_kernel`, whose sums are long and few, then gives each thread some items of the batch; a second
launch adds those up. 16-bit floats add up in f32. All orders are fixed by the sizes.

What a tap sees beyond the edges takes no part; in tiles it is a 0, which makes NaN of an infinity.
So results that are NaN then are added up anew by one thread each.
"""

from __future__ import annotations

from contextlib import ExitStack

from weft.codegen.call import Address, Scratch
from weft.codegen.cuda.kernel import Launch
from weft.codegen.cuda.others.conv_geometry import Geometry
from weft.codegen.cuda.others.conv_tiles import tiled_launches
from weft.codegen.cuda.others.sizes import computed_dtype, count_of, shape_of
from weft.codegen.cuda.others.windows import Sliding, flat
from weft.codegen.cuda.rows.combine import Partial, combine_launches
from weft.codegen.cuda.scalars.memory import FLOATS, nbytes
from weft.codegen.cuda.scalars.scalar import expression, literal, load, register_dtype, stored
from weft.codegen.cuda.writer import Source, index_dtype
from weft.ir.graph import Operation
from weft.ir.rules import int_attr

#: Sums of a conv_kernel are cut into parts until there are so many threads.
WANTED = 1 << 17


class _Conv:
    """The kernel in the making. x: (batch, large..., inside * groups), w: (window..., inside,
    outside * groups), y: (batch, small..., outside * groups). only_nan: what is not NaN stays."""

    def __init__(self, op: Operation, only_nan: bool = False) -> None:
        self.only_nan = only_nan
        roles = {"conv": "xwy", "conv_input": "ywx", "conv_kernel": "xyw"}[op.name]
        values = dict(zip(roles, (*op.operands, op.result), strict=True))
        self.op, self.dtype = op, computed_dtype(op, op.result)
        self.kept = register_dtype(self.dtype)
        x, w, y = (shape_of(values[r]) for r in "xwy")
        self.batch = x[0]
        self.parts = self._parts() if op.name == "conv_kernel" and not only_nan else 1
        counts = [count_of(v) for v in values.values()]
        index = index_dtype(*counts, count_of(op.result) * self.parts)
        way = "_parts" * (self.parts > 1) + "_nan" * only_nan
        s = self.s = Source(f"{op.name}_{self.dtype}_{len(x) - 2}d{way}_{index}", index)
        size = count_of(op.result) * self.parts
        self.scratch = Scratch(size * nbytes(self.kept))
        target = self.scratch if self.parts > 1 else Address(op.result)
        self.out = s.pointer("out", self.kept if self.parts > 1 else self.dtype, target)
        self.given = {
            r: s.pointer(r, self.dtype, Address(values[r])) for r in "xwy" if r != roles[-1]
        }
        groups = int_attr(op.attrs, "groups")
        self.inside, self.outside = s.number("inside", w[-2]), s.number("outside", w[-1] // groups)
        self.x_channels, self.y_channels = s.number("x_all", x[-1]), s.number("y_all", y[-1])
        self.sliding = Sliding(s, op, x[1:-1], w[:-2], y[1:-1])
        self.count, self.size = s.number("count", size), size
        self.i = s.let(s.add(s.mul(s.block_index, s.const(s.threads)), s.thread), "i")

    def _parts(self) -> int:
        """Parts of the batch."""
        return max(1, min(self.batch, WANTED // max(count_of(self.op.result), 1)))

    def multiply_add(self, total: str, a: str, b: str) -> None:
        s, dtype = self.s, self.kept
        if dtype in ("f32", "f64"):
            s.line(f"{total} = fma_{dtype}({a}, {b}, {total})")
            return
        product = s.let(expression("multiply", dtype, dtype, [a, b]), "product")
        s.line(f"{total} = {expression('add', dtype, dtype, [total, product])}")

    def read(self, role: str, place: str) -> str:
        return self.s.let(load(self.dtype, self.given[role], place), role)

    def x_at(self, n: str, at: list[str], channel: str) -> str:
        return flat(self.s, [n, *at, channel], ["", *self.sliding.large, self.x_channels])

    def y_at(self, n: str, at: list[str], channel: str) -> str:
        return flat(self.s, [n, *at, channel], ["", *self.sliding.small, self.y_channels])

    def w_at(self, taps: list[str], i: str, j: str) -> str:
        extents = [*self.sliding.window, self.inside, self.y_channels]
        return flat(self.s, [*taps, i, j], extents)

    def launch(self) -> list[Launch]:
        """The launches of the whole convolution."""
        s = self.s
        if not self.size:
            return []
        with ExitStack() as stack:
            stack.enter_context(s.block(f"if {self.i} < {self.count}"))
            if self.only_nan:
                made = s.let(load(self.dtype, self.out, self.i), "made")
                stack.enter_context(s.block(f"if {made} != {made}"))
            total = s.let(literal(self.kept, 0), "total")
            {"conv": self._forward, "conv_input": self._input, "conv_kernel": self._kernel}[
                self.op.name
            ](total)
            kept = stored(self.kept if self.parts > 1 else self.dtype, total)
            s.line(f"{self.out}[{self.i}] = {kept}")
        launch = s.launch(-(-self.size // s.threads))
        if self.parts == 1:
            return [launch]
        count, result = count_of(self.op.result), Address(self.op.result)
        partial = Partial("sum", self.dtype, self.kept, count, 0, result)
        return [launch, *combine_launches([partial], self.scratch, self.parts)]

    def _forward(self, total: str) -> None:
        """y[n, o, j]: over taps, then the channels of j's group."""
        s = self.s
        n, *at, j = s.split(self.i, ["", *self.sliding.small, self.y_channels])
        first = s.let(s.mul(s.div(j, self.outside), self.inside), "first")
        with self.sliding.taps_of_small(at) as (taps, seen):
            x = s.let(self.x_at(n, seen, first), "at")
            w = s.let(self.w_at(taps, s.const(0), j), "at")
            with s.loop(s.const(0), self.inside, s.const(1), "c") as c:
                one = self.read("x", s.add(x, c))
                two = self.read("w", s.add(w, s.mul(c, self.y_channels)))
                self.multiply_add(total, one, two)

    def _input(self, total: str) -> None:
        """x[n, p, i]: over the taps that see p, then the channels of i's group."""
        s = self.s
        n, *at, i = s.split(self.i, ["", *self.sliding.large, self.x_channels])
        group = s.let(s.div(i, self.inside), "group")
        own = s.let(s.sub(i, s.mul(group, self.inside)), "own")
        first = s.let(s.mul(group, self.outside), "first")
        with self.sliding.taps_of_large(at) as (taps, found):
            y = s.let(self.y_at(n, found, first), "at")
            w = s.let(self.w_at(taps, own, first), "at")
            with s.loop(s.const(0), self.outside, s.const(1), "c") as c:
                self.multiply_add(total, self.read("y", s.add(y, c)), self.read("w", s.add(w, c)))

    def _kernel(self, total: str) -> None:
        """w[k, i, j]: over the items of a part of the batch, then all positions of the result."""
        s, sliding = self.s, self.sliding
        part, *taps, i, j = s.split(self.i, ["", *sliding.window, self.inside, self.y_channels])
        group = s.div(j, self.outside)
        channel = s.let(s.add(s.mul(group, self.inside), i), "channel")
        run = -(-self.batch // self.parts)
        items = s.number("batch", self.batch)
        first, last = s.const(0), items
        if self.parts > 1:
            each = s.number("run", run)
            first = s.let(s.mul(part, each), "first")
            end = s.let(s.add(first, each), "end")
            last = s.let(f"{end} if {end} < {items} else {items}", "last")
        with s.loop(first, last, s.const(1), "n") as n, ExitStack() as stack:
            places, seen = [], []
            for a, small in enumerate(sliding.small):
                o = stack.enter_context(s.loop(s.const(0), small, s.const(1), "o"))
                seen.append(stack.enter_context(sliding.meeting(a, o, taps[a])))
                places.append(o)
            one = self.read("x", self.x_at(n, seen, channel))
            two = self.read("y", self.y_at(n, places, j))
            self.multiply_add(total, one, two)


def conv_launches(op: Operation) -> list[Launch]:
    """conv, conv_input, conv_kernel. UnsupportedError for complex numbers."""
    geometry = Geometry(op)
    if not geometry.fits:
        return _Conv(op).launch()
    launches = tiled_launches(op, geometry)
    if geometry.sees_nothing and computed_dtype(op, op.result) in FLOATS:
        launches += _Conv(op, only_nan=True).launch()
    return launches
