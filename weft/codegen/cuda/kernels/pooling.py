"""Pooling: windowed reductions and their adjoints, a thread for each element of the result.

It goes through what its window sees, or through the windows that see it, always in the same order,
and nothing is written by two threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

from weft.codegen.call import Address
from weft.codegen.cuda.kernels.axes import computed_dtype, count_of, shape_of
from weft.codegen.cuda.source.dtypes import FLOATS, literal, load, register_dtype, stored
from weft.codegen.cuda.source.elementwise import expression, identity
from weft.codegen.cuda.source.kernel import Launch
from weft.codegen.cuda.source.writer import Source, index_dtype
from weft.ir.graph import Operation, Value
from weft.ir.spec import ints_attr

Names = list[str]


class Sliding:
    """Positions o of the small side and taps k meet at p = o * stride + k * dilation - lo of the
    large side (`weft/ir/ops/windows.py`), if that is inside it; one number per axis."""

    def __init__(
        self,
        s: Source,
        op: Operation,
        large: Sequence[int],
        window: Sequence[int],
        small: Sequence[int],
    ) -> None:
        self.s = s

        def numbers(hint: str, sizes: Sequence[int]) -> Names:
            return [s.number(f"{hint}{a}", n) for a, n in enumerate(sizes)]

        self.large, self.window = numbers("large", large), numbers("window", window)
        self.small = numbers("small", small)
        self.strides, self.lo, self.dilation = (
            numbers(name, ints_attr(op.attrs, name)) for name in ("strides", "lo", "dilation")
        )

    @contextmanager
    def taps_of_small(self, at: Sequence[str]) -> Iterator[tuple[Names, Names]]:
        """For each tap that sees something from position `at` of the small side: (tap, where)."""
        with ExitStack() as stack:
            taps, seen = [], []
            for a, o in enumerate(at):
                taps.append(stack.enter_context(self._each(self.window[a], "tap")))
                seen.append(stack.enter_context(self.meeting(a, o, taps[a])))
            yield taps, seen

    @contextmanager
    def taps_of_large(self, at: Sequence[str]) -> Iterator[tuple[Names, Names]]:
        """For each tap that sees position `at` of the large side: (tap, from where)."""
        s = self.s
        with ExitStack() as stack:
            taps, found = [], []
            for a, p in enumerate(at):
                taps.append(stack.enter_context(self._each(self.window[a], "tap")))
                back = s.sub(s.add(p, self.lo[a]), s.mul(taps[a], self.dilation[a]))
                distance = s.let(back, "distance")
                stack.enter_context(s.block(f"if {self._counts(distance)}"))
                o = s.let(s.div(distance, self.strides[a]), "o")
                inside = f"{s.mul(o, self.strides[a])} == {distance} and {o} < {self.small[a]}"
                stack.enter_context(s.block(f"if {inside}"))
                found.append(o)
            yield taps, found

    @contextmanager
    def meeting(self, axis: int, o: str, tap: str) -> Iterator[str]:
        """Where position o and a tap meet along an axis, if that is inside the large side."""
        s = self.s
        place = s.add(s.mul(o, self.strides[axis]), s.mul(tap, self.dilation[axis]))
        p = s.let(s.sub(place, self.lo[axis]), "p")
        with s.block(f"if {self._counts(p)} and {p} < {self.large[axis]}"):
            yield p

    def _counts(self, number: str) -> str:
        """Whether a number is not negative; one of u32 has then wrapped around."""
        return f"{number} < u32({1 << 31})" if self.s.index == "u32" else f"{number} >= i64(0)"

    def _each(self, count: str, hint: str) -> AbstractContextManager[str]:
        return self.s.loop(self.s.const(0), count, self.s.const(1), hint)


def flat(s: Source, indices: Sequence[str], extents: Sequence[str]) -> str:
    """The row-major number of an element; the first extent is of no matter."""
    place = indices[0]
    for index, extent in zip(indices[1:], extents[1:], strict=True):
        place = s.add(s.mul(place, extent), index)
    return place


class _Pool:
    """A kernel with a thread for each element of `result`; `i` is its number. The large side has
    the spatial shape of `large`, the small one that of `small`."""

    def __init__(self, op: Operation, large: Value, small: Value) -> None:
        self.op = op
        self.dtype = computed_dtype(op, op.result)
        self.kept = register_dtype(self.dtype)
        values = (*op.operands, op.result)
        count = count_of(op.result)
        index = index_dtype(*map(count_of, values))
        s = self.s = Source(f"{op.name}_{self.dtype}_{len(shape_of(large)) - 2}d_{index}", index)
        self.out = s.pointer("out", self.dtype, Address(op.result))
        self.given = [s.pointer(f"x{k}", self.dtype, Address(v)) for k, v in enumerate(op.operands)]
        self.channels = s.number("channels", shape_of(large)[-1])
        shapes = [shape_of(v)[1:-1] for v in (large, small)]
        self.sliding = Sliding(s, op, shapes[0], ints_attr(op.attrs, "window"), shapes[1])
        self.count, self.size = s.number("count", count), count
        self.i = s.let(s.add(s.mul(s.block_index, s.const(s.threads)), s.thread), "i")

    def of_large(self, n: str, at: Sequence[str], c: str) -> str:
        extents = ["", *self.sliding.large, self.channels]
        return flat(self.s, [n, *at, c], extents)

    def of_small(self, n: str, at: Sequence[str], c: str) -> str:
        extents = ["", *self.sliding.small, self.channels]
        return flat(self.s, [n, *at, c], extents)

    def launch(self, side: Names, element: Callable[[str, Names, str], str]) -> list[Launch]:
        """`element` of (batch, positions, channel) gives the register value of the result."""
        s = self.s
        if not self.size:
            return []
        with s.block(f"if {self.i} < {self.count}"):
            n, *at, c = s.split(self.i, ["", *side, self.channels])
            value = element(n, at, c)
            s.line(f"{self.out}[{self.i}] = {stored(self.dtype, value)}")
        return [s.launch(-(-self.size // s.threads))]

    def sum(self, op: str, total: str, value: str) -> None:
        text = expression(op, self.dtype, self.dtype, [total, value])
        self.s.line(f"{total} = {text}")

    def load(self, k: int, place: str) -> str:
        return self.s.let(load(self.dtype, self.given[k], place), "value")

    def search(self, n: str, at: Sequence[str], c: str) -> tuple[str, str, str]:
        """The largest element that a window sees, the number of the tap that first saw it (of all
        taps: none), and where it is."""
        s = self.s
        none = "i32(-1)"
        best = s.let(identity("max", self.kept), "best")
        number, where = s.let(none, "number"), s.let(s.const(0), "where")
        with self.sliding.taps_of_small(at) as (taps, seen):
            place = s.let(self.of_large(n, seen, c), "place")
            value = self.load(0, place)
            better = f"{value} > {best} or {number} < i32(0)"
            if self.dtype in FLOATS:
                better += f" or ({value} != {value} and {best} == {best})"
            with s.block(f"if {better}"):
                s.line(f"{best} = {value}")
                s.line(f"{number} = {self.number(taps)}")
                s.line(f"{where} = {place}")
        return best, number, where

    def number(self, taps: Sequence[str]) -> str:
        """The row-major number of a tap."""
        return f"i32({flat(self.s, taps, self.sliding.window)})"


def window_sum_launches(op: Operation) -> list[Launch]:
    """Sum over each window."""
    w = _Pool(op, op.operands[0], op.result)

    def element(n: str, at: Names, c: str) -> str:
        total = w.s.let(literal(w.kept, 0), "total")
        with w.sliding.taps_of_small(at) as (_, seen):
            w.sum("add", total, w.load(0, w.of_large(n, seen, c)))
        return total

    return w.launch(w.sliding.small, element)


def window_spread_launches(op: Operation) -> list[Launch]:
    """Of each element the sum over the windows that see it."""
    w = _Pool(op, op.result, op.operands[0])

    def element(n: str, at: Names, c: str) -> str:
        total = w.s.let(literal(w.kept, 0), "total")
        with w.sliding.taps_of_large(at) as (_, found):
            w.sum("add", total, w.load(0, w.of_small(n, found, c)))
        return total

    return w.launch(w.sliding.large, element)


def window_max_launches(op: Operation) -> list[Launch]:
    """Maximum of each window."""
    w = _Pool(op, op.operands[0], op.result)
    return w.launch(w.sliding.small, lambda n, at, c: w.search(n, at, c)[0])


def window_pick_launches(op: Operation) -> list[Launch]:
    """Operand 1 where operand 0 is largest in each window; 0 where a window sees nothing."""
    w = _Pool(op, op.operands[0], op.result)

    def element(n: str, at: Names, c: str) -> str:
        s = w.s
        _, number, where = w.search(n, at, c)
        picked = s.let(literal(w.kept, 0), "picked")
        with s.block(f"if {number} >= i32(0)"):
            s.line(f"{picked} = {load(w.dtype, w.given[1], where)}")
        return picked

    return w.launch(w.sliding.small, element)


def window_place_launches(op: Operation) -> list[Launch]:
    """Of each element the sum of operand 1 over the windows in which it is the largest."""
    w = _Pool(op, op.result, op.operands[1])

    def element(n: str, at: Names, c: str) -> str:
        s = w.s
        total = s.let(literal(w.kept, 0), "total")
        with w.sliding.taps_of_large(at) as (taps, found):
            mine = s.let(w.number(taps), "mine")
            _, number, _ = w.search(n, found, c)
            with s.block(f"if {number} == {mine}"):
                w.sum("add", total, w.load(1, w.of_small(n, found, c)))
        return total

    return w.launch(w.sliding.large, element)
