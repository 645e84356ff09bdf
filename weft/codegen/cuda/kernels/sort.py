"""sort, argsort, searchsorted: stable merge sort, in the CPU's order (`codegen/kernels/sort.py`).

Runs of `RUN` elements are sorted by counting what comes before each; then, launch by launch, pairs
of runs become one: an element's place is its own in its run and, by binary search, that in the
other one. A thread has an element. Elements move as they lie in memory, with their positions."""

from __future__ import annotations

from weft.codegen.call import Address, Arg, Scratch
from weft.codegen.cuda.kernels.axes import axis_sizes, computed_dtype, count_of
from weft.codegen.cuda.source.dtypes import FLOATS, load, loaded, nbytes
from weft.codegen.cuda.source.kernel import Launch
from weft.codegen.cuda.source.writer import Source, index_dtype
from weft.ir.dataclass import dataclass
from weft.ir.graph import Operation

RUN = 256


def comes_before(dtype: str, a: str, b: str, descending: bool = False) -> str:
    """Whether register value `a` is before `b`, and not equal: false < true, NaN is largest."""
    if descending:
        a, b = b, a
    if dtype == "bool":
        return f"(not {a}) and {b}"
    if dtype in FLOATS:
        return f"{a} < {b} or ({b} != {b} and {a} == {a})"
    return f"{a} < {b}"


@dataclass(frozen=True, slots=True)
class Elements:
    """Elements of `dtype` from element `first` of a buffer on."""

    arg: Arg
    dtype: str
    first: int = 0

    def parameter(self, s: Source, hint: str) -> tuple[str, str]:
        """(the pointer, its first element)."""
        pointer = s.pointer(hint, self.dtype, self.arg)
        return pointer, s.number(f"{hint}_first", self.first) if self.first else s.const(0)


@dataclass(frozen=True, slots=True)
class _Pair:
    """Elements, and their positions along the axis; None: nobody wants them (of what is read:
    they are where they were)."""

    keys: Elements | None
    places: Elements | None


def sort_launches(op: Operation) -> list[Launch]:
    """sort or argsort: a launch, and one for each doubling of a run until it is all of the axis."""
    x, positions = op.operands[0], op.name == "argsort"
    outer, n, inner = axis_sizes(op)
    count = outer * n * inner
    if not count:
        return []
    descending = bool(op.attrs["descending"])
    sorter = _Sorter(op.name, computed_dtype(op, x), n, inner, count, descending, positions)
    passes = passes_of(n)
    held = [sorter.scratch(k, min(passes, 2)) for k in range(2)]
    result = Address(op.result)
    final = (
        _Pair(None, Elements(result, "i64"))
        if positions
        else _Pair(Elements(result, sorter.dtype), None)
    )
    source = _Pair(Elements(Address(x), sorter.dtype), None)
    launches = []
    for k in range(passes + 1):
        target = final if k == passes else held[k % 2]
        launches.append(sorter.pass_of(k, source, target))
        source = target
    return launches


def passes_of(n: int) -> int:
    """How many launches follow the first one, for rows of `n`."""
    passes = 0
    while RUN << passes < n:  # sizes that are traced (`ir/sizes.py`) are compared, no more
        passes += 1
    return passes


def keys_in_order(n: int, memory: Scratch) -> tuple[list[Launch], int]:
    """Launches that sort the `n` u64 at the start of scratch memory of twice as many; and the
    number of the element from which on they lie there then."""
    sorter = _Sorter("order", "u64", n, 1, n)
    halves = [_Pair(Elements(memory, "u64", k * n), None) for k in range(2)]
    passes = passes_of(n) + 1
    launches = [sorter.pass_of(k, halves[k % 2], halves[(k + 1) % 2]) for k in range(passes)]
    return launches, passes % 2 * n


