"""One result of a convolution added up by one thread: over the taps that see something, in order,
then channels, or positions. What is beyond the edges takes no part."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

from weft.codegen.cuda.others.sizes import dtype_of, shape_of
from weft.codegen.cuda.others.windows import Sliding, flat
from weft.codegen.cuda.scalars.scalar import expression, literal, load, register_dtype
from weft.codegen.cuda.writer import Source
from weft.ir.graph import Operation
from weft.ir.type_rules import int_attr

#: What the operands and the result of each op are: x: (batch, large..., inside * groups), w:
#: (window..., inside, outside * groups), y: (batch, small..., outside * groups).
ROLES = {"conv": "xwy", "conv_input": "ywx", "conv_kernel": "xyw"}


class ConvSums:
    """Writes the sums of `op` in the kernel `s`. given: pointers to the operands, by their roles;
    they may be set later, before the first sum."""

    def __init__(self, s: Source, op: Operation, given: Mapping[str, str]) -> None:
        self.s, self.op, self.given = s, op, given
        self.dtype = dtype_of(op.result)
        self.kept = register_dtype(self.dtype)
        values = dict(zip(ROLES[op.name], (*op.operands, op.result), strict=True))
        x, w, y = (shape_of(values[r]) for r in "xwy")
        groups = int_attr(op.attrs, "groups")
        self.batch = x[0]
        self.inside, self.outside = s.number("inside", w[-2]), s.number("outside", w[-1] // groups)
        self.x_channels, self.y_channels = s.number("x_all", x[-1]), s.number("y_all", y[-1])
        self.sliding = Sliding(s, op, x[1:-1], w[:-2], y[1:-1])

    def total(self, i: str, parts: int = 1) -> str:
        """A name for the sum of result `i`; of a `conv_kernel` in parts for that of [part, result]
        `i`."""
        total = self.s.let(literal(self.kept, 0), "total")
        if self.op.name == "conv":
            self._forward(total, i)
        elif self.op.name == "conv_input":
            self._input(total, i)
        else:
            self._kernel(total, i, parts)
        return total

    def _multiply_add(self, total: str, a: str, b: str) -> None:
        s, dtype = self.s, self.kept
        if dtype in ("f32", "f64"):
            s.line(f"{total} = fma_{dtype}({a}, {b}, {total})")
            return
        product = s.let(expression("multiply", dtype, dtype, [a, b]), "product")
        s.line(f"{total} = {expression('add', dtype, dtype, [total, product])}")

    def _read(self, role: str, place: str) -> str:
        return self.s.let(load(self.dtype, self.given[role], place), role)

    def _x_at(self, n: str, at: list[str], channel: str) -> str:
        return flat(self.s, [n, *at, channel], ["", *self.sliding.large, self.x_channels])

    def _y_at(self, n: str, at: list[str], channel: str) -> str:
        return flat(self.s, [n, *at, channel], ["", *self.sliding.small, self.y_channels])

    def _w_at(self, taps: list[str], i: str, j: str) -> str:
        extents = [*self.sliding.window, self.inside, self.y_channels]
        return flat(self.s, [*taps, i, j], extents)

    def _forward(self, total: str, i: str) -> None:
        """y[n, o, j]: over taps, then the channels of j's group."""
        s = self.s
        n, *at, j = s.split(i, ["", *self.sliding.small, self.y_channels])
        first = s.let(s.mul(s.div(j, self.outside), self.inside), "first")
        with self.sliding.taps_of_small(at) as (taps, seen):
            x = s.let(self._x_at(n, seen, first), "at")
            w = s.let(self._w_at(taps, s.const(0), j), "at")
            with s.loop(s.const(0), self.inside, s.const(1), "c") as c:
                one = self._read("x", s.add(x, c))
                two = self._read("w", s.add(w, s.mul(c, self.y_channels)))
                self._multiply_add(total, one, two)

    def _input(self, total: str, i: str) -> None:
        """x[n, p, i]: over the taps that see p, then the channels of i's group."""
        s = self.s
        n, *at, channel = s.split(i, ["", *self.sliding.large, self.x_channels])
        group = s.let(s.div(channel, self.inside), "group")
        own = s.let(s.sub(channel, s.mul(group, self.inside)), "own")
        first = s.let(s.mul(group, self.outside), "first")
        with self.sliding.taps_of_large(at) as (taps, found):
            y = s.let(self._y_at(n, found, first), "at")
            w = s.let(self._w_at(taps, own, first), "at")
            with s.loop(s.const(0), self.outside, s.const(1), "c") as c:
                self._multiply_add(
                    total, self._read("y", s.add(y, c)), self._read("w", s.add(w, c))
                )

    def _kernel(self, total: str, i: str, parts: int) -> None:
        """w[k, i, j]: over the items of a part of the batch, then all positions of the result."""
        s, sliding = self.s, self.sliding
        part, *taps, own, j = s.split(i, ["", *sliding.window, self.inside, self.y_channels])
        group = s.div(j, self.outside)
        channel = s.let(s.add(s.mul(group, self.inside), own), "channel")
        run = -(-self.batch // parts)
        items = s.number("batch", self.batch)
        first, last = s.const(0), items
        if parts > 1:
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
            one = self._read("x", self._x_at(n, seen, channel))
            two = self._read("y", self._y_at(n, places, j))
            self._multiply_add(total, one, two)