@dataclass(eq=False)
class _Sorter:
    """Sorts `count` elements of `dtype`, in rows of `n` that are `inner` elements apart."""

    name: str
    dtype: str
    n: int
    inner: int
    count: int
    descending: bool = False
    positions: bool = False

    def scratch(self, k: int, arrays: int) -> _Pair:
        """One of the two pairs of arrays between which passes go to and fro."""
        keys = -(-self.count * nbytes(self.dtype) // 64) * 64
        places = self.count * 8 if self.positions else 0
        memory = Scratch(arrays * (keys + places))
        at = k * (keys + places)
        held = Elements(memory, "i64", (at + keys) // 8) if places else None
        return _Pair(Elements(memory, self.dtype, at // nbytes(self.dtype)), held)

    def pass_of(self, k: int, source: _Pair, target: _Pair) -> Launch:
        """Pass 0 sorts runs; pass k merges runs of RUN * 2 ** (k - 1)."""
        index = index_dtype(2 * self.count)
        way = ("merge" if k else "runs") + "_descending" * self.descending
        asked = "_to_places" * (target.keys is None) + "_first" * (source.places is None)
        s = self.s = Source(f"{self.name}_{self.dtype}_{way}{asked}_{index}", index)
        assert source.keys is not None
        self.keys, self.first = source.keys.parameter(s, "keys")
        self.length, self.width = s.number("n", self.n), s.number("inner", self.inner)
        size = s.number("count", self.count)
        run = s.const(RUN) if k == 0 else s.number("run", RUN << (k - 1))
        i = s.let(s.add(s.mul(s.block_index, s.const(s.threads)), s.thread), "i")
        with s.block(f"if {i} < {size}"):
            outer, j, column = s.split(i, ["", self.length, self.width])
            base = s.mul(s.mul(outer, self.length), self.width)
            self.base = s.let(s.add(base, column), "base")
            raw = s.let(f"{self.keys}[{s.add(self.first, i)}]", "raw")
            mine = s.let(loaded(self.dtype, raw), "mine")
            start = s.let(s.mul(s.div(j, run), run), "start")
            place = self._counted(mine, j, start) if k == 0 else self._merged(mine, j, start, run)
            at = s.let(s.add(self.base, s.mul(place, self.width)), "at")
            if target.keys is not None:
                pointer, first = target.keys.parameter(s, "to")
                s.line(f"{pointer}[{s.add(first, at)}] = {raw}")
            if target.places is not None:
                pointer, first = target.places.parameter(s, "places")
                s.line(f"{pointer}[{s.add(first, at)}] = {self._position(source, i, j)}")
        return s.launch(-(-self.count // s.threads))

    def _position(self, source: _Pair, i: str, j: str) -> str:
        if source.places is None:
            return f"i64({j})"
        pointer, first = source.places.parameter(self.s, "given")
        return f"{pointer}[{self.s.add(first, i)}]"

    def _key(self, j: str) -> str:
        """The element at position j of the row."""
        s = self.s
        place = s.add(self.first, s.add(self.base, s.mul(j, self.width)))
        return s.let(load(self.dtype, self.keys, place), "key")

    def _before(self, a: str, b: str) -> str:
        return comes_before(self.dtype, a, b, self.descending)

    def _least(self, a: str, b: str, hint: str) -> str:
        return self.s.let(f"{a} if {a} < {b} else {b}", hint)

    def _counted(self, mine: str, j: str, start: str) -> str:
        """The place of an element in its run: after all that come before it."""
        s = self.s
        end = self._least(s.let(s.add(start, s.const(RUN)), "end"), self.length, "stop")
        place = s.let(start, "place")
        with s.loop(start, end, s.const(1), "q") as q:
            key = self._key(q)
            tie = f"{q} < {j} and not ({self._before(mine, key)})"
            with s.block(f"if ({self._before(key, mine)}) or ({tie})"):
                s.line(f"{place} = {s.add(place, s.const(1))}")
        return place

    def _merged(self, mine: str, j: str, start: str, run: str) -> str:
        """The place of an element in its pair of runs: its own, and how many of the other run come
        before it; of equal ones those of the first run do."""
        s = self.s
        two = s.mul(run, s.const(2))
        pair = s.let(s.mul(s.div(j, two), two), "pair")
        second = s.let(f"{start} != {pair}", "second")  # whether it is in the pair's second run
        middle = self._least(s.let(s.add(pair, run), "middle"), self.length, "middle")
        last = self._least(s.let(s.add(pair, two), "last"), self.length, "last")
        low = s.let(f"{pair} if {second} else {middle}", "low")
        high = s.let(f"{middle} if {second} else {last}", "high")
        other = s.let(low, "other")
        with s.block(f"while {low} < {high}"):
            half = s.let(s.add(low, s.div(s.sub(high, low), s.const(2))), "half")
            key = self._key(half)
            tied = f"{second} and not ({self._before(mine, key)})"
            with s.block(f"if ({self._before(key, mine)}) or ({tied})"):
                s.line(f"{low} = {s.add(half, s.const(1))}")
            with s.block("else"):
                s.line(f"{high} = {half}")
        found = s.let(s.sub(low, other), "found")
        own = s.sub(j, start)
        return s.let(s.add(s.add(pair, own), found), "place")


def searchsorted_launches(op: Operation) -> list[Launch]:
    """A binary search for each value."""
    data, values = op.operands
    count = count_of(values)
    if not count:
        return []
    dtype, side = computed_dtype(op, data), op.attrs["side"]
    index = index_dtype(count_of(data), count)
    s = Source(f"searchsorted_{dtype}_{side}_{index}", index)
    out = s.pointer("out", "i64", Address(op.result))
    keys, given = s.pointer("keys", dtype, Address(data)), s.pointer("x", dtype, Address(values))
    size, n = s.number("count", count), s.number("n", count_of(data))
    i = s.let(s.add(s.mul(s.block_index, s.const(s.threads)), s.thread), "i")
    with s.block(f"if {i} < {size}"):
        mine = s.let(load(dtype, given, i), "mine")
        low, high = s.let(s.const(0), "low"), s.let(n, "high")
        with s.block(f"while {low} < {high}"):
            half = s.let(s.add(low, s.div(s.sub(high, low), s.const(2))), "half")
            key = s.let(load(dtype, keys, half), "key")
            right = comes_before(dtype, mine, key)
            before = comes_before(dtype, key, mine) if side == "left" else f"not ({right})"
            with s.block(f"if {before}"):
                s.line(f"{low} = {s.add(half, s.const(1))}")
            with s.block("else"):
                s.line(f"{high} = {half}")
        s.line(f"{out}[{i}] = i64({low})")
    return [s.launch(-(-count // s.threads))]
